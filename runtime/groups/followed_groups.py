"""Groups that are followed, and those of them that are kept for a while after they were asked for.

A program may ask for a group again with each call, as in `await node.group("news",
Reader).broadcast(...)`. If none were kept, each of these would be followed anew, by a task of its
own and a watch at the store.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict

import trio

from actors.errors import CallError, StoreError
from runtime.groups.memberships import GroupView

MOST_KEPT = 64
"""So many groups are kept for their next use; the one that was asked for least lately goes
first.
"""


class Followed:
    """A group that this node follows: its view, and events of its changes."""

    def __init__(self, name: str, own: int) -> None:
        self.name = name
        self.scope = trio.CancelScope()
        """Of the task that follows it."""
        self.view = GroupView(own)
        self.ready = trio.Event()
        """Set when the view has been complete once."""
        self.problem: StoreError | CallError | None = None
        """Why the group cannot be followed at the moment."""
        self._changed = trio.Event()

    def notify(self) -> None:
        """Wake the tasks that wait for a change."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_changed(self) -> None:
        """Wait for something that may have changed the members."""
        await self._changed.wait()


class KeptGroups:
    """The groups that one node, or the process of an isolated actor, keeps for their next use."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Followed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, followed: Followed) -> None:
        """The group was asked for: keep it until `release`, or until too many others are."""
        self._kept[followed.name] = followed
        self._kept.move_to_end(followed.name)
        if len(self._kept) > MOST_KEPT:
            _, oldest = self._kept.popitem(last=False)
            reference, scope = weakref.ref(oldest), oldest.scope
            del oldest
            if reference() is None:
                # Nothing else holds it. Its task would see that only at its next look, and programs
                # that ask for ever other groups would have as many tasks as they ask for meanwhile.
                scope.cancel()

    def release(self, group: str) -> None:
        """It was not asked for again in time: it is followed as long as something else holds it."""
        self._kept.pop(group, None)
