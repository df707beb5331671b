"""How the actors of one node have ended: the reasons of the latest, and who waits for one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, cast

import trio

from actors.actor import NodeInterface
from actors.errors import LeaseLostError, SupervisorGaveUpError
from actors.identifiers import ActorId
from actors.supervision import ExitReason
from runtime.hosting.cell import ActorCell, EndedElsewhereError
from runtime.user_errors import summary_of, text_of, traceback_of

EXITS_KEPT = 4096
"""How many of the latest exit reasons are kept, for nodes that ask late."""


class Exits:
    """The ends of the actors of one host. `cells`: its actors."""

    def __init__(self, node: NodeInterface, cells: Mapping[str, ActorCell]) -> None:
        self._node = node
        self._cells = cells
        self._latest: OrderedDict[ActorId, ExitReason] = OrderedDict()
        self._watchers: dict[ActorId, trio.Event] = {}

    def of(self, actor: ActorId) -> ExitReason | None:
        """Return the exit reason of an actor if it is among the latest ones; else None."""
        return self._latest.get(actor)

    def add(self, actor: ActorId, reason: ExitReason) -> None:
        """Note that an actor has ended, and wake those that wait for it."""
        self._latest[actor] = reason
        # Bounded: for older ends, the answer is only that there is no such actor.
        while len(self._latest) > EXITS_KEPT:
            self._latest.popitem(last=False)
        watcher = self._watchers.pop(actor, None)
        if watcher is not None:
            watcher.set()

    async def wait(self, name: str, epoch: int) -> ExitReason:
        """Wait until this epoch of the actor has ended; returns at once if it has already, or never
        was here.
        """
        ended = self._latest.get(ActorId(name, epoch))
        if ended is not None:
            await trio.lowlevel.checkpoint()
            return ended
        cell = self._cells.get(name)
        if cell is None or (epoch and cell.address.epoch != epoch):
            await trio.lowlevel.checkpoint()
            return ExitReason(kind="no such actor", text=f"{name} is not on node {self._node.name}")
        actor = ActorId(name, cell.address.epoch)
        await self._watchers.setdefault(actor, trio.Event()).wait()
        return self._latest[actor]

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        assert len(self._latest) <= EXITS_KEPT


def reason_of_crash(error: BaseException) -> ExitReason:
    """Return the exit reason of an actor whose task raised `error`. A supervisor that gives up ends
    with "shutdown", as in OTP.
    """
    if issubclass(type(error), SupervisorGaveUpError):
        return ExitReason(kind="shutdown", text=text_of(error))
    if issubclass(type(error), LeaseLostError):
        # The supervisor takes this for the death of a node, which uses up no restart.
        return ExitReason(kind="node died", text=text_of(error))
    if type(error) is EndedElsewhereError:
        return error.reason
    if issubclass(type(error), SystemExit):
        code: object = cast("Any", vars(SystemExit)["code"]).__get__(error)
        if code is None or (type(code) in (int, bool) and code == 0):
            # Like a process that exits with 0, so that actors end in the same way with and without
            # isolation. To Python False is 0 here as well.
            return ExitReason(kind="normal", text="it exited with code 0")
    return ExitReason(kind="raised", text=summary_of(error), traceback=traceback_of(error))
