"""The page of patterns: its table is what the command prints, each section one of its rows."""

from __future__ import annotations

import re

import pytest

from examples.patterns import PAIRS, measured, table
from tests.house import ROOT

PAGE = (ROOT / "docs" / "patterns" / "index.md").read_text()
ROW = re.compile(r"^\| (.+?) \| [\d,]+ ms \| [\d,]+ ms \| \d+\.\d \|$", re.MULTILINE)


def test_the_table_of_the_page_has_a_row_for_each_pair_as_the_command_prints_it() -> None:
    names = [pair.name for pair in PAIRS]
    assert ROW.findall(PAGE) == names
    assert ROW.findall(table([(name, 1.0, 0.5) for name in names])) == names
    assert table([(name, 1.0, 0.5) for name in names]).splitlines()[0] in PAGE


def test_each_pair_has_its_section_and_shows_the_code_that_was_measured() -> None:
    for pair in PAIRS:
        section = PAGE.partition(f"\n## {pair.name[0].upper()}{pair.name[1:]}\n")[2]
        shown = re.findall(r":pyobject: (\w+)", section.partition("\n## ")[0])
        assert pair.wise.__name__ in shown
        assert set(shown) <= {pair.wise.__name__, pair.unwise.__name__}


def test_no_figure_of_time_stands_outside_the_table() -> None:
    assert re.findall(r"\d+ ?(?:ms|µs|seconds?|times)\b", ROW.sub("", PAGE)) == []


@pytest.mark.cluster
async def test_the_works_of_a_pair_run() -> None:
    [(name, before, after)] = await measured(PAIRS[1:2], rounds=1)
    assert name == PAIRS[1].name
    assert min(before, after) > 0


@pytest.mark.long
@pytest.mark.cluster
async def test_all_works_run() -> None:
    assert [row[0] for row in await measured(PAIRS, rounds=1)] == [pair.name for pair in PAIRS]
