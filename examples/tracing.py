"""One trace over several processes: a script, two nodes, a process of an isolated actor, a retry.

Each process sets up an OpenTelemetry SDK of its own, here one that writes a line for each span. In
production that is an OTLP exporter. It needs
`pip install 'understudy-actors[otel]' opentelemetry-sdk`.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from actors import Actor, RetryPolicy, call_context, method
from runtime.blocking import open_local_cluster


class Stock(Actor):
    """Runs in a process of its own."""

    def __init__(self) -> None:
        self.asked = 0

    @method(idempotent=True)
    async def reserve(self, item: str) -> str:
        self.asked += 1
        if self.asked == 1:
            raise ConnectionError("the warehouse does not answer")
        return f"{item} for {call_context.get()['tenant']}"


class Shop(Actor):
    """Asks the stock."""

    @method
    async def order(self, item: str) -> str:
        stock = await self.node.lookup("stock", Stock)
        patient = RetryPolicy(max_retries=3, initial_delay=0.01, retry_on=(ConnectionError,))
        return await stock.reserve.options(retry=patient)(item)


def line(span: ReadableSpan) -> str:
    """What this program shows of a span."""
    attempts = span.attributes.get("understudy.attempts", 1) if span.attributes else 1
    again = f", {attempts} attempts" if attempts != 1 else ""
    return f"{span.kind.name} {span.name}{again}\n" if "/" in span.name else ""


def set_up() -> None:
    """Called first in every process: exporters do not survive a fork."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
    trace.set_tracer_provider(provider)


def main() -> None:
    set_up()
    with open_local_cluster(nodes=2, tracing=True, on_process_start=set_up) as cluster:
        shop = cluster.options(on="worker-1").spawn(Shop)
        cluster.options(name="stock", on="worker-2", isolation="process").spawn(Stock)
        with call_context.having(tenant="acme"):
            print(shop.order("a lamp"))


if __name__ == "__main__":
    main()
