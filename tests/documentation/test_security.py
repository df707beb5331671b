"""Each line of the tables of the security page names tests, and they exist."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.house import ROOT

PAGE = (ROOT / "docs" / "operate" / "security.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    """The lines of the tables about who can reach what."""
    found: list[str] = []
    for heading in ("### What one bad member can do", "## Holds"):
        section = PAGE.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
        lines = [line for line in section.splitlines() if line.startswith("| ")]
        assert len(lines) > 3, f"the table of {heading!r} is not found"
        found += lines[1:]
    return found


@functools.cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip()[:50])
def test_a_line_about_who_can_reach_what_names_tests_that_exist(row: str) -> None:
    named = NAMED.findall(row)
    assert named, "a promise without a test"
    for path, name in named:
        assert name in functions(path), f"{path} has no {name}"
