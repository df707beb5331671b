"""A prompt at which statements of Python run in one trio run, beside a node of a cluster."""
