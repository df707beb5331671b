"""What a trace costs each call that carries one, where no SDK records it: both ends in one process,
and rates by its processor time, which the rest of the machine hardly disturbs.
"""

from __future__ import annotations

import time

from actors import CallContext, call_context
from runtime import open_node
from tests.benchmarks.measuring import Row, Settings, in_turn
from tests.benchmarks.ours import Bench

SECRET = "of the benchmark"
TRACE = CallContext.of(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
CALLS_PER_SECOND = 4000
"""About as many as are made in one second of the settings."""


async def measure(settings: Settings) -> list[Row]:
    """Calls with a `traceparent` beside calls without."""
    calls = max(200, int(CALLS_PER_SECOND * settings.seconds))
    async with (
        open_node("here", secret=SECRET) as here,
        open_node("there", join=here.address, secret=SECRET),
    ):
        await here.wait_for(2)
        bench = await here.options(on="there").spawn(Bench)

        async def rate(context: CallContext) -> float:
            token = call_context.set(context)
            try:
                began = time.process_time()
                for _ in range(calls):
                    await bench.read()
                return calls / (time.process_time() - began)
            finally:
                call_context.reset(token)

        traced, plain = await in_turn(
            settings.rounds, lambda: rate(TRACE), lambda: rate(CallContext())
        )
    return [
        Row(
            "calls with a traceparent, by processor time",
            "calls/s",
            traced,
            plain,
            against="calls without one",
        )
    ]
