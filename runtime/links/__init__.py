"""Links: ordered, resumable sessions between two node incarnations, and the connections
below them.
"""
