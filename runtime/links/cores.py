"""Reads from the operating system how many cores this process may use, and how long a thread has
waited for one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

DELAY_FILE = "/proc/thread-self/schedstat"


def usable_cores(root: Path = Path("/")) -> float:
    """How many cores' worth of time this process may use: its affinity, and the CPU quota of its
    control group (version 1 or 2), if any.

    `root`: where `proc` and `sys` are found. What cannot be read limits nothing.
    """
    cores = float(len(os.sched_getaffinity(0)))
    groups = root / "sys/fs/cgroup"
    paths = _group_paths(root)
    for path in paths.get("", ()):
        quota, _, period = _text(groups / path / "cpu.max").partition(" ")
        cores = min(cores, _share(quota, period))
    for path in paths.get("cpu", ()):
        where = groups / "cpu" / path
        cores = min(
            cores, _share(_text(where / "cpu.cfs_quota_us"), _text(where / "cpu.cfs_period_us"))
        )
    return cores


def run_delay() -> Callable[[], float] | None:
    """Return a function that returns for how many seconds the calling thread has been ready to run
    without a core; None if the kernel does not count that.

    Each call reads a file of the proc file system, which takes about ten microseconds.
    """

    last = 0.0

    def delay() -> float:
        nonlocal last
        try:
            last = _read_delay()
        except OSError:
            # The process is out of descriptors, which says nothing about cores. Its connections,
            # which ask while they receive, must not break by it.
            pass
        return last

    try:
        last = _read_delay()
    except (OSError, ValueError, IndexError):
        return None
    return delay


def _read_delay() -> float:
    descriptor = os.open(DELAY_FILE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(descriptor, 100).split()[1]) / 1e9
    finally:
        os.close(descriptor)


def _group_paths(root: Path) -> dict[str, list[str]]:
    """Return, for each controller ("" for version 2), the relative paths of this process's control
    group and of all groups above it.
    """
    found: dict[str, list[str]] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        paths = ["/".join(parts[:length]) for length in range(len(parts) + 1)]
        for controller in controllers.split(","):
            found[controller] = paths
    return found


def _share(quota: str, period: str) -> float:
    """Return the quota divided by the period; infinity for "max", "-1" and texts that are no
    number.
    """
    try:
        allowed, every = float(quota), float(period)
    except ValueError:
        return float("inf")
    return allowed / every if allowed > 0 and every > 0 else float("inf")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
