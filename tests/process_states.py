"""What the system knows of a process."""

from __future__ import annotations

from pathlib import Path


def lives(pid: int) -> bool:
    """True while a process runs. One that has ended, and was not waited for, does not."""
    return state_of(pid) not in ("", "Z")


def state_of(pid: int) -> str:
    """The state of a process in one letter, as `ps` shows it (T: stopped); empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
