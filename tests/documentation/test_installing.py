"""Pages install this project from a checkout: the package of its name on PyPI is another one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOREIGN = re.compile(r"pip install[^\n`]*[ '\"]understudy(?![\[\w./-])")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_installs_the_package_of_this_name_from_an_index(page: Path) -> None:
    assert FOREIGN.findall(page.read_text()) == []


@pytest.mark.parametrize(
    "line",
    ["pip install understudy", "$ pip install pytest 'understudy'", "pip install understudy torch"],
)
def test_a_line_that_does_is_found(line: str) -> None:
    assert FOREIGN.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install .",
        "pip install 'understudy[metrics]'",
        "pip install pytest '../understudy[metrics]'",
    ],
)
def test_other_lines_are_not(line: str) -> None:
    assert not FOREIGN.search(line)
