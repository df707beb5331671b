"""The tutorial, followed by a reader who types what stands there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.documentation.test_reading import FENCE, sentences, words
from tests.tutorial.pages import Command, commands_of
from tests.tutorial.reader import PAGES, ROOT, TutorialError, follow, programs_in


def environment(tmp_path: Path) -> dict[str, str]:
    """The reader's, with the commands of this environment and a place of its own for clusters."""
    bin_directory = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        # The reader does not have it, and it warns where it is not set up.
        "PYTEST_ADDOPTS": "-p no:asyncio",
    }


# `.ci/run` follows the chapters as well, by `make tutorial`.
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_chapter_does_what_it_says(page: Path, tmp_path: Path) -> None:
    follow(page, programs_in(tmp_path), environment(tmp_path))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_chapter_has_commands_and_shows_their_programs(page: Path) -> None:
    assert list(commands_of(page))
    for program in re.findall(r"literalinclude\} (\S+)", page.read_text()):
        assert (page.parent / program).is_file()
    # The reader copies what the page shows: a part of a program does not run.
    assert not re.search(r"^:(?:lines|pyobject|start-|end-)", page.read_text(), re.MULTILINE)
    assert "## Break it" in page.read_text()


def test_the_tutorial_is_read_in_a_quarter_of_an_hour() -> None:
    # Some 250 words a minute are usual, of prose. What is printed and typed counts as well.
    pages = [*PAGES, PAGES[0].parent / "index.md"]
    programs = sorted((ROOT / "examples" / "tutorial").rglob("*.py"))
    prose = sum(words(one) for page in pages for one in sentences(page.read_text()))
    blocks = "".join(found[0] for page in pages for found in FENCE.finditer(page.read_text()))
    code = len(blocks.split()) + sum(len(one.read_text().split()) for one in programs)
    assert (prose + code) / 250 < 15


def test_all_programs_of_the_tutorial_are_shown() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    for program in (ROOT / "examples" / "tutorial").rglob("*.py"):
        assert str(program.relative_to(ROOT / "examples" / "tutorial")) in pages


@pytest.mark.parametrize(
    ("printed", "output", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a ... c\n", "a b c\n", True),
        ("a ... c\n", "a b d\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("", "", True),
        ("", "a\n", False),
    ],
)
def test_what_is_printed_is_compared(printed: str, output: str, same: bool) -> None:
    found = Command(1, "command", printed).pattern().fullmatch(output)
    assert (found is not None) is same


def test_a_page_that_is_wrong_is_found(tmp_path: Path) -> None:
    page = tmp_path / "1-wrong.md"
    page.write_text("```console\n$ echo one\none\n$ echo two\nthree\n```\n")
    directory = tmp_path / "theatre"
    directory.mkdir()
    with pytest.raises(TutorialError, match=r"(?s)echo two.*three.*two"):
        follow(page, directory, environment(tmp_path))
