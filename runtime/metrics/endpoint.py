"""The endpoint of a node's metrics and health: `GET /metrics`, `/healthz` and `/readyz`.

It is served from an event loop of its own, in a thread, and only what must be is done in the node's
loop: copying the counts. So a slow client or a large scrape takes no time of the node's, and a
blocked loop of the node is reported: `/healthz` answers 503 and names the code that blocks.

Everything is bounded: connections, the head of a request, the time for a request and its answer,
and the questions that wait for the node's loop. Each answer ends its connection.

Over TLS, where the address begins with `https://`, metrics are for those with a certificate.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from actors.errors import ListenError
from actors.own_logger import own_logger
from runtime.environment import Beside
from runtime.hosting.loop_watch import running_code
from runtime.http_connections import ConnectionLimit
from runtime.http_hosts import host_refusal, split_target
from runtime.limited_log import LimitedLog
from runtime.links.tls import FIRST_BYTE
from runtime.links.transports import join_host_port, split_host_port
from runtime.metrics.definitions import DEFINITIONS, Definition
from runtime.metrics.readers import CertifiedReaders, Secured
from runtime.metrics.readings import LoopHealth, NodeParts, Readings, read
from runtime.statistics.call_statistics import CallStatistics
from runtime.statistics.histograms import BOUNDS
from runtime.timings import Timings
from runtime.user_errors import summary_of

if TYPE_CHECKING:
    import h11
    from prometheus_client.core import Metric

MOST_CONNECTIONS = 32
"""At once; one more ends the oldest, so that silent ones keep no health check out."""

MAX_HEAD = 8192
"""Bytes of the line and headers of a request."""

LINGER_SECONDS = 0.5
LINGER_BYTES = 65536
"""What is read and thrown away after an answer: closed at once, the connection would be reset, and
the client might never see the answer.
"""

LOOK_SECONDS = 0.1
"""Between two looks at how late the node's loop is."""

MISSING = "metrics need an extra: pip install 'understudy-actors[metrics]'"

ENCRYPTED = "https://"
"""In front of an address at which metrics are served over TLS."""

T = TypeVar("T")

logger = own_logger("understudy.metrics")


@attrs.frozen
class HttpAnswer:
    """An answer: `body` is sent as `kind`."""

    status: int
    kind: str
    body: bytes


class BlockedLoopError(Exception):
    """The node's event loop did not answer in time. Never leaves this module."""


@attrs.frozen
class MetricsAddress:
    """Where metrics are served, and whether over TLS."""

    host: str
    port: int
    encrypted: bool


def check_metrics(address: str, *, certified: bool) -> MetricsAddress:
    """Read `HOST:PORT`, or a port of 127.0.0.1, perhaps with `https://` in front. `certified`: the
    node has a certificate of its own. Raises ValueError, and ImportError that says what to install.
    """
    try:
        import h11  # noqa: F401
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ImportError(MISSING) from None
    encrypted = address.startswith(ENCRYPTED)
    where = address.removeprefix(ENCRYPTED)
    try:
        host, port = split_host_port(where if ":" in where else f"127.0.0.1:{where}")
    except ValueError as error:
        raise ValueError(f"metrics: {error}, or a port: 9464") from None
    if encrypted and not certified:
        raise ValueError(
            f"metrics: {address} needs a certificate of the node: give --tls-ca, --tls-cert and "
            "--tls-key (tls=Tls(...)), or leave https:// out"
        )
    return MetricsAddress(host, port, encrypted)


class MetricsEndpoint:
    """The endpoint of one node. `statistics`: of its calls. `readers`: None where the node has no
    certificate.
    """

    def __init__(
        self, parts: NodeParts, statistics: CallStatistics, readers: CertifiedReaders | None
    ) -> None:
        self._parts = parts
        self._readers = readers
        self._timings = parts.environment.timings
        self._statistics = statistics
        self._health = LoopHealth()
        self._beside: Beside | None = None
        self._listeners: list[trio.SocketListener] = []
        self._scope = trio.CancelScope()
        self._collections = self._note_collection
        self._began = 0.0

    async def open(self, address: str, nursery: trio.Nursery) -> str:
        """Listen at an address of `check_metrics`, port 0 for a free one, and serve until `close`.
        Tasks of the node's loop are in `nursery`. Returns where it listens. Raises `ListenError`,
        ValueError and ImportError.
        """
        where = check_metrics(address, certified=self._readers is not None)
        readers = self._readers if where.encrypted else None
        try:
            listeners = await trio.open_tcp_listeners(where.port, host=where.host)
            self._listeners = listeners
        except OSError as error:
            raise ListenError(
                f"metrics cannot be served at {address}: {error.strerror or error}; choose another "
                "address for metrics, or port 0 for a free port"
            ) from None
        gc.callbacks.append(self._collections)
        nursery.start_soon(self._measure_lag, name="lag of the loop")
        token = trio.lowlevel.current_trio_token()
        environment = self._parts.environment
        self._beside = environment.run_beside(
            lambda beside, stack: _serve(
                listeners, self._answering(token, stack), self._timings, readers
            )
        )
        if self._beside is None:
            # Time is virtual: there is no thread, and the node's own loop serves.
            nursery.start_soon(self._serve_here, listeners, token, readers)
        bound = listeners[0].socket.getsockname()
        return join_host_port(bound[0], bound[1])

    async def close(self) -> None:
        """Stop serving; bounded in time."""
        if self._collections in gc.callbacks:
            gc.callbacks.remove(self._collections)
        self._scope.cancel()
        if self._beside is not None:
            await self._beside.end()
        for listener in self._listeners:
            # A thread that was ended before it began to serve has not closed it.
            listener.socket.close()

    async def _serve_here(
        self,
        listeners: list[trio.SocketListener],
        token: trio.lowlevel.TrioToken,
        readers: CertifiedReaders | None,
    ) -> None:
        with self._scope:
            await _serve(listeners, self._answering(token, lambda: None), self._timings, readers)

    def _answering(
        self, token: trio.lowlevel.TrioToken, stack: Callable[[], FrameType | None]
    ) -> Answer:
        return partial(self._answer, _LoopQuestions(token, self._timings.loop_answer), stack)

    async def _answer(
        self, questions: _LoopQuestions, stack: Callable[[], FrameType | None], path: str
    ) -> HttpAnswer:
        """Answer a request, in the second loop."""
        try:
            if path == "/healthz":
                await questions.ask(lambda: None)
                return _as_json(200, {"state": "alive", "node": self._parts.name})
            if path == "/readyz":
                reasons = await questions.ask(self._parts.not_ready)
                state = "not ready" if reasons else "ready"
                fields = {"state": state, "node": self._parts.name, "reasons": reasons}
                return _as_json(503 if reasons else 200, fields)
            if path == "/metrics":
                readings = await questions.ask(
                    lambda: read(self._parts, self._statistics, self._health)
                )
                return _exposition(readings)
        except BlockedLoopError:
            who, _ = running_code(stack())
            seconds = self._timings.loop_answer
            reason = f"the event loop has not moved for {seconds:g} s; it runs {who}"
            fields = {"state": "blocked", "node": self._parts.name, "reasons": [reason]}
            return _as_json(503, fields)
        return _text(404, "unknown path; request /metrics, /healthz or /readyz\n")

    async def _measure_lag(self) -> None:
        now = self._parts.environment.now
        with self._scope:
            while True:
                due = now() + LOOK_SECONDS
                await trio.sleep_until(due)
                self._health.on_looked(now() - due)

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        stopwatch = self._parts.environment.stopwatch
        if phase == "start":
            self._began = stopwatch()
        elif self._began:
            self._health.pauses[info["generation"]].add(stopwatch() - self._began)


class _LoopQuestions:
    """Runs functions in the node's event loop for another event loop. Made in the node's.
    `seconds`: after this long without an answer the node's loop counts as blocked.
    """

    def __init__(self, token: trio.lowlevel.TrioToken, seconds: float) -> None:
        self._token = token
        self._seconds = seconds
        self._waiting = 0
        """Questions that the node's loop has not answered. Only the asking loop changes it."""

    async def ask(self, function: Callable[[], T]) -> T:
        """Return what `function` returns in the loop. Raises `BlockedLoopError`."""
        if self._waiting >= MOST_CONNECTIONS:
            # The loop is blocked, and clients ask again and again: their questions must not pile
            # up.
            raise BlockedLoopError
        here = trio.lowlevel.current_trio_token()
        answered, answers = trio.Event(), list[T]()
        failures: list[Exception] = []

        def back() -> None:
            self._waiting -= 1
            answered.set()

        def there() -> None:
            try:
                answers.append(function())
            except Exception as error:
                # It belongs to the one who asks: in a callback of the loop it would end the node.
                failures.append(error)
            try:
                here.run_sync_soon(back)
            except trio.RunFinishedError:
                # The endpoint was closed meanwhile.
                pass

        self._waiting += 1
        try:
            # The endpoint has a thread of its own, so that it answers while the node's loop is
            # blocked.
            self._token.run_sync_soon(there)
        except trio.RunFinishedError:
            raise BlockedLoopError from None
        with trio.move_on_after(self._seconds):
            await answered.wait()
        if failures:
            raise failures[0]
        if not answers:
            raise BlockedLoopError
        return answers[0]


# HTTP, in the second loop.

Answer = Callable[[str], Awaitable[HttpAnswer]]
"""Answers the request for a path."""


async def _serve(
    listeners: list[trio.SocketListener],
    answer: Answer,
    timings: Timings,
    readers: CertifiedReaders | None,
) -> None:
    limit = ConnectionLimit(MOST_CONNECTIONS)
    log = LimitedLog(logger, trio.current_time)

    async def serve_one(stream: trio.SocketStream) -> None:
        try:
            with limit.admit(timings.metrics_request):
                if readers is None:
                    await _converse(stream, answer, stream.socket.getsockname()[0])
                else:
                    await _converse_securely(stream, answer, readers)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            # The client has gone.
            pass
        except Exception as error:
            # A mistake in one answer ends its connection and no other.
            log.log(logging.ERROR, "an answer failed: %s", summary_of(error), error=error)
        finally:
            await trio.aclose_forcefully(stream)

    await trio.serve_listeners(serve_one, listeners)


async def _converse_securely(
    stream: trio.SocketStream, answer: Answer, readers: CertifiedReaders
) -> None:
    """Shake hands, read one request, and answer it as far as the one who asks may know."""
    first = await stream.socket.recv(1, socket.MSG_PEEK)
    if first[:1] != bytes((FIRST_BYTE,)):
        await _converse(stream, _only_over_tls)
        return
    secured = await readers.secured(stream)
    if secured is None:
        return
    encrypted, refusal = secured

    async def admitted(path: str) -> HttpAnswer:
        # Health is for all: what looks at it, as kubelets and load balancers, has no certificate.
        return _text(403, refusal) if refusal and path == "/metrics" else await answer(path)

    await _converse(encrypted, admitted)
    # With the end that TLS has, by which the other side knows that nothing was cut off.
    await encrypted.aclose()


async def _only_over_tls(path: str) -> HttpAnswer:
    await trio.lowlevel.checkpoint()
    return _text(400, "this address is served over TLS: request https://...\n")


async def _converse(
    stream: trio.SocketStream | Secured, answer: Answer, reached_at: str = ""
) -> None:
    """Read one request, and answer it. `reached_at`: the address at which it arrived, where no
    certificate tells a browser that the names of other sites are false.
    """
    import h11

    from runtime.strict_http import StrictConnection

    connection = StrictConnection(MAX_HEAD)
    with_body = True
    try:
        event: Any = h11.NEED_DATA
        while event is h11.NEED_DATA:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some(MAX_HEAD)))
        if not isinstance(event, h11.Request):
            return
        with_body = event.method != b"HEAD"
        if event.method not in (b"GET", b"HEAD"):
            response = _text(405, "this address answers only GET and HEAD\n")
        else:
            response = await _answered(event, answer, reached_at)
    except h11.RemoteProtocolError as error:
        response = _text(error.error_status_hint, f"the request is not HTTP as expected: {error}\n")
    headers = [
        ("content-type", response.kind),
        ("content-length", str(len(response.body))),
        ("connection", "close"),
    ]
    head = connection.send(h11.Response(status_code=response.status, headers=headers)) or b""
    body = (connection.send(h11.Data(data=response.body)) or b"") if with_body else b""
    await stream.send_all(head + body)
    if isinstance(stream, trio.SocketStream):
        await stream.send_eof()
    with trio.move_on_after(LINGER_SECONDS):
        size = 0
        while size < LINGER_BYTES and (data := await stream.receive_some(4096)):
            size += len(data)


async def _answered(request: h11.Request, answer: Answer, reached_at: str) -> HttpAnswer:
    try:
        target = request.target.decode("ascii", "replace")
        path, host = split_target(target, _host(request.headers))
    except ValueError as error:
        return _text(400, f"{error}\n")
    if refusal := host_refusal(host, reached_at, socket.gethostname()):
        return _text(403, refusal)
    return await answer(path.partition("?")[0])


def _host(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    # h11 refuses a request that has it twice.
    return next((value.decode("latin-1") for name, value in headers if name == b"host"), None)


def _text(status: int, text: str) -> HttpAnswer:
    return HttpAnswer(status, "text/plain; charset=utf-8", text.encode())


def _as_json(status: int, fields: dict[str, Any]) -> HttpAnswer:
    return HttpAnswer(status, "application/json", json.dumps(fields).encode() + b"\n")


# Exposition: the readings in Prometheus' text format.


def _exposition(readings: Readings) -> HttpAnswer:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(readings))
    ProcessCollector(registry=registry)
    return HttpAnswer(200, CONTENT_TYPE_LATEST, generate_latest(registry))


class _Collector:
    """Hands one scrape's readings to prometheus-client."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        """All metrics of `DEFINITIONS`, also those without a sample yet."""
        return map(self._family, DEFINITIONS)

    def describe(self) -> Iterable[Metric]:
        """Nothing: each registry has this one collector."""
        return ()

    def _family(self, definition: Definition) -> Metric:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        name, text, labels = definition.name, definition.text, definition.labels
        if definition.kind == "histogram":
            histogram = HistogramMetricFamily(name, text, labels=labels)
            for values, counts, total in self._readings.buckets.get(name, ()):
                histogram.add_metric(values, list(_cumulated(counts)), total)
            return histogram
        family = (CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily)(
            name, text, labels=labels
        )
        for values, number in self._readings.numbers.get(name, ()):
            family.add_metric(values, number)
        return family


def _cumulated(counts: list[int]) -> Iterator[tuple[str, float]]:
    """Buckets as Prometheus has them: each with all that is below its bound."""
    below = 0
    for bound, count in zip((*BOUNDS, math.inf), counts, strict=True):
        below += count
        yield "+Inf" if bound == math.inf else repr(bound), below
