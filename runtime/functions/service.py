"""The service `@functions` of a node: runs functions in the node's worker processes, for callers
anywhere in the cluster.

A call is lent one worker, and has it alone. When the call is cancelled, or its deadline has passed,
what it runs has a second to end; then its process is killed, because nothing else ends a thread.
When the process dies, the call ends with ActorDiedError, and nothing else does.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import attrs
import trio

from actors.actor import Actor
from actors.errors import (
    ActorDiedError,
    BadArgumentsError,
    CallError,
    MailboxFullError,
    NodeDrainingError,
    NoPlacementError,
    NotExecutedError,
    NoWorkerError,
    RemoteError,
    SpawnError,
    outcome_of,
)
from actors.messages import import_path
from actors.method import Address, method
from actors.options import SpawnOptions
from actors.supervision import ExitReason
from runtime.calls.error_codec import PassedOnError
from runtime.environment import Environment
from runtime.functions.function_names import FunctionCall
from runtime.functions.pool import Effect, Lend, Refuse, StartWorker, StopWorker, WorkerPool
from runtime.functions.worker import FunctionWorker
from runtime.hosting.actor_start import ActorStart
from runtime.hosting.cell import RefusedElsewhereError
from runtime.hosting.host import ActorHost
from runtime.wire.exceptions import attributes_of

FUNCTION_SERVICE: Final = "@functions"

END_SECONDS: Final = 1.0
"""How long a function may go on when its caller waits no longer."""

WORKER_PATH: Final = import_path(FunctionWorker)

CANCELLED: Final = ExitReason("killed", "the function's caller waits no longer, and it ran on")


def most_workers() -> int:
    """How many worker processes a node has at most: one for each core that it may use."""
    return max(1, len(os.sched_getaffinity(0)))


@attrs.define(eq=False)
class RunningWorker:
    """One worker. `number`: its number in the pool; None if it serves one call alone."""

    number: int | None
    address: Address
    handle: FunctionWorker
    prepared: set[str] = attrs.field(factory=set)
    """Functions that it has imported."""


@attrs.define(eq=False)
class _WaitingCall:
    """A call that waits for a worker."""

    over: trio.Event = attrs.field(factory=trio.Event)
    worker: RunningWorker | None = None
    failure: tuple[str, str] | None = None
    """If it gets none: why, and the traceback of that."""


class FunctionWorkers:
    """The worker processes of a node: a `WorkerPool`, carried out. `nursery`: the node's."""

    def __init__(
        self,
        host: ActorHost,
        make_handle: Callable[[Address, type[Actor]], Any],
        nursery: trio.Nursery,
        environment: Environment,
        most: int,
    ) -> None:
        self.host = host
        self._make_handle = make_handle
        self._nursery = nursery
        self._environment = environment
        self._pool = WorkerPool(most)
        self._workers: dict[int, RunningWorker] = {}
        self._waiters: dict[int, _WaitingCall] = {}
        self._tickets = itertools.count(1)
        self._failure = "", ""
        """Why the last worker that could not be started was not, and the traceback of that."""
        self._expiring = False

    async def acquire(self, memory_limit: int | None) -> RunningWorker:
        """A worker for one call; wait while all are lent. Raises MailboxFullError and
        NoWorkerError.
        """
        if self._pool.is_full:
            raise MailboxFullError(
                f"too many functions wait for a worker of node {self.host.node.name}; "
                "call fewer at a time"
            )
        ticket = next(self._tickets)
        waiter = self._waiters[ticket] = _WaitingCall()
        try:
            self._carry_out(self._pool.ask(ticket, memory_limit))
            await waiter.over.wait()
        except trio.Cancelled:
            # It may have been lent a worker in this very step.
            if waiter.worker is not None:
                self._release(waiter.worker, reusable=True)
            elif waiter.failure is None:
                self._carry_out(self._pool.withdraw(ticket))
            raise
        finally:
            del self._waiters[ticket]
        if waiter.worker is None:
            assert waiter.failure is not None, "a call that gets no worker gets a reason"
            text, trace = waiter.failure
            raise NoWorkerError(text, remote_traceback=trace)
        return waiter.worker

    async def start_alone(self, options: SpawnOptions) -> RunningWorker:
        """A worker for one call that takes resources of the node. Raises NoWorkerError, and
        NoPlacementError if less is left than it takes.
        """
        return await self._start(None, options)

    async def give_back(self, worker: RunningWorker, *, reusable: bool) -> None:
        """The call has ended. Ends a worker that served it alone, and returns when its resources
        are free.
        """
        if worker.number is not None:
            self._release(worker, reusable=reusable)
            return
        # Shielded: the resources of the worker are free only once it has ended.
        with trio.CancelScope(shield=True), trio.move_on_after(END_SECONDS):
            await self._end(worker, ExitReason("stopped", "its function has ended"))

    def reclaim(self, worker: RunningWorker) -> None:
        """Reclaim a worker whose call was cancelled: let the call end, or kill the worker."""
        self._nursery.start_soon(self._reclaim, worker, name=f"end of {worker.address.name}'s call")

    async def _reclaim(self, worker: RunningWorker) -> None:
        quiet = False
        with trio.move_on_after(END_SECONDS):
            try:
                await worker.handle.idle()
                quiet = True
            except CallError:
                # It has ended, or is asked to do so below.
                pass
        if quiet and worker.number is not None:
            self._release(worker, reusable=True)
            return
        # Not `reusable=False`: that asks it to stop, and it would not listen.
        await self._end(worker, CANCELLED)

    def why_ended(self, worker: RunningWorker) -> str:
        """Why a worker has ended, such as `exited with code 7`."""
        address, reason = worker.address, self.host.exits.of(worker.address.actor_id)
        if reason is None and (cell := self.host.cells.get(address.name)) is not None:
            # Its end is under way: the calls that it had have been ended before it is complete.
            reason = cell.ended
        return (reason.text or reason.kind) if reason is not None else "the reason is not known"

    def _release(self, worker: RunningWorker, *, reusable: bool) -> None:
        assert worker.number is not None
        now = self._environment.now()
        self._carry_out(self._pool.released(worker.number, now, reusable=reusable))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Lend):
                waiter = self._waiters[effect.ticket]
                waiter.worker = self._workers[effect.number]
                waiter.over.set()
            elif isinstance(effect, Refuse):
                waiter = self._waiters[effect.ticket]
                waiter.failure = self._failure
                waiter.over.set()
            elif isinstance(effect, StartWorker):
                self._nursery.start_soon(self._run_worker, effect, name="function worker")
            else:
                self._stop(effect)
        self._pool.check_invariants()
        if not self._expiring and self._pool.next_expiry is not None:
            self._expiring = True
            self._nursery.start_soon(self._expire, name="idle function workers")

    def _stop(self, effect: StopWorker) -> None:
        worker = self._workers[effect.number]
        self._nursery.start_soon(
            self._end, worker, ExitReason("idle", "no function is run"), name="end of a worker"
        )

    async def _expire(self) -> None:
        while (at := self._pool.next_expiry) is not None:
            await trio.sleep(max(0.0, at - self._environment.now()))
            self._carry_out(self._pool.expire(self._environment.now()))
        self._expiring = False

    async def _run_worker(self, effect: StartWorker) -> None:
        """The life of one worker of the pool."""
        number = effect.number
        try:
            worker = await self._start(
                number, SpawnOptions(isolation="process", memory_limit=effect.memory_limit)
            )
        except (NotExecutedError, SpawnError) as error:
            self._failure = str(error), remote_traceback_of(error)
            self._carry_out(self._pool.failed_to_start(number))
            return
        self._workers[number] = worker
        self._carry_out(self._pool.started(number, self._environment.now()))
        await self.host.exits.wait(worker.address.name, worker.address.epoch)
        del self._workers[number]
        self._carry_out(self._pool.ended(number))

    async def _start(self, number: int | None, options: SpawnOptions) -> RunningWorker:
        try:
            address = await self.host.start(ActorStart(FunctionWorker, WORKER_PATH, options))
        except NoPlacementError:
            raise
        except SpawnError as error:
            raise NoWorkerError(
                f"no worker process could be started on node {self.host.node.name}: {error}",
                remote_traceback=remote_traceback_of(error),
            ) from error
        handle = cast("FunctionWorker", self._make_handle(address, FunctionWorker))
        return RunningWorker(number, address, handle)

    async def _end(self, worker: RunningWorker, reason: ExitReason) -> None:
        address = worker.address
        await self.host.stop(address.name, address.epoch, reason, "kill")


class FunctionService(Actor):
    """Runs functions for callers on any node."""

    def __init__(self, workers: FunctionWorkers) -> None:
        self._workers = workers

    @method(concurrent=True)
    async def run(
        self,
        path: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        options: SpawnOptions,
    ) -> object:
        """Run the function of this import path in a worker process, and return what it returns.
        Of the options, `memory_limit` counts, and with a `name` the `resources`: then a worker of
        that name takes them for this one call.

        Raises what the function raises, and NotExecutedError, or OutcomeUnknownError.
        """
        try:
            return await self._run(FunctionCall(path, None, args, dict(kwargs), options))
        except NoPlacementError as error:
            # Only nodes of the previous version ask in this way for a function with resources.
            raise RefusedElsewhereError(NoWorkerError(f"{path} was not run: {error}")) from error

    @method(concurrent=True)
    async def run_if_room(
        self,
        path: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        options: SpawnOptions,
    ) -> tuple[str, object]:
        """Like `run`, for a function that takes resources. Returns "" and its value; or, if it was
        not run because less is left of them here, that in words, and None.
        """
        try:
            call = FunctionCall(path, None, args, dict(kwargs), options)
            return "", await self._run(call)
        except NoPlacementError as error:
            return str(error), None

    async def _run(self, call: FunctionCall) -> object:
        """Raises NoPlacementError if less of the resources is left than the function takes, and
        for callers what `run` raises.
        """
        host = self._workers.host
        node = host.node.name
        if host.draining:
            raise RefusedElsewhereError(
                NodeDrainingError(
                    f"node {node} is leaving the cluster; {call.path} was not run there"
                )
            )
        try:
            worker = await (
                self._workers.acquire(call.options.memory_limit)
                if call.options.name is None
                else self._workers.start_alone(call.options)
            )
        except CallError as error:
            raise RefusedElsewhereError(error) from error
        try:
            value = await self._run_in(worker, call, node)
        except trio.Cancelled:
            # The function may still run: its worker is used again only when the call has ended, and
            # killed if it does not end in time.
            self._workers.reclaim(worker)
            raise
        except Exception as error:
            # A worker whose function raised, or was refused, is as good as before; one that is
            # gone, or of which nothing is known, is not.
            reusable = isinstance(error, PassedOnError) or (
                isinstance(error, RefusedElsewhereError)
                and outcome_of(error.error) == "not executed"
            )
            # shielded and bounded in there
            await self._workers.give_back(worker, reusable=reusable)  # noqa: ASYNC120
            raise
        await self._workers.give_back(worker, reusable=True)
        return value

    async def _run_in(self, worker: RunningWorker, call: FunctionCall, node: str) -> object:
        path, begun = call.path, False
        try:
            if path not in worker.prepared:
                await worker.handle.prepare(path)
                worker.prepared.add(path)
            begun = True
            return await worker.handle.call(path, call.args, call.kwargs)
        except RemoteError as error:
            raise PassedOnError(error) from None
        except CallError as error:
            called = f"{worker.address.name}.call"
            why = self._workers.why_ended(worker)
            found = _as_of_function(error, path, node, begun, called, why)
            raise RefusedElsewhereError(found) from error


def remote_traceback_of(error: CallError | SpawnError) -> str:
    """The traceback in another process of what an error is about; "" if there is none."""
    found = attributes_of(error).get("remote_traceback")
    return found if type(found) is str else ""


def with_text(error: CallError, text: str, path: str, node: str | None = None) -> CallError:
    """An error like this one with another text, of the function `path` on that node."""
    if isinstance(error, NoWorkerError):
        trace = remote_traceback_of(error)
        return type(error)(text, method=path, node=node, remote_traceback=trace)
    return type(error)(text, method=path, node=node)


def _as_of_function(
    error: CallError, path: str, node: str, begun: bool, called: str, why: str
) -> CallError:
    """The error of a call to a worker, as one of the function: callers know nothing of workers.
    `begun`: the function may have run. `called`: the method of the worker, as texts name it. `why`
    the worker has ended, if it has.
    """
    if isinstance(error, ActorDiedError):
        if not begun:
            return NotExecutedError(
                f"{path} was not run: its worker process on node {node} ended while it imported "
                f"the function: {why}",
                method=path,
            )
        return ActorDiedError(
            f"the worker process in which {path} ran on node {node} has ended: {why}; the call may "
            "have taken effect",
            method=path,
        )
    if isinstance(error, BadArgumentsError):
        # The worker cannot read them.
        return BadArgumentsError(f"{path} was not run: {error}", method=path)
    if outcome_of(error) == "not executed" or begun:
        # It may begin with the names of the worker and of its method.
        text = path + str(error).removeprefix(called) if str(error).startswith(called) else ""
        return with_text(error, text or str(error), path)
    return NotExecutedError(f"{path} was not run on node {node}: {error}", method=path)
