"""The present state of a cluster, for people: queried, combined, and drawn."""
