"""The garbage collector of a process that is a node and nothing else."""

from __future__ import annotations

import gc

YOUNG, MIDDLE, OLD = 50_000, 20, 100


def settle_collector() -> None:
    """Look at fewer objects less often: what is there now is there to stay, and calls leave nothing behind that needs collecting.

    With Python's own settings a node that is busy spends a quarter of its time looking through modules, classes and idle actors for cycles.
    For processes that are ours alone: a program that opens a node of its own decides for itself (`docs/speed.md`).
    """
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
