"""The job of the demo, without any cluster: which files there are, how one is indexed, and how the
parts become one index.

Pure but for reading the files. The same functions compute the index in a single process, to hold
the cluster's result against.
"""

from __future__ import annotations

import json
import keyword
import sysconfig
import tokenize
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

FileIndex = dict[str, int]
"""Identifier to the number of its occurrences in one file."""

Part = list[tuple[str, FileIndex]]
"""The files of one piece, with their indexes."""

Index = dict[str, list[tuple[str, int]]]
"""Identifier to the files it occurs in, and how often, in the order of the files' names."""

PIECE_BYTES = 64 * 1024


LEFT_OUT = frozenset({"site-packages", "test", "tests"})
"""Folders whose files are not indexed: tests are most of the library, and would double the time."""


def source_files() -> list[Path]:
    """The `.py` files of the running interpreter's standard library, without tests, in order."""
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(path for path in root.rglob("*.py") if LEFT_OUT.isdisjoint(path.parts))


def split(files: Sequence[Path]) -> list[list[str]]:
    """The files in pieces of about `PIECE_BYTES`: enough work to be worth a call, little enough to
    be lost without grief.
    """
    pieces: list[list[str]] = []
    size = PIECE_BYTES
    for path in files:
        if size >= PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(str(path))
        size += path.stat().st_size
    return pieces


def index_file(path: str) -> FileIndex:
    """The identifiers of one file. A file that is no valid Python counts as far as it can be
    read.
    """
    found: Counter[str] = Counter()
    try:
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                    found[token.string] += 1
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        pass
    return dict(found)


def index_piece(piece: Sequence[str]) -> Part:
    """The index of each file of a piece."""
    return [(path, index_file(path)) for path in piece]


def packed(part: Part) -> bytes:
    """A part as bytes, of which a journal keeps 16 KiB for each item."""
    return zlib.compress(json.dumps(part).encode())


def unpacked(data: bytes) -> Part:
    """What was packed."""
    return [(path, found) for path, found in json.loads(zlib.decompress(data))]


def merge(parts: Iterable[Part]) -> Index:
    """One index from the indexes of all files, whatever their order."""
    index: Index = {}
    for path, found in sorted(file for part in parts for file in part):
        for name, count in found.items():
            index.setdefault(name, []).append((path, count))
    return index
