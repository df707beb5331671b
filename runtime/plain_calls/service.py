"""The service `@plain` of every node: calls of its actors in plain data, for processes that have
none of their classes, such as the HTTP gateway.

The node that hosts the actor decides whether a method may be called from outside of the cluster,
reads the arguments by the annotations, and makes plain data of the result before the actor's next
turn. Calls with a key are recorded here, beside their actor, so that their repeats through any
gateway meet the same record (`KeyedCalls`); and they enter the actor's completion records under an
identity that is made of the key alone (`RequestClient.is_key`), so that an actor that saves its
state with `answer=` answers repeats after a restart on any node.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar, cast

import attrs
import trio

from actors.actor import Actor
from actors.call_context import CURRENT
from actors.errors import (
    ActorNotFoundError,
    BadArgumentsError,
    CallError,
    CallTimeoutError,
    DeadlineExceededError,
    DecodeError,
    MethodNotExposedError,
    OutcomeUnknownError,
    outcome_of,
)
from actors.messages import message
from actors.method import BoundStream, MethodDefinition, method
from actors.peers import VerifiedPeer
from actors.short_repr import short_repr
from runtime.calls.admission import AccessRequest, CallAdmission
from runtime.calls.client import CallClient
from runtime.calls.error_codec import Plain, described, raised_by_method
from runtime.calls.replies import not_sent
from runtime.environment import Environment
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.completion_records import (
    KEY_CLIENT,
    RequestClient,
    RequestId,
    RequestOrigin,
)
from runtime.hosting.host import ActorHost
from runtime.links.client_names import quota_key
from runtime.plain_calls.keyed_calls import (
    MOST_KEY,
    CallKey,
    KeyedCall,
    KeyedCalls,
    PlainOutcome,
    fingerprint,
)
from runtime.plain_calls.plain_values import check_items, decoded, encoded, plain
from runtime.plain_calls.schemas import PlainArguments, SchemaWriter, arguments_of
from runtime.user_errors import guarded
from runtime.wire.codec import Codec

T = TypeVar("T")

LARGE_BODY = 64 * 1024
"""Bytes. Larger ones are read in a thread: reading them would hold up the node."""

MOST_DESCRIBED = 1000
"""Actors that are described in one answer."""

IS_STREAM = "StreamMethod"
NO_STREAM = "NoStreamMethod"
"""What `PlainOutcome.error` has as its type where a stream is called for one value, or the other
way round.
"""


@message
@attrs.frozen
class PlainTarget:
    """The method that is called. `epoch`: the actor's, as the caller knows it. `allowed`: the
    caller has a list that allows the method, so that it needs no `@method(http=True)`.
    """

    name: str
    epoch: int
    method: str
    allowed: bool


class _Run:
    """One run of a method, and the calls that wait for it."""

    __slots__ = ("call", "ended", "invocation", "outcome", "waited", "waiters")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.invocation: Invocation | None = None
        """None until it is handed to its actor."""
        self.outcome: PlainOutcome | None = None
        self.waiters = 0
        self.waited = 0
        """How many calls have begun to wait for it, in all."""
        self.call: KeyedCall[_Run] | None = None
        """The record of its key, if it has one."""


class PlainCallService(Actor):
    """Describes and calls the actors of one node. The `ReplySink` of their invocations."""

    def __init__(
        self,
        host: ActorHost,
        codec: Codec,
        environment: Environment,
        nursery: trio.Nursery,
        admission: CallAdmission,
        caller: CallClient,
    ) -> None:
        self._caller = caller
        self._nursery = nursery
        self._admission = admission
        self._host = host
        self._codec = codec
        self._environment = environment
        self._keyed: KeyedCalls[_Run] = KeyedCalls()

    @method(concurrent=True, idempotent=True)
    async def describe(self, names: list[str]) -> dict[str, object]:
        """Describe the methods of these actors, with JSON Schema of their parameters and results.
        Of those that are not here, nothing is said.
        """
        writer = SchemaWriter()
        actors: list[object] = []
        for name in names[:MOST_DESCRIBED]:
            cell = self._host.cells.get(name)
            if cell is not None and not cell.system:
                actors.append(_description(cell, writer))
            # Annotations are looked at on the loop, and there may be many.
            await trio.lowlevel.checkpoint()
        return {"actors": actors, "definitions": writer.definitions}

    @method(concurrent=True)
    async def call(self, target: PlainTarget, body: bytes, seconds: float | None) -> PlainOutcome:
        """Call a method; `seconds`: for the whole call. Never raises: errors are outcomes."""
        try:
            _check_seconds(seconds)
            cell, definition, arguments = await self._read(target, body, stream=False)
        except CallError as error:
            return described_error(error)
        run = _Run()
        self._deliver(run, self._invocation(cell, definition, arguments, seconds, run))
        return await self._outcome(run, seconds)

    @method(concurrent=True, idempotent=True)
    async def call_keyed(
        self, target: PlainTarget, body: bytes, seconds: float | None, key: str, tried: bool
    ) -> PlainOutcome:
        """Like `call`, at most once for this key. `tried`: the caller knows that an earlier attempt
        may have run, here or elsewhere: where there is no record of it, only an idempotent method
        runs.
        """
        name, mark = CallKey((target.name, key)), fingerprint(target.method, body)
        try:
            _check_seconds(seconds)
            if len(key) > MOST_KEY:
                raise BadArgumentsError(
                    f"a key of {len(key)} characters is too long; the limit is {MOST_KEY}"
                )
            # Before all else: a call that is on record is answered from it, whatever has happened
            # to its actor since.
            call = self._keyed.find(name, mark, self._environment.now())
            if call is not None:
                await self._admit_repeat(target, call, body)
                if call.run is not None:
                    return await self._outcome(call.run, seconds)
                if call.outcome is not None and call.outcome.outcome != "unknown":
                    return call.outcome
            cell, definition, arguments = await self._read(target, body, stream=False)
            # Reading took time: another call with the key may have come.
            call = self._keyed.find(name, mark, self._environment.now())
            if call is not None and call.run is not None:
                return await self._outcome(call.run, seconds)
            run = _Run()
            known = call.outcome if call is not None else None
            if call is None:
                called, now = (cell.address, definition), self._environment.now()
                call = self._keyed.begin(name, mark, run, now, called, self._client())
            elif known is not None and known.outcome != "unknown":
                return known
            else:
                self._keyed.begin_again(call, run)
        except CallError as error:
            return described_error(error)
        run.call = call
        invocation = self._invocation(cell, definition, arguments, seconds, run)
        client = RequestClient(KEY_CLIENT, 0, name.life)
        # Perhaps made before: through another gateway, to an earlier epoch, on another node. The
        # completion records of the actor say.
        invocation.call = RequestOrigin(RequestId(client, 1), repeated=True, elsewhere=True)
        if (known is not None or tried) and not definition.idempotent:
            await self._answer_from_record(run, invocation, known)
        else:
            self._deliver(run, invocation)
        return await self._outcome(run, seconds)

    @method(concurrent=True)
    async def stream(
        self, target: PlainTarget, body: bytes, seconds: float | None
    ) -> AsyncIterator[PlainOutcome]:
        """The items of a generator method, each as an outcome with a value. An outcome of another
        kind is the last.
        """
        try:
            _check_seconds(seconds)
            cell, definition, arguments = await self._read(target, body, stream=True)
        except CallError as error:
            yield described_error(error)
            return
        # Of this epoch on this node alone: elsewhere the call would be the node's.
        bound: BoundStream[..., object] = BoundStream(
            self._caller,
            attrs.evolve(cell.address, registered=False),
            definition,
            definition.options,
        )
        if seconds is not None:
            bound = bound.options(timeout=seconds)
        items = self._caller.stream_of(self._peer(), bound, arguments.args, arguments.kwargs)
        try:
            async for item in items:
                yield self._value(cell, definition, item)
        except CallError as error:
            yield self._described(error)
        finally:
            # Does not wait: it only notifies the producer.
            await items.aclose()  # noqa: ASYNC102, ASYNC120

    # What follows is the service's own; the first three make it a `ReplySink`.

    def value(self, invocation: Invocation, value: object) -> None:
        """The method has returned: finish the call with the value as plain data."""
        self._finish(invocation.link, self._value(invocation.cell, invocation.definition, value))

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """The method has raised: finish the call with the error as plain data."""
        self._finish(invocation.link, _raised(raised_by_method(error, self._codec.size_of)[1]))

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The runtime has ended the call: finish it with the error as plain data."""
        self._finish(invocation.link, described_error(error))

    async def _read(
        self, target: PlainTarget, body: bytes, *, stream: bool
    ) -> tuple[ActorCell, MethodDefinition, PlainArguments]:
        """Find the method and read the arguments. Raises CallError if it may not, or cannot, be
        called.
        """
        name = target.name
        if name.startswith("@"):
            # The runtime's own services are no actors of users.
            raise ActorNotFoundError(f"there is no actor {name!r}")
        while self._host.awaited_claims.takes(name):
            # Its name was found in the store before this node has heard that it has it.
            claimed = trio.Event()
            self._host.awaited_claims.add(name, claimed.set)
            await claimed.wait()
        cell, definition = self._found(target)
        if definition.stream is not stream:
            raise _WrongKindError(IS_STREAM if definition.stream else NO_STREAM)
        read = partial(_arguments, name, definition, body)
        arguments = read() if len(body) <= LARGE_BODY else await self._in_thread(read)
        # Reading took time: the actor may have ended, and another epoch begun.
        cell, definition = self._found(target)
        if not stream:
            # Streams are admitted where they are called.
            self._admit(target, arguments)
        return cell, definition, arguments

    async def _admit_repeat(self, target: PlainTarget, call: KeyedCall[_Run], body: bytes) -> None:
        """Judge a call with a key that is on record: its answer is not for all who know the key.
        Raises `OutcomeUnknownError`, since the call was made, perhaps by the same peer.
        """
        peer = self._peer()
        if call.called is None or (peer.role == "node" and self._admission.authorize is None):
            return
        address, definition = call.called
        read = partial(_arguments, target.name, definition, body)
        arguments = read() if len(body) <= LARGE_BODY else await self._in_thread(read)
        asked = _access_request(peer, address.name, definition.name, arguments)
        refused = self._admission.refusal_of_answer(asked, address, definition)
        if refused is not None:
            raise OutcomeUnknownError(
                f"{target.name}.{target.method} was called with this key before, and its outcome "
                f"is not in the answer: {refused}"
            )

    def _admit(self, target: PlainTarget, arguments: PlainArguments) -> None:
        """Judge the call as one that the caller of this service makes itself. Raises
        `NotAllowedError`.
        """
        peer = self._peer()
        asked = _access_request(peer, target.name, target.method, arguments)
        if peer.role != "node" or self._admission.authorize is not None:
            refused = self._admission.refusal(asked)
            if refused is not None:
                try:
                    raise refused
                finally:
                    # No circle with this frame, which the traceback has.
                    del refused
        if peer is not self._admission.own:
            self._admission.note_act(asked)

    def _peer(self) -> VerifiedPeer:
        """Return the proven identity of the caller of this service."""
        peer = self._host.asking_peer()
        return self._admission.own if peer is None else peer

    def _client(self) -> str:
        """Whose share of the records a call of the caller of this service counts in."""
        peer = self._peer()
        return "" if peer.role == "node" else quota_key(peer)

    def _found(self, target: PlainTarget) -> tuple[ActorCell, MethodDefinition]:
        known = self._host.cells.get(target.name)
        kind = known.methods.get(target.method) if known is not None else None
        stream = kind is not None and kind.stream
        found = self._host.find(target.name, target.epoch, target.method, stream=stream)
        if isinstance(found, CallError):
            try:
                raise found
            finally:
                # No circle with this frame, which the traceback has.
                del found
        cell, definition = found
        if not (definition.http or target.allowed):
            raise MethodNotExposedError(
                f"{target.name}.{target.method} may not be called over HTTP: mark it with "
                "@method(http=True), or start the gateway with "
                f"--allow '{target.name}.{target.method}'"
            )
        return cell, definition

    async def _in_thread(self, read: Callable[[], T]) -> T:
        return await self._host.threads.method(read)

    def _invocation(
        self,
        cell: ActorCell,
        definition: MethodDefinition,
        arguments: PlainArguments,
        seconds: float | None,
        run: _Run,
    ) -> Invocation:
        own = definition.options.timeout
        limits = [one for one in (seconds, own) if one is not None]
        deadline = self._environment.now() + min(limits) if limits else math.inf
        invocation = Invocation(
            cell, definition, arguments.args, arguments.kwargs, self, run, 0, deadline
        )
        invocation.context = CURRENT.get()
        invocation.peer = self._peer()
        return invocation

    def _deliver(self, run: _Run, invocation: Invocation) -> None:
        run.invocation = invocation
        refusal = self._host.deliver(invocation)
        if refusal is not None:
            self._finish(run, described_error(refusal))

    async def _answer_from_record(
        self, run: _Run, invocation: Invocation, known: PlainOutcome | None
    ) -> None:
        """Answer a call that may have run, and must not run again: with what its actor has saved of
        it, or with what is known.
        """
        outcome = known or described_error(
            OutcomeUnknownError(
                f"{invocation.full_name} was called with this key before, and may have "
                "run; its outcome is on no record, and it was not run again"
            )
        )
        try:
            answer = await self._host.completion_log.recorded(invocation)
            if answer is not attrs.NOTHING:
                outcome = self._value(invocation.cell, invocation.definition, answer)
        except CallError as error:
            if outcome_of(error) == "unknown":
                outcome = described_error(error)
        finally:
            # Also where this was cancelled: others may wait for it.
            self._finish(run, outcome)

    async def _outcome(self, run: _Run, seconds: float | None) -> PlainOutcome:
        """Wait for the outcome of a run. When no call waits any more, it is cancelled: at once, or
        after a while if it has a key and the last caller has gone before its time was over.
        """
        run.waiters += 1
        run.waited += 1
        try:
            if run.outcome is None:
                with trio.move_on_after(math.inf if seconds is None else seconds):
                    await run.ended.wait()
            if run.outcome is not None:
                return run.outcome
            if run.waiters == 1:
                return self._give_up(run)
            return described_error(
                CallTimeoutError(
                    f"the call did not end within {seconds:g} s and goes on, for others wait for "
                    "it; repeat it with the same key to wait for its outcome"
                )
            )
        finally:
            run.waiters -= 1
            if not run.waiters and run.outcome is None:
                if run.call is None:
                    self._give_up(run)
                else:
                    self._nursery.start_soon(self._keep_orphan, run, name="keyed call")

    async def _keep_orphan(self, run: _Run) -> None:
        """Give a run up for which no call waits, unless another one comes meanwhile."""
        waited = run.waited
        with trio.move_on_after(self._environment.timings.keyed_orphans):
            await run.ended.wait()
        if run.outcome is None and run.waited == waited:
            self._give_up(run)

    def _give_up(self, run: _Run) -> PlainOutcome:
        """Stop a run for which no call waits any more; its outcome says whether it had begun."""
        invocation = run.invocation
        if invocation is None or not invocation.begun:
            outcome = described_error(
                DeadlineExceededError("the call had not begun when its time was over; it will not")
            )
        else:
            outcome = described_error(
                CallTimeoutError(
                    f"{invocation.full_name} was cancelled before it had ended, because its "
                    "time was over or its caller had gone; it may have taken effect"
                )
            )
        if invocation is not None:
            invocation.cancel()
        self._finish(run, outcome)
        return outcome

    def _finish(self, run: _Run, outcome: PlainOutcome) -> None:
        # A run that was given up may end with a value after all: then the record says so.
        known = run.outcome
        if known is not None and (known.outcome != "unknown" or outcome.outcome == "unknown"):
            return
        run.outcome = outcome
        if run.call is not None and run.call.run in (run, None):
            self._keyed.on_ended(run.call, outcome, self._environment.now())
        run.ended.set()

    def _value(self, cell: ActorCell, definition: MethodDefinition, value: object) -> PlainOutcome:
        # Values of users' classes are looked at, which may raise anything.
        name = f"{cell.address.name}.{definition.name}"
        return guarded(
            lambda: PlainOutcome("value", encoded(value)),
            lambda error: described_error(not_sent(f"{name} ran, but its result", error)),
        )

    def _described(self, error: CallError) -> PlainOutcome:
        if outcome_of(error) != "raised":
            return described_error(error)
        return _raised(described(error, self._codec.size_of)[1])


class _WrongKindError(BadArgumentsError):
    """A stream was called for one value, or the other way round. `kind` says which."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            "the method is a stream" if kind == IS_STREAM else "the method is not a stream"
        )
        self.kind = kind


def _check_seconds(seconds: float | None) -> None:
    """Raises BadArgumentsError for what is no time: it would become the deadline of a worker."""
    if seconds is not None and not 0 <= seconds < math.inf:
        raise BadArgumentsError(
            f"{short_repr(seconds)} is not a number of seconds that a call may take"
        )


def described_error(error: CallError, text: str | None = None) -> PlainOutcome:
    """Return the outcome of a call that has ended with an error of the runtime. `text`: another
    one than the error's own.
    """
    kind = error.kind if isinstance(error, _WrongKindError) else type(error).__name__
    message = str(error) if text is None else text
    return PlainOutcome(outcome_of(error), error={"type": kind, "message": message})


def _raised(raised: Plain) -> PlainOutcome:
    """Return the outcome of a call whose method has raised. Its traceback is left out."""
    path = str(raised.get("type", ""))
    fields = raised.get("fields")
    shown: dict[str, object] = {}
    if isinstance(fields, dict):
        for name, value in cast("dict[object, object]", fields).items():
            shown[str(name)] = guarded(
                partial(plain, value, "field", 0), lambda error: "(has no plain form)"
            )
    return PlainOutcome(
        "raised",
        error={
            "type": path.rpartition(":")[2],
            "class": path,
            "message": str(raised.get("text", "")),
            "fields": shown,
        },
    )


def _access_request(
    peer: VerifiedPeer, actor: str, method: str, arguments: PlainArguments
) -> AccessRequest:
    return AccessRequest(
        peer, "call", actor, method, arguments.args, arguments.kwargs, CURRENT.get()
    )


def _arguments(name: str, definition: MethodDefinition, body: bytes) -> PlainArguments:
    """Raises BadArgumentsError."""
    try:
        check_items(body)
        value = decoded(body) if body else None
    except DecodeError as error:
        raise BadArgumentsError(f"{name}.{definition.name} was not called: {error}") from None
    return arguments_of(name, definition, value)


def _description(cell: ActorCell, writer: SchemaWriter) -> dict[str, object]:
    return {
        "name": cell.address.name,
        "class": cell.address.class_path,
        "methods": [
            _described_method(definition, writer)
            for definition in sorted(cell.methods.values(), key=lambda one: one.name)
        ],
    }


def _described_method(definition: MethodDefinition, writer: SchemaWriter) -> dict[str, object]:
    parameters, result = writer.method(definition)
    text: object = definition.function.__doc__
    return {
        "name": definition.name,
        "http": definition.http,
        "stream": definition.stream,
        "idempotent": definition.idempotent,
        "text": text if isinstance(text, str) else "",
        "parameters": parameters,
        "result": result,
    }
