"""Workers: a small pool of parked tasks that run actors which have mail.

A cell with mail is queued; a worker runs it until its mailbox is empty. A method's coroutine is stepped by hand, so one that returns
without
waiting costs no task switch, no scope and no event; one that does wait suspends its worker, and another is woken if cells are queued
behind it. Each worker lives in one long cancel scope: cancelling a call cancels its worker's scope, and the worker goes on in a new one.
"""

from __future__ import annotations

import functools
import logging
import math
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import trio

from actors.arguments import Needs
from actors.errors import ArgumentLostError, BadArgumentsError, CallError, CallTimeoutError, DeadlineExceededError
from runtime.checking import check_arguments
from runtime.environment import Environment
from runtime.hosting.cell import Cell, Job
from runtime.hosting.elsewhere import RefusedElsewhereError
from runtime.hosting.threads import Threads
from runtime.hosting.values import with_values
from runtime.user_errors import is_cancellation, is_interrupt

logger = logging.getLogger("understudy.actors")

CHECKPOINT_EVERY = 64
"""Jobs that a worker runs before it lets the rest of the loop have a turn."""

CHECKPOINT_SECONDS = 0.005
"""How long it may run jobs before it does so in any case: the heartbeats of the node, and all its other actors, wait for that."""

PAUSED_SECONDS = 0.05
"""How often a method that waits inside its turn looks whether its actor may go on."""

LOOK_EVERY = 3
"""A mask: the clock is looked at after every fourth job."""


@types.coroutine
def _resume(coroutine: Method, trap: object) -> Generator[Any, Any, object]:
    """Go on with a coroutine that was stepped by hand until it yielded `trap` to the event loop."""
    while True:
        try:
            step = functools.partial(coroutine.send, (yield trap))
        except BaseException as error:  # noqa: ASYNC103  passed on to the coroutine
            step = functools.partial(coroutine.throw, error)
        try:
            trap = step()
        except StopIteration as stop:
            return stop.value
        finally:
            # What was thrown in, or sent to be raised there, has this frame in its traceback: kept here, it and all that its frames refer
            # to would stay until the cyclic collector comes.
            del step


Method = Coroutine[Any, Any, object]


class RefusedInTurnError(Exception):
    """The runtime ends a call although its turn has come. Never leaves this room."""

    def __init__(self, refusal: CallError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def scopes_of(task: Any) -> object:
    """What is equal only as long as the same cancel scopes and nurseries are open in the task: trio keeps it, and says so nowhere else."""
    return task._cancel_status


def close_left_open(task: Any) -> None:
    """Cancel what runs in nurseries that were left open in the task."""
    for nursery in task.child_nurseries:
        nursery.cancel_scope.cancel()
    # trio would end the whole node by an error for a task that ends while one of its nurseries is open.
    task._child_nurseries.clear()


class LeftOpenError(Exception):
    """A method has ended, and a cancel scope or nursery that it had opened has not. Never leaves this room.

    Left to itself it would be around all that the worker runs from then on: cancelled, none of that could wait for anything.
    """

    def __init__(self, job: Job, task: Any) -> None:
        super().__init__(
            f"{job.cell.address.name}.{job.definition.name} has left a cancel scope or nursery open; it is closed now, and what ran in it "
            "is cancelled. Use `with` and `async with`; for tasks that outlive the call there is self.nursery"
        )
        close_left_open(task)


def _does_not_fit(cell: Cell, error: TypeError) -> BadArgumentsError:
    return error if isinstance(error, BadArgumentsError) else BadArgumentsError(f"{cell.address.name}.{error}")


class _Worker:
    """One task of the pool, as the jobs that it runs see it."""

    __slots__ = ("scope",)

    def __init__(self) -> None:
        self.scope = trio.CancelScope()

    def cancel(self) -> None:
        self.scope.cancel()


class Workers:
    """Runs the jobs of all cells of one node. `crashed(cell, error)` is told of a method that asked its process to exit.

    `doubt()` is called when a named actor is about to run at `names_until` or later, and must pause them all. A process that was
    stopped, or whose loop was blocked, for longer than its lease finds runs ready to go on at once, before any timer: so the clock is
    asked right before each of them, and not only by a timer. `once(job, method)` is asked for what to run in place of the method for a
    call that was made before.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        environment: Environment,
        crashed: Callable[[Cell, BaseException], None],
        doubt: Callable[[], None],
        once: Callable[[Job, Method], Method],
        threads: Threads,
    ) -> None:
        self._nursery = nursery
        self._environment = environment
        self._crashed = crashed
        self._doubt = doubt
        self._once = once
        self._in_thread = threads.method
        self.names_until = math.inf
        """Until when the node relies on its lease, on its own clock."""
        self.ask_lease: Callable[[], float] = lambda: self.names_until
        """Until when it may be relied on by now: it may have been renewed while the loop was blocked."""
        self._queue: deque[Cell | Job] = deque()
        self._parked: list[trio.lowlevel.Task] = []
        self._ready = 0
        """Workers that run or are about to, and are not suspended inside a method."""
        self.running: dict[trio.lowlevel.Task, Job] = {}
        """The job whose method runs directly in a task; for looking only."""

    def submit(self, item: Cell | Job) -> None:
        """Queue a cell that has mail, or a job of a concurrent method."""
        self._queue.append(item)
        if not self._ready:
            self._add_worker()

    def is_queued(self, cell: Cell) -> bool:
        """True if the cell has mail that no worker has come to yet, or a job of a concurrent method has."""
        return any(item is cell or (isinstance(item, Job) and item.cell is cell) for item in self._queue)

    def _add_worker(self) -> None:
        self._ready += 1
        if self._parked:
            trio.lowlevel.reschedule(self._parked.pop())
        else:
            self._nursery.start_soon(self._work, name="worker")

    async def _work(self) -> None:
        worker = _Worker()
        task = trio.lowlevel.current_task()
        try:
            while True:
                try:
                    with worker.scope:
                        await self._serve(worker, task, scopes_of(task))
                except RuntimeError as error:
                    # trio's, and it has abandoned the scopes that were left open; the nurseries among them are not to fall with this task.
                    # It says so also where a cancelled one was met before this noticed: its cancellation is nobody else's.
                    if "stack corrupted" not in str(error):
                        raise
                    close_left_open(task)
                    left_open = error.__context__ if type(error.__context__) is LeftOpenError else error
                    logger.error("%s", str(left_open).partition("\n")[0])
                # Somebody cancelled the job that ran here; the next ones are not concerned.
                worker.scope = trio.CancelScope()
                await trio.lowlevel.checkpoint_if_cancelled()
        finally:
            self.running.pop(task, None)

    async def _serve(self, worker: _Worker, task: trio.lowlevel.Task, scopes: object) -> None:
        queue = self._queue
        count, since = 0, math.inf
        item: Cell | Job | None
        job: Job | None
        while True:
            while queue:
                item = queue.popleft()
                if isinstance(item, Job):
                    if item.cell.ended is not None:
                        item.sink.refused(item, item.cell.gone())
                    elif not item.cancelled:
                        await self._run(item, worker, task)
                        if scopes_of(task) is not scopes:
                            raise LeftOpenError(item, task)
                else:
                    while (job := item.take()) is not None:
                        if job.definition.concurrent:
                            # It waited for the start of its actor, or while that was paused, and is nobody's turn: it must not become one.
                            self.submit(job)
                            continue
                        try:
                            await self._run(job, worker, task)
                            if scopes_of(task) is not scopes:
                                raise LeftOpenError(job, task)
                        except BaseException:
                            self._requeue(item)
                            raise
                        count += 1
                        if item.slow:
                            count = CHECKPOINT_EVERY
                        elif not count & LOOK_EVERY:
                            now = self._environment.now()
                            since = min(since, now)
                            if now - since > CHECKPOINT_SECONDS:
                                count = CHECKPOINT_EVERY
                        if worker.scope.cancel_called or count >= CHECKPOINT_EVERY:
                            # Others first: a busy actor takes its turn again at the end of the queue.
                            self._requeue(item)
                            break
                if worker.scope.cancel_called:
                    return
                if count >= CHECKPOINT_EVERY:
                    count, since = 0, math.inf
                    await trio.lowlevel.checkpoint()
            count, since = 0, math.inf
            # A parked worker keeps nothing of what it ran: there may be references in it, which are held as long as they live.
            item = job = None
            self._ready -= 1
            self.running.pop(task, None)
            self._parked.append(task)
            await trio.lowlevel.wait_task_rescheduled(self._abort_parking)

    def _abort_parking(self, raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
        # The node is going down. A parked worker that was cancelled must not be woken again.
        self._parked.clear()
        self._ready += 1
        return trio.lowlevel.Abort.SUCCEEDED

    def _requeue(self, cell: Cell) -> None:
        if cell.mailbox and cell.ended is None and not cell.paused:
            self._queue.append(cell)
        else:
            cell.busy = False

    async def _run(self, job: Job, worker: _Worker, task: trio.lowlevel.Task) -> None:
        cell = job.cell
        timed = job.deadline != math.inf
        began = 0.0
        if timed:
            began = self._environment.now()
            if cell.late(job, began):
                late = f"the time of {cell.address.name}.{job.definition.name} was over, or too short for a run, before its turn came"
                job.sink.refused(job, DeadlineExceededError(late))
                return
        try:
            coroutine = self._method(job, job.args, job.kwargs) if job.needs is None else self._with_values(job, job.needs)
        except TypeError as error:
            job.sink.refused(job, _does_not_fit(cell, error))
            return
        if cell.leased and (cell.paused or (self._environment.now() >= self.names_until and self._is_in_doubt())):
            coroutine.close()
            cell.put_back(job)
            self._doubt()
            return
        refusal = cell.begin(job)
        if refusal is not None:
            coroutine.close()
            job.sink.refused(job, refusal)
            return
        job.begun = True
        job.runner = worker
        self.running[task] = job
        if timed:
            worker.scope.deadline = job.deadline
        if job.call is not None and job.call.repeated:
            coroutine = self._once(job, coroutine)
        try:
            try:
                trap = coroutine.send(None)
            except StopIteration as stop:
                if cell.leased and self._environment.now() >= self.names_until:
                    # It has blocked the loop for so long that others may have the name: its outcome is held back.
                    self._doubt_if_in_doubt()
                self._returned(job, stop.value)
            else:
                self._returned(job, await self._suspended(job, coroutine, trap))
        except RefusedElsewhereError as refused:
            if cell.paused:
                cell.hold(job, functools.partial(job.sink.refused, job, refused.error))
            else:
                job.sink.refused(job, refused.error)
        except Exception as error:
            if cell.leased and self._environment.now() >= self.names_until:
                self._doubt_if_in_doubt()
            self._raised(job, error)
        except BaseException as error:  # noqa: ASYNC103  user code raises these as well; what is not its own goes on
            if is_cancellation(error):
                self._cancelled(job)
                raise
            if is_interrupt(error):
                # The process ends, and nobody is told that the method raised something.
                raise
            self._raised(job, error)
            if issubclass(type(error), SystemExit):
                self._crashed(cell, error)
            # A group may hold a cancellation besides: that is raised afresh. One that user code had kept and raised again is none.
            await trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC102  it is there to be cancelled
        finally:
            job.runner = None
            cell.finish(job, self._environment.now() - began if timed and job.outflow is None else None)
            if timed:
                worker.scope.deadline = math.inf

    def _method(self, job: Job, args: tuple[object, ...], kwargs: dict[str, object]) -> Method:
        """What runs. Raises TypeError if the arguments do not fit."""
        if job.cell.system:
            # What a peer tells a service goes on into tables and tasks of the whole node.
            check_arguments(job.definition.function, args, kwargs)
        if job.outflow is None:
            if job.cell.threads is not None and job.definition.in_thread:
                return job.definition.run(job.cell.instance, args, kwargs, functools.partial(self._in_thread, of_actor=job.cell.threads))
            return job.definition.run(job.cell.instance, args, kwargs, self._in_thread)
        return job.outflow.produce(job, job.definition.items(job.cell.instance, args, kwargs))

    async def _with_values(self, job: Job, needs: Needs) -> object:
        """The method, once the values of references among its arguments are here."""
        cell = job.cell
        try:
            args, kwargs = await with_values(job, needs)
            method = self._method(job, args, kwargs)
        except ArgumentLostError as error:
            raise RefusedInTurnError(error) from error
        except TypeError as error:
            raise RefusedInTurnError(_does_not_fit(cell, error)) from error
        try:
            while cell.leased and (cell.paused or self._is_in_doubt()):
                # That took its time, and others may have the name by now.
                self._doubt()
                await trio.sleep(PAUSED_SECONDS)
        except BaseException:
            method.close()
            raise
        return await method

    def _is_in_doubt(self) -> bool:
        """True if others may have the names by now. Asks the lease once more: it may have been renewed beside the loop."""
        if self._environment.now() < self.names_until:
            return False
        self.names_until = max(self.names_until, self.ask_lease())
        return self._environment.now() >= self.names_until

    def _doubt_if_in_doubt(self) -> None:
        if self._is_in_doubt():
            self._doubt()

    def _returned(self, job: Job, value: object) -> None:
        if job.cell.paused:
            job.cell.hold(job, functools.partial(job.sink.value, job, value))
        else:
            job.sink.value(job, value)

    def _raised(self, job: Job, error: BaseException) -> None:
        if type(error) is RefusedInTurnError:
            tell = functools.partial(job.sink.refused, job, error.refusal)
        else:
            tell = functools.partial(job.sink.raised, job, error)
        if job.cell.paused:
            job.cell.hold(job, tell)
        else:
            tell()

    async def _suspended(self, job: Job, coroutine: Method, trap: object) -> object:
        self._ready -= 1
        if self._queue and not self._ready:
            # This worker will be away for a while: those queued behind it must not wait for it.
            self._add_worker()
        try:
            return await _resume(coroutine, trap)
        finally:
            self._ready += 1
            if job.cell.leased:
                self._doubt_if_in_doubt()

    def _cancelled(self, job: Job) -> None:
        if job.cell.ended is not None:
            job.sink.refused(job, job.cell.died())
        elif job.deadline != math.inf and self._environment.now() >= job.deadline:
            job.sink.refused(job, CallTimeoutError(f"{job.cell.address.name}.{job.definition.name} was cancelled at its deadline"))
