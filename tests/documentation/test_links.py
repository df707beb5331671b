"""Links between the pages lead somewhere: files exist, and so do the headings in them. `make docs`
checks those of the site once more; `make links` asks the addresses of others.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documentation.test_made_files import command
from tests.house import ROOT, pages

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *pages(),
    ROOT / "actors" / "errors.md",
]
FENCE = re.compile(r"^(`{3,}|:{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:docs|examples|ops|tests)/[\w/.-]*\w)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
OWNER = {ROOT / "actors" / "errors.md": ROOT / "docs" / "failures" / "errors.md"}
"""Pages that show the groups of another file: its headings are theirs."""


def anchor(heading: str) -> str:
    """What GitHub and myst make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    texts = [page.read_text(), *(one.read_text() for one, by in OWNER.items() if by == page)]
    return {anchor(found) for text in texts for found in HEADING.findall(FENCE.sub("", text))}


def broken(page: Path) -> list[str]:
    text = FENCE.sub("", page.read_text())
    found = []
    for link in LINK.findall(CODE.sub("", text)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (heading and heading not in anchors(OWNER.get(target, target))):
            found.append(link)
    made = "docs/_build"
    named = [path for path in NAMED.findall(text) if not path.startswith(made)]
    return found + [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One *two*\n[a](#one-two) [b](#three) [c](page.md#one-two) [d](other.md) `docs/no.md`\n"
        "[e](https://there.example) `[f](code.md)`\n\n```text\n[g](fence.md)\n```\n"
    )
    assert broken(page) == ["#three", "other.md", "docs/no.md"]


def link(uri: str, status: str, info: str = "") -> dict[str, str]:
    return {"uri": uri, "status": status, "info": info, "filename": "page.md", "lineno": "3"}


UNRESOLVED = "Caused by NameResolutionError(Failed to resolve 'a.example')"


@pytest.mark.parametrize(
    ("found", "text", "code"),
    [
        (
            [link("https://a.example", "broken", UNRESOLVED)],
            "skipped: https://a.example (page.md:3): no network on this machine\n"
            "0 addresses answer, 0 are broken, 1 were skipped",
            3,
        ),
        (
            # A host that has no name is broken where others answer.
            [link("https://a.example", "broken", UNRESOLVED), link("https://b.example", "working")],
            f"broken: https://a.example (page.md:3): {UNRESOLVED}\n"
            "1 addresses answer, 1 are broken, 0 were skipped",
            1,
        ),
        (
            [link("https://a.example", "redirected", "https://b.example")],
            "1 addresses answer, 0 are broken, 0 were skipped",
            0,
        ),
    ],
)
def test_what_was_not_asked_is_said(found: list[dict[str, str]], text: str, code: int) -> None:
    assert command("external_links").summary(found) == (text, code)
