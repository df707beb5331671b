"""Groups that were asked for lately: they stay followed for a while after nothing holds them.

A program may ask for a group again with each call, as in `await node.group("news",
Reader).broadcast(...)`. Without this, each of these would be followed anew, by a task of its own
and a watch at the store.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.groups.groups import Followed

MOST_LINGERING = 64
"""So many groups are kept for their next use; the one that was asked for least lately goes
first.
"""


class Lingering:
    """The groups that one node, or the process of an isolated actor, keeps for their next use."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Followed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, followed: Followed) -> None:
        """The group was asked for: keep it until `release`, or until too many others are."""
        self._kept[followed.name] = followed
        self._kept.move_to_end(followed.name)
        if len(self._kept) > MOST_LINGERING:
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
