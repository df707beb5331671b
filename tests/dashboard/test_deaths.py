"""Deaths from supervisors and from nodes: each once, the latest, whatever the store holds."""

from __future__ import annotations

from typing import Any

import pytest

from actors import DeathReport, ExitReason
from runtime.dashboard.questions import MOST_DEATHS, MOST_TEXT, death_rows


def end(name: str, epoch: object, at: float, **more: Any) -> dict[str, Any]:
    told = {"name": name, "epoch": epoch, "time": at, "node": "one", "kind": "raised"}
    return {**told, "reason": "KeyError", **more}


def report(name: str, epoch: int | None, at: float) -> DeathReport:
    return DeathReport(
        id="a",
        name=name,
        reason=ExitReason("raised", "KeyError", "the traceback"),
        node="one",
        epoch=epoch,
        started=at - 5,
        at=at,
    )


def test_an_end_that_both_report_is_there_once_as_its_supervisor_reports_it() -> None:
    rows, left_out = death_rows([(report("a", 3, 10.0), "shop")], [end("a", 3, 9.9)])
    [row] = rows.values()
    assert (row["supervisor"], row["lived"], row["traceback"]) == ("shop", 5.0, "the traceback")
    assert left_out == 0


def test_starts_that_failed_have_no_epoch_and_are_all_there() -> None:
    rows, _ = death_rows([(report("a", None, at), "shop") for at in (1.0, 2.0)], [])
    assert [row["at"] for row in rows.values()] == [2.0, 1.0]


def test_the_latest_are_kept_and_the_others_counted() -> None:
    rows, left_out = death_rows([], [end("a", n, float(n)) for n in range(1, MOST_DEATHS + 8)])
    assert len(rows) == MOST_DEATHS
    assert left_out == 7
    assert next(iter(rows.values()))["epoch"] == MOST_DEATHS + 7


@pytest.mark.parametrize(
    "odd", [{"epoch": "x"}, {"epoch": [1]}, {"traceback": 3}, {"reason": "x" * 9999}]
)
def test_what_a_member_wrote_into_the_store_is_shown_as_text(odd: dict[str, Any]) -> None:
    [row] = death_rows([], [{**end("a", 3, 1.0), **odd}])[0].values()
    assert row["epoch"] in (3, None)
    assert isinstance(row["traceback"], str)
    assert len(row["text"]) <= MOST_TEXT
