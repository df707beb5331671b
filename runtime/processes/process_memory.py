"""How much memory and address space this process has."""

from __future__ import annotations

import resource
from pathlib import Path

STATM = Path("/proc/self/statm")

MIB = 1024 * 1024


def memory_mib() -> int | None:
    """MiB of physical memory that this process has now; None where the kernel does not say."""
    # The second number: pages that are resident, with those that it shares with others.
    return _mib(1)


def address_space_mib() -> int | None:
    """MiB of address space that this process has now, which `RLIMIT_AS` limits; None where the
    kernel does not say.
    """
    return _mib(0)


def _mib(place: int) -> int | None:
    try:
        pages = int(STATM.read_bytes().split()[place])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize() // MIB
