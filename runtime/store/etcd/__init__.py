"""etcd as the coordination store: for clusters that must outlast any of their nodes.

Tested with etcd 3.4.23, one member and three; only calls that 3.5 and 3.6 have as well are used,
through the JSON gateway that every etcd serves
(https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway).
"""
