"""Whole clusters in one thread, on a virtual clock and a seeded network, under faults that a seed draws."""
