"""Gathered starts of actors that have a constructor, or an `on_start`: those that many tasks start
on another node at the same time travel in one message.

Such a start runs code of users and may take any time. The node therefore answers before those have
ended that take their time (see `runtime.hosting.start_batches`), and each task that started one of
these asks for its end in a request of its own: within its own deadline, as if it had not been
gathered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import cast

import attrs
import trio

from actors.actor import Actor, Member
from actors.class_names import class_name, is_one_of
from actors.errors import ActorClassError, EncodeError, MethodNotFoundError, OutcomeUnknownError
from actors.identifiers import NodeId
from actors.messages import import_path, path_by_file
from actors.method import Address
from actors.options import SpawnOptions
from runtime.calls.arguments import StartRequest
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.gatherer import Gatherer
from runtime.lifetime import AskingBlock
from runtime.supervision.start_errors import (
    about_start,
    is_to_be_taken_back,
    of_class,
)
from runtime.supervision.take_backs import TakeBacks
from runtime.wire.plain_writer import SCALARS

MOST_IN_MESSAGE = 256
"""Starts in one message: with constructors of a few lines it is answered in some milliseconds."""

MOST_CHARACTERS = 1024
"""Of a text, or bytes, among the arguments of an actor that travels with others."""

_hashed_options = attrgetter(
    *(
        field.name
        for field in attrs.fields(SpawnOptions)
        # The name is of one start alone; the others are dicts, which have no hash.
        if field.name not in ("name", "labels", "resources")
    )
)


def may_travel_with_others(request: StartRequest) -> bool:
    """True for an actor that runs in the process of its node, and has plain and small arguments:
    these cannot change before they are sent, and refer to nothing.
    """
    return (
        request.options.isolation == "none"
        and not request.cls.supervises
        and all(map(_is_plain, request.args))
        and (not request.kwargs or all(map(_is_plain, request.kwargs.values())))
    )


def _is_plain(value: object) -> bool:
    kind = type(value)
    if kind is str or kind is bytes:
        return len(cast("str | bytes", value)) <= MOST_CHARACTERS
    return is_one_of(kind, SCALARS)


@attrs.frozen
class ConstructorKind:
    """The common part of starts that may travel in one message. `named`: all of them have names;
    otherwise none has. `known`: those names were given, and not made up.
    """

    member: Member
    cls: type[Actor]
    named: bool
    known: bool
    options: SpawnOptions
    """Without a name."""

    def __hash__(self) -> int:
        options = self.options
        labels, amounts = frozenset(options.labels.items()), frozenset(options.resources.items())
        return hash(
            (self.member.node_id, self.cls, self.known, _hashed_options(options), labels, amounts)
        )


@attrs.frozen(eq=False)
class ConstructedStart:
    """A start that travels with others. `name`: "" for a generated one."""

    name: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]


@attrs.frozen
class StartUnderWay:
    """A start that goes on at its node after the message was answered: its number in the message
    with this ticket. `known`: it was given a name.
    """

    member: Member
    ticket: str
    number: int
    known: bool


class _NotSent(Enum):
    """The outcome of a start that cannot travel with the others of its message: it was not asked
    for, and is made alone.
    """

    NOT_SENT = "not sent"


Answer = Address | StartUnderWay | _NotSent


class ConstructorGatherer:
    """Gathers the starts of one node. `take_back(addresses)` stops actors whose tasks were
    cancelled; each of these waits for that, `undo_seconds` at most. `take_backs` does it for starts
    whose answers were lost.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        environment: Environment,
        take_back: Callable[[Sequence[Address]], Awaitable[None]],
        undo_seconds: float,
        take_backs: TakeBacks,
    ) -> None:
        self._take_backs = take_backs
        self._endpoint = endpoint
        self._environment = environment
        self._take_back = take_back
        self._latest: ConstructorKind | None = None
        # Of each kind by itself: starts that take their time delay the answer of their message, and
        # starts of other kinds, which cannot travel in it, must not wait for that.
        self._gatherer = Gatherer[ConstructorKind, ConstructorKind, ConstructedStart, Answer](
            self._ask, self._undo, _closed, endpoint.nursery, MOST_IN_MESSAGE, undo_seconds
        )

    async def start(
        self,
        member: Member,
        request: StartRequest,
        alone: Callable[[], Awaitable[Address]],
        asking: AskingBlock,
        known: bool,
    ) -> Address:
        """Start an actor on that node: by `alone()` if no other start is under way there, else
        together with others. Raises what `alone` raises. `asking` as in `Gatherer.request`;
        `known`: it was given its name.
        """
        options = request.options
        name = options.name or ""
        kind = self._kind(
            ConstructorKind(
                member,
                request.cls,
                bool(name),
                known,
                options.changed(name=None) if name else options,
            )
        )
        answer = await self._gatherer.request(
            kind,
            kind,
            ConstructedStart(name, request.args, request.kwargs),
            alone,
            asking,
        )
        if isinstance(answer, Address):
            return answer
        asking.wait()
        if isinstance(answer, _NotSent):
            return await alone()
        what = (name if known else "") or of_class(import_path(request.cls))
        return await self._finish(answer, what)

    def _kind(self, kind: ConstructorKind) -> ConstructorKind:
        """The object that stands for an equal kind, where that was the latest one: several tables
        are asked for it, and compare it with itself at no cost.
        """
        latest = self._latest
        if latest is not None and latest == kind:
            return latest
        self._latest = kind
        return kind

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        self._gatherer.check_invariants()

    async def _ask(
        self, kind: ConstructorKind, starts: list[ConstructedStart]
    ) -> Sequence[Answer | Exception]:
        path = import_path(kind.cls)
        try:
            try:
                return await self._ask_for(path, kind, starts)
            except ActorClassError:
                # As in `ActorSpawner._start_on`.
                by_file = path_by_file(path)
                if by_file is None:
                    raise
                return await self._ask_for(by_file, kind, starts)
        except (EncodeError, MethodNotFoundError):
            # The start with the argument to blame raises that alone. Or it is a node of an earlier
            # version, which knows single starts.
            return [_NotSent.NOT_SENT] * len(starts)

    async def _ask_for(
        self, path: str, kind: ConstructorKind, starts: list[ConstructedStart]
    ) -> list[Answer | Exception]:
        member = kind.member
        service = self._endpoint.node_service(member.name, member.incarnation)
        ticket = self._environment.token(8).hex()
        keywords = [one.kwargs for one in starts] if any(one.kwargs for one in starts) else []
        names = [one.name for one in starts] if kind.named else []
        try:
            with about_start(of_class(path), member, self._environment.now, known=kind.known):
                started, epochs, failures, unfinished = await service.spawn_each(
                    path, [one.args for one in starts], keywords, names, kind.options, ticket
                )
        except (trio.Cancelled, OutcomeUnknownError) as error:
            # Cancelled: this node closes.
            if is_to_be_taken_back(error, known=kind.known):
                await self._take_backs.send(  # noqa: ASYNC102, ASYNC120  shielded and bounded
                    member.node_id, service.take_back, ticket
                )
            raise
        answers: list[Answer | Exception] = [
            Address(name, member.name, member.incarnation, epoch, path, kind.named)
            for name, epoch in zip(started, epochs, strict=True)
        ]
        for number in unfinished:
            answers[number] = StartUnderWay(member, ticket, number, kind.known)
        for failure in failures:
            answers[failure.number] = failure.error(member.name)
        return answers

    async def _finish(self, start: StartUnderWay, what: str) -> Address:
        """Wait for the end of a start. Raises what `ActorSpawner.start` raises."""
        member = start.member
        service = self._endpoint.node_service(member.name, member.incarnation)
        try:
            with about_start(what, member, self._environment.now, known=start.known):
                return cast("Address", await service.finish_start(start.ticket, start.number))
        except (trio.Cancelled, OutcomeUnknownError) as error:
            if is_to_be_taken_back(error, known=start.known):
                await self._take_backs.send(  # noqa: ASYNC102, ASYNC120  shielded and bounded
                    member.node_id, service.take_back_unfinished, start.ticket, [start.number]
                )
            raise

    async def _undo(self, answers: Sequence[Answer]) -> None:
        """Take back what was started for tasks that were cancelled meanwhile."""
        of_message: dict[tuple[NodeId, str], list[int]] = {}
        for answer in answers:
            if isinstance(answer, StartUnderWay):
                key = answer.member.node_id, answer.ticket
                of_message.setdefault(key, []).append(answer.number)
        for (node, ticket), numbers in of_message.items():
            await self._endpoint.node_service(*node).take_back_unfinished(ticket, numbers)
        await self._take_back([answer for answer in answers if isinstance(answer, Address)])


def _closed(kind: ConstructorKind) -> Exception:
    return OutcomeUnknownError(
        f"{class_name(kind.cls)} was not started, as far as is known: this node closed",
        node=kind.member.name,
    )
