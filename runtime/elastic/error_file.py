"""The error file of a worker as its agent reads it. The worker may have put anything in its
place.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from runtime.elastic.budget import read_error_file

MAX_BYTES = 1024 * 1024
"""Bytes that are read of an error file. Our runner writes less."""

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
"""The agent's event loop reads the file: the open of a pipe without a writer must not wait, and a
link may lead to any file of the machine.
"""


def error_of(path: Path) -> tuple[str, str, str]:
    """Return the message, the traceback and the path of a worker's error file; empty texts if it
    has written none.

    What is no regular file, or is too large, is not read: then the message says so. The texts are
    the worker's: they may have characters that control a terminal.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        return "", "", ""
    except OSError as error:
        return _not_read("it is a symbolic link" if path.is_symlink() else error.strerror), "", ""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return _not_read("it is no regular file"), "", ""
        if status.st_size > MAX_BYTES:
            return _not_read(f"it has {status.st_size:,} bytes"), "", str(path)
        # The limit once more: the worker's own children may write to it still.
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return _not_read(error.strerror), "", ""
    finally:
        os.close(descriptor)
    message, traceback = read_error_file(text)
    return message, traceback, str(path)


def _not_read(why: str | None) -> str:
    return f"its error file was not read: {why or 'the system gives no reason'}"
