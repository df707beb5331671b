"""Files that commands write, and the packed answers of nodes that go into them."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from actors.errors import NotExecutedError
from runtime.command_line.system_errors import written_to


@contextmanager
def written_whole(path: Path) -> Iterator[IO[str]]:
    """A file to write to, which stands at `path` once the block ends without an error; otherwise
    what was there before stays. It is opened before the block, so that a place that cannot be
    written to costs no measurement. Raises OSError.
    """
    real = path.resolve()
    if real.exists() and not (real.is_file() and os.access(real.parent, os.W_OK)):
        # A pipe, a terminal, or a file in a folder where nothing can be put in its place.
        with written_to(path), path.open("w") as file:
            yield file
        return
    beside = real.with_name(f".{real.name}.{os.getpid()}")
    try:
        # What a killed process has left. In a folder for all users, another one may have put a link
        # there, to have a file of this user overwritten: "x" makes a new file, or fails.
        beside.unlink(missing_ok=True)
        file = beside.open("x")
    except OSError as error:
        # The user knows the file by its own name.
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with written_to(path), file:
            yield file
        beside.replace(real)
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()


def unpacked(packed: bytes, node: str, most: int) -> Any:
    """The JSON that a node has sent, compressed. Raises NotExecutedError for what is no such
    answer, and for one of more than `most` bytes: it may uncompress to more than there is memory.
    """
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(packed, most)
        if len(text) >= most:
            raise NotExecutedError(
                f"the answer of node {node} is larger than {most >> 20} MiB, the limit of this "
                "command; ask again for fewer seconds"
            )
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise NotExecutedError(f"the answer of node {node} cannot be read: {error}") from error
