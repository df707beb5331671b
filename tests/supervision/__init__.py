"""Supervisors over the nodes of a cluster."""
