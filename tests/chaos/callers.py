"""The load of the chaos runs: tasks on one node that call ledgers, and write down what they were
told.
"""

from __future__ import annotations

import itertools
import random

import trio

from actors import ChildSpec, RetryPolicy, SpawnOptions, Supervisor
from actors.errors import (
    NotExecutedError,
    OutcomeUnknownError,
    OwnerDiedError,
    RemoteError,
    StoreError,
)
from runtime import Node
from tests.chaos.books import Books, Outcome
from tests.chaos.ledger import Ledger

LEDGERS = 10
CALLERS = 20
TIMEOUT = 10.0
PAUSE = 0.02
"""Seconds between two calls of one caller: the runs are about faults, not about speed."""
READ_SECONDS = 90.0
"""After the last fault: within this each ledger must answer."""

PATIENT = RetryPolicy(max_retries=50, initial_delay=0.05, max_delay=0.5, attempt_timeout=2.0)
NODE_LABELS = {"keeps": "ledgers"}


async def start_ledgers(node: Node) -> None:
    """A tree that survives any node: a root that this one stands for, a supervisor and its ledgers
    on the nodes with the labels.
    """
    ledgers = [
        ChildSpec(
            id=f"ledger-{number}",
            actor=Ledger,
            options=SpawnOptions(name=f"ledger-{number}", labels=NODE_LABELS),
        )
        for number in range(LEDGERS)
    ]
    # A run kills far more often than any service should restart: the budget of restarts is not what
    # is tried here.
    branch = ChildSpec.of("ledgers", Supervisor, ledgers, intensity=10_000).changed(
        labels=NODE_LABELS
    )
    await node.options(name="chaos").singleton(Supervisor, [branch], intensity=10_000)


class Callers:
    """Tasks that call until they are stopped."""

    def __init__(self, books: Books, seed: int) -> None:
        self._books = books
        self._draw = random.Random(seed)
        self._numbers = itertools.count()
        self.stopping = False

    async def run(self, node: Node) -> None:
        """Make calls until stopped, or until the node has lost its place; returns when all are
        over.
        """
        await start_ledgers(node)
        handles = [await find(node, f"ledger-{number}") for number in range(LEDGERS)]

        async def call_on() -> None:
            while not self.stopping and not node.asked_to_leave.is_set():
                handle = self._draw.choice(handles)
                began = trio.current_time()
                if self._draw.random() < 0.1:
                    await self._fetch(handle)
                else:
                    await self._enter(handle, next(self._numbers))
                took = trio.current_time() - began
                self._books.longest = max(self._books.longest, took)
                self._books.overrun = max(self._books.overrun, took - TIMEOUT)
                await trio.sleep(PAUSE)

        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(call_on)

    async def _enter(self, handle: Ledger, number: int) -> None:
        books = self._books
        outcome: Outcome = "value"
        try:
            if self._draw.random() < 0.5:
                answer = await handle.enter.options(timeout=TIMEOUT)(number)
            else:
                answer = await handle.enter_again.options(timeout=TIMEOUT, retry=PATIENT)(number)
            if answer != number:
                books.surprises.append(f"entry {number}: answered with {answer}")
        except RemoteError as error:
            # The save failed: its node is fenced, or the store is away. The state may have been
            # taken all the same.
            outcome = "unknown"
            books.errors[f"raised {error.remote_type.rpartition(':')[2]}"] += 1
        except (NotExecutedError, OutcomeUnknownError) as error:
            outcome = "not executed" if isinstance(error, NotExecutedError) else "unknown"
            books.errors[type(error).__name__] += 1
        except Exception as error:
            outcome = "unknown"
            books.surprises.append(
                f"entry {number}: ended with none of the outcomes of a call: {error!r}"
            )
        books.note(number, outcome)

    async def _fetch(self, handle: Ledger) -> None:
        """A value that stays with its owner is fetched, or lost with its owner."""
        books = self._books
        number = self._draw.randrange(1000)
        try:
            with trio.fail_after(TIMEOUT):
                reference = await handle.repeat.remote(number)
                value = await reference.fetch()
            if value != [number] * 100:
                books.surprises.append(f"a reference to {number} led to another value")
            books.fetched += 1
        except (
            trio.TooSlowError,
            NotExecutedError,
            OutcomeUnknownError,
            OwnerDiedError,
            RemoteError,
        ) as error:
            books.errors[f"reference: {type(error).__name__}"] += 1
        except Exception as error:
            books.surprises.append(f"a reference ended with none of its outcomes: {error!r}")


async def find(node: Node, name: str) -> Ledger:
    """A handle, when there is an actor of this name, and the store can be asked."""
    while True:
        try:
            return await node.lookup(name, Ledger)
        except (NotExecutedError, OutcomeUnknownError, StoreError):
            if node.asked_to_leave.is_set():
                raise
            await trio.sleep(0.1)


async def read_ledgers(node: Node, books: Books) -> None:
    """What has been applied in the end. Notes a surprise for each ledger that does not answer in
    time.
    """

    async def read(name: str) -> None:
        problem: object = "no answer"
        with trio.move_on_after(READ_SECONDS):
            while True:
                try:
                    applied = await (await find(node, name)).applied.options(
                        timeout=5.0, retry=PATIENT
                    )()
                except (NotExecutedError, OutcomeUnknownError, RemoteError) as error:
                    problem = error
                    await trio.sleep(0.2)
                    continue
                books.applied.update(applied)
                return
        books.surprises.append(
            f"{name} did not answer within {READ_SECONDS:g} s after the last fault: {problem!r}"
        )

    async with trio.open_nursery() as nursery:
        for number in range(LEDGERS):
            nursery.start_soon(read, f"ledger-{number}")
