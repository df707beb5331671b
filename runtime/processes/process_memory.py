"""How much memory this process has."""

from __future__ import annotations

import resource
from pathlib import Path

STATM = Path("/proc/self/statm")

MIB = 1024 * 1024


def memory_mib() -> int | None:
    """MiB of physical memory that this process has now; None where the kernel does not say."""
    try:
        # The second number: pages that are resident, with those that it shares with others.
        pages = int(STATM.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize() // MIB
