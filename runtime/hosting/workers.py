"""Workers: a small pool of parked tasks that run actors which have mail.

A cell with mail is queued; a worker runs it until its mailbox is empty. A method's coroutine is
stepped by hand, so one that returns without waiting costs no task switch, no scope and no event;
one that does wait suspends its worker, and another is woken if cells are queued behind it. Each
worker lives in one long cancel scope: cancelling a call cancels its worker's scope, and the worker
goes on in a new one.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final

import trio

from actors.call_context import CURRENT
from actors.class_names import class_name, is_one_of
from actors.errors import (
    ArgumentLostError,
    BadArgumentsError,
    CallError,
    CallTimeoutError,
    DeadlineExceededError,
)
from actors.own_logger import own_logger
from actors.reference import Needs, Reference
from runtime.annotation_checks import check_arguments
from runtime.environment import Environment
from runtime.hosting.cell import ActorCell, Invocation, RefusedElsewhereError, TaskWorker
from runtime.hosting.ended_iterations import explain_ended_iteration
from runtime.hosting.filtered_methods import FilteredMethod
from runtime.hosting.own_context import Method, resume
from runtime.hosting.threads import Threads
from runtime.hosting.timeline_recorder import TimelineRecorder
from runtime.limited_log import LimitedLog
from runtime.links.spinner import Spinner
from runtime.statistics.call_statistics import LONG_TURN_SECONDS, CallStatistics, CallTimer
from runtime.tracebacks import drop_earlier_runs
from runtime.user_errors import guarded, is_cancellation, is_interrupt

logger = own_logger("understudy.actors")

NOT_ON_ASYNCIO: Final = (
    "asyncio runs no loop here, for actors run on trio: use trio's functions (trio.sleep for "
    "asyncio.sleep), or derive the actor from runtime.aio.AsyncioActor"
)
"""The note at the error of a method that uses a library of asyncio."""

OF_ASYNCIO: Final = (
    "no running event loop",
    # What `asyncio.gather` and others raise that look for the loop of the thread.
    "There is no current event loop",
    # What waits by a future of its loop, such as `asyncio.Queue.get`, has None for a loop.
    "'NoneType' object has no attribute 'create_future'",
    # Trio's own, where a method awaits a future of asyncio.
    "trio.run received unrecognized yield message",
)
"""How errors begin where a method uses a library of asyncio."""

_ADVISED: Final = frozenset({RuntimeError, TypeError, AttributeError})
"""Exact classes of errors that get such a note."""

NOT_IN_A_THREAD: Final = (
    "a plain `def` method runs in a thread, where trio runs no loop: write the method as "
    "`async def`, or use trio.from_thread.run(...)"
)
"""The note at the error of a plain method that uses trio."""

CHECKPOINT_EVERY = 64
"""Invocations that a worker runs before it yields to the rest of the event loop."""

CHECKPOINT_SECONDS = 0.005
"""Seconds after which a worker yields in any case, because the node's heartbeats and all its other
actors wait meanwhile.
"""

PAUSED_SECONDS = 0.05
"""Seconds between two checks by a method that waits in its turn for the end of its actor's
pause.
"""

CLOCK_LOOK_MASK = 3
"""A bit mask: the clock is read after every fourth invocation."""


class RefusedInTurnError(Exception):
    """The runtime refuses a call whose turn has come. Never leaves `runtime.hosting`."""

    def __init__(self, refusal: CallError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def scopes_of(task: Any) -> object:
    """Return an object that stays the same as long as the same cancel scopes and nurseries are
    open in the task. It is a private attribute of trio; there is no public one.
    """
    return task._cancel_status


def status_of(scope: Any) -> object:
    """Return what `scopes_of` returns directly within the scope."""
    return scope._cancel_status


def close_left_open(task: Any) -> None:
    """Cancel all tasks in nurseries that were left open in the task."""
    for nursery in task.child_nurseries:
        nursery.cancel_scope.cancel()
    # trio would end the whole node by an error for a task that ends while one of its nurseries is
    # open.
    task._child_nurseries.clear()


class LeftOpenError(Exception):
    """A method has ended, but a cancel scope or nursery that it opened has not. Never leaves
    `runtime.hosting`.

    The open scope would surround all that the worker runs from then on: if it were cancelled, no
    later method could wait for anything.
    """

    def __init__(self, invocation: Invocation, task: Any) -> None:
        super().__init__(
            f"{invocation.full_name} has left a cancel scope or nursery open; it is closed now, "
            "and what ran in it is cancelled. Use `with` and `async with`; for tasks that outlive "
            "the call there is self.nursery"
        )
        close_left_open(task)


def _too_late(invocation: Invocation) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"{invocation.full_name} was not run: at its turn, its deadline had passed or too "
        "little time was left; allow more time"
    )


def _advise(error: BaseException) -> None:
    """Say what to do at the error of a method that uses a library of asyncio, or trio in a thread
    that runs no loop.
    """
    # Only at what asyncio and trio themselves raise, which has no notes: nothing of a user's class
    # is run.
    if is_one_of(type(error), _ADVISED) and not hasattr(error, "__notes__"):
        text = error.args[0] if len(error.args) == 1 else None
        if type(text) is not str:
            return
        if text.startswith(OF_ASYNCIO):
            error.add_note(NOT_ON_ASYNCIO)
        elif text == "must be called from async context":
            error.add_note(NOT_IN_A_THREAD)


def _own_context(invocation: Invocation) -> Context:
    """Return the context for one run. What the method sets in it is not there for the next one,
    which may be another actor's.
    """
    # Set for each run, so that nothing that an earlier run left behind has an effect.
    if CURRENT.get() is not invocation.context:
        CURRENT.set(invocation.context)
    return copy_context()


def _refuse(cell: ActorCell, invocation: Invocation, error: CallError) -> None:
    """Report the refusal to the caller; for a paused actor only when it is known that the lease has
    held.
    """
    if cell.paused:
        cell.hold(invocation, functools.partial(invocation.sink.refused, invocation, error))
    else:
        invocation.sink.refused(invocation, error)


def _does_not_fit(invocation: Invocation, error: TypeError) -> BadArgumentsError:
    if isinstance(error, BadArgumentsError):
        return error
    name = invocation.cell.address.name
    # In the words of a caller that knows the class: Python's count the actor as an argument.
    # Guarded, for the signature of a function may be code of users.
    refusal = guarded(
        lambda: invocation.definition.refusal(name, invocation.args, invocation.kwargs),
        lambda error: None,
    )
    return refusal or BadArgumentsError(f"{name}.{error}")


async def with_values(
    invocation: Invocation, needs: Needs
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments of an invocation with the values of references in their places.

    The values are fetched concurrently. Raises ArgumentLostError if one cannot be fetched.
    """
    found: dict[int | str, object] = {}
    lost: list[tuple[int | str, Exception]] = []
    nursery: trio.Nursery | None = None

    async def fetch(place: int | str, reference: Reference[object]) -> None:
        try:
            found[place] = await reference.fetch()
        except Exception as error:
            lost.append((place, error))
            if nursery is not None:
                nursery.cancel_scope.cancel()

    if len(needs) == 1:
        # A nursery for a single reference would cost more than reading a value in place.
        await fetch(*needs[0])
    else:
        async with trio.open_nursery() as nursery:
            for place, reference in needs:
                nursery.start_soon(partial(fetch, place, reference))
    if lost:
        place, error = lost[0]
        name = invocation.full_name
        what = f"argument {place!r}" if isinstance(place, str) else f"argument number {place + 1}"
        raise ArgumentLostError(
            f"{name} was not run: its {what} is a reference without a value: "
            f"{type(error).__name__}: {error}"
        ) from error
    return (
        tuple(found.get(index, argument) for index, argument in enumerate(invocation.args)),
        {name: found.get(name, argument) for name, argument in invocation.kwargs.items()},
    )


class TaskWorkers:
    """Runs the invocations of all cells of one node.

    `crashed(cell, error)` is called when a method asks its process to exit.

    `doubt()` is called when a named actor is about to run at `names_until` or later, and must pause
    all named actors. A timer alone would be too late: after the process was stopped, or its loop
    blocked, for longer than its lease, runs are ready to go on before any timer. So the clock is
    read right before each run. `replay(invocation, method)` returns what to run in place of the
    method for a call that was made before.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        environment: Environment,
        crashed: Callable[[ActorCell, BaseException], None],
        doubt: Callable[[], None],
        replay: Callable[[Invocation, Method], Method],
        threads: Threads,
    ) -> None:
        self._nursery = nursery
        self._environment = environment
        self._log = LimitedLog(logger, environment.now)
        self._crashed = crashed
        self._doubt = doubt
        self._replay = replay
        self._in_thread = threads.call
        self.context = copy_context()
        """The context in which the worker tasks start."""
        self.names_until = math.inf
        """The time until which the node relies on its lease, on its own clock."""
        self._ask_lease: Callable[[], float] = lambda: self.names_until
        self.statistics: CallStatistics | None = None
        """Counts runs; None while nothing is measured."""
        self.on_failure: Callable[[ActorCell, str, BaseException], None] | None = None
        """Called with what a method has raised; None if no failures are kept."""
        # An attribute and not a method, so that what is not recorded costs nothing; see `record`.
        self.run: Callable[[Invocation, TaskWorker, trio.lowlevel.Task], Awaitable[None]] = (
            self._run
        )
        self.prepare: Callable[[], Awaitable[None]] | None = None
        """Called once in each worker's task before it runs anything; None: nothing is prepared."""
        self.inner_tasks: Callable[[], AbstractContextManager[object]] = nullcontext
        """Open around all that a worker runs; for the tasks that methods start."""
        self.spinner: Spinner | None = None
        """What the node's connections share that may spin; None if none may."""
        self._queue: deque[ActorCell | Invocation] = deque()
        """Cells that have mail, and invocations of concurrent methods, as they were submitted."""
        self._ahead: deque[Invocation] = deque()
        """Invocations that are taken before those of `_queue`; see `submit_ahead`."""
        self._parked: list[trio.lowlevel.Task] = []
        """Workers that wait for something to run."""
        self._ready = 0
        """Workers that run or are about to, and are not suspended inside a method."""
        self.running: dict[trio.lowlevel.Task, Invocation] = {}
        """The invocation whose method runs directly in a task. Others may only read it."""
        self.starting: dict[trio.lowlevel.Task, ActorCell] = {}
        """The actor whose start runs in a task. The host writes it, and others may only read it."""
        self.tasks: set[trio.lowlevel.Task] = set()
        """The tasks of all workers."""

    def record(self, recorder: TimelineRecorder | None) -> None:
        """Record the turns that begin from now on; None: stop."""
        self.run = self._run if recorder is None else partial(recorder.run, self._run)

    def measure(self, statistics: CallStatistics | None) -> None:
        """Count the runs that end from now on; None: stop."""
        self.statistics = statistics

    def keep_failures(self, on_failure: Callable[[ActorCell, str, BaseException], None]) -> None:
        """Call `on_failure` with what methods raise from now on."""
        self.on_failure = on_failure

    def prepare_by(
        self,
        prepare: Callable[[], Awaitable[None]],
        inner_tasks: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Await `prepare()` in the task of each worker before it runs anything, from now on, and
        keep `inner_tasks()` open around all that it runs.
        """
        self.prepare = prepare
        self.inner_tasks = inner_tasks

    def hold_names_until(self, doubtful_at: float) -> None:
        """Run named actors until then, by this node's clock: the lease was renewed."""
        self.names_until = doubtful_at

    def ask_lease_by(self, ask: Callable[[], float]) -> None:
        """Ask the lease by `ask` before named actors pause: it returns until when the lease may be
        relied on by now, for it may have been renewed while the loop was blocked.
        """
        self._ask_lease = ask

    def submit(self, item: ActorCell | Invocation) -> None:
        """Queue a cell that has mail, or an invocation of a concurrent method."""
        self._queue.append(item)
        # A ready worker comes to the item by itself. Another worker is needed only if all are
        # suspended inside methods.
        if not self._ready:
            self._add_worker()

    def submit_ahead(self, invocation: Invocation) -> None:
        """Queue an invocation before those of all others: for the store, which renews leases and
        must not wait behind what one client asks for.
        """
        self._ahead.append(invocation)
        if not self._ready:
            self._add_worker()

    def has_work(self) -> bool:
        """Return True if anything waits for a worker."""
        return bool(self._queue or self._ahead)

    @contextmanager
    def waiting_inside(self, invocation: Invocation) -> Iterator[None]:
        """Around a wait of plain code below a method: others do not wait for its worker."""
        # In its first step nothing has counted the worker as suspended yet.
        first = not invocation.suspended_at
        if first:
            self._ready -= 1
            if not self._ready and self.has_work():
                self._add_worker()
        try:
            yield
        finally:
            if first:
                self._ready += 1

    def running_here(self) -> Invocation | None:
        """The invocation whose method runs in this task, or in one that has opened a nursery around
        it: a method, or a filter around it, may go on in tasks of its own. None outside of methods.
        """
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        while task is not None:
            invocation = self.running.get(task)
            if invocation is not None:
                return invocation
            task = task.parent_nursery.parent_task if task.parent_nursery is not None else None
        return None

    def take_queued(self) -> list[Invocation]:
        """Take the invocations of concurrent methods that wait for a worker out of the queues."""
        taken = [item for item in (*self._ahead, *self._queue) if isinstance(item, Invocation)]
        cells = list(self.queued())
        self._ahead.clear()
        # The same queues: workers go on with them.
        self._queue.clear()
        self._queue.extend(cells)
        return [invocation for invocation in taken if not invocation.cancelled]

    def queued(self) -> Iterator[ActorCell]:
        """Return the cells that wait for a worker."""
        return (item for item in self._queue if isinstance(item, ActorCell))

    def is_queued(self, cell: ActorCell) -> bool:
        """Return True if the cell, or an invocation of one of its concurrent methods, waits for a
        worker.
        """
        return any(
            item is cell or (isinstance(item, Invocation) and item.cell is cell)
            for item in self._queue
        )

    def _add_worker(self) -> None:
        self._ready += 1
        if self._parked:
            trio.lowlevel.reschedule(self._parked.pop())
        else:
            # In the context in which the node was opened, and not in that of the caller: this
            # worker will run calls that have nothing to do with the code that happens to need it
            # first.
            self.context.run(partial(self._nursery.start_soon, self._work, name="worker"))

    async def _work(self) -> None:
        worker = TaskWorker()
        task = trio.lowlevel.current_task()
        self.tasks.add(task)
        try:
            if self.prepare is not None:
                await self.prepare()
            with self.inner_tasks():
                await self._work_on(worker, task)
        finally:
            self.tasks.discard(task)

    async def _work_on(self, worker: TaskWorker, task: trio.lowlevel.Task) -> None:
        try:
            while True:
                try:
                    with worker.scope:
                        await self._serve(worker, task, scopes_of(task))
                except RuntimeError as error:
                    # trio raises this and abandons the scopes that were left open; their nurseries
                    # must not fail with this task. trio also raises it where a cancelled scope took
                    # effect before the check here: that cancellation concerns no other run.
                    if "stack corrupted" not in str(error):
                        raise
                    close_left_open(task)
                    left_open = (
                        error.__context__ if type(error.__context__) is LeftOpenError else error
                    )
                    self._log.log(
                        logging.ERROR,
                        "%s",
                        str(left_open).partition("\n")[0],
                    )
                worker.renew()
                await trio.lowlevel.checkpoint_if_cancelled()
        finally:
            self.running.pop(task, None)

    async def _serve(self, worker: TaskWorker, task: trio.lowlevel.Task, scopes: object) -> None:
        queue, ahead = self._queue, self._ahead
        count, since = 0, math.inf
        item: ActorCell | Invocation | None
        invocation: Invocation | None
        while True:
            while queue or ahead:
                item = ahead.popleft() if ahead else queue.popleft()
                if isinstance(item, Invocation):
                    if item.cell.ended is not None:
                        item.sink.refused(item, item.cell.gone())
                    elif not item.cancelled:
                        await self.run(item, worker, task)
                        if scopes_of(task) is not scopes:
                            raise LeftOpenError(item, task)
                        # Concurrent methods count as others do: thousands that wait in the queue
                        # would block the loop, each of them for a moment.
                        count += 1
                        if not count & CLOCK_LOOK_MASK:
                            count, since = self._count_time(count, since)
                else:
                    while (invocation := item.take()) is not None:
                        if invocation.definition.concurrent:
                            # It waited for the start or the pause of its actor. A concurrent method
                            # takes no turn, so it is submitted beside the mailbox.
                            self.submit(invocation)
                            continue
                        try:
                            await self.run(invocation, worker, task)
                            if scopes_of(task) is not scopes:
                                raise LeftOpenError(invocation, task)
                        except BaseException:
                            # The worker ends by this; what waits for the actor goes back to the
                            # queue of all.
                            self._requeue(item)
                            raise
                        count += 1
                        if item.slow:
                            count = CHECKPOINT_EVERY
                        elif not count & CLOCK_LOOK_MASK:
                            count, since = self._count_time(count, since)
                        if worker.cancelled or count >= CHECKPOINT_EVERY:
                            # Fairness: a busy actor goes to the end of the queue.
                            self._requeue(item)
                            break
                if worker.cancelled:
                    return
                if count >= CHECKPOINT_EVERY:
                    count, since = 0, math.inf
                    await trio.lowlevel.checkpoint()
            count, since = 0, math.inf
            # A parked worker drops its locals: an invocation may contain references, whose values
            # are kept as long as they live.
            item = invocation = None
            self.running.pop(task, None)
            if self.spinner is not None and self.spinner.current is not None:
                # Still ready: what is submitted meanwhile wakes no other worker, and comes to
                # this one, whichever queue it is in.
                await self.spinner.poll(self.has_work)
                if queue or ahead:
                    continue
            assert not self.has_work(), "what waits has a worker"
            self._ready -= 1
            # No await since the assertion: a submission from here on finds this task among the
            # parked.
            self._parked.append(task)
            await trio.lowlevel.wait_task_rescheduled(self._abort_parking)

    def _count_time(self, count: int, since: float) -> tuple[int, float]:
        """Return the count of runs since the last checkpoint, as `CHECKPOINT_EVERY` if they have
        taken long enough, and the time of the first look at the clock since then.
        """
        now = self._environment.now()
        since = min(since, now)
        return (CHECKPOINT_EVERY if now - since > CHECKPOINT_SECONDS else count), since

    def _abort_parking(self, raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
        # The node is going down. A parked worker that was cancelled must not be woken again.
        self._parked.clear()
        self._ready += 1
        return trio.lowlevel.Abort.SUCCEEDED

    def _requeue(self, cell: ActorCell) -> None:
        if cell.mailbox and cell.ended is None and not cell.paused:
            self._queue.append(cell)
        else:
            cell.busy = False
            # If the last of the mail was refused at its turn, no run ends and calls `finish`.
            cell.wake_if_quiet()

    async def _run(
        self, invocation: Invocation, worker: TaskWorker, task: trio.lowlevel.Task
    ) -> None:
        cell, timed, began = invocation.cell, invocation.deadline != math.inf, 0.0
        if timed:
            began = self._environment.now()
            if cell.late(invocation, began):
                invocation.sink.refused(invocation, _too_late(invocation))
                return
        try:
            if invocation.needs is None:
                coroutine = self._method(invocation, invocation.args, invocation.kwargs)
            else:
                coroutine = self._with_values(invocation, invocation.needs)
        except TypeError as error:
            invocation.sink.refused(invocation, _does_not_fit(invocation, error))
            return
        # Nothing that takes time may come between this look at the clock and the first step.
        if cell.leased and not self.may_run(cell):
            coroutine.close()
            cell.put_back(invocation)
            self._doubt()
            return
        if (refusal := cell.begin(invocation)) is not None:
            coroutine.close()
            invocation.sink.refused(invocation, refusal)
            return
        invocation.begun = True
        invocation.runner = worker
        self.running[task] = invocation
        if invocation.timer is not None:
            invocation.timer.started = self._environment.stopwatch()
        if timed:
            worker.scope.deadline = invocation.deadline
        context = _own_context(invocation)
        if invocation.call is not None and invocation.call.repeated:
            coroutine = self._replay(invocation, coroutine)
        try:
            try:
                # The first step by hand: a method that never waits costs no task switch.
                trap = context.run(coroutine.send, None)
            except StopIteration as stop:
                if cell.leased and self._environment.now() >= self.names_until:
                    # It has blocked the loop for so long that another node may have the name: its
                    # outcome is held back.
                    self._doubt_if_in_doubt()
                self._returned(invocation, stop.value)
            else:
                self._returned(
                    invocation, await self._suspended(invocation, coroutine, trap, context)
                )
        except RefusedElsewhereError as refused:
            _refuse(cell, invocation, refused.error)
        except Exception as error:
            if cell.leased and self._environment.now() >= self.names_until:
                self._doubt_if_in_doubt()
            self._raised(invocation, error)
        except BaseException as error:  # noqa: ASYNC103  user code raises these as well
            if self._goes_on(invocation, worker, error):
                raise
            # A group may hold a cancellation besides, which is raised afresh here.
            await trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC102
        finally:
            invocation.runner = None
            if invocation.timer is not None:
                self._count(invocation, invocation.timer)
            measured = timed and invocation.stream_output is None
            cell.finish(invocation, self._environment.now() - began if measured else None)
            if timed:
                worker.drop_deadline()

    def _goes_on(self, invocation: Invocation, worker: TaskWorker, error: BaseException) -> bool:
        """Report a method that raised something other than an Exception. Returns True if it must
        not be raised further here.
        """
        if is_cancellation(error):
            task = trio.lowlevel.current_task()
            if not worker.scope.cancel_called and scopes_of(task) is not status_of(worker.scope):
                # By a nursery that the method has left open, in which a task has failed. Nothing
                # else would report it.
                left_open = LeftOpenError(invocation, task)
                self._raised(invocation, RuntimeError(str(left_open)))
                raise left_open
            self._cancelled(invocation)
        if is_cancellation(error) or is_interrupt(error):
            # An interrupt ends the process, and no caller gets it as an error of the method.
            return True
        self._raised(invocation, error)
        # What services of the runtime run for others (methods of values, `on_inspect`, converters)
        # is users' code, too: that ends the call, and never the service of the whole node.
        if issubclass(type(error), SystemExit) and not invocation.cell.system:
            self._crashed(invocation.cell, error)
        return False

    def _count(self, invocation: Invocation, timer: CallTimer) -> None:
        turn = timer.ran(self._environment.stopwatch())
        # Those that have waited for something are all counted when they go on.
        if turn > LONG_TURN_SECONDS and not invocation.suspended_at and self.statistics is not None:
            self.statistics.ran_long(invocation.cell.address, invocation.definition.name)

    def _method(
        self, invocation: Invocation, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Method:
        """Return the coroutine to run. Raises TypeError if the arguments do not fit."""
        if invocation.cell.system:
            # Types are checked: what a peer sends to a service enters tables of the whole node.
            check_arguments(invocation.definition.function, args, kwargs)
        if invocation.stream_output is None:
            if invocation.cell.threads is not None and invocation.definition.in_thread:
                return invocation.definition.run(
                    invocation.cell.instance,
                    args,
                    kwargs,
                    functools.partial(self._in_thread, of_actor=invocation.cell.threads),
                )
            return invocation.definition.run(
                invocation.cell.instance, args, kwargs, self._in_thread
            )
        definition = invocation.definition
        items = definition.items(invocation.cell.instance, args, kwargs)
        produced = invocation.stream_output.produce(invocation, items)
        if isinstance(definition, FilteredMethod):
            return definition.around(produced, args, kwargs)
        return produced

    async def _with_values(self, invocation: Invocation, needs: Needs) -> object:
        """Fetch the values of references among the arguments, then run the method."""
        cell = invocation.cell
        try:
            args, kwargs = await with_values(invocation, needs)
            method = self._method(invocation, args, kwargs)
        except ArgumentLostError as error:
            raise RefusedInTurnError(error) from error
        except TypeError as error:
            raise RefusedInTurnError(_does_not_fit(invocation, error)) from error
        try:
            while not self.may_run(cell):
                # Fetching took time: another node may have the name by now, so check again.
                self._doubt()
                await trio.sleep(PAUSED_SECONDS)
        except BaseException:
            method.close()
            raise
        return await method

    def may_run(self, cell: ActorCell) -> bool:
        """True if a method of this actor may run now: its name is certainly its node's, or it has
        none that another node could get. Ask right before the run, after everything that takes
        time: another node may have the name by then.
        """
        return not cell.leased or not (
            cell.paused or (self._environment.now() >= self.names_until and self._is_in_doubt())
        )

    def returned(self, invocation: Invocation, value: object) -> None:
        """Report the value of a run outside of the workers, as soon as it is certain that the lease
        has held.
        """
        self.check_lease(invocation.cell)
        self._returned(invocation, value)

    def check_lease(self, cell: ActorCell) -> None:
        """Pause the actor, if it may run only as long as its node holds its lease, and that is in
        doubt.
        """
        if cell.leased:
            self._doubt_if_in_doubt()

    def _is_in_doubt(self) -> bool:
        """True if other nodes may have the names by now. Asks the lease once more: a thread may
        have renewed it while the loop was blocked.
        """
        if self._environment.now() < self.names_until:
            return False
        self.names_until = max(self.names_until, self._ask_lease())
        return self._environment.now() >= self.names_until

    def _doubt_if_in_doubt(self) -> None:
        if self._is_in_doubt():
            self._doubt()

    def _returned(self, invocation: Invocation, value: object) -> None:
        if invocation.cell.paused:
            invocation.cell.hold(
                invocation, functools.partial(invocation.sink.value, invocation, value)
            )
        else:
            invocation.sink.value(invocation, value)

    def _raised(self, invocation: Invocation, error: BaseException) -> None:
        _advise(error)
        if type(error) is RuntimeError:
            cls = class_name(type(invocation.cell.instance))
            explain_ended_iteration(error, f"{cls}.{invocation.definition.name}")
        drop_earlier_runs(error, _RUN)
        if type(error) is RefusedInTurnError:
            report = functools.partial(invocation.sink.refused, invocation, error.refusal)
        else:
            if self.statistics is not None:
                self.statistics.run_raised(invocation.cell.address, invocation.definition.name)
            if self.on_failure is not None:
                self.on_failure(invocation.cell, invocation.definition.name, error)
            if not invocation.cell.paused:
                invocation.sink.raised(invocation, error)
                return
            report = functools.partial(invocation.sink.raised, invocation, error)
        if invocation.cell.paused:
            invocation.cell.hold(invocation, report)
        else:
            report()

    async def _suspended(
        self, invocation: Invocation, coroutine: Method, trap: object, context: Context
    ) -> object:
        invocation.suspended_at = self._environment.now()
        self._ready -= 1
        if not self._ready and self.has_work():
            # This worker will be suspended for a while. Invocations that are queued behind it need
            # another worker.
            self._add_worker()
        try:
            return await resume(coroutine, trap, context)
        finally:
            self._ready += 1
            statistics = self.statistics
            if statistics is not None and (
                self._environment.now() - invocation.suspended_at > LONG_TURN_SECONDS
            ):
                statistics.ran_long(invocation.cell.address, invocation.definition.name)
            if invocation.cell.leased:
                self._doubt_if_in_doubt()

    def _cancelled(self, invocation: Invocation) -> None:
        if invocation.cell.ended is not None:
            invocation.sink.refused(invocation, invocation.cell.died())
        elif invocation.deadline != math.inf and self._environment.now() >= invocation.deadline:
            invocation.sink.refused(
                invocation,
                # A caller whose own timeout this is says it in its own words, with the limit.
                CallTimeoutError(
                    f"{invocation.full_name} was cancelled at its deadline, but may have taken "
                    "effect; allow more time"
                ),
            )


_RUN = TaskWorkers._run.__code__
"""The code in which what a method has raised is caught."""
