"""The progress bar of a map: what it says, and that no stream can disturb the map."""

from __future__ import annotations

import builtins
import io
import os
import pty
import sys
from collections.abc import Callable
from typing import Any

import pytest
import trio

from actors.pools import MapCounts
from runtime.pools.progress_bar import PlainBar, RichBar, duration_text, open_bar, progress_text
from tests.live_pair import Pair
from tests.pools.actors_used import Squares


def counts(**changes: Any) -> MapCounts:
    known: dict[str, Any] = {
        "done": 118,
        "running": 4,
        "waiting": 0,
        "failed": 0,
        "repeated": 0,
        "total": 400,
        "seconds": 3.0,
        "rate": 40.06,
        "seconds_left": 7.0,
    }
    return MapCounts(**(known | changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "118 of 400 done (29%), 40.1/s, 7 s left"),
        ({"failed": 2}, "120 of 400 done (30%), 2 failed, 40.1/s, 7 s left"),
        ({"repeated": 3}, "118 of 400 done (29%), 3 repeated, 40.1/s, 7 s left"),
        ({"total": None, "seconds_left": None}, "118 done, 40.1/s, 3 s so far"),
        ({"rate": 12345.6}, "118 of 400 done (29%), 12346/s, 7 s left"),
        ({"done": 400, "seconds_left": 0.0}, "400 of 400 done (100%), 40.1/s, in 3 s"),
        (
            {"done": 0, "total": 0, "rate": 0.0, "seconds": 0.0, "seconds_left": 0.0},
            "0 of 0 done, in 0 s",
        ),
    ],
)
def test_what_counts_say_in_words(changes: dict[str, Any], says: str) -> None:
    assert progress_text(counts(**changes)) == says


@pytest.mark.parametrize(
    ("seconds", "says"), [(0.2, "1 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min")]
)
def test_durations_are_for_people(seconds: float, says: str) -> None:
    assert duration_text(seconds) == says


def test_the_log_of_a_job_gets_whole_lines() -> None:
    stream = io.StringIO()
    bar = open_bar("jobs, run", stream)
    assert isinstance(bar, PlainBar)
    bar.show(counts(done=0))
    bar.show(counts())
    bar.close(counts(done=400, seconds_left=0.0))
    lines = stream.getvalue().splitlines()
    assert lines == [
        "jobs, run: 118 of 400 done (29%), 40.1/s, 7 s left",
        "jobs, run: 400 of 400 done (100%), 40.1/s, in 3 s",
    ]


def terminal() -> tuple[Any, Callable[[], str]]:
    """A stream that is a terminal, and what was written to it."""
    near, far = pty.openpty()
    stream = os.fdopen(far, "w")

    def written() -> str:
        stream.close()
        found = b""
        while True:
            try:
                piece = os.read(near, 65_536)
            except OSError:
                # The other end is closed.
                break
            if not piece:
                break
            found += piece
        os.close(near)
        return found.decode()

    return stream, written


def test_a_terminal_gets_a_bar_and_its_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream, written = terminal()
    bar = open_bar("[jobs], run", stream)
    assert isinstance(bar, RichBar)
    bar.show(counts())
    bar.close(counts(done=400, seconds_left=0.0))
    text = written()
    assert "[jobs], run" in text, "a name is no markup"
    assert "400 of 400 done" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "hidden once, and shown again"


def test_a_terminal_without_rich_gets_one_line_that_is_written_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    stream, written = terminal()
    bar = open_bar("jobs", stream)
    assert isinstance(bar, PlainBar)
    bar.show(counts())
    bar.close(counts(done=400, seconds_left=0.0))
    lines = written().split("\r\x1b[K")
    assert lines[1] == "jobs: 118 of 400 done (29%), 40.1/s, 7 s left"
    assert lines[2].rstrip() == "jobs: 400 of 400 done (100%), 40.1/s, in 3 s"


class Hostile(io.StringIO):
    """A stream of a user's that raises."""

    def write(self, text: str) -> int:
        raise LookupError("no paper")


async def test_a_map_shows_its_progress_and_says_it_before_it_ends(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await pair.here.pool("squares", Squares, size=2)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert [one async for one in pool.map(Squares.square, range(50), progress=True)]
    assert stream.getvalue().startswith("squares, square: 50 of 50 done (100%)")
    with pytest.raises(TypeError, match="progress must be"):
        pool.map(Squares.square, [1], progress="yes")  # type: ignore[call-overload]


@pytest.mark.parametrize("stream", [None, Hostile(), "closed"])
async def test_a_stream_that_fails_ends_the_bar_and_not_the_map(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, stream: Any
) -> None:
    pool = await pair.here.pool("squares", Squares, size=1)
    if stream == "closed":
        stream = io.StringIO()
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    found = [one async for one in pool.map(Squares.square, range(9), progress=True)]
    assert found == [n * n for n in range(9)]


def full_pipe() -> tuple[int, Any]:
    """A pipe that is full: where to read, and a stream that blocks."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 65_536)
    except BlockingIOError:
        os.set_blocking(writing, True)
    return reading, os.fdopen(writing, "w")


async def test_a_stream_that_blocks_holds_up_nothing_for_more_than_a_second(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await pair.here.pool("squares", Squares, size=1)
    reading, stream = full_pipe()
    monkeypatch.setattr(sys, "stderr", stream)
    with trio.fail_after(60):
        found = [one async for one in pool.map(Squares.square, range(9), progress=True)]
    assert found == [n * n for n in range(9)]
    # The thread that writes goes on: something reads now, until the last has written.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, drain, reading)
        await trio.to_thread.run_sync(stream.close)
    os.close(reading)


def drain(descriptor: int) -> None:
    """Read until the other end is closed."""
    while os.read(descriptor, 65_536):
        pass
