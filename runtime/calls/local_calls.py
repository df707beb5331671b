"""Calls between actors of one node: no wire, the same rules.

Arguments and results are copied as the wire would copy them, so that an actor never shares mutable
state with its caller, and what could not be sent is refused here too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import cast

from actors.errors import (
    BadArgumentsError,
    CallError,
    DecodeError,
    EncodeError,
)
from actors.filters import CallKind
from actors.method import Address
from actors.own_logger import own_logger
from runtime.calls.admission import AccessRequest, CallAdmission
from runtime.calls.arguments import refused_in_call
from runtime.calls.deadlines import Waiting, wake
from runtime.calls.error_codec import (
    CallPlace,
    Plain,
    raised_by_method,
    rebuild,
    told_plainly,
    without_values,
)
from runtime.calls.incoming_calls import ResultRetention
from runtime.calls.one_way_failures import log_one_way_failure
from runtime.calls.pending_calls import OutgoingRequest
from runtime.calls.protocol import CallRequest
from runtime.calls.replies import not_sent
from runtime.calls.reply_handler import StreamCall
from runtime.calls.stream_server import LocalStreamProducer
from runtime.calls.unreadable_arguments import unreadable_in_local_call
from runtime.environment import Environment
from runtime.hosting.cell import Invocation
from runtime.hosting.completion_records import RequestClient, RequestId, RequestOrigin
from runtime.hosting.host import ActorHost
from runtime.lifetime import Lifetime
from runtime.limited_log import LimitedLog
from runtime.wire.codec import Codec

logger = own_logger("understudy.calls")


class LocalCalls:
    """Carries calls from this node to its own host. Also a `ReplySink`: it hands the outcome to the
    caller's task.
    """

    def __init__(
        self,
        host: ActorHost,
        codec: Codec,
        find_class: Callable[[str], type],
        retention: ResultRetention,
        client: RequestClient,
        lifetime: Lifetime,
        environment: Environment,
        admission: CallAdmission,
        send_back: Callable[[CallRequest, CallError], None],
    ) -> None:
        self._admission = admission
        self._send_back = send_back
        # Users cause these lines, a loop of one-way calls without end.
        self._log = LimitedLog(logger, environment.now)
        self._cleanup = environment.timings.stream_cleanup
        self._client = client
        self._lifetime = lifetime
        self._host = host
        self._codec = codec
        self._find_class = find_class
        self._retention = retention
        self._withdrawn: deque[Invocation] = deque()
        """What is to be cancelled, by the `withdraw` that began first."""
        self._is_cancelling = False

    def begin(self, call: Waiting, address: Address, request: OutgoingRequest) -> None:
        """Run a method of an actor of this node; its outcome finishes `call`, at once if it is
        refused. Raises EncodeError.
        """
        # As for calls from other nodes: the store may name this node as the actor's already, while
        # its cell does not exist yet. The calls that wait are handled in order when it does.
        awaited = self._host.awaited_claims
        if awaited.by_name and awaited.takes(address.name):
            awaited.add(address.name, partial(self._begin_later, call, address, request))
            return
        invocation = self._invocation(address, request, call)
        refusal: CallError | None
        if isinstance(invocation, CallError):
            refusal = invocation
        else:
            call.ticket = invocation
            invocation.chain = request.chain
            invocation.context = request.context
            invocation.attempt = request.attempt
            if request.state is not None:
                self._retention.keep_in(invocation, request.state)
            if request.first:
                invocation.call = RequestOrigin(
                    RequestId(self._client, request.first), request.repeated, request.elsewhere
                )
            if request.timer is not None:
                invocation.timer = request.timer
            if isinstance(call, StreamCall):
                invocation.stream_output = LocalStreamProducer(
                    self._codec, call, self._cleanup, self._host.counts.credit_waits, self._log
                )
            refusal = self._host.deliver(invocation, request.counted)
        if refusal is not None:
            call.fail(_placed(refusal, call.place))

    def _begin_later(self, call: Waiting, address: Address, request: OutgoingRequest) -> None:
        if call.finished:
            # Withdrawn meanwhile: its caller has got the answer that it will not run.
            return
        try:
            self.begin(call, address, request)
        except EncodeError as error:
            # A class of error that is not retried: the same arguments can never be sent.
            refused = _placed(BadArgumentsError(str(error)), call.place)
            refused.__cause__ = error
            call.fail(refused)
        if call.finished:
            wake(call)

    def withdraw(self, call: Waiting) -> bool:
        """Withdraw a call that its caller does not wait for any more; True if it has not begun, and
        so will not run.
        """
        if not isinstance(call.ticket, Invocation):
            return True
        invocation = call.ticket
        waited = not invocation.begun
        # At once, for the thread that might begin it.
        invocation.cancelled = True
        self._withdrawn.append(invocation)
        if not self._is_cancelling:
            # To cancel a method that waits for another one withdraws that call, which comes back
            # here, within this line: one after the other, or a hundred calls within each other
            # would be deeper than Python's stack, which ends trio and the node.
            self._is_cancelling = True
            try:
                while self._withdrawn:
                    self._withdrawn.popleft().cancel()
            finally:
                self._is_cancelling = False
        return waited

    def over(self, first: int, actor: str, watermark: int) -> None:
        """Note that this node will not repeat that call of an actor, nor any call below
        `watermark`.
        """
        log = self._host.completion_log
        if log.has_tables:
            log.on_over(self._host.cells.get(actor), RequestId(self._client, first))
        log.confirm(self._client, watermark)

    def send(self, address: Address, request: OutgoingRequest, number: int) -> None:
        """Run a method one way. What is refused comes back, or is logged, as on another node; see
        `CallReturns`. `number`: its place in the order of this node's calls.
        """
        awaited = self._host.awaited_claims
        if awaited.by_name and awaited.takes(address.name):
            awaited.add(address.name, partial(self._send_later, address, request, number))
            return
        invocation = self._invocation(address, request, None)
        refusal: CallError | None
        if isinstance(invocation, CallError):
            refusal = invocation
        else:
            invocation.context = request.context
            refusal = self._host.deliver(invocation)
        if refusal is not None:
            self._lifetime.check()
            name, method = address.name, request.bound._definition.name
            epoch = address.epoch if address.registered else 0
            what = (number, name, epoch, method, request.args, request.kwargs, math.inf)
            call = CallRequest(*what, context=request.context, attempt=request.attempt)
            self._send_back(call, refusal)

    def _send_later(self, address: Address, request: OutgoingRequest, number: int) -> None:
        try:
            self.send(address, request, number)
        except EncodeError as error:
            # The task that has made it has gone on: what is raised here would end the node.
            self._log.warning("a one-way call of %s was dropped: %s", address.name, error)

    def value(self, invocation: Invocation, value: object) -> None:
        """The method has returned: wake the caller with a copy of the value."""
        call = cast("Waiting | None", invocation.link)
        if call is None or call.finished:
            # A one-way call, or one whose caller does not wait any more.
            return
        try:
            call.value = self._codec.copy(value)
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            what = f"{call.place.actor}.{call.place.method} ran, but its result"
            call.error = _placed(not_sent(what, error), call.place)
        self._finish(call)

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """The method has raised: wake the caller with the error that a remote caller would get; for
        a one-way call, log it.
        """
        call = cast("Waiting | None", invocation.link)
        if call is None:
            log_one_way_failure(self._log, invocation, error)
        elif not call.finished:
            try:
                call.error = self._rebuilt(error, call.place)
            except BaseException as failure:  # noqa: ASYNC103  no checkpoint
                what = f"{call.place.actor}.{call.place.method} raised, but its error"
                call.error = _placed(not_sent(what, failure), call.place)
            self._finish(call)

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The runtime has ended the call: wake the caller with the error."""
        call = cast("Waiting | None", invocation.link)
        if call is not None and not call.finished:
            call.error = _placed(error, call.place)
            self._finish(call)

    def _rebuilt(self, error: BaseException, place: CallPlace) -> CallError:
        """Return the error that a remote caller would get."""
        code, plain = raised_by_method(error, self._codec.size_of)
        try:
            plain = cast("Plain", self._codec.copy(plain))
        except EncodeError:
            plain = told_plainly(plain)
        except DecodeError as failure:
            plain = without_values(plain, str(failure))
        return rebuild(code, plain, place, self._find_class)

    def _finish(self, call: Waiting) -> None:
        call.finished = True
        call.ticket = 0
        wake(call)

    def _invocation(
        self, address: Address, request: OutgoingRequest, call: Waiting | None
    ) -> Invocation | CallError:
        bound, args, kwargs = request.bound, request.args, request.kwargs
        definition = bound._definition
        if self._admission.authorize is not None or request.peer is not None:
            kind: CallKind = "stream" if definition.stream else "send" if call is None else "call"
            peer = request.peer or self._admission.own
            asked = AccessRequest(
                peer, kind, address.name, definition.name, args, kwargs, request.context
            )
            refused = self._admission.refusal(asked)
            if refused is not None:
                return refused
            if request.peer is not None:
                self._admission.note_act(asked)
        found = self._host.find(
            address.name,
            address.epoch,
            definition.name,
            stream=definition.stream,
            # With a peer, it is the call of a client that this node passes on.
            from_here=request.peer is None,
        )
        if isinstance(found, CallError):
            return self._lifetime.error() if self._lifetime.has_ended else found
        cell, hosted_definition = found
        # Copied now, in the caller's task: when the method begins, the caller may have changed what
        # it has given.
        try:
            copied = tuple(map(self._codec.copy, args))
            copied_kwargs = {
                name: self._codec.copy(argument, name) for name, argument in kwargs.items()
            }
        except EncodeError as error:
            raise refused_in_call(self._codec, error, bound, args, kwargs) from error.__cause__
        except DecodeError as error:
            # References among them have arrived for this call, which does not begin.
            self._retention.forget_arrivals()
            called = (address.name, definition.name)
            return unreadable_in_local_call(self._host, self._codec, called, args, kwargs, error)
        invocation = Invocation(
            cell, hosted_definition, copied, copied_kwargs, self, call, 0, request.deadline
        )
        invocation.peer = request.peer
        if self._retention.references_arrived:
            self._retention.prepare(invocation)
        return invocation


def _placed(error: CallError, place: CallPlace) -> CallError:
    error.actor, error.method, error.node, error.epoch, error.attempts = (
        place.actor,
        place.method,
        place.node,
        place.epoch,
        1,
    )
    return error
