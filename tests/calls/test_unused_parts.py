"""Of what a call does not use, nothing runs: no function of the measurement while nothing is
measured, and none of the filters where there are none. What the lines cost that remain,
`make bench ARGS="--only unused"` prints.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType, ModuleType

import pytest

import actors.filters
import runtime.calls.filtered_calls
import runtime.hosting.filtered_methods
import runtime.hosting.filtered_run
import runtime.statistics.call_statistics
import runtime.statistics.histograms
import runtime.tracing
from actors import Actor, Call, Filter, Next, method
from runtime import open_node
from runtime.calls import call_sender
from runtime.node import internals_of
from runtime.statistics.call_statistics import CallStatistics
from tests.benchmarks.removed_code import InstructionCount, RemovedCode, without
from tests.live_pair import SECRET, Pair

MEASURING = (runtime.statistics.call_statistics, runtime.statistics.histograms)
FILTERING = (
    actors.filters,
    runtime.calls.filtered_calls,
    runtime.hosting.filtered_methods,
    runtime.hosting.filtered_run,
    # Traces are made by a filter.
    runtime.tracing,
)


class Adder(Actor):
    """Adds."""

    @method
    async def add(self, number: int) -> int:
        """Add one."""
        return number + 1


class GoesOn(Filter):
    """Does nothing."""

    async def call(self, next: Next, call: Call) -> object:
        """Go on."""
        return await next(call)


async def functions_of(adder: Adder, modules: tuple[ModuleType, ...]) -> set[str]:
    """The functions of these modules that run while the actor is called."""
    files = {str(module.__file__): Path(str(module.__file__)).stem for module in modules}
    found: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename in files:
            found.add(f"{files[code.co_filename]}.{code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for number in range(5):
            assert await adder.add(number) == number + 1
    finally:
        sys.setprofile(before)
    return found


async def test_a_call_that_is_not_measured_runs_nothing_that_measures(
    pair: Pair, where: str
) -> None:
    adder = await pair.here.options(on=where).spawn(Adder)
    assert await functions_of(adder, MEASURING) == set()
    for node in (pair.here, pair.there):
        internals_of(node).endpoint.measure(CallStatistics())
    assert "call_statistics.MethodStatistics.timed" in await functions_of(adder, MEASURING)


async def test_a_call_without_filters_runs_nothing_that_filters(pair: Pair, where: str) -> None:
    adder = await pair.here.options(on=where, name="adder").spawn(Adder)
    assert await functions_of(adder, FILTERING) == set()
    async with open_node("f", join=pair.here.address, secret=SECRET, filters=[GoesOn()]) as node:
        filtered = await node.lookup("adder", Adder)
        assert "filtered_run.FilteredRun.run" in await functions_of(filtered, FILTERING)


async def test_code_without_a_part_gives_the_same_results(pair: Pair) -> None:
    part = RemovedCode((call_sender,), frozenset(("_token", "counted", "timer")))
    assert "CallSender._call" in part.functions
    adder = await pair.here.options(on="there").spawn(Adder)
    own = call_sender.CallSender._call.__code__
    with part.removed(), InstructionCount() as counted:
        assert call_sender.CallSender._call.__code__ is not own
        assert await adder.add(1) == 2
    assert counted.count > 100, "a call takes more than a few steps"
    assert call_sender.CallSender._call.__code__ is own
    assert await adder.add(1) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = a if part is not None else b", "x = b"),
        ("x = y or part or None", "x = y or None"),
        ("if part is None and y:\n    x = 1", "if y:\n    x = 1"),
        ("if self.part is not None and y:\n    x = 1\nelse:\n    x = 2", "x = 2"),
        ("self.part = 5", "pass"),
        ("x = not part", "x = True"),
        ("x = y is None", "x = y is None"),
    ],
)
def test_what_is_always_none_is_left_out(text: str, expected: str) -> None:
    assert ast.unparse(without(ast.parse(text), frozenset(["part"]))) == expected
