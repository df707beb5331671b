"""The mark beside a store's file: the number and the checksum of its latest commit.

It is written after each commit, in place and without waiting for the disk, so it costs some
microseconds. A process that is killed leaves it as it wrote it; after a loss of power it may be
some seconds old. It is a lower bound in any case: the store has come at least so far.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

MARK_NAME = "store.mark"
OWNER_ONLY = 0o600

_SIZE = 64
"""Of the line, with the spaces after it. It lies within one sector, so a write of it is seen whole
or not at all.
"""


def read_mark(path: Path) -> tuple[int, int]:
    """The number of the latest commit that is known of, and the checksum of the store with it;
    zeros if none is known. Raises OSError.
    """
    try:
        line = path.read_bytes()
    except FileNotFoundError:
        return 0, 0
    try:
        commits, checksum, _ = map(int, line.split())
    except ValueError:
        return 0, 0
    return (commits, checksum) if _line(commits, checksum) == line else (0, 0)


class Mark:
    """The mark of a store that this process has open."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)

    def set(self, commits: int, checksum: int) -> None:
        """Note that the commit of this number is on disk."""
        try:
            os.pwrite(self._descriptor, _line(commits, checksum), 0)
        except OSError:
            # The disk is full, or fails. The commit is there, and a mark of an earlier one is as
            # true.
            pass

    def sync(self) -> None:
        """Wait until it is on disk as it is now. Raises OSError."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _line(commits: int, checksum: int) -> bytes:
    text = f"{commits} {checksum}"
    return f"{text} {zlib.crc32(text.encode())}".ljust(_SIZE - 1).encode() + b"\n"
