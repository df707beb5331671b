"""docs/llms.txt has every page of the site, and is current."""

from __future__ import annotations

import importlib.util
import re

from tests.house import ROOT

DOCS = ROOT / "docs"


def test_it_is_what_its_command_writes() -> None:
    spec = importlib.util.spec_from_file_location("llms", DOCS / "llms.py")
    assert spec is not None
    assert spec.loader is not None
    llms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(llms)
    assert (DOCS / "llms.txt").read_text() == llms.text(), "run: python docs/llms.py"


def test_it_has_every_page() -> None:
    pages = {
        str(page.relative_to(DOCS).with_suffix(".html"))
        for page in DOCS.rglob("*.md")
        if "_build" not in page.parts and page != DOCS / "index.md"
    }
    text = (DOCS / "llms.txt").read_text()
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): [*`\w]", text, re.MULTILINE)
    assert sorted(listed) == sorted(pages)
