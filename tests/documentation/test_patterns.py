"""The page of patterns: its tables are what the two commands print, each section one of their
rows.
"""

from __future__ import annotations

import logging
import re

import pytest

from examples import patterns, wrong_patterns
from examples.patterns import measured
from examples.wrong_patterns import counted
from tests.house import ROOT

PAGE = (ROOT / "docs" / "patterns" / "index.md").read_text()
ROW = re.compile(r"^\| (.+?) \| [\d,]+ ms \| [\d,]+ ms \| \d+\.\d \|$", re.MULTILINE)
COUNTED = re.compile(r"^\| (.+?) \| (.+?) \| (\d+) \| (\d+) \|$", re.MULTILINE)
PAIRS = (*patterns.PAIRS, *wrong_patterns.PAIRS)


def test_the_tables_of_the_page_have_a_row_for_each_pair_as_the_commands_print_them() -> None:
    names = [pair.name for pair in patterns.PAIRS]
    assert ROW.findall(PAGE) == names
    printed = patterns.table([(name, 1.0, 0.5) for name in names])
    assert ROW.findall(printed) == names
    assert printed.splitlines()[0] in PAGE
    rows = [(pair.name, pair.counted, 2, 1) for pair in wrong_patterns.PAIRS]
    assert [found[:2] for found in COUNTED.findall(PAGE)] == [row[:2] for row in rows]
    assert COUNTED.findall(wrong_patterns.table(rows)) == [(*row[:2], "2", "1") for row in rows]
    assert wrong_patterns.table(rows).splitlines()[0] in PAGE
    assert len(PAIRS) == 20


def test_each_pair_has_its_section_and_shows_the_code_that_was_measured() -> None:
    for pair in PAIRS:
        section = PAGE.partition(f"\n## {pair.name[0].upper()}{pair.name[1:]}\n")[2]
        shown = re.findall(r":pyobject: (\w+)", section.partition("\n## ")[0])
        assert pair.wise.__name__ in shown
        helpers = set(shown) - {pair.wise.__name__, pair.unwise.__name__}
        assert helpers <= {*pair.wise.__code__.co_names, *pair.unwise.__code__.co_names}


def test_no_figure_of_time_stands_outside_the_table() -> None:
    assert re.findall(r"\d+ ?(?:ms|µs|seconds?|times)\b", ROW.sub("", PAGE)) == []


@pytest.mark.cluster
async def test_the_works_of_a_pair_run() -> None:
    [(name, before, after)] = await measured(patterns.PAIRS[1:2], rounds=1)
    assert name == patterns.PAIRS[1].name
    assert min(before, after) > 0


@pytest.mark.cluster
async def test_what_goes_wrong_is_counted_as_the_page_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The actors crash on purpose.
    with caplog.at_level(logging.CRITICAL, "understudy"):
        found = await counted(wrong_patterns.PAIRS)
    for (name, _, before, after), pair in zip(
        COUNTED.findall(PAGE), wrong_patterns.PAIRS, strict=True
    ):
        row = next(row for row in found if row[0] == name)
        # How many calls a full mailbox refuses depends on how fast the first ones end.
        assert row[2] > 0 if "refused" in pair.counted else row[2] == int(before), name
        assert row[3] == int(after) == 0, name


@pytest.mark.long
@pytest.mark.cluster
async def test_all_works_run() -> None:
    rows = await measured(patterns.PAIRS, rounds=1)
    assert [row[0] for row in rows] == [pair.name for pair in patterns.PAIRS]
