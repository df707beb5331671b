"""`understudy pools --journals` without a cluster: what it asks before it removes, and wrong input."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from actors.pools import JournalSummary
from runtime.command_line import journals
from runtime.command_line.pools import pools

DAY = 86400.0

KEPT = [
    JournalSummary("fresh", "a:B, run", 3, 100, None, 5.0),
    JournalSummary("old", "a:B, run", 3, 100, None, 40 * DAY),
    JournalSummary("old and busy", "a:B, run", 3, 100, "w1", 40 * DAY),
    JournalSummary("of an earlier version", "a:B, run", None, 100, None, None),
]


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What is removed of them."""
    asked: list[tuple[str, ...]] = []

    async def listed(where: Any) -> list[JournalSummary]:
        return KEPT

    async def remove(where: Any, names: tuple[str, ...], unused_for: float) -> dict[str, str]:
        assert unused_for == 30 * DAY
        asked.append(names)
        return dict.fromkeys(names, "")

    monkeypatch.setattr(journals, "_listed", listed)
    monkeypatch.setattr(journals, "_remove", remove)
    return asked


def run(*words: str, answer: str = "") -> tuple[int, str]:
    # With an address, or the command would look for clusters that other tests have open.
    address = ("--address", "127.0.0.1:7400")
    done = CliRunner().invoke(pools, ["--journals", *address, *words], input=answer)
    return done.exit_code, done.output


def test_only_old_ones_that_are_free_are_removed_and_only_after_a_yes(
    removed: list[tuple[str, ...]],
) -> None:
    prune = ("--older-than", "30d", "--prune")
    status, output = run(*prune, answer="n\n")
    assert (status, removed) == (1, [])
    assert "remove 1 journal?" in output
    assert "fresh" not in output
    assert run(*prune, answer="y\n")[0] == 0
    assert json.loads(run(*prune, "--yes", "--json")[1]) == {"removed": ["old"], "left": {}}
    assert removed == [("old",), ("old",)]


def test_the_age_chooses_what_is_shown(removed: list[tuple[str, ...]]) -> None:
    assert "5 s" in run()[1]
    shown = json.loads(run("--older-than", "30d", "--json")[1])["journals"]
    assert [one["name"] for one in shown] == ["old", "old and busy"]
    assert removed == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--prune"], "--prune takes --older-than"),
        (["--older-than", "soon"], "'soon' is neither an age"),
        (["--older-than", "1d", "--remove", "x"], "--remove names a journal"),
        (["--remove", "a/b"], "no '/', unlike 'a/b'"),
        (["--yes"], "--yes goes with --prune"),
        (["--older-than", "1d", "--prune", "--json"], "give --prune together with --yes"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    removed: list[tuple[str, ...]], words: list[str], says: str
) -> None:
    status, output = run(*words)
    assert status == 2
    assert says in " ".join(output.split())
    assert removed == []


def test_options_of_journals_go_with_journals() -> None:
    done = CliRunner().invoke(pools, ["--address", "127.0.0.1:7400", "--prune"])
    assert done.exit_code == 2
    assert "go with --journals" in done.output
