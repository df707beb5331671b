"""Proof that a process of this machine has ended.

A process is known by its id and its start time, so a reused id does not count as the same. Linux's /proc tells; where there is none,
nothing
is ever proven and the lease decides. A zombie has ended: its threads run no more, it only waits for its parent.
"""

from __future__ import annotations

from pathlib import Path


def host_identity() -> str:
    """Equal for processes that see the same process ids and sockets: boot and namespaces. "" where that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return ":".join((boot, *(Path(f"/proc/self/ns/{kind}").readlink().name for kind in ("pid", "net"))))
    except OSError:
        return ""


def process_start(pid: int) -> str:
    """When process `pid` started, in the kernel's own unit; "" if it has ended or cannot be seen."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The second field is the command in parentheses, and may itself contain anything.
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X", "x") else fields[19]


def has_ended(pid: int, started: str) -> bool:
    """True only if it is certain that the process which started at `started` runs no more."""
    return bool(started) and process_start(pid) != started
