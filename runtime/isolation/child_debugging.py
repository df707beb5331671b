"""Failures and debuggers in the process of an isolated actor, as on a node. Its node keeps the
failures, as text, because they outlive the process; it reaches debuggers through the service
`@child-debug` of the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import trio

from actors.actor import Actor
from actors.errors import CallError
from actors.method import method
from runtime.environment import Environment
from runtime.hosting.breakpoints import breakpoint_hook, breakpoints_passed_over
from runtime.hosting.debug_requests import DebugRequests
from runtime.hosting.host import ActorHost
from runtime.hosting.post_mortem import FailureRecord, PostMortems
from runtime.isolation.messages import CHILD_DEBUG_SERVICE

PASS_ON_SECONDS = 2.0
"""How many seconds the node may take to keep a failure, which it does not have afterwards."""

KeptFailures = Literal["", "text", "frames"]
"""The part of failures that a node keeps: nothing, their text, or also the frames, for debuggers.
"""


class ChildDebugService(Actor):
    """Answers the node for `understudy debug`; see `DebugRequests`."""

    def __init__(self, host: ActorHost) -> None:
        self._requests = DebugRequests(host)

    @method(concurrent=True, idempotent=True)
    async def breakpoints(self, actor: str) -> dict[str, Any]:
        """The breakpoints at which methods of the actor wait, and how many failures were not
        kept.
        """
        waiting = self._requests.breakpoints(actor)
        return {"breakpoints": waiting, "dropped": self._requests.dropped}

    @method(concurrent=True)
    async def debug(self, actor: str, number: int) -> dict[str, Any]:
        """Open a debugger of the frames of a failure: its number, or the `problem`."""
        return self._requests.debug(actor, number)

    @method(concurrent=True)
    async def command(self, number: int, line: str | None, seconds: float) -> dict[str, str]:
        """Send a line to a debugger, or none, and return what it has printed."""
        return await self._requests.command(number, line, seconds)


@contextmanager
def child_debugging(
    host: ActorHost,
    nursery: trio.Nursery,
    environment: Environment,
    kept: KeptFailures,
    address: str,
    node: Any,
    ticket: str,
) -> Iterator[None]:
    """Keep what the node keeps of failures, and pass it on; while this is open, methods may wait at
    a `breakpoint()` if they may on the node. `address`: where `understudy debug` finds the node.
    `node`: its isolation service, `ticket`: of this process there.
    """
    if not kept:
        with breakpoints_passed_over():
            yield
        return
    service = node.options(timeout=PASS_ON_SECONDS)

    async def pass_on(record: FailureRecord) -> None:
        with suppress(CallError):
            await service.failed(ticket, record.plain())

    host.keep_failures(
        PostMortems(environment, nursery, keeps_frames=kept == "frames", pass_on=pass_on)
    )
    if kept == "text":
        with breakpoints_passed_over():
            yield
        return
    host.add_system(CHILD_DEBUG_SERVICE, ChildDebugService(host))
    host.allow_breakpoints(nursery, address)
    with breakpoint_hook():
        yield
