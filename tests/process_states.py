"""What the system knows of a process."""

from __future__ import annotations

from pathlib import Path


def lives(pid: int) -> bool:
    """True while a process runs. One that has ended, and was not waited for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
