"""The dashboard: pages about a running cluster, served by a process of its own that is a client of
the cluster. It asks only while a page is open, and the same for fifty pages as for one.
"""
