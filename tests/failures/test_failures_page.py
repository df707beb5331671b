"""docs/failures/index.md: each line has tests that exist, which docs/design/promises.md names, and
its seconds are the code's.
"""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from runtime import open_node
from runtime.timings import Timings
from tests.house import ROOT

PAGE = (ROOT / "docs" / "failures" / "index.md").read_text()
PROMISES = (ROOT / "docs" / "design" / "promises.md").read_text()
SECONDS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) s\b(?: \(([^)]*)\))?")


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its own two lines."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


FAILURES = rows(PAGE, "What happens when something dies")
TESTS = {
    row[0]: re.findall(r"`([^`]+)`", row[1])
    for row in rows(PROMISES, "The tests of the page on failures")
}


def seconds_of(name: str) -> float:
    """A time of `Timings`, or the default of an option of `open_node`."""
    options = inspect.signature(open_node).parameters
    value = options[name].default if name in options else getattr(Timings(), name)
    return float(value)


def test_each_line_has_its_tests_and_each_test_its_line() -> None:
    assert len(FAILURES) > 20
    assert [row[0] for row in FAILURES] == list(TESTS)


@pytest.mark.parametrize("test", sorted({test for tests in TESTS.values() for test in tests}))
def test_each_test_that_the_page_names_exists(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert name in {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_all_seconds_are_those_of_the_code() -> None:
    found = SECONDS.findall(PAGE)
    assert len(found) > 15
    for number, source in found:
        names = re.findall(r"`(\w+)`", source)
        assert names, f"{number} s does not say where it comes from"
        value = seconds_of(names[0])
        if len(names) == 2:
            assert " - " in source
            value -= seconds_of(names[1])
        assert number == f"{value:.2f}".rstrip("0").rstrip("."), names
