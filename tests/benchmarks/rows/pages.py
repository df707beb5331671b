"""What ten open pages of a dashboard cost a cluster of three nodes that call each other's actors:
the processor time of the nodes for each call, that of the dashboard and its pages beside, and calls
a second. Pages are opened and closed in turn.

Dashboard and pages are processes of their own, on the cores that the nodes use. What they take is
in the calls a second, and not in the processor time of the nodes.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple

import trio

from tests.benchmarks.measuring import (
    Figure,
    Row,
    Settings,
    at_least,
    at_most,
    compare_pairs,
    in_turn,
    spinning,
    taken_in_pairs,
)
from tests.benchmarks.watched_node import UNREAD_SECONDS

NODES = ("watched-1", "watched-2", "watched-3")
CALLERS = 30
"""On each node."""

SECONDS = 4.0
"""Of one turn: most of what pages show is asked for every 1 to 2 seconds, references every 5."""

PAIRS = 5
"""For each round."""

PAGES = (
    *("cluster", "cluster", "cluster", "tree", "references"),
    *("pools", "store", "jobs", "logs", f"actor/bench-{NODES[0]}"),
)
"""What ten pages show beside the cluster, which all of them show."""

WITH_CALLS = (*PAGES[1:], "calls")
"""The same with one page of calls: while it is open, the nodes measure their calls."""

OF_UNWATCHED = 0.98
"""Ten open pages take less than 2 %."""


class Sample(NamedTuple):
    """One turn: how many calls were made, and the seconds of the clock, of the processor time of
    the nodes, and of that of the dashboard and its pages.
    """

    calls: int
    seconds: float
    nodes: float
    beside: float


async def measure(settings: Settings) -> list[Row]:
    """With ten pages, and with none: calls for each second of the nodes' processor time, and of all
    processes'; calls a second; and nodes that make no calls. Then with a page of calls among them.
    """
    with spinning("off"):
        async with open_watched() as watched:
            return [
                *await _rows(settings, watched, "ten pages", PAGES, rest=0.5),
                *await _rows(
                    settings,
                    watched,
                    "ten with calls",
                    WITH_CALLS,
                    # Then no node measures its calls any more.
                    rest=UNREAD_SECONDS + 0.5,
                ),
            ]


async def _rows(
    settings: Settings, watched: Watched, name: str, topics: Sequence[str], *, rest: float
) -> list[Row]:
    """The rows for pages that show these topics. `rest`: seconds after they are closed in which
    nothing is measured.
    """
    seconds = SECONDS * settings.seconds
    async with watched.open_pages(topics, rest) as pages:

        async def turn(are_open: bool, callers: int = CALLERS) -> Sample:
            await pages.show(are_open)
            return await watched.sample(seconds, callers)

        async def idle(are_open: bool) -> float:
            found = await turn(are_open, callers=0)
            return 1000 * found.nodes / found.seconds

        with_pages, none = await taken_in_pairs(
            PAIRS * settings.rounds, partial(turn, True), partial(turn, False)
        )
        rows: list[Row] = []
        for what, figure in FIGURES.items():
            ours, floor, ratio = compare_pairs(
                list(map(figure, with_pages)), list(map(figure, none))
            )
            row = Row(f"{name}: calls {what}", "calls/s", ours, floor, "no page", paired=ratio)
            rows.append(at_least(row, ratio=OF_UNWATCHED) if figure is per_node_second else row)
        row = Row(f"{name}: for 1 s, of each node", "ms", spent(with_pages, none), CORE, "2 %")
        # To measure calls takes more the more there are: then it says nothing of other loads.
        rows.append(row if "calls" in topics else at_most(row, CORE.value))
        busy, free = await in_turn(settings.rounds, partial(idle, True), partial(idle, False))
        return [*rows, Row(f"{name}: nodes at rest, in 1 s", "ms", busy, free, "no page")]


def per_node_second(sample: Sample) -> float:
    """Calls for each second of the nodes' processor time."""
    return sample.calls / sample.nodes


CORE = Figure(20.0, 20.0, 20.0)
"""Milliseconds: 2 % of a second of a core."""


def spent(pages: Sequence[Sample], none: Sequence[Sample]) -> Figure:
    """The processor time of each node for a second in which pages are open, beyond what its calls
    take without them: the same however much of a core other processes leave to the nodes.
    """
    found = [
        1000 * (one.nodes - one.calls * other.nodes / other.calls) / (one.seconds * len(NODES))
        for one, other in zip(pages, none, strict=True)
    ]
    return Figure.of(found)


FIGURES = {
    "in 1 s of the nodes": per_node_second,
    "in 1 s of all": lambda one: one.calls / (one.nodes + one.beside),
    "in 1 s": lambda one: one.calls / one.seconds,
}


class Pages:
    """Some pages that are opened and closed together, all read by one process."""

    def __init__(self, reader: trio.Process, rest: float) -> None:
        self._reader = reader
        self._rest = rest
        self._are_open = False

    async def show(self, are_open: bool) -> None:
        """Open or close them, and wait until what that itself costs is over."""
        if are_open != self._are_open:
            await answer_of(self._reader, "open" if are_open else "close")
            self._are_open = are_open
            await trio.sleep(0.5 if are_open else self._rest)


class Watched:
    """A cluster whose nodes are measured, and a dashboard of it."""

    def __init__(self, nodes: Sequence[trio.Process], dashboard: int, place: Sequence[str]) -> None:
        self._nodes = nodes
        self._beside = [dashboard]
        """The processes that only watch."""
        self._place = place

    @asynccontextmanager
    async def open_pages(self, topics: Sequence[str], rest: float) -> AsyncIterator[Pages]:
        """Pages that show these topics; closed at first. `rest`: seconds after closing them."""
        async with process("tests.benchmarks.page_reader", *self._place, *topics) as reader:
            self._beside.append(reader.pid)
            try:
                yield Pages(reader, rest)
            finally:
                self._beside.remove(reader.pid)

    async def sample(self, seconds: float, callers: int) -> Sample:
        """One turn with so many callers on each node."""
        answers: list[str] = []

        async def ask(node: trio.Process) -> None:
            answers.append(await answer_of(node, f"{seconds} {callers}"))

        began, before = time.perf_counter(), self._seconds_beside()
        async with trio.open_nursery() as nursery:
            for node in self._nodes:
                nursery.start_soon(ask, node)
        took, beside = time.perf_counter() - began, self._seconds_beside() - before
        counts, times = zip(*map(str.split, answers), strict=True)
        return Sample(sum(map(int, counts)), took, sum(map(float, times)), beside)

    def _seconds_beside(self) -> float:
        return sum(time.clock_gettime(processor_clock(pid)) for pid in self._beside)


@asynccontextmanager
async def open_watched() -> AsyncIterator[Watched]:
    """Start everything; no page is open yet."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        nodes: list[trio.Process] = []
        address: tuple[str, ...] = ()
        for name, called in zip(NODES, (*NODES[1:], NODES[0]), strict=True):
            node = await enter(process("tests.benchmarks.watched_node", name, called, *address))
            address = address or (await line_of(node),)
            nodes.append(node)
        for node in nodes[1:]:
            await line_of(node)
        command = ("runtime.command_line", "dashboard", "--json", "--address", *address)
        dashboard = await enter(process(*command))
        told = json.loads(await line_of(dashboard))
        place = (told["listen"], told["url"].partition("#token=")[2])
        yield Watched(nodes, dashboard.pid, place)


@asynccontextmanager
async def process(module: str, *arguments: str) -> AsyncIterator[trio.Process]:
    """A process of Python that ends with the block."""
    found = await trio.lowlevel.open_process(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield found
    finally:
        found.kill()
        with trio.CancelScope(shield=True):
            await found.wait()


async def answer_of(asked: trio.Process, line: str) -> str:
    """The answer of a process to a line."""
    assert asked.stdin is not None
    await asked.stdin.send_all(f"{line}\n".encode())
    return await line_of(asked)


async def line_of(asked: trio.Process) -> str:
    """The next line that a process prints. Raises EOFError if it has ended."""
    assert asked.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        part = await asked.stdout.receive_some()
        if not part:
            raise EOFError(f"process {asked.pid} has ended")
        line += part
    return line.decode().rstrip()


def processor_clock(pid: int) -> int:
    """The clock of the processor time of a process and its threads, for `time.clock_gettime`: to
    the nanosecond, where /proc has hundredths of a second.
    """
    clock = ctypes.c_int()
    if error := ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise OSError(error, "the processor time of a process cannot be read")
    return clock.value
