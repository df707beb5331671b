"""The coordination store: one interface, its implementations, and how other nodes reach the
embedded one.
"""
