"""Groups: which actors are in them, kept in the store under their nodes' leases, and followed by
the nodes that ask.
"""
