"""Adds to a saved sum that are repeated whatever became of them, over the deaths of all nodes: none
is applied twice, none is lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from unittest.mock import patch

import pytest
import trio

from actors import Actor, ChildSpec, RetryPolicy, Supervisor, UnderstudyError, method
from actors.errors import NotExecutedError, StoreOutcomeUnknownError
from runtime.hosting.completion_records import (
    Change,
    CommittedRecords,
    CompletionRecords,
    RequestId,
)
from runtime.membership.remote_store import RemoteStore
from runtime.membership.saved_states import MOST_REPEATS, STATES, StateRecords
from runtime.simulation import Simulation, SimulationError, simulate
from runtime.store.interface import Compare, Operation, TransactionResult

SEEDS = range(40)


def beginning_with(found: int) -> list[int]:
    """All seeds, and first the one that found a planted bug when it was last looked for."""
    return [found, *(seed for seed in SEEDS if seed != found)]


PATIENT = RetryPolicy(
    max_retries=8,
    initial_delay=0.1,
    max_delay=2.0,
    attempt_timeout=1.0,
    repeat_unknown=True,
    retry_on=(StoreOutcomeUnknownError,),
)
CALLERS = 3
ADDS = 12
READ = RetryPolicy(max_retries=50, initial_delay=0.2, max_delay=1.0)


class Sum(Actor):
    """Adds up, and saves what it added with its answer, like one who knows that it may be
    killed.
    """

    def __init__(self) -> None:
        self.added: list[str] = []

    async def on_start(self) -> None:
        self.added = await self.saved() or []

    @method
    async def add(self, what: str, pause: float) -> int:
        added = [*self.added, what]
        await self.save(added, answer=len(added))
        self.added = added
        # Long enough to be killed, or given up, between the save and the answer.
        await trio.sleep(pause)
        return len(added)

    @method(idempotent=True)
    async def read(self) -> list[str]:
        return self.added


class Caller(Actor):
    """Calls from a node that may be killed as well, or be the one that the sum is moved to."""

    @method
    async def ask(self, total: Sum, what: str, pause: float) -> int:
        return await total.add.options(retry=PATIENT, timeout=20.0)(what, pause)


async def keep(simulation: Simulation) -> None:
    """Start the supervisor wherever there is a node for it, as soon as nobody has its name: nobody
    supervises it.
    """
    spec = ChildSpec.of("sum", Sum).changed(name="sum")
    while True:
        with trio.move_on_after(5), suppress(UnderstudyError):
            up = [member.name for member in simulation.node.members() if member.state == "up"]
            where = simulation.random.choice(up)
            await simulation.node.options(name="top", on=where).get_or_spawn(
                Supervisor, [spec], intensity=1000
            )
        await trio.sleep(0.2)


async def adds(simulation: Simulation, kills: bool = True) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, simulation)
        with trio.fail_after(60):
            total = await found(simulation)
        await call_all(simulation, total, kills)
        nursery.cancel_scope.cancel()


async def adds_without_kills(simulation: Simulation) -> None:
    """One epoch goes on after saves whose outcome it does not learn."""
    await adds(simulation, kills=False)


async def found(simulation: Simulation) -> Sum:
    while True:
        with suppress(UnderstudyError):
            return await simulation.node.lookup("sum", Sum)
        await trio.sleep(0.1)


async def call_all(simulation: Simulation, total: Sum, kills: bool) -> None:
    acknowledged: set[str] = set()
    denied: set[str] = set()
    asked: set[str] = set()

    async def call(number: int) -> None:
        for turn in range(ADDS):
            what = f"{number}/{turn}"
            pause = simulation.random.choice((0.0, 0.3, 1.5))
            asked.add(what)
            try:
                if number == 0:
                    caller = await simulation.node.options(
                        on=simulation.random.choice(simulation.nodes)
                    ).spawn(Caller)
                    await caller.ask.options(timeout=25.0)(total, what, pause)
                else:
                    await total.add.options(retry=PATIENT, timeout=20.0)(what, pause)
            except NotExecutedError:
                denied.add(what)
            except UnderstudyError as error:
                simulation.note(f"{what}: {type(error).__name__}")
            else:
                acknowledged.add(what)
            await trio.sleep(simulation.random.random())

    async def kill() -> None:
        while kills:
            await trio.sleep(1 + simulation.random.random() * 4)
            simulation.kill(simulation.random.choice(simulation.nodes[1:]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        async with trio.open_nursery() as callers:
            for number in range(CALLERS):
                callers.start_soon(call, number)
        nursery.cancel_scope.cancel()
    await simulation.calm()
    with trio.fail_after(60):
        # Looked up again: the node that asked so far may have lost its place while the store was
        # away.
        total = await found(simulation)
        words = await total.read.options(retry=READ)()
    twice = sorted(what for what in asked if words.count(what) > 1)
    assert not twice, f"applied twice: {twice}"
    assert acknowledged <= set(words) <= asked, f"lost: {sorted(acknowledged - set(words))}"
    assert not denied & set(words), f"applied though denied: {sorted(denied & set(words))}"
    assert acknowledged


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [SEEDS[:2], SEEDS[31:32], pytest.param(SEEDS, marks=pytest.mark.long)]
)
def test_no_add_is_applied_twice_and_none_that_was_acknowledged_is_lost(seeds: range) -> None:
    simulate(adds, seeds=seeds)


@contextmanager
def answers_lost(share: float) -> Iterator[None]:
    """Some answers to saves are lost between the store and the node, or the saves themselves."""
    transaction = RemoteStore.transaction
    draw = random.Random(0)

    async def lossy(
        self: RemoteStore,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        saves = any(operation.key.startswith(STATES) for operation in then)
        lost = draw.random() if saves else 1.0
        if lost < share / 2:
            raise StoreOutcomeUnknownError("the save was lost, by the test")
        result = await transaction(self, compare, then, otherwise)
        if lost < share:
            raise StoreOutcomeUnknownError("the answer was lost, by the test")
        return result

    with patch.object(RemoteStore, "transaction", lossy):
        yield


@pytest.mark.parametrize("repeats", [0, MOST_REPEATS])
def test_no_add_is_lost_whose_save_comes_into_doubt(repeats: int) -> None:
    with answers_lost(0.3), patch("runtime.membership.saved_states.MOST_REPEATS", repeats):
        simulate(adds_without_kills, seeds=range(3), faults=[])


def test_saves_in_doubt_whose_records_are_answered_from_are_found_to_lose_adds() -> None:
    """A bug that there was: the epoch whose save came into doubt answers from its record, and its
    next save undoes the effect.
    """

    def after_doubt(
        self: CompletionRecords, change: Change, kept: CommittedRecords
    ) -> CompletionRecords:
        return CompletionRecords(kept)

    with (
        answers_lost(0.3),
        patch("runtime.membership.saved_states.MOST_REPEATS", 0),
        patch.object(CompletionRecords, "after_doubt", after_doubt),
        pytest.raises(SimulationError, match="lost: "),
    ):
        simulate(adds_without_kills, seeds=range(3), faults=[])


def test_records_that_are_not_loaded_are_found_missing() -> None:
    """A bug of our own: a new epoch begins without what the earlier ones have recorded."""

    async def applied(self: StateRecords, name: str) -> object:
        return CompletionRecords().kept

    with (
        patch.object(StateRecords, "applied", applied),
        pytest.raises(SimulationError, match="applied twice"),
    ):
        simulate(adds, seeds=beginning_with(4))


def test_records_that_are_not_asked_are_found_missing() -> None:
    """Another: a repeat is run like any call."""

    def find(self: CompletionRecords, call: RequestId) -> None:
        return None

    with (
        patch.object(CompletionRecords, "find", find),
        pytest.raises(SimulationError, match="applied twice"),
    ):
        simulate(adds, seeds=beginning_with(12))
