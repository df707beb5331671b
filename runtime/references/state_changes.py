"""Events for tasks that wait until a reference has its value, its failure or another owner."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from actors.identifiers import ReferenceId
from runtime.lifetime import Lifetime
from runtime.references.table import ReferenceState


class StateChanges:
    """Wakes the tasks that wait for a change of a reference state. Waiting raises
    `NotAMemberError` once this node has left.
    """

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self._waiting: dict[ReferenceId, trio.Event] = {}
        """The events of states that tasks wait for, and only while they do."""
        self._any: trio.Event | None = None
        self._first: dict[ReferenceId, dict[trio.Event, None]] = {}
        """For each state the events of tasks that wait for the first of several to change, in the
        order in which they came, so that a simulated run can be repeated.
        """

    def notify(self, state: ReferenceState) -> None:
        """Wake the tasks that wait for this state, or for any."""
        event = self._waiting.pop(state.identity, None)
        if event is not None:
            event.set()
        for first in self._first.pop(state.identity, ()):
            first.set()
        if self._any is not None:
            # Dropped with the setting: tasks that come later wait for the next change.
            self._any.set()
            self._any = None

    async def wait(self, state: ReferenceState) -> None:
        """Wait until this state changes."""
        identity = state.identity
        event = self._waiting.get(identity)
        if event is None:
            event = self._waiting[identity] = trio.Event()
        assert not event.is_set(), "an event leaves the table when it is set"
        try:
            await event.wait()
        finally:
            # The last task that stops waiting removes the event, also when it is cancelled.
            if not event.statistics().tasks_waiting and self._waiting.get(identity) is event:
                del self._waiting[identity]
        self._lifetime.check()

    async def wait_first(self, states: Iterable[ReferenceState]) -> None:
        """Wait until one of these states changes."""
        event = trio.Event()
        identities = {state.identity: None for state in states}
        for identity in identities:
            self._first.setdefault(identity, {})[event] = None
        try:
            await event.wait()
        finally:
            # Also when it is cancelled. What has changed is not there any more.
            for identity in identities:
                waiting = self._first.get(identity)
                if waiting is not None:
                    waiting.pop(event, None)
                    if not waiting:
                        del self._first[identity]
        self._lifetime.check()

    async def wait_any(self) -> None:
        """Wait until any state changes."""
        if self._any is None:
            self._any = trio.Event()
        await self._any.wait()
        self._lifetime.check()
