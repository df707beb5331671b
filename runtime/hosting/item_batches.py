"""Batches of items: calls of one method of an actor that travel as one, and run in one turn.

Every actor answers to the two methods of `BATCH_METHODS`, which no class lists, and which only the
runtime calls. A plain method runs for the whole batch in one thread, so that tiny items cost no
switch of threads each. What of a batch has not been started can be recalled at any time: then it
certainly never starts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeGuard, cast

import attrs
import trio

from actors.actor import Actor
from actors.class_names import class_name, is_one_of
from actors.errors import (
    BadArgumentsError,
    CallError,
    EncodeError,
    MethodNotFoundError,
    NotExecutedError,
)
from actors.method import MethodDefinition
from actors.short_repr import short_repr
from runtime.environment import raise_alone
from runtime.hosting.batch_thread import BatchThread, ThreadedBatch
from runtime.hosting.cell import REPORTED, ActorCell, Invocation, RefusedElsewhereError
from runtime.hosting.filtered_methods import FilteredMethod
from runtime.hosting.own_context import in_own_context
from runtime.hosting.running_batch import (
    ENCODED,
    NOT_STARTED,
    RAISED,
    REFUSED,
    RETURNED,
    UNSENDABLE,
    Outcome,
    Rows,
    RunningBatch,
)
from runtime.hosting.workers import TaskWorkers
from runtime.user_errors import guarded, is_cancellation, is_interrupt, summary_of

MOST_ITEMS = 65_536
"""The most items in a batch."""

JUDGED_AT_ONCE = 256
"""Items that an application's `authorize` judges in one step of the loop. Those of a larger batch
are judged in its turn, in parts.
"""

PLAIN: Final[frozenset[type]] = frozenset({bool, bytes, float, int, str, type(None)})
"""Types whose values can always be sent, so that encoding them need not be tried."""

ROW_TYPES: Final = frozenset({list, tuple})
"""How the arguments of an item may arrive: as a list, or as the tuple that they were."""


@attrs.frozen
class RecalledRows:
    """Takes the place of the items in a waiting call for a batch that was recalled."""

    count: int


class ItemBatches:
    """The batches that run on one node.

    `describe`: turns an exception of a method into data, and `describe_refusal` an error of the
    runtime. `encode_by_itself`: as the codec's. `workers`: run the calls of batches, and know
    whether another node may have the name of an actor.
    """

    def __init__(
        self,
        stopwatch: Callable[[], float],
        describe: Callable[[BaseException], object],
        describe_refusal: Callable[[CallError], object],
        encode_by_itself: Callable[[object], bytes | None],
        workers: TaskWorkers,
    ) -> None:
        self._stopwatch = stopwatch
        self._workers = workers
        self._describe = describe
        self._describe_refusal = describe_refusal
        self._encode_by_itself = encode_by_itself
        self._running: dict[tuple[str, str], RunningBatch] = {}
        self.judge: Callable[[Invocation, Rows], Awaitable[None]] | None = None
        """Judges the items of a large batch; None while the application has no `authorize`. Set by
        the admission of calls.
        """

    async def run(
        self, cell: ActorCell, method: object, batch: object, rows: object
    ) -> tuple[float, list[Outcome]]:
        """Run a method of an actor for each row of arguments, one after the other; returns the
        seconds that this took, and an outcome for each row.
        """
        instance = cell.instance
        if isinstance(rows, RecalledRows):
            return 0.0, [[NOT_STARTED, None]] * rows.count
        definition, checked = _checked(cell, method, rows)
        # Filters run on the loop, and have each item run in a thread for itself.
        in_thread = definition.in_thread and not isinstance(definition, FilteredMethod)
        key = (cell.address.name, str(batch))
        # Checked before each item, as the workers do before each call. A thread cannot read the
        # loop's clock; but while it runs, the loop is free to notice that the lease is in doubt.
        running = self._running[key] = RunningBatch(
            checked,
            (lambda: not cell.paused) if in_thread else partial(self._workers.may_run, cell),
        )
        try:
            await self.judge_rows(checked)
            if in_thread:
                await self._in_thread(cell, definition, running, batch)
            else:
                await self._on_loop(instance, definition, running)
        finally:
            self._forget(key, running)
        return self._answer(running)

    async def judge_rows(self, rows: object) -> None:
        """Have the items of a batch, which is the running call, judged if they were too many to be
        judged when it came: nothing of it has run. Raises RefusedElsewhereError.
        """
        if self.judge is not None and _are_rows(rows) and len(rows) > JUDGED_AT_ONCE:
            await self.judge(self._workers.running[trio.lowlevel.current_task()], rows)

    def recall(self, cell: ActorCell, batch: str) -> int:
        """Start no more items of a batch that runs or waits. Returns how many were started; -1 for
        any other batch, which may have ended with its answer under way, so nothing is known about
        it.
        """
        running = self._running.get((cell.address.name, batch))
        if running is not None:
            return running.close()
        for invocation in cell.mailbox or ():
            if (
                invocation.definition.name == "@items"
                and len(invocation.args) == 3
                and invocation.args[1] == batch
            ):
                rows = invocation.args[2]
                if not isinstance(rows, list):
                    return -1
                count = len(cast("list[object]", rows))
                invocation.args = (invocation.args[0], batch, RecalledRows(count))
                return 0
        return -1

    async def _on_loop(
        self,
        instance: Actor,
        definition: MethodDefinition,
        running: RunningBatch,
    ) -> None:
        outcomes, run = running.outcomes, definition.function
        if isinstance(definition, FilteredMethod):
            in_thread = cast("Any", instance)._hosted().in_thread

            def run(instance: Actor, *args: object) -> Coroutine[Any, Any, object]:
                return definition.run(instance, args, {}, in_thread)

        switch = began = self._stopwatch()
        for row in running:
            try:
                outcomes.append([RETURNED, await in_own_context(run(instance, *row))])
            except RefusedElsewhereError as refused:
                outcomes.append([REFUSED, refused.error])
            except BaseException as error:  # noqa: ASYNC103
                # User code raises these as well; what is not its own goes on.
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
        running.seconds = self._stopwatch() - began

    async def _in_thread(
        self,
        cell: ActorCell,
        definition: MethodDefinition,
        running: RunningBatch,
        batch: object,
    ) -> None:
        turn = cell.turn
        is_turn = (
            turn is not None and turn.definition.name == "@items" and turn.args[1:2] == (batch,)
        )
        first = ThreadedBatch(turn if is_turn else None, running, definition)
        thread = BatchThread(cell, first, self.answer_first, self.answer, self._stopwatch)

        async def close() -> None:
            # A thread cannot be cancelled: it ends after the item that it runs.
            try:
                await trio.sleep_forever()
            finally:
                thread.accepts = False
                running.close()

        # A thread for what methods wait for is no place for batches that nothing waits for.
        follows = is_turn and turn is not None and turn.depth == 0
        if follows:
            self._take_waiting(thread)
            cell.following = partial(self._follow, thread)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(close)
                await thread.run(nursery, cast("Any", cell.instance)._hosted().call_in_thread)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # The nursery is internal: `RefusedElsewhereError` is expected as it is.
            raise_alone(group)
        finally:
            if follows:
                cell.following = None

    # Batches that follow another one in its thread

    def _take_waiting(self, thread: BatchThread) -> None:
        """Run the batches that wait already behind the first one."""
        mailbox = thread.cell.mailbox
        while mailbox and not mailbox[0].cancelled and self._add(thread, mailbox[0]):
            mailbox.popleft()

    def _follow(self, thread: BatchThread, invocation: Invocation) -> bool:
        """Run a batch that has arrived behind the one that runs; False if it is none, or must wait
        for its turn.
        """
        # The calls of one node start in the order in which they were made.
        return not thread.cell.mailbox and self._add(thread, invocation)

    def _add(self, thread: BatchThread, invocation: Invocation) -> bool:
        cell = thread.cell
        if (
            invocation.definition.name != "@items"
            or not thread.accepts
            or cell.ended is not None
            or invocation.deadline != math.inf
            or len(invocation.args) != 3
            or any((invocation.kwargs, invocation.needs, invocation.call, invocation.chain))
            # As the workers ask before each run.
            or cell.paused
            or not self._workers.may_run(cell)
        ):
            return False
        try:
            definition, rows = _checked(cell, invocation.args[0], invocation.args[2])
        except NotExecutedError:
            # Refused when its turn has come; what was recalled is answered then.
            return False
        if (
            not definition.in_thread
            or isinstance(definition, FilteredMethod)
            # It is judged in a turn of its own.
            or (self.judge is not None and len(rows) > JUDGED_AT_ONCE)
            or cell.begin(invocation) is not None
        ):
            return False
        running = RunningBatch(rows, lambda: not cell.paused)
        batch = invocation.runner = ThreadedBatch(invocation, running, definition)
        invocation.begun = True
        self._running[cell.address.name, str(invocation.args[1])] = running
        thread.add(batch)
        return True

    def answer_first(self, batch: ThreadedBatch) -> None:
        """Answer the call whose turn lasts longer than its own batch."""
        invocation = batch.invocation
        assert invocation is not None, "without its call no batch follows"
        cell = invocation.cell
        self._workers.check_lease(cell)
        # Otherwise its method's end says how it has ended: that of a killed actor is cancelled.
        if not invocation.cancelled and not cell.paused and cell.ended is None:
            invocation.sink.value(invocation, self._answer(batch.running))
            # What its method returns at the end of the turn would be a second answer.
            invocation.sink = REPORTED

    def answer(self, batch: ThreadedBatch) -> None:
        """Answer the call of a batch that has followed another one."""
        invocation, running = batch.invocation, batch.running
        assert invocation is not None, "without its call no batch follows"
        cell = invocation.cell
        self._forget((cell.address.name, str(invocation.args[1])), running)
        invocation.runner = None
        if invocation.timer is not None:
            invocation.timer.ran(self._stopwatch())
        if not batch.cancelled:
            self._workers.returned(invocation, self._answer(running))
        elif cell.ended is not None:
            invocation.sink.refused(invocation, cell.died() if running.close() else cell.gone())
        cell.finish(invocation, None)

    def _forget(self, key: tuple[str, str], running: RunningBatch) -> None:
        running.close()
        if self._running.get(key) is running:
            del self._running[key]

    def _answer(self, running: RunningBatch) -> tuple[float, list[Outcome]]:
        """The seconds that a batch took, and the outcome of each of its items."""
        outcomes = running.outcomes
        return running.seconds, [
            outcome
            if outcome[0] == RETURNED and is_one_of(type(outcome[1]), PLAIN)
            else self._sendable(outcome)
            for outcome in outcomes
        ] + [[NOT_STARTED, None]] * (running.count - len(outcomes))

    def _sendable(self, outcome: Outcome) -> Outcome:
        code, value = outcome
        if code == RAISED:
            described: Outcome = [RAISED, self._describe(cast("BaseException", value))]
            # A description can be encoded. If it cannot, that is the outcome of the whole batch.
            return guarded(lambda: self._encoded(described), lambda error: described)
        if code == REFUSED:
            return [REFUSED, self._describe_refusal(cast("CallError", value))]
        # Guarded as a whole: already to ask what it is runs code of its class and metaclass.
        return guarded(
            lambda: self._returned(outcome), lambda error: [UNSENDABLE, summary_of(error)]
        )

    def _returned(self, outcome: Outcome) -> Outcome:
        value = outcome[1]
        if inspect.isawaitable(value):
            # A plain function that returns a coroutine (a decorated coroutine function): nothing
            # awaits it here.
            cast("Coroutine[Any, Any, object]", value).close()
            return [UNSENDABLE, "it is a coroutine that was not awaited"]
        try:
            return self._encoded(outcome)
        except EncodeError:
            return [UNSENDABLE, f"a {class_name(type(value))}"]

    def _encoded(self, outcome: Outcome) -> Outcome:
        """Return an outcome encoded, if the caller's process may be unable to build it. Raises
        EncodeError.
        """
        encoded = self._encode_by_itself(outcome)
        return outcome if encoded is None else [ENCODED, encoded]


def _checked(cell: ActorCell, method: object, rows: object) -> tuple[MethodDefinition, Rows]:
    """Return the method and the arguments of a batch. Raises MethodNotFoundError or
    BadArgumentsError.
    """
    definition = cell.methods.get(method) if isinstance(method, str) else None
    if definition is None or definition.stream:
        raise MethodNotFoundError(
            f"{type(cell.instance).__qualname__} has no @method {short_repr(method)} that gives "
            "one value"
        )
    if not _are_rows(rows):
        raise BadArgumentsError("the items of a batch are a list of lists of arguments")
    return definition, rows


def _are_rows(rows: object) -> TypeGuard[Rows]:
    return (
        type(rows) is list
        and len(cast("Rows", rows)) <= MOST_ITEMS
        and ROW_TYPES.issuperset(map(type, cast("Rows", rows)))
    )


def calls_in(
    method: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[tuple[str, tuple[object, ...], dict[str, object]]]:
    """Return the calls of methods of the actor's class that a call makes: itself, or those of the
    items of a batch. A malformed batch makes none, since it is refused where it would run. Nor
    does a recall, which starts nothing, and needs the batch's random key.
    """
    if method == "@recall":
        return []
    if method != "@items":
        return [(method, args, kwargs)]
    if len(args) != 3 or not isinstance(args[0], str) or not _are_rows(args[2]):
        return []
    called = args[0]
    return [(called, tuple(row), {}) for row in args[2]]


# By position only: admission looks for the method of the items, and for the items, there.
async def _run_items(
    instance: Actor, method: object, batch: object, rows: object, /
) -> tuple[float, list[Outcome]]:
    context = cast("Any", instance)._context
    return await context.run_items(method, batch, rows)  # type: ignore[no-any-return]


async def _recall_items(instance: Actor, batch: object, /) -> int:
    return await cast("Any", instance)._context.recall_items(batch)  # type: ignore[no-any-return]


BATCH_METHODS: Mapping[str, MethodDefinition] = MappingProxyType(
    {
        "@items": MethodDefinition(name="@items", function=_run_items),
        "@recall": MethodDefinition(name="@recall", function=_recall_items, concurrent=True),
    }
)
"""The methods that every actor has in addition to those of its class."""
