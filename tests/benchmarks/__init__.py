"""Benchmarks: what the runtime does in a second, beside the bare floor of trio and cbor2 measured
in the same run.
"""
