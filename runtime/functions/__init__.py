"""Functions: calls of importable functions in worker processes of the cluster.

A caller (`caller`) names a function by module and name (`named`), chooses a node, and asks its
service `@functions` (`service`). That lends each call one worker process (`worker`), out of a pool
that grows on demand and shrinks when it is idle (`pool`, which decides and does no I/O).
"""
