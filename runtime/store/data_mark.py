"""The mark: a small file beside a store's file, with the number and the checksum of its latest
commit.

It is written in place after each commit, without fsync, so it costs some microseconds. The mark of
a killed process is exact. After a loss of power it may be some seconds old. It is a lower bound in
both cases: the store had at least this commit.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

MARK_NAME = "store.mark"
OWNER_ONLY = 0o600

_SIZE = 64
"""Bytes of the line, including the spaces that pad it. The line fits into one disk sector, so a
reader sees a write of it whole or not at all.
"""


def read_mark(path: Path) -> tuple[int, int]:
    """Return the number of the latest known commit and the checksum of the store after it; (0, 0)
    if the mark is missing or damaged. Raises OSError if the file cannot be read.
    """
    try:
        line = path.read_bytes()
    except FileNotFoundError:
        return 0, 0
    try:
        commits, checksum, _ = map(int, line.split())
    except ValueError:
        return 0, 0
    # Compared as a whole, with the padding: a damaged mark must count as no mark, not as a lower
    # bound that is too high. That would refuse a store that is well.
    return (commits, checksum) if _line(commits, checksum) == line else (0, 0)


class Mark:
    """The mark of a store that this process has open."""

    def __init__(self, path: Path) -> None:
        # Not truncated: until the first `set` the old mark is the only lower bound that there is.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)

    def set(self, commits: int, checksum: int) -> None:
        """Record that commit number `commits` is on disk. Errors of the disk are ignored."""
        try:
            os.pwrite(self._descriptor, _line(commits, checksum), 0)
        except OSError:
            # The disk is full or fails. The commit itself is on disk, and an older mark is still a
            # valid lower bound.
            pass

    def sync(self) -> None:
        """Write the mark to disk (fsync). Raises OSError."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _line(commits: int, checksum: int) -> bytes:
    text = f"{commits} {checksum}"
    line = f"{text} {zlib.crc32(text.encode())}".ljust(_SIZE - 1).encode() + b"\n"
    # A longer line would not be overwritten whole by the next, shorter one, and read as damaged.
    assert len(line) == _SIZE
    return line
