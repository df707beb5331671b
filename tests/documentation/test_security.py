"""Each line of the tables about what is protected has tests, which docs/design/promises.md
names and which exist.
"""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.house import ROOT

PAGE = (ROOT / "docs" / "operate" / "boundaries.md").read_text()
PROMISES = (ROOT / "docs" / "design" / "promises.md").read_text()
TESTS_OF_PAGE = PROMISES.partition("\n## The tests of the pages on security\n")[2]
TABLES = ("What one bad member can do", "Holds")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its own two lines and without links."""
    section = re.split(rf"\n##+ {heading}\n", page)[1].partition("\n##")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert len(lines) > 5, f"the table of {heading!r} is not found"
    plain = [re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", line) for line in lines]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in plain[2:]]


@functools.cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


@pytest.mark.parametrize("heading", TABLES)
def test_each_line_about_who_can_reach_what_has_its_tests_and_each_test_its_line(
    heading: str,
) -> None:
    lines = [cells[0] for cells in rows(PAGE, heading)]
    assert [cells[0] for cells in rows(TESTS_OF_PAGE, heading)] == lines


@pytest.mark.parametrize(
    ("who", "tests"),
    [
        pytest.param(*cells, id=cells[0][:50])
        for heading in TABLES
        for cells in rows(TESTS_OF_PAGE, heading)
    ],
)
def test_the_tests_of_a_line_exist(who: str, tests: str) -> None:
    named = NAMED.findall(tests)
    assert named, f"{who}: a promise without a test"
    for path, name in named:
        assert name in functions(path), f"{path} has no {name}"
