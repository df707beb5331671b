"""How the runtime's own services are called: again until they answer, or their node is known to be
gone.

Their calls are recorded like any repeatable call, so a repeat runs nothing twice, also where the
method itself is not idempotent.
"""

from __future__ import annotations

from typing import Final

import attrs

from actors.errors import ActorDiedError, ActorNotFoundError, NodeDrainingError
from actors.options import CallOptions
from actors.retry import RetryPolicy

WITHOUT_END: Final = 1_000_000_000
"""Retries: a deadline or the death of the node ends them."""

_SOON: Final = RetryPolicy(
    max_retries=WITHOUT_END,
    initial_delay=0.02,
    backoff=2.0,
    max_delay=0.25,
    attempt_timeout=0.25,
    repeat_unknown=True,
)

SYSTEM_CALLS: Final = CallOptions(retry=_SOON)
"""For calls that are answered soon. One that takes longer loses nothing: its repeat is attached to
it.
"""

NODE_CALLS: Final = CallOptions(retry=attrs.evolve(_SOON, attempt_backoff=2.0))
"""For what is asked of a node: to start an actor, or to stop one. Thousands of these may wait for
one node at the same time, and must not be repeated as often as they could be answered.
"""

SERVICE_ENDED: Final = (ActorDiedError, ActorNotFoundError, NodeDrainingError)
"""Errors of a call to a service that mean that its node has ended, or has left. A service takes
calls until then, and is nowhere else: such a call is not repeated.
"""

LONG_POLL_SECONDS: Final = 20.0
"""How long a service holds back the answer to a question about something that has not happened yet,
before it says so.
"""

LONG_POLL: Final = RetryPolicy(
    max_retries=WITHOUT_END,
    initial_delay=0.02,
    backoff=2.0,
    max_delay=1.0,
    attempt_timeout=LONG_POLL_SECONDS + 10.0,
    repeat_unknown=True,
)
"""For such questions."""
