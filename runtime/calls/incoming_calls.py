"""Incoming calls: what the peer of one link has asked for, and what of it stays here.

No I/O and no clock. A call number is accepted once; a repeat of a running call is distinguished
from a new call. The code that runs the call finishes it; a cancelled call is finished without an
answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from actors.errors import CallError, EncodeError, ProtocolError
from actors.method import MethodDefinition
from runtime.calls.error_codec import Plain, described, raised_by_method
from runtime.calls.protocol import TENTATIVE, CallRequest
from runtime.calls.replies import not_sent
from runtime.hosting.cell import ActorCell, Invocation, ReplySink
from runtime.hosting.client_quotas import REFERENCE_BYTES
from runtime.hosting.held_bytes import ByteBudget, HeldBytes
from runtime.links.link import Link
from runtime.references.manager import ReferenceManager
from runtime.references.table import ReferenceState
from runtime.references.values import FailedValue
from runtime.wire.codec import Codec

J = TypeVar("J")


class IncomingCalls(Generic[J]):
    """The calls that run for the peer of one link, by number. `J` is the type of an entry."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running: dict[int, J] = {}

    def accept(self, number: int, invocation: J) -> None:
        """Enter a call. Raises ProtocolError if the number is in use: the link delivers each frame
        once.
        """
        if number in self.running:
            raise ProtocolError(f"call {number} was sent twice on one link")
        self.running[number] = invocation

    def finish(self, number: int) -> bool:
        """Note that the call has ended. Returns False if the caller had cancelled it, so that no
        answer is expected.
        """
        return self.running.pop(number, None) is not None

    def cancel(self, number: object) -> J | None:
        """The caller gave up: return the invocation to cancel, or None if it has ended already."""
        return self.running.pop(number, None)  # type: ignore[call-overload, no-any-return]

    def end(self) -> list[J]:
        """Note that the link has ended: return the calls whose callers are gone."""
        invocations = list(self.running.values())
        self.running.clear()
        return invocations


def invocation_of(
    found: tuple[ActorCell, MethodDefinition],
    call: CallRequest,
    sink: ReplySink,
    asker: object,
    now: Callable[[], float],
) -> Invocation:
    """Return the invocation that a CALL asks for, which is answered through `sink`. `now`: the
    node's clock.
    """
    cell, definition = found
    deadline = call.remaining
    if deadline != math.inf:
        deadline += now()
    invocation = Invocation(
        cell, definition, call.args, call.kwargs, sink, asker, call.number, deadline
    )
    invocation.chain = call.chain
    invocation.context = call.context
    invocation.attempt = call.attempt
    invocation.held_bytes = call.held_bytes
    return invocation


# The outcomes of calls whose results stay on the node that runs them.


class RetainedResultSink:
    """Stands before the reply sink of an invocation whose result stays here: keeps the outcome in
    `state`, the state of the reference, and passes on that there is one.

    A value is the outcome of the reference. A failure is only that of an attempt: other holders
    must not see it while its maker may still repeat the call, so the maker closes the reference
    state. `tentative` is False where it will not make a call again that raises. `budget`: what the
    client may keep here; None for nodes.
    """

    def __init__(
        self,
        references: ReferenceManager,
        codec: Codec,
        state: ReferenceState,
        sink: ReplySink,
        *,
        tentative: bool,
        budget: ByteBudget | None = None,
    ) -> None:
        self._budget = budget
        self._references = references
        self._codec = codec
        self._state = state
        self._sink = sink
        self._tentative = tentative

    def value(self, invocation: Invocation, value: object) -> None:
        """The method has returned: keep the value under its reference, and answer with its size."""
        if invocation.cancelled:
            # It came too late: its maker makes the call anew, or has given it up.
            self._sink.value(invocation, 0)
            return
        try:
            size = self._references.owned.resolve(self._state, value, self._check_size)
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            refused = not_sent(f"{invocation.full_name} ran, but its result", error)
            self.refused(invocation, refused)
        else:
            self._sink.value(invocation, size)

    def _check_size(self, size: int) -> None:
        """Count a value for the client that keeps it. Raises EncodeError if it may keep no more."""
        budget, held = self._budget, self._state.held
        if budget is None or not isinstance(held, HeldBytes):
            return
        if not held.count_in(budget, size):
            raise EncodeError(
                f"its {size:,} bytes are not kept, where the results that this client keeps on the "
                f"node take {budget.held:,} of {budget.limit:,} bytes; release some references, "
                "or await the method instead"
            )

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        """The method has raised: holders of the reference get the error. If no attempt can follow,
        the reference stays without a value.
        """
        self._attempted(invocation, *raised_by_method(error, self._codec.size_of))
        if not self._tentative:
            self._references.close_attempts(self._state)
        self._sink.raised(invocation, error)

    def refused(self, invocation: Invocation, error: CallError) -> None:
        """The runtime has ended the call: holders of the reference get this attempt's error."""
        self._attempted(invocation, *described(error, self._codec.size_of))
        self._sink.refused(invocation, error)

    def given_up(self, invocation: Invocation, error: CallError) -> None:
        """The caller took the call back: stop it, for all who have the reference."""
        self._attempted(invocation, *described(error, self._codec.size_of))
        invocation.cancel()

    def _attempted(self, invocation: Invocation, code: str, plain: Plain) -> None:
        address, method = invocation.cell.address, invocation.definition.name
        failure = FailedValue(code, plain, address.name, method, address.node, address.epoch)
        self._references.on_attempt_failed(self._state, failure)


class ResultRetention:
    """Connects invocations with references: results that stay here, and arguments that are
    references.
    """

    def __init__(self, references: ReferenceManager) -> None:
        self._references = references
        self._passed = references.passed

    def keep(
        self,
        invocation: Invocation,
        link: Link,
        flags: int,
        call: CallRequest,
        budget: ByteBudget | None,
    ) -> None:
        """Keep the result of a CALL from the peer of `link` here. `budget`: see
        `RetainedResultSink`.
        """
        maker = link.peer.identity
        number, version = call.kept
        state = self._references.begin(
            (maker.name, maker.incarnation, number),
            maker,
            version,
            invocation.full_name,
        )
        if budget is not None and state.held is None:
            # A repeat has the same state, and calls are refused where there is no room for another.
            held = state.held = HeldBytes(0)
            held.count_anyway(budget, REFERENCE_BYTES)
        self._keep_in(invocation, state, tentative=bool(flags & TENTATIVE), budget=budget)

    def keep_in(self, invocation: Invocation, state: ReferenceState) -> None:
        """Keep the result of an invocation for this node's own call here."""
        self._keep_in(invocation, state, tentative=True)

    def _keep_in(
        self,
        invocation: Invocation,
        state: ReferenceState,
        *,
        tentative: bool,
        budget: ByteBudget | None = None,
    ) -> None:
        invocation.sink = RetainedResultSink(
            self._references,
            self._references.codec,
            state,
            invocation.sink,
            tentative=tentative,
            budget=budget,
        )

    @property
    def references_arrived(self) -> bool:
        """True if a reference was read since the last invocation was prepared."""
        return self._passed.read_any

    def forget_arrivals(self) -> bool:
        """Return whether the request that was read last has references, and forget it: that request
        becomes an invocation later.
        """
        arrived, self._passed.read_any = self._passed.read_any, False
        return arrived

    def remember_arrivals(self, arrived: bool) -> None:
        """Restore what `forget_arrivals` returned: that request becomes an invocation now."""
        self._passed.read_any = arrived

    def prepare(self, invocation: Invocation) -> None:
        """Note which arguments are references that the method takes as values: they are fetched
        before it starts.
        """
        self._passed.read_any = False
        invocation.needs = invocation.definition.by_value.needs(invocation.args, invocation.kwargs)


def caller_gone(invocation: Invocation) -> None:
    """Stop a call whose caller has ended, unless its result stays here for others."""
    if not isinstance(invocation.sink, RetainedResultSink):
        invocation.cancel()


def taken_back(invocation: Invocation) -> None:
    """The caller asks for the call to be stopped."""
    if isinstance(invocation.sink, RetainedResultSink):
        invocation.sink.given_up(
            invocation,
            CallError(f"{invocation.full_name} was cancelled by its caller"),
        )
    else:
        invocation.cancel()
