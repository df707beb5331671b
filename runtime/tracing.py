"""Traces by OpenTelemetry: a span for each call where it is made and where it runs, and some for
what the runtime does.

Only the API is used (the extra `otel`). Which SDK records the spans, and where they go, is the
application's business; without one, nothing is recorded and what callers send is passed on.
Names are those of the semantic conventions for RPC (v1.44).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context as ContextVars
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from actors.call_context import CallContext, call_context
from actors.errors import CallError, RemoteError
from actors.filters import Call, Filter, Next
from runtime.user_errors import guarded
from runtime.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

MISSING = "traces need an extra: pip install 'understudy-actors[otel]'"

FLUSH_MILLISECONDS = 1000
"""How long the end of a process may take to hand over its last spans."""

UNKNOWN_CLASS = "_OTHER"
"""In the name of a span whose actor's class is not known to the caller."""


class Spans(Protocol):
    """Makes spans of what the runtime does."""

    def span(
        self, name: str, attributes: Mapping[str, str | int], *, root: bool = False
    ) -> AbstractContextManager[object]:
        """A span around a block; calls that the block makes are part of it. `root`: it begins a
        trace, whatever trace the task is in.
        """
        ...

    def part(
        self, name: str, attributes: Mapping[str, str | int]
    ) -> AbstractContextManager[object]:
        """A span around a block, if the task is in a trace. It is for what also happens all the
        time in the background, where each would begin a trace of its own.
        """
        ...

    def leave_trace(self, tasks: ContextVars) -> None:
        """Take the span that is the current one out of the context in which tasks are to start."""
        ...


class NoSpans:
    """Makes none."""

    def span(
        self, name: str, attributes: Mapping[str, str | int], *, root: bool = False
    ) -> AbstractContextManager[object]:
        """Return a block without a span."""
        return nullcontext()

    def part(
        self, name: str, attributes: Mapping[str, str | int]
    ) -> AbstractContextManager[object]:
        """Return a block without a span."""
        return nullcontext()

    def leave_trace(self, tasks: ContextVars) -> None:
        """Does nothing: no task is in a trace."""


NO_SPANS = NoSpans()


class Tracing(Filter):
    """The filter that makes spans of calls, and the `Spans` of a node. Raises ModuleNotFoundError
    if the extra is not installed.
    """

    def __init__(self) -> None:
        try:
            from opentelemetry import context, trace
            from opentelemetry.baggage.propagation import W3CBaggagePropagator
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise ModuleNotFoundError(MISSING) from None
        self._trace = trace
        self._context = context
        # Those two and not the application's: this is the form that travels between nodes.
        self._propagators = TraceContextTextMapPropagator(), W3CBaggagePropagator()
        self._tracer = trace.get_tracer("understudy", __version__)

    async def call(self, next: Next, call: Call) -> object:
        """Make the call within a span: of a client or producer, or of the server."""
        if call.side == "server":
            return await self._served(next, call)
        producer = call.kind == "send"
        kind = self._trace.SpanKind.PRODUCER if producer else self._trace.SpanKind.CLIENT
        around = self._around()
        span = self._tracer.start_span(
            _name(call), around, kind, {**_attributes(call), "server.address": call.node}
        )
        sent = 0

        def attempted(number: int, node: str) -> None:
            nonlocal sent
            sent = number
            span.add_event("attempt", {"understudy.attempt": number, "understudy.node": node})

        call.on_attempt(attempted)
        token = call_context.set(self._carried(self._trace.set_span_in_context(span, around)))
        try:
            return await self._recorded(span, partial(next, call))
        finally:
            call_context.reset(token)
            if sent:
                span.set_attribute("understudy.attempts", sent)
                span.set_attributes(_peer_address(call.peer_addresses))
            span.end()

    @contextmanager
    def span(
        self, name: str, attributes: Mapping[str, str | int], *, root: bool = False
    ) -> Iterator[object]:
        """Run the block within a span, which fails with it. `root`: begin a new trace."""
        around = self._extracted(CallContext()) if root else self._around()
        span = self._tracer.start_span(name, around, attributes=attributes)
        try:
            with self._inside(span, around):
                yield span
        except BaseException as error:
            _failed(span, error, self._trace.StatusCode.ERROR)
            raise
        finally:
            span.end()

    def part(
        self, name: str, attributes: Mapping[str, str | int]
    ) -> AbstractContextManager[object]:
        """Run the block within a span, if there is a trace that it can be part of."""
        if self._trace.get_current_span(self._around()).get_span_context().is_valid:
            return self.span(name, attributes)
        return nullcontext()

    def leave_trace(self, tasks: ContextVars) -> None:
        """Remove the current span from the context in which tasks will start."""
        tasks.run(self._context.attach, self._extracted(CallContext()))

    def flush(self) -> None:
        """Have an SDK export what it still holds: the process ends. Blocks for a second at most."""
        flush = getattr(self._trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            guarded(lambda: flush(FLUSH_MILLISECONDS), lambda failure: None)

    async def _served(self, next: Next, call: Call) -> object:
        trace = self._trace
        # Not what happens to be the current span here: the task has run other calls before.
        sender = self._extracted(call.context)
        parent, links = sender, []
        if call.kind == "send":
            # No caller waits for it: it is caused by the trace, and not a part of it.
            parent, links = (
                self._extracted(CallContext()),
                [trace.Link(trace.get_current_span(sender).get_span_context())],
            )
            links = [link for link in links if link.context.is_valid]
        span = self._tracer.start_span(
            _name(call),
            parent,
            trace.SpanKind.CONSUMER if call.kind == "send" else trace.SpanKind.SERVER,
            {
                **_attributes(call),
                "understudy.repeat": call.attempt > 1,
                "understudy.mailbox_wait": call.waited,
            },
            links,
        )
        try:
            with self._inside(span, parent):
                return await self._recorded(span, partial(next, call))
        finally:
            span.end()

    async def _recorded(self, span: Span, go_on: Callable[[], Any]) -> object:
        try:
            value: object = await go_on()
        except BaseException as error:
            _failed(span, error, self._trace.StatusCode.ERROR)
            raise
        span.set_attribute("rpc.status_code", "OK")
        return value

    @contextmanager
    def _inside(self, span: Span, around: Context) -> Iterator[None]:
        """A block in which the span is the current one, to OpenTelemetry and to our calls."""
        inside = self._trace.set_span_in_context(span, around)
        attached = self._context.attach(inside)
        token = call_context.set(self._carried(inside))
        try:
            yield
        finally:
            call_context.reset(token)
            self._context.detach(attached)

    def _around(self) -> Context:
        """The current span's context; where there is none, that of the call context."""
        current = self._context.get_current()
        if self._trace.get_current_span(current).get_span_context().is_valid:
            return current
        return self._extracted(call_context.get())

    def _extracted(self, carried: CallContext) -> Context:
        from opentelemetry.context import Context

        carrier = {
            "traceparent": carried.traceparent,
            "tracestate": carried.tracestate,
            "baggage": carried.baggage,
        }
        context = Context()
        for propagator in self._propagators:
            context = propagator.extract(
                {name: text for name, text in carrier.items() if text}, context
            )
        return context

    def _carried(self, context: Context) -> CallContext:
        """The current call context, with this trace. Without an SDK there may be none: then what
        came in goes on.
        """
        before, carrier = call_context.get(), dict[str, str]()
        for propagator in self._propagators:
            propagator.inject(carrier, context)
        if "traceparent" not in carrier:
            return before
        return before.with_trace(
            carrier["traceparent"],
            carrier.get("tracestate", ""),
            carrier.get("baggage", before.baggage),
        )


def spans_of(filters: Sequence[Filter]) -> Spans:
    """The spans that a node makes which has these filters."""
    return next((one for one in filters if isinstance(one, Tracing)), NO_SPANS)


def _name(call: Call) -> str:
    cls = call.class_path.rpartition(":")[2].rpartition(".")[2] or UNKNOWN_CLASS
    return f"{cls}/{call.method}"


def _attributes(call: Call) -> dict[str, str | int]:
    return {
        "rpc.system.name": "understudy",
        "rpc.method": _name(call),
        "understudy.actor": call.actor,
        "understudy.epoch": call.epoch,
        "understudy.node": call.node,
        "understudy.incarnation": call.incarnation,
    }


def _peer_address(addresses: Sequence[str]) -> dict[str, str | int]:
    """Return the address of a node as the conventions name it: TCP first, which has the host."""
    for address in sorted(addresses, key=lambda one: not one.startswith("tcp:")):
        kind, _, place = address.partition(":")
        host, _, port = place.rpartition(":")
        if kind == "tcp" and port.isdecimal():
            return {"network.peer.address": host.strip("[]"), "network.peer.port": int(port)}
        if kind == "unix":
            return {"network.peer.address": place}
    return {}


def _failed(span: Span, error: BaseException, status: Any) -> None:
    cls = type(error)
    if isinstance(error, CallError) and not isinstance(error, RemoteError):
        # Its text may name arguments, and is for the caller's log: the type says how it ended.
        code = cls.__name__
    else:
        code = "RAISED" if isinstance(error, Exception) else "CANCELLED"
    span.set_attribute("rpc.status_code", code)
    span.set_attribute("error.type", f"{cls.__module__}.{cls.__qualname__}")
    span.set_status(status, code)
