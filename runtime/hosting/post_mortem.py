"""Post-mortems: the frames of the last failures of a node's actors, with their local variables as
text. Kept only by nodes that are opened with `post_mortem` or `debuggable`.

The text is written in a thread, because `__repr__` is user code. A failure that comes while too
many wait for it is counted, and not kept.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from operator import attrgetter
from types import FrameType, TracebackType
from typing import Any, Final

import attrs
import trio

from runtime.environment import Environment, NoThreadError
from runtime.hosting.bounded_text import bounded_line, cut
from runtime.hosting.cell import ActorCell
from runtime.source_lines import known_lines
from runtime.user_errors import guarded, leaves, summary_of, traceback_object

MOST_ACTORS: Final = 50
"""Names of actors of which failures are kept, those that failed last."""

MOST_FAILURES: Final = 3
"""Failures of one actor, the last ones."""

MOST_FRAMES: Final = 30
"""Frames of one failure, the innermost."""

MOST_VARIABLES: Final = 50
"""Local variables of one frame."""

MOST_VALUE: Final = 400
"""Characters of one variable."""

MOST_RECORD: Final = 64 * 1024
"""Characters of all variables of one failure; the innermost frames have them first."""

SOURCE_LINES: Final = 4
"""Lines of the source before and after that of a frame."""

MOST_WAITING: Final = 8
"""Failures that wait for their text at the same time."""

_RUNTIME: Final = tuple(
    os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), room, "")
    for room in ("runtime", "actors")
)
"""Folder of the runtime's own code, whose frames explain no failure of user code."""


@attrs.frozen
class FrameRecord:
    """One frame of a traceback. `source`: the lines around its line, with their numbers.
    `variables`: as text, by name; `left_out` counts those beyond the limit.
    """

    file: str
    line: int
    function: str
    source: tuple[tuple[int, str], ...] = ()
    variables: dict[str, str] = attrs.field(factory=dict)
    left_out: int = 0

    @classmethod
    def of_process(cls, facts: Mapping[str, Any], room: int) -> FrameRecord:
        """The same bounds as for a frame of the node's own; see `FailureRecord.of_process`."""
        given = list(dict(facts["variables"]).items())
        variables: dict[str, str] = {}
        for name, value in given[:MOST_VARIABLES]:
            if room <= 0:
                break
            name, text = cut(str(name), MOST_VALUE), cut(str(value), MOST_VALUE)
            variables[name] = text
            room -= len(name) + len(text)
        source = [(int(line), cut(str(text), MOST_VALUE)) for line, text in facts["source"]]
        return cls(
            cut(str(facts["file"]), MOST_VALUE),
            int(facts["line"]),
            cut(str(facts["function"]), MOST_VALUE),
            tuple(source[: 2 * SOURCE_LINES + 1]),
            variables,
            int(facts["left_out"]) + len(given) - len(variables),
        )


@attrs.frozen(eq=False)
class FailureRecord:
    """One failure of an actor. `number`: its number on this node. `at`: seconds since 1970 UTC.
    `what`: the method, or what else failed. `error`: its class and text. `frames`: the outermost
    first. `in_process`: its number in the process of an isolated actor; 0 for an actor that runs on
    the node itself.
    """

    number: int
    at: float
    actor: str
    epoch: int
    what: str
    error: str
    frames: tuple[FrameRecord, ...]
    in_process: int = 0
    debuggable: bool = False
    live: tuple[FrameType, ...] = ()
    """The frames themselves, where a debugger may look at them. They keep alive what they refer
    to.
    """

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return attrs.asdict(self, filter=lambda field, _: field.name != "live")

    @classmethod
    def of_process(
        cls, facts: Mapping[str, Any], number: int, actor: str, epoch: int
    ) -> FailureRecord:
        """Read the failure of an isolated actor that its process reports. Raises KeyError,
        TypeError or ValueError if it is malformed: user code runs in that process.
        """
        room, frames = MOST_RECORD, []
        for one in reversed(list(facts["frames"])[-MOST_FRAMES:]):
            frame = FrameRecord.of_process(one, room)
            room -= sum(len(name) + len(text) for name, text in frame.variables.items())
            frames.append(frame)
        return cls(
            number=number,
            at=float(facts["at"]),
            actor=actor,
            epoch=epoch,
            what=cut(str(facts["what"]), MOST_VALUE),
            error=cut(str(facts["error"]), MOST_VALUE),
            frames=tuple(reversed(frames)),
            in_process=int(facts["number"]),
            debuggable=bool(facts["debuggable"]),
        )


class PostMortems:
    """The failures of the actors of one node, or of the process of an isolated actor.
    `keeps_frames`: also the frames themselves. `pass_on`: awaited with each failure.
    """

    def __init__(
        self,
        environment: Environment,
        nursery: trio.Nursery,
        *,
        keeps_frames: bool,
        pass_on: Callable[[FailureRecord], Awaitable[None]] | None = None,
    ) -> None:
        self._environment = environment
        self._nursery = nursery
        self.keeps_frames = keeps_frames
        self._failures: OrderedDict[str, tuple[FailureRecord, ...]] = OrderedDict()
        self._number = 0
        self._pass_on = pass_on
        self._writing: set[trio.CancelScope] = set()
        """Around the writing of each failure that waits for its text."""
        self._waiting = 0
        self._settled = trio.Event()
        self.dropped = 0
        """Failures that were not kept, because too many came at once."""

    def of(self, actor: str) -> tuple[FailureRecord, ...]:
        """The last failures of an actor of this name, the latest last."""
        return self._failures.get(actor, ())

    def on_failure(self, cell: ActorCell, what: str, error: BaseException) -> None:
        """An actor has failed: its method or another part of it, `what`, has raised. Does nothing
        if no code of the user's was running.
        """
        walked = list(user_frames(error))[-MOST_FRAMES:]
        if not walked:
            return
        if self._waiting >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting += 1
        self._number += 1
        record = FailureRecord(
            number=self._number,
            at=self._environment.wall_time(),
            actor=cell.address.name,
            epoch=cell.address.epoch,
            what=what,
            error=cut(summary_of(error), MOST_VALUE),
            frames=(),
            debuggable=self.keeps_frames,
            live=tuple(frame for frame, _ in walked) if self.keeps_frames else (),
        )
        self._nursery.start_soon(self._write, record, walked, name="post-mortem")

    def on_failure_of_process(self, facts: Mapping[str, Any], actor: str, epoch: int) -> None:
        """An isolated actor has failed in its process. Raises like `FailureRecord.of_process`."""
        record = FailureRecord.of_process(facts, self._number + 1, actor, epoch)
        self._number += 1
        self._keep(record)

    async def settle(self) -> None:
        """Wait until all failures are kept and passed on. Text that does not come within
        `Timings.failure_settling` is left out.
        """
        with trio.move_on_after(self._environment.timings.failure_settling):
            await self._wait_settled()
        for scope in self._writing:
            scope.cancel()
        await self._wait_settled()

    async def _wait_settled(self) -> None:
        while self._waiting:
            # Only the end of the host waits here, so no other task holds the event that is
            # replaced.
            self._settled = trio.Event()
            await self._settled.wait()

    async def _write(self, record: FailureRecord, walked: list[tuple[FrameType, int]]) -> None:
        scope = trio.CancelScope(relative_deadline=self._environment.timings.failure_text)
        self._writing.add(scope)
        try:
            frames: tuple[FrameRecord, ...] = ()
            with scope:
                # Guarded as a whole: nothing that user code brings about ends the node's task.
                describe = partial(guarded, partial(describe_frames, walked), lambda error: ())
                with suppress(NoThreadError):
                    frames = await self._environment.in_thread(describe, abandon=True)
            if not frames:
                # A `__repr__` has not returned, or there was no thread. Where it failed is known
                # all the same.
                frames = tuple(_frame(frame, line) for frame, line in walked)
            record = attrs.evolve(record, frames=frames)
            self._keep(record)
            if self._pass_on is not None:
                await self._pass_on(record)
        finally:
            self._writing.discard(scope)
            self._waiting -= 1
            if not self._waiting:
                self._settled.set()

    def _keep(self, record: FailureRecord) -> None:
        # Anew at the end: the names whose failures are oldest are forgotten first.
        kept = self._failures.pop(record.actor, ())
        # Sorted, since threads write the texts of several failures at once, and the text of a later
        # failure may be there first.
        ordered = sorted((*kept, record), key=attrgetter("number"))
        self._failures[record.actor] = tuple(ordered[-MOST_FAILURES:])
        if len(self._failures) > MOST_ACTORS:
            self._failures.popitem(last=False)
        assert len(self._failures) <= MOST_ACTORS
        assert all(len(one) <= MOST_FAILURES for one in self._failures.values())


def user_frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames of an exception, the outermost first, with the lines where they were, without the
    runtime's. Of a group, those of its first member that has any.
    """
    for one in leaves(error):
        entry: TracebackType | None = traceback_object(one)
        found = False
        while entry is not None:
            if not entry.tb_frame.f_code.co_filename.startswith(_RUNTIME):
                found = True
                yield entry.tb_frame, entry.tb_lineno
            entry = entry.tb_next
        if found:
            return


def describe_frames(walked: list[tuple[FrameType, int]]) -> tuple[FrameRecord, ...]:
    """The frames with their source and variables. Runs user code; for a thread."""
    found: list[FrameRecord] = []
    room = MOST_RECORD
    for frame, line in reversed(walked):
        variables, left_out = describe_variables(frame, room)
        room -= sum(len(name) + len(text) for name, text in variables.items())
        found.append(
            attrs.evolve(
                _frame(frame, line),
                source=_source(frame, line),
                variables=variables,
                left_out=left_out,
            )
        )
    return tuple(reversed(found))


def describe_variables(frame: FrameType, room: int) -> tuple[dict[str, str], int]:
    """The variables of a frame as text of about `room` characters, and how many are left out."""
    values = guarded(lambda: dict(frame.f_locals), lambda error: {})
    found: dict[str, str] = {}
    for name, value in values.items():
        if len(found) >= MOST_VARIABLES or room <= 0:
            break
        text = found[str(name)] = bounded_line(value, MOST_VALUE)
        room -= len(text)
    return found, len(values) - len(found)


def _frame(frame: FrameType, line: int) -> FrameRecord:
    return FrameRecord(frame.f_code.co_filename, line, frame.f_code.co_qualname)


def _source(frame: FrameType, line: int) -> tuple[tuple[int, str], ...]:
    lines = known_lines(frame.f_code.co_filename, frame.f_globals) or []
    first = max(0, line - 1 - SOURCE_LINES)
    return tuple(
        (first + place + 1, cut(text.rstrip(), MOST_VALUE))
        for place, text in enumerate(lines[first : line + SOURCE_LINES])
    )
