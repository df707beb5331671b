"""The job itself, without any cluster: which files there are, how one is indexed, and how the parts become one index.

Pure but for reading the files. The same functions compute the index in a single process, to hold the cluster's result against.
"""

from __future__ import annotations

import keyword
import sysconfig
import tokenize
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

FileIndex = dict[str, int]
"""Identifier to the number of its occurrences in one file."""

Index = dict[str, list[tuple[str, int]]]
"""Identifier to the files it occurs in, and how often, in the order of the files' names."""

PIECE_BYTES = 256 * 1024


def source_files() -> list[Path]:
    """Every `.py` file of the running interpreter's standard library, in order."""
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)


def split(files: Sequence[Path]) -> list[list[str]]:
    """The files in pieces of about `PIECE_BYTES`: enough work to be worth a call, little enough to be lost without grief."""
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
    """The identifiers of one file. A file that is no valid Python, as some test data are on purpose, counts as far as it can be read."""
    found: Counter[str] = Counter()
    try:
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                    found[token.string] += 1
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        pass
    return dict(found)


def merge(parts: Iterable[tuple[str, FileIndex]]) -> Index:
    """One index from the indexes of all files, whatever their order."""
    index: Index = {}
    for path, found in sorted(parts):
        for name, count in found.items():
            index.setdefault(name, []).append((path, count))
    return index


def index_alone(pieces: Sequence[Sequence[str]]) -> Index:
    """The whole index, computed here and now."""
    return merge((path, index_file(path)) for piece in pieces for path in piece)
