"""Calls between actors of one node: no wire, the same rules.

Arguments and results are copied as the wire would copy them, so that an actor never shares mutable state with its caller, and what could
not be sent is refused here too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, cast

from actors.errors import CallError, DecodeError, EncodeError, NotExecutedError, ReplyEncodeError
from actors.method import Address, Bound
from runtime.calls.arguments import refused_in_call
from runtime.calls.deadlines import Waiting, wake
from runtime.calls.failures import Place, Plain, raised_by_method, rebuild, told_plainly
from runtime.calls.keeping import KeptResults
from runtime.calls.production import LocalOutflow
from runtime.calls.reading import StreamCall
from runtime.hosting.applied import CallIdentity, Client, Origin
from runtime.hosting.cell import Job
from runtime.hosting.chains import Chain
from runtime.hosting.host import Host
from runtime.lifetime import Lifetime
from runtime.references.anchors import Anchor
from runtime.user_errors import traceback_of
from runtime.wire.codec import Codec

logger = logging.getLogger("understudy.calls")


class Attempt(NamedTuple):
    """What is known of a call that may be made again, when it is. `first`: the number of its first attempt, 0 for any other call."""

    first: int
    repeated: bool
    """An earlier attempt may have run."""
    elsewhere: bool
    """One that may have was made to another epoch of the actor, or to another node."""
    anchor: Anchor | None = None
    """Where its result stays, if it does."""
    chain: Chain | None = None
    """Who waits for it, if a method does."""


FIRST: Final = Attempt(0, False, False)
"""All others."""


class LocalCalls:
    """Carries calls from this node to its own host. Also a `Sink`: it hands the outcome to the caller's task."""

    def __init__(
        self,
        host: Host,
        codec: Codec,
        find_class: Callable[[str], type],
        kept: KeptResults,
        client: Client,
        lifetime: Lifetime,
    ) -> None:
        self._client = client
        self._lifetime = lifetime
        self._host = host
        self._codec = codec
        self._find_class = find_class
        self._kept = kept

    def begin(
        self,
        call: Waiting,
        address: Address,
        bound: Bound,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        deadline: float,
        attempt: Attempt,
    ) -> None:
        """Run a method of an actor of this node; its outcome finishes `call`, at once if it is refused. Raises EncodeError."""
        if self._host.claiming and self._host.is_about_to_start(address.name):
            later = partial(self._begin_later, call, address, bound, args, kwargs, deadline, attempt)
            self._host.claiming[address.name].append(later)
            return
        job = self._job(address, bound, args, kwargs, call, deadline)
        refusal: CallError | None
        if isinstance(job, CallError):
            refusal = job
        else:
            call.ticket = job
            job.chain = attempt.chain
            if attempt.anchor is not None:
                self._kept.keep_in(job, attempt.anchor)
            if attempt.first:
                job.call = Origin(CallIdentity(self._client, attempt.first), attempt.repeated, attempt.elsewhere)
            if isinstance(call, StreamCall):
                job.outflow = LocalOutflow(self._codec, call)
            refusal = self._host.deliver(job)
        if refusal is not None:
            call.fail(_placed(refusal, call.place))

    def _begin_later(
        self,
        call: Waiting,
        address: Address,
        bound: Bound,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        deadline: float,
        attempt: Attempt,
    ) -> None:
        if call.finished:
            # Withdrawn meanwhile, and told that it will not run.
            return
        try:
            self.begin(call, address, bound, args, kwargs, deadline, attempt)
        except EncodeError as error:
            refused = _placed(NotExecutedError(str(error)), call.place)
            refused.__cause__ = error
            call.fail(refused)
        if call.finished:
            wake(call)

    def withdraw(self, call: Waiting) -> bool:
        """Nobody waits for the call any more; True if it has not begun, and so will not run."""
        if not isinstance(call.ticket, Job):
            return True
        waited = not call.ticket.begun
        call.ticket.cancel()
        return waited

    def over(self, first: int, actor: str, watermark: int) -> None:
        """This node will not make that call of an actor again, which may be here, nor any call below `watermark`."""
        self._host.once.over(self._host.cells.get(actor), CallIdentity(self._client, first))
        self._host.once.confirm(self._client, watermark)

    def send(self, address: Address, bound: Bound, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Run a method one way. Refusals are logged, as they would be on another node."""
        if self._host.claiming and self._host.is_about_to_start(address.name):
            self._host.claiming[address.name].append(partial(self.send, address, bound, args, kwargs))
            return
        job = self._job(address, bound, args, kwargs, None, math.inf)
        refusal = job if isinstance(job, CallError) else self._host.deliver(job)
        if refusal is not None:
            self._lifetime.check()
            logger.warning("a one-way call was refused: %s", refusal)

    def value(self, job: Job, value: object) -> None:
        """See `Sink.value`."""
        call = cast("Waiting | None", job.link)
        if call is None or call.finished:
            return
        try:
            call.value = self._codec.copy(value)
        except (EncodeError, DecodeError) as error:
            call.error = _placed(
                ReplyEncodeError(f"{call.place.actor}.{call.place.method} ran, but its result cannot be sent: {error}"), call.place
            )
        self._finish(call)

    def raised(self, job: Job, error: BaseException) -> None:
        """See `Sink.raised`."""
        call = cast("Waiting | None", job.link)
        if call is None:
            logger.error("%s.%s raised in a one-way call\n%s", job.cell.address.name, job.definition.name, traceback_of(error))
        elif not call.finished:
            code, plain = raised_by_method(error, self._codec.size_of)
            try:
                plain = cast("Plain", self._codec.copy(plain))
            except (EncodeError, DecodeError):
                plain = told_plainly(plain)
            call.error = rebuild(code, plain, call.place, self._find_class)
            self._finish(call)

    def refused(self, job: Job, error: CallError) -> None:
        """See `Sink.refused`."""
        call = cast("Waiting | None", job.link)
        if call is not None and not call.finished:
            call.error = _placed(error, call.place)
            self._finish(call)

    def _finish(self, call: Waiting) -> None:
        call.finished = True
        call.ticket = 0
        wake(call)

    def _job(
        self,
        address: Address,
        bound: Bound,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        call: Waiting | None,
        deadline: float,
    ) -> Job | CallError:
        definition = bound.definition
        found = self._host.find(address.name, address.epoch, definition.name, stream=definition.stream)
        if isinstance(found, CallError):
            return self._lifetime.error() if self._lifetime.has_ended else found
        cell, hosted_definition = found
        try:
            copied = tuple(map(self._codec.copy, args))
            copied_kwargs = {name: self._codec.copy(argument, name) for name, argument in kwargs.items()}
        except EncodeError as error:
            raise refused_in_call(self._codec, error, bound, args, kwargs) from error.__cause__
        job = Job(cell, hosted_definition, copied, copied_kwargs, self, call, 0, deadline)
        if self._kept.references_arrived:
            self._kept.prepare(job)
        return job


def _placed(error: CallError, place: Place) -> CallError:
    error.actor, error.method, error.node, error.epoch, error.attempts = place.actor, place.method, place.node, place.epoch, 1
    return error
