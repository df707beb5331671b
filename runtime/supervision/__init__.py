"""Supervision: carries out, over the nodes of a cluster, what the machine in
`actors.restarts` decides.
"""
