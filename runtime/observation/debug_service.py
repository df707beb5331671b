"""The service `@debug` of every node: the failures of its actors that it keeps, the breakpoints at
which methods wait, and their debuggers. `understudy debug` asks it; only operators may.

The debuggers of an isolated actor are in its process, to which the node passes lines on.
"""

from __future__ import annotations

from typing import Any, Final

from actors.actor import Actor
from actors.errors import CallError
from actors.method import method
from runtime.calls.endpoint import RpcEndpoint
from runtime.hosting.debug_requests import NOT_DEBUGGABLE, DebugRequests
from runtime.hosting.host import ActorHost
from runtime.hosting.post_mortem import FailureRecord
from runtime.isolation.actor_proxy import ActorProxy, proxy_of
from runtime.user_errors import text_of

DEBUG_SERVICE: Final = "@debug"


class DebugService(Actor):
    """Tells of the failures that the node keeps, and passes lines on to its debuggers."""

    def __init__(self, host: ActorHost) -> None:
        self._host = host
        self._requests = DebugRequests(host)

    @method(concurrent=True, idempotent=True)
    async def failures(self, actor: str) -> dict[str, Any]:
        """The last failures of the actors of this name, the latest last, and the breakpoints at
        which its methods wait, the earliest first. `problem`: why failures or breakpoints are not
        known; `dropped`: how many, of all actors, came too fast to be kept.

        `isolated` of a breakpoint: the actor in whose process it waits, for `command`.
        """
        answer = self._requests.failures(actor)
        for failure in answer["failures"]:
            if failure["in_process"]:
                # The frames end with the process.
                failure["debuggable"] &= self._proxy(actor, failure["epoch"]) is not None
        proxy = self._proxy(actor)
        if proxy is None or self._host.breakpoints is None:
            return answer
        try:
            inside = await proxy.breakpoints()
        except CallError as error:
            return {
                **answer,
                "problem": _unanswered(proxy, error),
            }
        answer["breakpoints"] += [{**one, "isolated": actor} for one in inside["breakpoints"]]
        answer["dropped"] += inside["dropped"]
        return answer

    @method(concurrent=True)
    async def debug(self, actor: str, number: int) -> dict[str, Any]:
        """Open a debugger of the frames of a failure: its number, or the `problem`. `isolated`: the
        actor in whose process it is, for `command`.
        """
        record = self._failure_in_process(actor, number)
        if record is None:
            return self._requests.debug(actor, number)
        if self._host.breakpoints is None:
            return {"number": 0, "problem": NOT_DEBUGGABLE}
        proxy = self._proxy(actor, record.epoch)
        if proxy is None:
            return {"number": 0, "problem": "its process has ended, and with it the frames"}
        try:
            return {**await proxy.debug(record.in_process), "isolated": actor}
        except CallError as error:
            return {"number": 0, "problem": _unanswered(proxy, error)}

    @method(concurrent=True)
    async def command(
        self, number: int, line: str | None, seconds: float, isolated: str = ""
    ) -> dict[str, str]:
        """Send a line to a debugger, or none, and return what it has printed when it waits for the
        next line, after `seconds` at the latest; its state; and the `problem`, if there is one.
        `isolated`: the actor in whose process the debugger is.
        """
        if not isolated:
            return await self._requests.command(number, line, seconds)
        proxy = self._proxy(isolated)
        if proxy is None or self._host.breakpoints is None:
            return {"text": "", "state": "ended", "problem": "its process has ended"}
        try:
            return await proxy.debug_command(number, line, seconds)
        except CallError as error:
            return {"text": "", "state": "ended", "problem": _unanswered(proxy, error)}

    def _failure_in_process(self, actor: str, number: int) -> FailureRecord | None:
        kept = self._host.post_mortems
        known = () if kept is None else kept.of(actor)
        return next((one for one in known if one.number == number and one.in_process), None)

    def _proxy(self, actor: str, epoch: int = 0) -> ActorProxy | None:
        """The proxy of an isolated actor that has a process; None if there is none of this
        epoch.
        """
        cell = self._host.cells.get(actor)
        proxy = proxy_of(cell)
        if cell is None or proxy is None:
            return None
        if not proxy.has_process or epoch not in (0, cell.address.epoch):
            return None
        return proxy


def _unanswered(proxy: ActorProxy, error: CallError) -> str:
    """Why the process of an actor has not answered."""
    return proxy.why_stopped() or f"its process has not answered: {text_of(error)}"


def debug_of(endpoint: RpcEndpoint, node: str, incarnation: int) -> Any:
    """The debug service of a node, to be called."""
    return endpoint.system_handle(DebugService, DEBUG_SERVICE, node, incarnation)
