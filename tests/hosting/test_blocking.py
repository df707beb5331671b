"""For how long a loop has stood still, and whose code it runs: without threads, and with the stack
of a real one.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from actors import Actor, method
from actors.supervision import ExitReason
from runtime import open_node
from runtime.calls import spawnable
from runtime.hosting.loop_watch import OUTSIDE, LoopWatch, remedy, running_code
from runtime.plain_calls import plain_values
from runtime.timings import Timings
from runtime.wire import codec

SECRET = "a secret for the tests of blocking"
TIMINGS = Timings()
GAP = TIMINGS.loop_look + TIMINGS.loop_late


def looked_at(watch: LoopWatch, start: float, seconds: float) -> float:
    """The last look of many in time."""
    found, now = 0.0, start
    while now < start + seconds:
        now += TIMINGS.loop_look
        found = watch.look(now)
    return found


def test_a_loop_that_beats_is_not_blocked_and_one_that_does_not_is_for_as_long_as_it_does_not() -> (
    None
):
    watch = LoopWatch(0.0, TIMINGS.loop_beat, GAP)
    for number in range(10):
        watch.beat(number * TIMINGS.loop_beat)
        assert looked_at(watch, number * TIMINGS.loop_beat, TIMINGS.loop_beat) == 0
    assert looked_at(watch, 5.0, 10.0) == pytest.approx(15.0 - 4.5 - TIMINGS.loop_beat)
    watch.beat(15.0)
    assert watch.look(15.1) == 0


@given(st.lists(st.floats(0.01, 2 * TIMINGS.loop_late), max_size=50), st.floats(2.0, 3600.0))
def test_what_stood_still_together_with_the_watch_counts_for_nothing(
    gaps: list[float], pause: float
) -> None:
    watch, now, blocked = LoopWatch(0.0, TIMINGS.loop_beat, GAP), 0.0, 0.0
    for gap in gaps:
        now += gap
        found = watch.look(now)
        assert found <= now
        if gap > GAP:
            assert found == 0
        else:
            assert found <= blocked + gap + 1e-9
        blocked = found
    assert watch.look(now + pause) == 0


SEEN: list[tuple[str, str]] = []


def look() -> None:
    """As the thread beside would, at this moment."""
    frame: FrameType | None = sys._getframe(1)
    SEEN.append(running_code(frame))


class Looked(Actor):
    async def on_start(self) -> None:
        look()
        self.nursery.start_soon(self.beside)

    async def beside(self) -> None:
        look()
        await trio.lowlevel.checkpoint()
        look()

    async def on_stop(self, reason: ExitReason) -> None:
        look()

    @method
    async def at_once(self) -> None:
        self.helper()

    def helper(self) -> None:
        look()

    @method(concurrent=True)
    async def later(self) -> None:
        await trio.lowlevel.checkpoint()
        self.helper()

    @method
    async def items(self) -> Any:
        yield 1
        look()


async def test_the_actor_and_the_method_are_named_wherever_its_code_runs() -> None:
    SEEN.clear()
    async with open_node("alone", secret=SECRET) as node:
        looked = await node.options(name="looked").spawn(Looked)
        await looked.at_once()
        await looked.later()
        async for _ in looked.items():
            pass
        await node.stop(looked)
        look()
    who = [text.partition(" (")[0] for text, _ in SEEN]
    assert who[0] == "on_start of looked"
    assert who.count("a task of looked") == 2
    rest = [one for one in who[1:] if one != "a task of looked"]
    assert rest == [
        "looked.at_once",
        "looked.later",
        "looked.items",
        "on_stop of looked",
        "code outside of all actors",
    ]
    text, stack = SEEN[who.index("looked.at_once")]
    assert f"{__file__}:" in text
    assert "in Looked.helper" in text
    assert [line.rpartition(" in ")[2] for line in stack.splitlines()[1:]] == [
        "Looked.at_once",
        "Looked.helper",
    ]


def test_the_remedy_fits_what_blocks_the_loop() -> None:
    here = sys._getframe()
    for module in (codec, spawnable, plain_values):
        found: dict[str, Any] = {"frame": lambda: sys._getframe(1)}
        exec(compile("def look():\n    return frame()", str(module.__file__), "exec"), found)
        text = remedy(found["look"](), "looked.at_once (...)")
        assert "send bulk as bytes or numpy arrays" in text
    assert "Make it a plain `def`" in remedy(here, "looked.at_once (...)")
    assert "trio.to_thread.run_sync" in remedy(here, running_code(here)[0])
    assert "trio.to_thread.run_sync" in remedy(None, OUTSIDE)


def test_a_stack_that_cannot_be_seen_is_reported_as_such() -> None:
    assert running_code(None) == ("unknown code", "")
