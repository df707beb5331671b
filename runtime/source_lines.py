"""Lines of source files, read without running code of the user's.

Where a file cannot be read, the module `linecache`, which `traceback` reads with, asks the
`__loader__` of the frame's module for its text. An importer or a template engine of the user's has
one of its own: its `get_source` may raise anything, or never return. So it is not asked here: what
only it knows is unknown.
"""

from __future__ import annotations

import linecache
import os
import stat
import tokenize
import traceback
from collections.abc import Iterable, Mapping
from importlib.machinery import (
    BuiltinImporter,
    ExtensionFileLoader,
    FrozenImporter,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from types import FrameType
from typing import Any, Final, TypeGuard, cast
from zipimport import zipimporter

MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a file whose lines are read."""

_LOADERS: Final = (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader, zipimporter)
"""The classes of loaders that are the interpreter's own."""


def module_of(frame: FrameType) -> str:
    """The name of the module that a frame is of; "" if its `__name__` is no text."""
    # By dict's own method, and str's: the namespace of generated code may be of subclasses.
    name: object = dict.get(frame.f_globals, "__name__")
    return str.__str__(cast("str", name)) if issubclass(type(name), str) else ""


def known_lines(file: str, names: Mapping[str, Any] | None) -> list[str] | None:
    """The lines of a source file as `linecache` has or reads them; [] if there is none. None where
    only a loader of the user's may know them, or the file is no ordinary one. `names`: the globals
    of a frame that is of this file; None if they are not known.

    After a list was returned, `linecache` answers without the user's loader, until the file
    changes. Reads a file once, and keeps its lines where `linecache` does.
    """
    try:
        return _known_lines(file, names)
    except Exception:
        # A loader of the interpreter's, or what a program has put into the cache of `linecache`.
        return None


def known_line(file: str, number: int, names: Mapping[str, Any] | None) -> str:
    """One line without the white space around it; "" where `known_lines` has none."""
    lines = known_lines(file, names) or ()
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    return line.strip() if type(line) is str else ""


def places(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The lines `File ..., line ..., in ...` of a traceback's frames, without their source."""
    found = [(frame.f_code.co_filename, line, frame.f_code.co_name, "") for frame, line in frames]
    # By way of the module `traceback`, like all texts that name a file: a simulation lets it write
    # the same in every directory.
    return "".join(traceback.StackSummary.from_list(found).format())


def _known_lines(file: str, names: Mapping[str, Any] | None) -> list[str] | None:
    entry = linecache.cache.get(file)
    # An entry of one element is a loader that has not been asked yet.
    if entry is None or len(entry) == 1:
        try:
            status = os.stat(file)
        except (OSError, ValueError):
            if _is_placeholder(file):
                lines = linecache.getlines(file)
            elif _has_own_loader(names):
                # That of another module, which has a file of this name, may be there: it is
                # registered again when it is needed.
                linecache.cache.pop(file, None)
                lines = linecache.getlines(file, names)
            else:
                return None
        else:
            return _read(file, status)
    else:
        lines = entry[2]
    return lines if type(lines) is list else None


def _read(file: str, status: os.stat_result) -> list[str] | None:
    # A pipe or a device might be read for ever.
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
        return None
    try:
        with tokenize.open(file) as opened:
            lines = opened.readlines()
    except (OSError, UnicodeDecodeError, SyntaxError):
        lines = []
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    linecache.cache[file] = status.st_size, status.st_mtime, lines, file
    return lines


def _is_placeholder(file: str) -> bool:
    """True for a name such as <string>, which `linecache` asks no loader about."""
    return not file or (file.startswith("<") and file.endswith(">"))


def _has_own_loader(names: Mapping[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    """True if the loader of a module is the interpreter's own, or if it has none."""
    if type(names) is not dict:
        return False
    spec, loader = names.get("__spec__"), names.get("__loader__")
    if spec is not None and (type(spec) is not ModuleSpec or not _is_own(vars(spec).get("loader"))):
        return False
    name = names.get("__name__") if spec is None else spec.name
    return _is_own(loader) and (name is None or type(name) is str)


def _is_own(loader: object) -> bool:
    if loader is None or loader is BuiltinImporter or loader is FrozenImporter:
        return True
    return type(loader) in _LOADERS and "get_source" not in vars(loader)
