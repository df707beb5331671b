"""The last lines of a node, how its actors have ended, and how the node itself has ended, in the
cluster's store: there they outlive the node.

A node keeps its last `LINES_BYTES` there in a few slots, of which it writes one at a time, so that
what it writes is about what is new. It writes soon after a warning, an error or the end of an
actor, rarely otherwise, and never per call. How a node has ended, the oldest of the others writes:
so a node that has logged nothing leaves a trace too. All of it is bound to a lease of the node that
writes, so the store forgets it after `ARCHIVE_SECONDS`; of ended nodes it keeps the latest
`MOST_NODES`.
"""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

import attrs
import trio

from actors.errors import CallError, LeaseLostError, StoreError
from actors.identifiers import NodeId
from actors.own_logger import own_logger
from runtime.environment import Environment
from runtime.logs.capture import LogCapture
from runtime.logs.ring import LogEntry, cut, entry_of
from runtime.logs.service import ActorEnds
from runtime.store.interface import Compare, Delete, Put, Store

SLOTS = 4
SLOT_BYTES = 16 * 1024
LINES_BYTES = SLOTS * SLOT_BYTES
"""What is kept of one node's log."""

LINE_BYTES = 4 * 1024
"""What is kept of one line there."""

ENDS = 20
ENDS_BYTES = 32 * 1024
"""What is kept of the ends of a node's actors: their number, and their bytes as JSON."""

ARCHIVE_SECONDS = 86_400.0
"""How long the lines of a node outlive the last that it wrote."""

RENEWED_SECONDS = 3600.0
"""How long a lease that long is relied on without being renewed."""

MOST_NODES = 32
"""Of so many nodes that have ended, the latest, lines are kept."""

SOON_SECONDS = 0.5
"""After a warning or an end; others follow closely, and are written with it."""

LATER_SECONDS = 10.0
"""After a line that is no warning."""

GAP_SECONDS = 5.0
"""Between two writes of one node."""

MOST_DIGITS = 20
"""Of an incarnation: the store's revisions have no more."""

LAST_SECOND = 253_402_300_800
"""The end of the year 9999: `datetime` has no later time."""

PATIENCE_SECONDS = 10.0
"""For one write."""

TURN_SECONDS = 60.0
"""For so long an end of a node is kept by the nodes whose turn it is not to write it: the one whose
turn it is may end too.
"""

ABOUT, LINES, ENDED, GONE = "logs/about/", "logs/lines/", "logs/ends/", "logs/nodes/"

logger = own_logger("understudy.node")


class ArchiveSlots:
    """Decides which lines go into which slot. Pure."""

    def __init__(self) -> None:
        self.taken = 0
        """The number of the last line that was given to a slot."""
        self.unwritten: set[int] = set()
        """The slots that the store does not have as they are."""
        self._slots: list[list[LogEntry]] = [[] for _ in range(SLOTS)]
        self._sizes = [0] * SLOTS
        self._current = 0

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Give new lines to the slots: only the latest, as many as fit."""
        fresh: list[LogEntry] = []
        size = 0
        for entry in sorted(entries, key=lambda one: -one.number):
            short = attrs.evolve(entry, text=cut(entry.text, LINE_BYTES))
            size += short.size
            if entry.number <= self.taken or size > LINES_BYTES - SLOT_BYTES:
                break
            fresh.append(short)
        for entry in reversed(fresh):
            self.taken = entry.number
            if self._sizes[self._current] + entry.size > SLOT_BYTES:
                self._current = (self._current + 1) % SLOTS
                self._slots[self._current], self._sizes[self._current] = [], 0
            self._slots[self._current].append(entry)
            self._sizes[self._current] += entry.size
            self.unwritten.add(self._current)

    def rewrite(self) -> None:
        """Note that nothing is written yet, or any more."""
        self.unwritten = {slot for slot in range(SLOTS) if self._slots[slot]}

    def content(self, slot: int) -> bytes:
        """Encode a slot for the store."""
        return json.dumps([entry.plain() for entry in self._slots[slot]]).encode()

    def check_invariants(self) -> None:
        """Assert what must hold between any two changes. Looks at all lines: for tests."""
        numbers = sorted(entry.number for slot in self._slots for entry in slot)
        assert len(numbers) == len(set(numbers)), "a line is in one slot"
        for slot, size in zip(self._slots, self._sizes, strict=True):
            assert size == sum(entry.size for entry in slot) <= SLOT_BYTES


@attrs.frozen
class NodeEnd:
    """How a node has ended. `at`: when the node that wrote it learned of that, in seconds since
    1970 by its own clock. `how`: "left" or "died", and of what: `reason`. `calls_only`: it made
    calls, as a command or a blocking caller does, and was given no actors.
    """

    at: float
    how: str
    reason: str
    calls_only: bool = False


@attrs.frozen
class _SeenEnd:
    """The end of another node, that is not written yet. `seen`: when, on this node's clock."""

    node: NodeId
    end: NodeEnd
    seen: float


class LogArchive:
    """Keeps the last lines of this node in the store, and the ends of others. `is_gone`: True for a
    node that is no member. `is_oldest`: True if this is the oldest of the nodes that stay.
    `calls_only`: this node is given no actors.
    """

    def __init__(
        self,
        store: Store,
        identity: NodeId,
        capture: LogCapture,
        ends: ActorEnds,
        is_gone: Callable[[NodeId], bool],
        is_oldest: Callable[[], bool],
        environment: Environment,
        *,
        calls_only: bool = False,
    ) -> None:
        self._store = store
        self._calls_only = calls_only
        self._place = f"{identity.name}/{identity.incarnation}"
        self._capture = capture
        self._ends = ends
        self._is_gone = is_gone
        self._is_oldest = is_oldest
        self._environment = environment
        self._gone: deque[_SeenEnd] = deque(maxlen=MOST_NODES)
        self._slots = ArchiveSlots()
        self._ends_written = 0
        self._lease = 0
        self._renewed = -math.inf
        self._pruned = False

    def note_end(self, node: NodeId, how: str, reason: str, *, calls_only: bool = False) -> None:
        """Keep in the store how another node has ended. Each node calls this, and one writes it."""
        end = NodeEnd(self._environment.wall_time(), how, reason, calls_only)
        self._gone.append(_SeenEnd(node, end, self._environment.now()))
        self._capture.wake()

    async def run(self) -> None:
        """Write what is new, until cancelled."""
        while True:
            while not self._has_news():
                await self._capture.wait_changed()
            waited = 0.0
            while waited < (SOON_SECONDS if self._is_urgent() else LATER_SECONDS):
                await trio.sleep(SOON_SECONDS)
                waited += SOON_SECONDS
            await self.write()
            await trio.sleep(GAP_SECONDS)

    def _has_news(self) -> bool:
        return (
            self._capture.last > self._slots.taken
            or bool(self._slots.unwritten)
            or self._ends.count > self._ends_written
            or self._writes_ends_of_nodes()
        )

    def _writes_ends_of_nodes(self) -> bool:
        """True if there are ends of other nodes, and it is this node's turn to write them."""
        if self._gone and not self._is_oldest():
            # Kept for a while: the oldest node may have ended at the same moment. Its own end is
            # another call of `note_end`, after which it is another node's turn.
            now = self._environment.now()
            while self._gone and now - self._gone[0].seen > TURN_SECONDS:
                self._gone.popleft()
            return False
        return bool(self._gone)

    def _is_urgent(self) -> bool:
        return (
            self._ends.count > self._ends_written
            or self._writes_ends_of_nodes()
            or any(
                entry.level >= logging.WARNING and entry.number > self._slots.taken
                for entry in self._capture.entries()
            )
        )

    async def write(self) -> None:
        """Write what is new, if the store takes it; what it did not take is written the next
        time.
        """
        if not self._has_news():
            return
        try:
            with trio.move_on_after(PATIENCE_SECONDS):
                await self._write()
        except LeaseLostError:
            # A store that was begun anew: all is written again under another lease.
            self._lease = 0
        except (StoreError, CallError) as error:
            # At DEBUG: this line is news as well, and would be written, in vain, for ever.
            logger.debug("the last lines of the log could not be written to the store: %s", error)

    async def _write(self) -> None:
        now = self._environment.now()
        self._slots.add(self._capture.entries())
        if not self._lease:
            self._lease, self._renewed = await self._store.grant(ARCHIVE_SECONDS), now
            self._slots.rewrite()
            self._ends_written = 0
        elif now - self._renewed > RENEWED_SECONDS:
            await self._store.keep_alive(self._lease)
            self._renewed = now
        if self._writes_ends_of_nodes():
            await self._write_ends_of_nodes()
        ends, slots = self._ends.count, frozenset(self._slots.unwritten)
        if not slots and ends == self._ends_written:
            return
        about = {"until": self._environment.wall_time(), "calls_only": self._calls_only}
        puts = [Put(f"{ABOUT}{self._place}", json.dumps(about).encode(), self._lease)]
        puts += [
            Put(f"{LINES}{self._place}/{slot}", self._slots.content(slot), self._lease)
            for slot in sorted(slots)
        ]
        if ends > self._ends_written and ends:
            puts.append(Put(f"{ENDED}{self._place}", _fitting(self._ends.latest()), self._lease))
        await self._store.transaction([], puts)
        self._ends_written = ends
        self._slots.unwritten -= slots
        if not self._pruned:
            self._pruned = True
            await self._prune()

    async def _write_ends_of_nodes(self) -> None:
        while self._gone:
            one = self._gone[0]
            key = f"{GONE}{one.node.name}/{one.node.incarnation}"
            # The node whose turn it was before may have written it.
            await self._store.transaction(
                [Compare(key, "create_revision", 0)],
                [Put(key, json.dumps(attrs.asdict(one.end)).encode(), self._lease)],
            )
            # After the write, so that one that fails is made again; meanwhile `note_end` may have
            # dropped it.
            if self._gone and self._gone[0] is one:
                self._gone.popleft()
        await self._prune()

    async def _prune(self) -> None:
        """Delete what is kept of the oldest of the ended nodes, if there are too many."""
        found = await archived_nodes(self._store)
        ended = [one for one in found if self._is_gone(one.node)]
        for old in ended[: max(0, len(ended) - MOST_NODES)]:
            place = f"{old.node.name}/{old.node.incarnation}"
            keys = [
                f"{ABOUT}{place}",
                f"{ENDED}{place}",
                f"{GONE}{place}",
                *(f"{LINES}{place}/{slot}" for slot in range(SLOTS)),
            ]
            await self._store.transaction([], [Delete(key) for key in keys])


def _fitting(ends: list[dict[str, Any]]) -> bytes:
    kept = ends[-ENDS:]
    while len(encoded := json.dumps(kept).encode()) > ENDS_BYTES and len(kept) > 1:
        del kept[0]
    return encoded


@attrs.frozen
class ArchivedNode:
    """A node of which the store has something. `until`: when it wrote its last lines, in seconds
    since 1970 by its own clock; None if it has written none. `end`: how it has ended, if that was
    written. `calls_only`: it was given no actors.
    """

    node: NodeId
    until: float | None
    end: NodeEnd | None
    calls_only: bool = False

    @property
    def latest(self) -> float:
        """When it ended, or was last known to run."""
        return max(self.until or 0.0, 0.0 if self.end is None else self.end.at)


async def archived_nodes(store: Store) -> list[ArchivedNode]:
    """The nodes of which the store has lines or the end, the oldest first."""
    untils: dict[NodeId, float] = {}
    ends: dict[NodeId, NodeEnd] = {}
    callers: set[NodeId] = set()
    for entry in (await store.range(ABOUT)).entries:
        node, decoded = _node_of(entry.key, ABOUT), _read(entry.value)
        if not isinstance(decoded, dict):
            continue
        until = _time(decoded.get("until"))
        if node is not None and until is not None:
            untils[node] = until
            # Nodes of earlier versions do not say it.
            if decoded.get("calls_only") is True:
                callers.add(node)
    for entry in (await store.range(GONE)).entries:
        node, end = _node_of(entry.key, GONE), _node_end(_read(entry.value))
        if node is not None and end is not None:
            ends[node] = end
            if end.calls_only:
                callers.add(node)
    return [
        ArchivedNode(node, untils.get(node), ends.get(node), node in callers)
        for node in sorted({*untils, *ends}, key=lambda one: one.incarnation)
    ]


def _node_of(key: str, prefix: str) -> NodeId | None:
    name, _, incarnation = key.removeprefix(prefix).rpartition("/")
    is_number = incarnation.isdecimal() and len(incarnation) < MOST_DIGITS
    return NodeId(name, int(incarnation)) if name and is_number else None


def _node_end(decoded: object) -> NodeEnd | None:
    if not isinstance(decoded, dict):
        return None
    at, how, reason = (decoded.get(name) for name in ("at", "how", "reason"))
    seconds = _time(at)
    if seconds is None or how not in ("left", "died") or not isinstance(reason, str):
        return None
    calls_only = decoded.get("calls_only") is True
    return NodeEnd(seconds, str(how), cut(reason, LINE_BYTES), calls_only)


def _time(decoded: object) -> float | None:
    """Seconds since 1970 that can be shown as a date; None for anything else."""
    is_one = isinstance(decoded, int | float) and 0 <= decoded < LAST_SECOND
    return float(cast("float", decoded)) if is_one else None


async def archived_lines(store: Store, node: NodeId) -> list[LogEntry]:
    """The last lines of a node, the oldest first."""
    entries: list[LogEntry] = []
    for stored in (await store.range(f"{LINES}{node.name}/{node.incarnation}/")).entries:
        decoded = _read(stored.value)
        for line in decoded if isinstance(decoded, list) else ():
            try:
                entries.append(entry_of(line))
            except ValueError:
                continue
    return sorted(entries, key=lambda entry: entry.number)


async def archived_ends(store: Store) -> list[dict[str, Any]]:
    """Return the ends of actors that nodes have written to the store, in the form of
    `ActorEnds.latest`.
    """
    found: list[dict[str, Any]] = []
    for entry in (await store.range(ENDED)).entries:
        decoded = _read(entry.value)
        found += [one for one in (decoded if isinstance(decoded, list) else ()) if _is_end(one)]
    return found


def _is_end(decoded: object) -> bool:
    return (
        isinstance(decoded, dict)
        and _time(decoded.get("time")) is not None
        and all(isinstance(decoded.get(name), str) for name in ("name", "node", "kind", "reason"))
    )


def _read(value: bytes) -> object:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        # Written by a node, but any member may write any key.
        return None
