"""How costs grow with the number of things: `python -m tests.growth`, or `make growth`."""
