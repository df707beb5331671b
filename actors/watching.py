"""Watching, links and joining groups: what an actor learns of the end of others, and what it shares with them.

A watch is of one epoch of one actor and gives one notice, which comes as a message: `on_ended` runs in its turn, like a method. A link
joins two actors' fates, both ways. The semantics are those of Erlang's monitors, links and process groups.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol

import attrs

from actors.messages import message
from actors.supervision import ExitReason

if TYPE_CHECKING:
    from actors.actor import ActorContext

P = ParamSpec("P")


@message
@attrs.frozen
class Ended:
    """The notice that an actor has ended.

    `watch`: the number of the watch or link that it is for. `name`, `epoch`, `node`: which actor, and where it was. `reason`: its own, or
    "node died" if it went with its node, or "no such actor" if it was not there when the watch began. `restarts`: True if a supervisor has
    promised a new epoch of the name; also False if the store could not be asked.
    """

    watch: int
    name: str
    epoch: int
    node: str
    reason: ExitReason
    restarts: bool = False


@attrs.frozen
class Watch:
    """One watch, as `Actor.watch` returns it. `number` is what `Ended.watch` says; `name` and `epoch` are the watched actor's."""

    number: int
    name: str
    epoch: int
    _cancel: Callable[[], None] = attrs.field(repr=False, eq=False)

    def cancel(self) -> None:
        """Watch no more: no notice comes from now on, not even one that was under way. Cancelling twice is cancelling once."""
        self._cancel()


class ActorWatching(Protocol):
    """The runtime's side of watches and links of one actor."""

    async def watch(self, handle: object) -> Watch:
        """See `Observing.watch`."""
        ...

    async def link(self, handle: object) -> None:
        """See `Observing.link`."""
        ...

    async def unlink(self, handle: object) -> None:
        """See `Observing.unlink`."""
        ...


class ActorGroups(Protocol):
    """The runtime's side of the memberships of one actor."""

    async def join(self, group: str) -> None:
        """See `Observing.join`."""
        ...

    async def leave(self, group: str) -> bool:
        """See `Observing.leave`."""
        ...


def hook(function: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, Any]:
    """A method that the runtime calls, and that users may override with an `async def` or a plain `def`: no narrower type admits both."""
    return function


class Observing:
    """What every actor can do besides answering calls; a part of `actors.Actor`."""

    handles_exits: ClassVar[bool] = False
    """True: the end of a linked actor, a normal one as well, is told by `on_ended` instead of stopping this one."""

    @hook
    async def on_ended(self, notice: Ended) -> None:
        """An actor that this one watches, or is linked to while `handles_exits`, has ended. Run in its turn, like a method: a plain `def`
        in a thread.

        An exception here ends the actor, as one in a task of its own does: nobody else would learn of it.
        """

    async def watch(self, handle: object) -> Watch:
        """Watch the present epoch of an actor: `on_ended` is run once when it has ended.

        At once, with "no such actor", for one that is dead or unknown; with "node died" when its node is dead, which unreachable is not
        yet. Two watches of one actor are independent. They end with this actor. Returns when its node knows of the watch, or after a
        second: the end of an actor on a node that cannot be reached may then be told as "no such actor". Raises `StoreError` if a name
        cannot be looked up.
        """
        return await self._hosted().watching.watch(handle)

    async def unwatch(self, watch: Watch) -> None:
        """The same as `watch.cancel()`."""
        watch.cancel()

    async def link(self, handle: object) -> None:
        """Join fates: when either actor ends abnormally (see `ExitReason.is_passed_on`), the other is stopped with the same reason.

        Also when a node dies. One with `handles_exits` gets `on_ended` instead. Linking to an actor that is dead ends this one, or tells
        it, at once. Two actors have one link at most; linking to oneself does nothing. Waits while the other's node cannot be reached.
        """
        await self._hosted().watching.link(handle)

    async def unlink(self, handle: object) -> None:
        """End a link, whoever made it: the end of either is nothing to the other from now on. No error if there is none."""
        await self._hosted().watching.unlink(handle)

    async def join(self, group: str) -> None:
        """Become a member of a group; once more a member if it is one already. Ends with this actor and its node.

        This node sees it at once, others soon. Raises ValueError for what cannot be a group's name.
        """
        await self._hosted().groups.join(group)

    async def leave(self, group: str) -> bool:
        """Take back one `join`; False if there is none left to take back."""
        return await self._hosted().groups.leave(group)

    if TYPE_CHECKING:

        def _hosted(self) -> ActorContext: ...
