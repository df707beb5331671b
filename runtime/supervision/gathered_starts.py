"""Gathered starts: actors that many tasks start on another node at the same time travel in one
message.

Only actors are gathered whose start runs nothing of the user's: none of them can hold up the answer
of the others for longer than the store takes to claim their names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter

import attrs
import trio

from actors.actor import Actor, Member
from actors.class_names import class_name
from actors.errors import OutcomeUnknownError
from actors.identifiers import NodeId
from actors.method import Address
from actors.options import SpawnOptions
from runtime.gatherer import Gatherer
from runtime.lifetime import AskingBlock

Outcome = Address | Exception

_all_but_name = attrgetter(
    *(field.name for field in attrs.fields(SpawnOptions) if field.name != "name")
)


@attrs.frozen
class StartKind:
    """The common part of starts that may travel in one message: everything but their names.
    `named`: all of them have names; otherwise none has. `known`: those names were given, and not
    made up.
    """

    member: Member
    cls: type[Actor]
    named: bool
    known: bool
    alike: object
    """All options but the name, which are compared."""
    first: SpawnOptions = attrs.field(eq=False)
    """The options of the first start."""

    @property
    def options(self) -> SpawnOptions:
        """The options of all of them, without a name."""
        return self.first.changed(name=None) if self.named else self.first


class StartGatherer:
    """Gathers the starts of one node.

    `ask(kind, names)` starts an actor for each name, and returns the outcome of each; a name "" is
    generated. `undo(addresses)` stops those whose tasks were cancelled.
    `most`: starts in one message; `undo_seconds`: for which a cancelled task waits for its `undo`.
    Messages are sent by tasks in `nursery`.
    """

    def __init__(
        self,
        ask: Callable[[StartKind, list[str]], Awaitable[list[Outcome]]],
        undo: Callable[[Sequence[Address]], Awaitable[None]],
        nursery: trio.Nursery,
        most: int,
        undo_seconds: float,
    ) -> None:
        self._gatherer = Gatherer[tuple[NodeId, bool], StartKind, str, Address](
            ask, undo, _closed, nursery, most, undo_seconds
        )

    async def start(
        self,
        member: Member,
        cls: type[Actor],
        options: SpawnOptions,
        alone: Callable[[], Awaitable[Address]],
        asking: AskingBlock | None = None,
        *,
        known: bool = True,
    ) -> Address:
        """Start an actor of this class on that node: by `alone()` if no other start is
        under way there, else together with others. Raises what `alone` raises. `asking` as in
        `Gatherer.request`; `known`: its name, if it has one, was given.
        """
        named = options.name is not None
        return await self._gatherer.request(
            # Those without names do not wait while the store, which claims names, cannot be
            # reached.
            (member.node_id, named),
            StartKind(member, cls, named, named and known, _all_but_name(options), options),
            options.name or "",
            alone,
            asking,
        )

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        self._gatherer.check_invariants()


def _closed(kind: StartKind) -> Exception:
    return OutcomeUnknownError(
        f"{class_name(kind.cls)} was not started, as far as is known: this node closed",
        node=kind.member.name,
    )
