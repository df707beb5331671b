"""The pages are written in sentences that can be read once: short, and in the project's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import ROOT, pages

FRAGMENTS = sorted((ROOT / "newsfragments").glob("*.md"))
PAGES = [
    *pages(),
    *sorted(ROOT.glob("*.md")),
    *FRAGMENTS,
    ROOT / "docs" / "llms.txt",
    ROOT / "actors" / "errors.md",
]
MOST_WORDS, MEAN_WORDS = 40, 25

RETIRED = re.compile(
    r"\b(whoever|somebody|told|what came of it|what became of|lodgers?|lodging|neighbourhood|"
    r"parcels?|correspondence|sponsors?|next door|nobody)\b|\bis no (?:error|failure)\b",
    re.IGNORECASE,
)
"""Riddles and old words of the project that have no everyday use; the glossary has the new ones."""

FENCE = re.compile(r"^(`{3,}|:{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
SENTENCE_END = re.compile(r"(?<=[.!?])[\"”)*]*\s+(?=[A-Z\"“(*`\d])")
ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
TABLE_RULE = re.compile(r"^\|[\s:|-]+\|$")


def parts(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and cells of tables, without code and headings. In items and cells
    a semicolon ends a part: there it stands between the members of an enumeration.
    """
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "Code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)", text):
        if part.startswith("|"):
            for row in part.splitlines():
                if not TABLE_RULE.match(row):
                    yield from re.split(r"(?<!\\)\||; ", row.strip("|"))
        elif item := ITEM.match(part):
            yield from " ".join(part[item.end() :].split()).split("; ")
        elif not part.lstrip().startswith("#"):
            yield part


def sentences(text: str) -> list[str]:
    """The sentences of a page. What stands in backticks is no word to count."""
    return [
        one.strip()
        for part in parts(text)
        for one in SENTENCE_END.split(" ".join(part.split()))
        if one.strip()
    ]


def words(sentence: str) -> int:
    return len(re.findall(r"\b(?!Code\b)[\w'-]+", sentence))


def mean(found: list[str]) -> float:
    """The words of a whole sentence, on average."""
    whole = [words(one) for one in found if one.endswith((".", "!", "?"))]
    return sum(whole) / max(1, len(whole))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_sentences_of_a_page_are_short(page: Path) -> None:
    found = sentences(page.read_text())
    long = [one for one in found if words(one) > MOST_WORDS]
    assert long == []
    # A fragment may be a single sentence.
    assert page in FRAGMENTS or mean(found) <= MEAN_WORDS


def test_the_sentences_of_the_fragments_are_short_on_average() -> None:
    # Together they become a page: the changelog.
    assert mean([one for page in FRAGMENTS for one in sentences(page.read_text())]) <= MEAN_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_retired_word(page: Path) -> None:
    # The glossary's last table translates them.
    text = page.read_text().partition("\n## Retired words\n")[0]
    assert [found for part in parts(text) for found in RETIRED.findall(part)] == []


UNBROKEN = re.compile(r"`[^`]*`|\]\([^)]*\)")
"""Code and the targets of links, which stay on one line."""


@pytest.mark.parametrize(
    "page",
    [*pages(), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_lines_of_a_page_have_120_columns_at_most(page: Path) -> None:
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", page.read_text()), flags=re.DOTALL)
    assert [
        line
        for line in text.splitlines()
        if len(line) > 120
        and not line.lstrip().startswith(("|", "#"))
        and " " in UNBROKEN.sub("", line.strip())
    ] == []


def test_sentences_are_separated() -> None:
    text = "# No\n\nOne two `a b c`. Three\nfour! Five 2.5 s, e.g. six.\n\n| a b | c |\n|---|---|\n"
    assert sentences(text + "- seven\n- eight [nine](ten)\n\n```sh\neleven\n```\n") == [
        "One two Code.",
        "Three four!",
        "Five 2.5 s, e.g. six.",
        "a b",
        "c",
        "seven",
        "eight nine",
    ]
