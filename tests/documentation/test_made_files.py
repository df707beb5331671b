"""Files that commands of docs/ make are current: llms.txt, which has every page, and the time line
of the demonstration.
"""

from __future__ import annotations

import json
import re
from types import ModuleType

import pytest

from runtime.command_line.explain import page_of, sections
from tests.house import ROOT, pages
from tests.loading import load_file

DOCS = ROOT / "docs"


def command(name: str) -> ModuleType:
    """A module of docs/, which is on no path."""
    if name == "pictures":
        command("replays")
    # One of them imports another, as Sphinx finds them.
    return load_file(name, DOCS / f"{name}.py")


def test_it_is_what_its_command_writes() -> None:
    assert (DOCS / "llms.txt").read_text() == command("llms").text(), "run: python docs/llms.py"


def test_the_time_line_is_what_its_command_draws() -> None:
    drawn = (DOCS / "start" / "demo.svg").read_text()
    assert drawn == command("demo_picture").picture(), "run: python docs/demo_picture.py"
    told = json.loads((DOCS / "start" / "demo.json").read_text())
    assert told["equal"]
    assert drawn.count("<circle") == len(told["timeline"])


def test_it_has_every_page() -> None:
    found = {
        str(page.relative_to(DOCS).with_suffix(".html"))
        for page in pages()
        if page != DOCS / "index.md"
    }
    found |= {page_of(name) for name in sections()}
    text = (DOCS / "llms.txt").read_text()
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): [*`\w]", text, re.MULTILINE)
    assert sorted(listed) == sorted(found)


def test_the_files_that_the_readme_names_exist() -> None:
    text = (ROOT / "README.md").read_text()
    named = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    named += re.findall(r"`((?:docs|examples|ops)/[\w./-]+\.\w+)`", text)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_pictures_are_what_their_command_draws_from_what_it_saw() -> None:
    for file, drawn in command("pictures").pictures().items():
        assert file.read_text() == drawn, "run: python docs/pictures.py --draw"
        assert f"({file.name})" in "".join(page.read_text() for page in file.parent.glob("*.md"))


@pytest.mark.parametrize("when", ["kept", "today"])
def test_the_pictures_show_what_their_pages_say(when: str) -> None:
    # Where children are placed, which agent has which rank, and all times may change with the code.
    pictures = command("pictures")
    if when == "kept":
        seen = json.loads(pictures.DATA.read_text())
    else:
        seen = {name: run() for name, run in pictures.RUNS.items()}
    tree = seen["tree"]
    lost = [child["id"] for child in tree["before"][1:] if child["node"] == tree["killed"]]
    assert lost
    assert [child["id"] for child in tree["after"][1:] if child["restarts"]] == lost
    assert all(child["node"] != tree["killed"] for child in tree["after"])
    answers = [note["text"].rpartition(": ")[2] for note in seen["link"]["notes"][1::2]]
    assert answers == ["100", "101", "102"]
    rounds: dict[str, list[str]] = {}
    for event in seen["rendezvous"]["events"]:
        if event["kind"] == "rank":
            number, rank = event["text"].split(": ")
            rounds.setdefault(number, []).append(rank)
    assert [sorted(ranks) for ranks in rounds.values()] == [
        [f"rank {rank} of {size}" for rank in range(size)] for size in (2, 3, 2)
    ]
