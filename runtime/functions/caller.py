"""Runs functions for the programs and actors of one node: chooses where, and makes the call again
where that is allowed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import attrs
import trio

from actors.actor import Member
from actors.errors import (
    ActorNotFoundError,
    CallError,
    DeadlineExceededError,
    FunctionNotImportableError,
    MethodNotFoundError,
    NodeDrainingError,
    NodeNotFoundError,
    NodeUnreachableError,
    NoPlacementError,
    NoWorkerError,
    OutcomeUnknownError,
    RemoteError,
    StoreError,
    outcome_of,
)
from actors.identifiers import NodeId
from actors.messages import path_by_file
from actors.options import CallOptions, SpawnOptions
from actors.retry import GiveUp, RetryBudget, RetryPolicy, RetrySchedule
from runtime.calls.endpoint import RpcEndpoint
from runtime.calls.error_codec import CallPlace, at_place
from runtime.calls.timed_out import TimedOut
from runtime.environment import Environment
from runtime.functions.function_names import FunctionCall
from runtime.functions.service import FUNCTION_SERVICE, FunctionService, with_text
from runtime.membership.members import Members
from runtime.supervision.actor_placement import ActorPlacement
from runtime.supervision.placement import (
    NO_LOADS,
    NO_REFUSALS,
    NodeLoad,
    Refusals,
    StartRefusal,
    choose_node,
)
from runtime.wire.codec import Codec

ONCE: Final = RetryPolicy(max_retries=0)

Demand = tuple[str | None, frozenset[tuple[str, str]], frozenset[tuple[str, float]]]
"""What calls of one line want: the same node, labels and resources."""

ELSEWHERE: Final = (NodeDrainingError, NodeUnreachableError, NoWorkerError)
"""Refusals by one node that say nothing about the others."""


class NoRoomError(NoWorkerError):
    """The node has less of a resource left than was seen when it was chosen: it has not run the
    function, which waits for room on.
    """


class FunctionCaller(Protocol):
    """Runs functions in the cluster: one in a node, one in the process of an isolated actor."""

    async def run(self, call: FunctionCall) -> object:
        """Run it and return its value. Raises the errors of calls."""
        ...


class NodeFunctions:
    """The `FunctionCaller` of a node. It knows of its own calls how many are on which node."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        members: Members,
        placement: ActorPlacement,
        environment: Environment,
    ) -> None:
        self._endpoint = endpoint
        self._members = members
        self._placement = placement
        self._environment = environment
        self._running: Counter[NodeId] = Counter()
        self._lines: dict[Demand, trio.Lock] = {}
        """Calls that wait for resources, in order: a line for each demand that has any. Only the
        first of a line looks for room, since each look reads the store: what a thousand waiting
        calls cost is the cost of one.
        """

    async def run(self, call: FunctionCall) -> object:
        """Run a function in a worker process of the cluster, and return its result. Raises what the
        function raises, and `NotExecutedError` or `OutcomeUnknownError`.
        """
        with self._endpoint.lifetime.asking(f"{call.path} was not run", acts=True):
            return await _FunctionRun(self, call).run()

    # What follows is for `_FunctionRun`.

    @property
    def default_timeout(self) -> float | None:
        """Seconds for calls that do not say."""
        return self._endpoint.caller.call_timeout

    def now(self) -> float:
        """Seconds on the node's clock."""
        return self._environment.now()

    def draw(self) -> float:
        """A random number in [0, 1)."""
        return self._environment.random()

    def budget(self, path: str, policy: RetryPolicy) -> RetryBudget | None:
        """The retry budget of a function."""
        if policy.budget is None or policy.max_retries == 0:
            return None
        return self._endpoint.caller.budget(path, policy.budget)

    async def place(
        self,
        options: SpawnOptions,
        avoided: Refusals,
        refusals: dict[NodeId, StartRefusal],
    ) -> Member:
        """The node for a call: of those that fit, the one with the fewest calls of this node.
        `avoided`: nodes that run nothing, or are out of reach, which are asked again only where
        there are no others. `refusals`: of nodes without room for it, which are forgotten when
        there may be some again. Raises NodeNotFoundError and NoPlacementError.
        """
        if options.resources:
            return await self._place_with_resources(options, avoided, refusals)
        loads = {node: NodeLoad(count) for node, count in self._running.items()}
        try:
            return self._chosen(options, avoided, loads)
        except (NodeNotFoundError, NoPlacementError) as error:
            unplaced = error
        # It may be up already, and this node not have heard of it yet: the store has.
        try:
            await self._members.caught_up(self._members.revision + 1)
        except StoreError:
            try:
                raise unplaced from None
            finally:
                # No circle with this frame, which the traceback has.
                del unplaced
        return self._chosen(options, avoided, loads)

    def _chosen(
        self, options: SpawnOptions, avoided: Refusals, loads: Mapping[NodeId, NodeLoad]
    ) -> Member:
        living = self._members.living()
        others = [one for one in living if one.node_id not in avoided]
        try:
            return choose_node(others, options, loads, self.draw())
        except (NodeNotFoundError, NoPlacementError):
            pass
        # Those that have refused are asked again where there are no others.
        return choose_node(living, options, loads, self.draw())

    async def _place_with_resources(
        self,
        options: SpawnOptions,
        avoided: Refusals,
        refusals: dict[NodeId, StartRefusal],
    ) -> Member:
        demand = (
            options.on,
            frozenset(options.labels.items()),
            frozenset(options.resources.items()),
        )
        line = self._lines.setdefault(demand, trio.Lock())
        try:
            async with line:
                return await self._when_there_is_room(options, avoided, refusals)
        finally:
            # The next of the line has it already, if there is one.
            if not line.locked():
                self._lines.pop(demand, None)

    async def _when_there_is_room(
        self,
        options: SpawnOptions,
        avoided: Refusals,
        refusals: dict[NodeId, StartRefusal],
    ) -> Member:
        skipped: Refusals = avoided
        while True:
            try:
                return await self._placement.place(options, {**skipped, **refusals})
            except NoPlacementError:
                pass
            # Raises it again, if no node would have as much at all.
            if self._chosen(options, skipped, NO_LOADS).node_id in skipped:
                skipped = NO_REFUSALS
                continue
            with trio.move_on_after(self._environment.timings.room_look):
                async with trio.open_nursery() as nursery:

                    async def wait(changed: Callable[[], Awaitable[None]]) -> None:
                        await changed()
                        nursery.cancel_scope.cancel()

                    nursery.start_soon(wait, self._members.wait_changed)
                    if not refusals:
                        # After a refusal, what is heard is older than that: two calls that wake
                        # each other up would ask the same node again and again.
                        nursery.start_soon(wait, self._placement.wait_freed)
            # What they had no room for may have ended.
            refusals.clear()

    async def attempt(
        self, call: FunctionCall, path: str, member: Member, seconds: float | None
    ) -> object:
        """Run it on that node, within so many seconds."""
        node = member.node_id
        service = self._endpoint.system_handle(
            FunctionService, FUNCTION_SERVICE, *node, CallOptions(timeout=seconds)
        )
        options = SpawnOptions(isolation="process", memory_limit=call.options.memory_limit)
        if call.options.resources:
            # A name of its own: by the names, all nodes know what is taken where.
            name = f"function-{self._environment.token(8).hex()}"
            options = attrs.evolve(options, name=name, resources=call.options.resources)
        self._running[node] += 1
        try:
            with self._placement.starting(options, member), call.naming_arguments(self._codec):
                try:
                    value = await self._run_on(service, path, call, options)
                except RemoteError:
                    self._on_over(options)
                    raise
                self._on_over(options)
                return value
        except RemoteError as error:
            place = CallPlace("", call.path, member.name, 0)
            raise at_place(error, place, self._codec.find_class) from None
        finally:
            self._running[node] -= 1
            if not self._running[node]:
                del self._running[node]

    async def _run_on(
        self, service: FunctionService, path: str, call: FunctionCall, options: SpawnOptions
    ) -> object:
        """Raises NoRoomError if the node has less left than the function takes."""
        if options.resources:
            try:
                full, value = await service.run_if_room(path, call.args, call.kwargs, options)
            except MethodNotFoundError:
                # A node of the previous version, which runs it in any case.
                pass
            else:
                if full:
                    raise NoRoomError(f"{call.path} was not run: {full}")
                return value
        return await service.run(path, call.args, call.kwargs, options)

    def _on_over(self, options: SpawnOptions) -> None:
        """The function ran and has ended, and its node answers once its resources are free."""
        if options.name is not None:
            self._placement.on_over(options.name)

    @property
    def _codec(self) -> Codec:
        return self._endpoint.codec


class _FunctionRun:
    """One call of a function, which may take several attempts."""

    def __init__(self, functions: NodeFunctions, call: FunctionCall) -> None:
        self._functions = functions
        self._call = call
        self._path = call.path
        self._avoided: dict[NodeId, StartRefusal] = {}
        self._refusals: dict[NodeId, StartRefusal] = {}
        self._elsewhere = False
        """True if the attempt that failed last says nothing about other nodes."""
        now = functions.now()
        seconds = call.options.timeout or functions.default_timeout
        self._expires = math.inf if seconds is None else now + seconds
        self._policy = call.options.retry or ONCE
        self._schedule = RetrySchedule(
            self._policy,
            idempotent=call.options.idempotent,
            deadline=min(trio.current_effective_deadline(), self._expires),
            now=now,
        )

    async def run(self) -> object:
        """Raises the errors of calls."""
        budget = self._functions.budget(self._path, self._policy)
        try:
            while True:  # noqa: ASYNC913  each turn asks a node
                try:
                    value = await self._attempt()
                except NoRoomError:
                    # Others have taken what there was: it waits on, as if it had not been sent.
                    continue
                except CallError as error:
                    await self._before_the_next(error, budget)
                else:
                    if budget is not None:
                        budget.succeeded()
                    return value
        finally:
            # No circle of what it raises, the frames of its traceback, and this object.
            self._schedule.attempts.clear()

    async def _attempt(self) -> object:
        functions, call = self._functions, self._call
        member: Member | None = None
        try:
            # The wait for a node with room, which the call's own timeout bounds as well.
            with trio.move_on_at(self._expires):
                member = await functions.place(call.options, self._avoided, self._refusals)
        except NoPlacementError as error:
            raise NoWorkerError(f"{call.path} was not run: {error}", method=call.path) from None
        left = self._expires - functions.now()
        if member is None or left <= 0:
            raise DeadlineExceededError(
                f"{call.path} was not run: no node had room for it within its timeout",
                method=call.path,
            )
        node = member.node_id
        seconds = None if left == math.inf else left
        try:
            return await functions.attempt(call, self._path, member, seconds)
        except NoRoomError as error:
            self._refusals[node] = StartRefusal(str(error))
            raise
        except CallError as error:
            timeout = call.options.timeout or functions.default_timeout
            found = _of_function(error, call.path, member.name, timeout)
            # Once for each node, so that the search ends.
            self._elsewhere = isinstance(found, ELSEWHERE) and node not in self._avoided
            if self._elsewhere:
                self._avoided[node] = StartRefusal(str(found), is_full=False)
            if found is error:
                raise
            try:
                raise found from error
            finally:
                del found

    async def _before_the_next(self, error: CallError, budget: RetryBudget | None) -> None:
        """Wait until the next attempt is due. Raises the error of the whole call if there is to be
        none.
        """
        functions, schedule = self._functions, self._schedule
        elsewhere, self._elsewhere = self._elsewhere, False
        by_file = path_by_file(self._path)
        if isinstance(error, FunctionNotImportableError) and by_file is not None:
            # A function of this script itself: nodes of a local cluster know it as that, others by
            # the name of its file.
            self._path = by_file
            return
        outcome = outcome_of(error)
        decision = schedule.failed(
            outcome,
            error,
            functions.now(),
            functions.draw(),
            budget,
            uncounted=elsewhere,
        )
        if isinstance(decision, GiveUp):
            if schedule.total > 1:
                error.add_note(f"not repeated any more: {schedule.explain(decision, budget)}")
            if outcome == "not executed" and schedule.outcome == "unknown":
                raise OutcomeUnknownError(
                    f"{self._call.path} did not run at the last attempt, and may have at an "
                    f"earlier one:\n{schedule.history()}",
                    method=self._call.path,
                    attempts=schedule.total,
                ) from error
            if outcome != "raised":
                error.attempts = schedule.total
            try:
                raise error
            finally:
                del error
        await trio.sleep(max(0.0, decision.at - functions.now()))
        schedule.begin(functions.now())


def _of_function(error: CallError, path: str, node: str, timeout: float | None) -> CallError:
    """The error of a call to the service, as one of the function with this `timeout`."""
    if outcome_of(error) == "raised":
        return error
    if isinstance(error, ActorNotFoundError | MethodNotFoundError):
        return NoWorkerError(
            f"{path} was not run: node {node} runs an older version of Understudy, which runs no "
            "functions",
            method=path,
            node=node,
        )
    late = TimedOut.of(error)
    if late is not None and timeout is not None:
        # The service had what was left of the time: the text names what the user gave.
        return attrs.evolve(late, name=path, timeout=timeout).error(method=path, node=node)
    # The errors of a peer have nothing but their texts, which name the method of the service.
    text = str(error)
    for called in (f"{FUNCTION_SERVICE}.run_if_room", f"{FUNCTION_SERVICE}.run"):
        text = text.replace(called, path)
    return with_text(error, text, path, node)
