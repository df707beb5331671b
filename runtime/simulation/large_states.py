"""Large states: actors that save more than the store takes in one value, so in parts, and less
again, several saves at once, while they are cancelled, stopped and lose their nodes.

A state is loaded whole: one that a save has written, and none that a later save has replaced. In
the calm, after one more save, the store holds the parts of the state that was saved last, and no
others. Only some seeds have large states. They are drawn apart from everything else, so the runs of
other seeds are the same as without them.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import attrs
import trio

from actors import Actor, method
from actors.errors import ActorNotFoundError, UnderstudyError
from runtime.membership.saved_states import (
    IN_PARTS,
    LISTS,
    PART_BYTES,
    PARTS,
    STATES,
)
from runtime.node import Node, internals_of
from runtime.simulation.load import Load

NAME = "state-saver"
"""What the names of the actors begin with."""

SAVERS = 2

SIZES = (100, 100, 100, PART_BYTES + 1_000, 2 * PART_BYTES + 1_000)
"""Bytes of a state, one of these: mostly whole, else in two or three parts."""

PAUSE = 2.0
"""Mean seconds from one round of saves of a node to the next."""

MOST_AT_ONCE = 2
"""Callers of one round, at most."""

MOST_IN_TURN = 12
"""Saves of one of them, one after the other, at most."""

PATIENCE = (0.01, 0.05, 1.0, 5.0)
"""Seconds after which a save is cancelled, one of these."""

STOPPED = 0.1
"""The share of the rounds after which the actor is stopped."""

CALM_SECONDS = 15.0
"""Seconds within which a save in the calm succeeds, and within which parts without a state are
deleted after it.
"""

LOOK_SECONDS = 0.5
"""Seconds from one look for such parts to the next."""


def state_of(number: int, size: int) -> bytes:
    """The state with a number: every byte of it depends on that."""
    return b"%d;" % number + bytes([number % 251]) * size


def _by_key(listed: bytes) -> dict[str, bytes]:
    """The groups of parts in a list, by what their keys have behind the actor's name."""
    groups = {group: group.decode().split() for group in listed.split(b";")}
    return {f"{epoch}/{number}": group for group, (epoch, number, _) in groups.items()}


@attrs.define(eq=False)
class Save:
    """One save. `began`, `ended`: places in the order of all that the load records; `ended` is None
    while it runs, and for ever if its process ends meanwhile.
    """

    number: int
    epoch: int
    size: int
    began: int
    ended: int | None = None
    succeeded: bool = False

    def is_replaced_by(self, later: Save) -> bool:
        """True if the effect of this one is certainly over: `later` began after its end, or in a
        later epoch, and has succeeded.
        """
        return later.succeeded and (
            later.epoch > self.epoch or (self.ended is not None and self.ended < later.began)
        )


@attrs.define(eq=False)
class SavedHistory:
    """The saves of one name, and what was loaded last, in which epoch."""

    saves: list[Save] = attrs.field(factory=list)
    loaded: Save | None = None
    epoch: int = 0

    def mistake_in(self, epoch: int, state: bytes | None) -> str:
        """Return why no epoch may load `state` now; "" if `epoch` may. Notes that it was loaded."""
        number = int(state.partition(b";")[0]) if state else None
        found = next((save for save in self.saves if save.number == number), None)
        before, since, self.loaded, self.epoch = self.loaded, self.epoch, found, epoch
        if state is None:
            return "nothing" if before or any(save.succeeded for save in self.saves) else ""
        if found is None:
            return f"state {number}, which no actor has saved"
        if state != state_of(found.number, found.size):
            return f"state {number} damaged: {len(state)} bytes of {found.size}"
        if found is not before and found.epoch < since:
            # What an epoch has loaded is final: its predecessors write no more.
            return f"state {number} of epoch {found.epoch}, after epoch {since} had loaded another"
        later = next(filter(found.is_replaced_by, self.saves), None)
        return f"state {number}, which {later.number} had replaced" if later is not None else ""


class StateSaver(Actor):
    """Saves what it is asked to, several states at once."""

    async def on_start(self) -> None:
        """Load the state, and report it."""
        LargeStates.current().on_loaded(self.name, self.epoch, await self.saved())

    @method(concurrent=True)
    async def save_state(self, size: int) -> None:
        """Save a state of so many bytes."""
        async with LargeStates.current().saving(self.name, self.epoch, size) as state:
            await self.save(state)


@attrs.define(eq=False)
class LargeStates(Load):
    """The actors with large states, and what was saved and loaded."""

    title = "large states"
    check = "states in parts"
    share = 0.1

    histories: dict[str, SavedHistory] = attrs.field(factory=dict)
    numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    loads: int = 0

    async def run(self, node: Node, draw: random.Random) -> None:
        """Let actors save from one node, until it is `over`."""
        async with trio.open_nursery() as nursery:
            while not self.over:
                await trio.sleep(draw.expovariate(1 / PAUSE))
                nursery.start_soon(self._round, node, random.Random(draw.random()))

    def summary(self) -> str:
        """Return how many states were saved and loaded."""
        saves = [save for history in self.histories.values() for save in history.saves]
        succeeded = sum(save.succeeded for save in saves)
        return f"{succeeded} of {len(saves)} saves succeeded, {self.loads} states were loaded"

    def on_loaded(self, name: str, epoch: int, state: bytes | None) -> None:
        """Check what an actor has loaded in its start."""
        history = self.histories.setdefault(name, SavedHistory())
        if epoch <= history.epoch:
            # A process that was stopped meanwhile: its successor has loaded.
            return
        self.loads += 1
        if mistake := history.mistake_in(epoch, state):
            self.violated("", f"{name} has loaded, in epoch {epoch}, {mistake}")

    @asynccontextmanager
    async def saving(self, name: str, epoch: int, size: int) -> AsyncIterator[bytes]:
        """Record a save, and its end. Gives the state that is to be saved."""
        history = self.histories.setdefault(name, SavedHistory())
        number = next(self.numbers)
        save = Save(number, epoch, size, number)
        history.saves.append(save)
        is_late = epoch < history.epoch
        try:
            yield state_of(number, size)
            save.succeeded = True
            if is_late:
                text = f"{name} has saved in epoch {epoch}, and epoch {history.epoch} had loaded"
                self.violated("", text)
        finally:
            save.ended = next(self.numbers)

    def _names(self) -> list[str]:
        return [f"{NAME}-{self.generation}-{number}" for number in range(SAVERS)]

    async def _round(self, node: Node, draw: random.Random) -> None:
        with suppress(UnderstudyError), trio.move_on_after(CALM_SECONDS):
            saver = await node.options(name=draw.choice(self._names())).get_or_spawn(StateSaver)
            async with trio.open_nursery() as nursery:
                for _ in range(draw.randint(1, MOST_AT_ONCE)):
                    nursery.start_soon(self._save, saver, random.Random(draw.random()))
            if draw.random() < STOPPED:
                await node.stop(saver)

    async def _save(self, saver: StateSaver, draw: random.Random) -> None:
        for _ in range(draw.randint(1, MOST_IN_TURN)):
            with suppress(UnderstudyError):
                patience, size = draw.choice(PATIENCE), draw.choice(SIZES)
                await saver.save_state.options(timeout=patience)(size)

    async def look_for_leftovers(self) -> None:
        """Check, in the calm, that an actor which runs leaves no parts of its own saves behind that
        were cancelled or failed; and, after one more save, none of its predecessors.
        """
        node = await self.cluster.node(self.cluster.founder)
        for number, name in enumerate(self._names()):
            await self._check_parts(node, name, self._epoch_of(name))
            try:
                saver = await node.options(name=name).get_or_spawn(StateSaver)
                await saver.save_state.options(timeout=CALM_SECONDS)(SIZES[number % len(SIZES)])
            except UnderstudyError as error:
                self.violated("", f"{name} could not save in the calm: {error}")
                continue
            await self._check_parts(node, name, 0)
            with suppress(ActorNotFoundError):
                await node.stop(saver)

    def _epoch_of(self, name: str) -> float:
        """The epoch of the actor that runs under a name; infinite if there is none."""
        epochs = [
            cell.address.epoch
            for host in map(self.cluster.live, self.cluster.machines)
            if host is not None
            for cell in internals_of(host).cells.values()
            if cell.address.name == name and cell.ended is None
        ]
        return max(epochs, default=math.inf)

    async def _check_parts(self, node: Node, name: str, since: float) -> None:
        """Check that all parts in the store which were written since an epoch are soon those of the
        state, and that its list names all parts.
        """
        left: list[str] = []
        with trio.move_on_after(CALM_SECONDS):
            while left := await self._leftovers(node, name, since):  # noqa: ASYNC110  any outsider
                await trio.sleep(LOOK_SECONDS)
        if left:
            self.violated("", f"parts of {name} are left in the store: {left}")

    async def _leftovers(self, node: Node, name: str, since: float) -> list[str]:
        """Parts that were written since an epoch and that no state names, or that no list names."""
        store = internals_of(node).store
        head, listed = await store.get(STATES + name), await store.get(LISTS + name)
        used = head.value[1:] if head is not None and head.value[:1] == IN_PARTS else b""
        groups = {} if listed is None else _by_key(listed.value)
        left: list[str] = []
        for entry in (await store.range(f"{PARTS}{name}/")).entries:
            numbers = entry.key.removeprefix(f"{PARTS}{name}/").rpartition("/")[0]
            group = groups.get(numbers)
            if group is None:
                left.append(f"{entry.key}, which is in no list")
            elif group != used and int(numbers.partition("/")[0]) >= since:
                left.append(entry.key)
        return left
