"""What a command says of an error of the system: the file that it is about, and what to do next.

Only an error of opening a file names the file. One of writing to it, as on a disk that is full,
does not.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OF_DISKS = {
    errno.ENOSPC: "make room there, or choose another place",
    errno.EDQUOT: "make room there, or choose another place",
    errno.EFBIG: "choose another place, or raise the limit (ulimit -f)",
    errno.EROFS: "choose another place",
    errno.EIO: "check the disk, or choose another place",
}
"""Errors that only files have, and what to do."""


@contextmanager
def written_to(path: Path) -> Iterator[None]:
    """A block that writes to a file: an error of the disk that names no file leaves it with this
    name. Raises OSError.
    """
    try:
        yield
    except OSError as error:
        # An error of a network passes, although it comes out of the same block.
        if error.filename is not None or error.errno not in _OF_DISKS:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def text_of_file(error: OSError, name: str) -> str:
    """The error of a file in one line."""
    advice = _OF_DISKS.get(error.errno or 0)
    return f"{name}: {error.strerror}" + (f"; {advice}" if advice else "")
