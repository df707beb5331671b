"""Pools: groups of members over which the items of a `map` are spread, and which come and go."""
