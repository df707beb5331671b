"""Batches of items: calls of one method of an actor that travel as one, and run in one turn.

Every actor answers to the two methods of `BATCH_METHODS`, which no class lists, and which only the
runtime calls. A plain method runs for the whole batch in one thread, so that tiny items cost no
switch of threads each. What of a batch has not been started can be recalled at any time: then it
certainly never starts.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, cast

import attrs
import trio

from actors.actor import Actor
from actors.errors import BadArgumentsError, MethodNotFoundError
from actors.method import MethodDefinition
from runtime.hosting.cell import ActorCell
from runtime.user_errors import is_cancellation, is_interrupt, summary_of

MOST_ITEMS = 65_536
"""The most items in a batch."""

RETURNED, RAISED, NOT_STARTED, UNSENDABLE = range(4)
"""How an item ended: with its value; with a description of the exception; not run at all; or with a
value that cannot be sent, and the reason.
"""

PLAIN: Final = frozenset({bool, bytes, float, int, str, type(None)})
"""Types whose values can always be sent, so that encoding them need not be tried."""

ROW_TYPES: Final = frozenset({list, tuple})
"""How the arguments of an item may arrive: as a list, or as the tuple that they were."""

Rows = list[list[object]]
"""The arguments of each item of a batch."""

Outcome = list[object]
"""A code and a value. A list: a tuple would be encoded, and decoded, by itself."""


class RunningBatch:
    """A batch that runs. `may_run` is asked before each item; when it says False, no other one
    starts.
    """

    def __init__(self, rows: Rows, may_run: Callable[[], bool]) -> None:
        self._rows = deque(rows)
        """Those that were not started, nor recalled. To take one from either end is atomic: its
        runner, maybe in a thread, takes them from the left, and who recalls them from the right, so
        each row has one taker, without a lock.
        """
        self._may_run = may_run
        self._started = len(rows)
        """As many as this, at most."""

    def __iter__(self) -> Iterator[list[object]]:
        """The rows to run: each is started when it was given."""
        take, may_run = self._rows.popleft, self._may_run
        while may_run():
            try:
                row = take()
            except IndexError:
                return
            yield row

    def close(self) -> int:
        """Start no more items. Returns how many were started. Called on the loop only."""
        recall = self._rows.pop
        while self._rows:
            try:
                recall()
            except IndexError:
                # The runner has taken the last one meanwhile.
                break
            self._started -= 1
        return self._started


@attrs.frozen
class RecalledRows:
    """Takes the place of the items in a waiting call for a batch that was recalled."""

    count: int


class ItemBatches:
    """The batches that run on one node.

    `describe`: turns an exception into data. `size_of`: bytes of a value, None if it cannot be
    sent. `may_run`: False while another node may have the actor's name.
    """

    def __init__(
        self,
        stopwatch: Callable[[], float],
        describe: Callable[[BaseException], object],
        size_of: Callable[[object], int | None],
        may_run: Callable[[ActorCell], bool],
    ) -> None:
        self._stopwatch = stopwatch
        self._may_run = may_run
        self._describe = describe
        self._size_of = size_of
        self._running: dict[tuple[str, str], RunningBatch] = {}

    async def run(
        self, cell: ActorCell, method: object, batch: object, rows: object
    ) -> tuple[float, list[Outcome]]:
        """Run a method of an actor for each row of arguments, one after the other; returns the
        seconds that this took, and an outcome for each row.
        """
        instance = cell.instance
        if isinstance(rows, RecalledRows):
            return 0.0, [[NOT_STARTED, None]] * rows.count
        definition, checked = _checked(instance, method, rows)
        key = (cell.address.name, str(batch))
        # Checked before each item, as the workers do before each call. A thread cannot read the
        # loop's clock; but while it runs, the loop is free to notice that the lease is in doubt.
        running = self._running[key] = RunningBatch(
            checked,
            (lambda: not cell.paused) if definition.in_thread else partial(self._may_run, cell),
        )
        try:
            seconds, outcomes = await (
                self._in_thread(instance, definition, running)
                if definition.in_thread
                else self._on_loop(instance, definition, running)
            )
        finally:
            running.close()
            if self._running.get(key) is running:
                del self._running[key]
        return seconds, [
            outcome
            if outcome[0] == RETURNED and type(outcome[1]) in PLAIN
            else self._sendable(outcome)
            for outcome in outcomes
        ] + [[NOT_STARTED, None]] * (len(checked) - len(outcomes))

    def recall(self, cell: ActorCell, batch: str) -> int:
        """Start no more items of a batch that runs or waits. Returns how many were started; -1 for
        any other batch, which may have ended with its answer under way, so nothing is known about
        it.
        """
        running = self._running.get((cell.address.name, batch))
        if running is not None:
            return running.close()
        for job in cell.mailbox or ():
            if job.definition.name == "@items" and len(job.args) == 3 and job.args[1] == batch:
                rows = job.args[2]
                if not isinstance(rows, list):
                    return -1
                count = len(cast("list[object]", rows))
                job.args = (job.args[0], batch, RecalledRows(count))
                return 0
        return -1

    async def _on_loop(
        self,
        instance: Actor,
        definition: MethodDefinition,
        running: RunningBatch,
    ) -> tuple[float, list[Outcome]]:
        outcomes: list[Outcome] = []
        switch = began = self._stopwatch()
        for row in running:
            try:
                outcomes.append([RETURNED, await definition.function(instance, *row)])
            except BaseException as error:  # noqa: ASYNC103  user code raises these as well; what is not its own goes on
                if is_cancellation(error) or is_interrupt(error):
                    raise
                # The outcomes of the items before this one must not be lost with it. So even
                # SystemExit is this item's outcome, and ends no actor.
                outcomes.append([RAISED, error])
                await trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC102
            # Methods that never wait would block the node's other actors, and its heartbeats, for
            # the whole batch.
            if self._stopwatch() - switch > 0.002:
                await trio.lowlevel.checkpoint()
                switch = self._stopwatch()
        return self._stopwatch() - began, outcomes

    async def _in_thread(
        self,
        instance: Actor,
        definition: MethodDefinition,
        running: RunningBatch,
    ) -> tuple[float, list[Outcome]]:
        outcomes: list[Outcome] = []
        function, stopwatch = definition.function, self._stopwatch

        def run() -> float:
            # Here, and not around the thread: what a batch costs besides says nothing of how many
            # items the next one may have.
            began = stopwatch()
            for row in running:
                try:
                    outcomes.append([RETURNED, function(instance, *row)])
                except BaseException as error:  # noqa: ASYNC103  in a thread
                    # In a thread even KeyboardInterrupt is what the method itself raised.
                    outcomes.append([RAISED, error])
            return stopwatch() - began

        async def close() -> None:
            # A thread cannot be cancelled: it ends after the item that it runs.
            try:
                await trio.sleep_forever()
            finally:
                running.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            seconds: float = await cast("Any", instance)._hosted().in_thread(run)
            nursery.cancel_scope.cancel()
        return seconds, outcomes

    def _sendable(self, outcome: Outcome) -> Outcome:
        code, value = outcome
        if code == RAISED:
            return [RAISED, self._describe(cast("BaseException", value))]
        if inspect.isawaitable(value):
            # A plain function that returns a coroutine (a decorated coroutine function): nothing
            # awaits it here.
            cast("Coroutine[Any, Any, object]", value).close()
            return [UNSENDABLE, "it is a coroutine that was not awaited"]
        try:
            fits = self._size_of(value) is not None
        except Exception as error:  # whatever code of a user's type raises
            return [UNSENDABLE, summary_of(error)]
        return outcome if fits else [UNSENDABLE, f"a {type(value).__name__}"]


def _checked(instance: Actor, method: object, rows: object) -> tuple[MethodDefinition, Rows]:
    """Return the method and the arguments of a batch. Raises MethodNotFoundError or
    BadArgumentsError.
    """
    definition = type(instance).__methods__.get(method) if isinstance(method, str) else None
    if definition is None or definition.stream:
        raise MethodNotFoundError(
            f"{type(instance).__qualname__} has no @method {method!r} that gives one value"
        )
    if type(rows) is not list or len(cast("Rows", rows)) > MOST_ITEMS:
        raise BadArgumentsError("the items of a batch are a list of lists of arguments")
    if not ROW_TYPES.issuperset(map(type, cast("Rows", rows))):
        raise BadArgumentsError("the items of a batch are a list of lists of arguments")
    return definition, cast("Rows", rows)


async def _run_items(
    instance: Actor, method: object, batch: object, rows: object
) -> tuple[float, list[Outcome]]:
    return await cast("Any", instance)._context.run_items(method, batch, rows)  # type: ignore[no-any-return]


async def _recall_items(instance: Actor, batch: object) -> int:
    return await cast("Any", instance)._context.recall_items(batch)  # type: ignore[no-any-return]


BATCH_METHODS: Mapping[str, MethodDefinition] = MappingProxyType(
    {
        "@items": MethodDefinition(name="@items", function=_run_items),
        "@recall": MethodDefinition(name="@recall", function=_recall_items, concurrent=True),
    }
)
"""The methods that every actor has in addition to those of its class."""
