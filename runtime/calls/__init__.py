"""Calls: one request and its one outcome, seen from the caller's side (outgoing) and from the
actor's (incoming).
"""
