"""Membership: who is in the cluster, who has which name, and proof that a process has ended. Small
programs over the store.
"""
