"""Groups: actors under one name; call all of them, or choose one. Membership is eventually
consistent: a node sees a snapshot, which may contain an actor that has just ended and miss one that
has just joined. There is no order between members, and no agreement about them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack

import attrs

from actors.documentation import documented_as
from actors.errors import CallError
from actors.exact import exact
from actors.method import Method
from actors.options import CallChanges, CallOptions, is_unprintable
from actors.short_repr import short_repr

P = ParamSpec("P")
R = TypeVar("R")
A_co = TypeVar("A_co", covariant=True)


def checked_group_name(given: object) -> str:
    """Return a group's name as a plain text. Raises TypeError or ValueError if it is invalid."""
    name = exact(given)
    if not isinstance(name, str):
        raise TypeError(f"a group's name must be a str, not {short_repr(name)}")
    if not name or name != name.strip() or is_unprintable(name) or len(name) > 255:
        raise ValueError(
            f"{short_repr(name)} is not a usable name of a group: 1 to 255 characters, no control "
            "characters, no lone surrogates, no spaces at the ends"
        )
    return name


@attrs.frozen
class Answer(Generic[R]):
    """The answer of one member of a group: `value`, or `error` if that is not None. `member` is its
    handle.
    """

    member: Any
    value: R | None
    error: CallError | None = None


class Group(Protocol[A_co]):
    """A group as one node sees it; get one from `node.group("name", ActorClass)`. The node follows
    the group while such an object lives.

    A new one may not know the members on other nodes yet: `ready()` waits for that, and
    `broadcast`, `call_all` and `watch` do so themselves.

    An interface because `actors` never imports `runtime`, which has `ProcessGroup`.
    """

    @property
    def name(self) -> str:
        """The group's name."""
        ...

    @documented_as(CallOptions)
    def options(self, **changes: Unpack[CallChanges]) -> Self:
        """Return a copy of the group whose members are called with these options."""
        ...

    async def ready(self) -> Self:
        """Wait until this node has seen all members once; returns the group itself."""
        ...

    def members(self) -> tuple[A_co, ...]:
        """Return the handles of the members, those on this node first. An actor that joined twice
        is contained twice. Never waits.
        """
        ...

    def choose(self) -> A_co:
        """Choose a member at random: on this node if there are any, otherwise on a node that can be
        reached at the moment.

        Raises `EmptyGroupError`.
        """
        ...

    async def broadcast(self, method: Method[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Call a method of all members one way: `await group.broadcast(Reader.on_news, text)`.

        Returns the number of members that it was sent to; the outcomes stay unknown. Members on
        nodes that have ended, or cannot be reached at the moment, are left out. Waits while a
        connection has no room. Raises `EncodeError`, and `DirectoryUnavailableError` if the members
        are not known yet and the store cannot be reached. What a filter raises for one member is
        raised once it was sent to the others.
        """
        ...

    async def call_all(
        self, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[Answer[R]]:
        """Call a method of all members in parallel, and wait for all answers: one for each of
        `members()`, in that order. A member on a node that cannot be reached at the moment is not
        called: its answer is a `NodeUnreachableError`.

        Bound the time with `group.options(timeout=...)` or a cancel scope; that of a scope loses
        the answers.
        """
        ...

    def watch(self) -> AsyncIterator[tuple[A_co, ...]]:
        """Yield the members after every change: `async for members in group.watch()`. All changes
        between two requests for an item are one change.
        """
        ...
