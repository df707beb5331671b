"""Lines of source: as `linecache` has them, and no code of the user's is run for them."""

from __future__ import annotations

import importlib
import linecache
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from runtime import source_lines
from runtime.source_lines import known_line, known_lines, module_of
from tests.loaders import HARMFUL, SOURCE, SourceLoader, generated


def file_of(space: dict[str, Any]) -> str:
    return str(space["divide"].__code__.co_filename)


@pytest.mark.parametrize("kind", HARMFUL)
def test_a_loader_of_the_users_is_not_asked(kind: str) -> None:
    space = generated(HARMFUL[kind]())
    assert known_lines(file_of(space), space) is None
    assert known_line(file_of(space), 2, space) == ""


def test_nor_is_one_that_linecache_would_ask_or_that_stands_beside_another() -> None:
    loader = SourceLoader(lambda name: SOURCE)
    space = generated(loader)
    assert linecache.lazycache(file_of(space), space)
    assert known_lines(file_of(space), space) is None
    assert known_lines(file_of(space), None) is None
    assert known_lines(file_of(space), {**space, "__loader__": None, "__spec__": loader}) is None
    assert loader.asked == 0
    # When `linecache` has its answer, it is known.
    assert linecache.getline(file_of(space), 2, space).strip() == "return 1 / number"
    assert known_line(file_of(space), 2, space) == "return 1 / number"
    assert loader.asked == 1


def test_lines_of_files_are_those_of_linecache(tmp_path: Path) -> None:
    for number, text in enumerate(["one\ntwo", "one\n", "", "# coding: latin-1\n\xe9\n"]):
        file = tmp_path / f"{number}.py"
        file.write_text(text, encoding="latin-1")
        expected = linecache.getlines(str(file))
        linecache.clearcache()
        loader = SourceLoader(lambda name: "other")
        assert [*filter(str.strip, known_lines(str(file), {"__loader__": loader}) or ())] == [
            *filter(str.strip, expected)
        ]
        assert str(file) in linecache.cache
        assert loader.asked == 0


def test_lines_of_a_module_in_an_archive_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("in_archive_of_lines.py", SOURCE)
    monkeypatch.syspath_prepend(archive)
    module = importlib.import_module("in_archive_of_lines")
    try:
        assert known_line(file_of(vars(module)), 2, vars(module)) == "return 1 / number"
    finally:
        del sys.modules["in_archive_of_lines"]


def test_what_is_no_ordinary_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = str(tmp_path / "pipe.py")
    # To open it would wait for a writer.
    os.mkfifo(pipe)
    assert known_lines(pipe, {}) is None
    large = tmp_path / "large.py"
    large.write_text("x = 1\n")
    monkeypatch.setattr(source_lines, "MOST_BYTES", 3)
    assert known_lines(str(large), {}) is None


@pytest.mark.parametrize("file", ["", "<string>", "/nowhere/absent.py"])
def test_what_is_no_file_has_no_lines(file: str) -> None:
    assert known_lines(file, {}) == []
    assert known_line(file, 0, {}) == known_line(file, 3, {}) == ""


def test_a_name_that_no_file_can_have_does_no_harm() -> None:
    assert not known_lines("x\0y", {})


def test_what_a_program_puts_into_the_cache_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in [(), 5, (1, None, 7, "x"), (1, None, [b"bytes"], "x")]:
        monkeypatch.setitem(linecache.cache, "/nowhere/odd.py", entry)
        assert known_line("/nowhere/odd.py", 1, {}) == ""


def test_a_name_of_a_module_that_is_no_text_is_none() -> None:
    class Named:
        def __str__(self) -> str:
            raise SystemExit

    class Text(str):
        __slots__ = ()

        def __str__(self) -> str:
            raise SystemExit

    source = "import sys\ndef here():\n    return sys._getframe()\n"
    for name, found in [(Named(), ""), (Text("text"), "text"), ("plain", "plain")]:
        assert module_of(generated(None, source, __name__=name)["here"]()) == found
