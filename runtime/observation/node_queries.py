"""Queries a cluster for its tree of supervision: names, nodes and supervisors in parallel, each for
at most a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import trio

from actors.errors import CallError, StoreError
from actors.method import Address
from actors.supervisor import Supervisor, SupervisorStatus
from runtime.calls.endpoint import RpcEndpoint
from runtime.identifiers import NodeId
from runtime.membership.names import NameOwner, Names
from runtime.observation.tree import KnownActor, Tree, assemble

SECONDS = 1.0
"""Seconds that one answer may take."""

AT_ONCE = 100
"""How many supervisors are asked in parallel."""

SOME_TIME = 3.0
"""Seconds in which all supervisors together must have answered."""


class _NodeQueries:
    """One round of questions, and the answers to it."""

    def __init__(self, endpoint: RpcEndpoint, names: Names) -> None:
        self._endpoint = endpoint
        self._names = names
        self.owners: list[tuple[Address, NameOwner]] = []
        self.reports: dict[NodeId, list[dict[str, Any]]] = {}
        self.silent: dict[NodeId, str] = {}
        self.statuses: dict[str, SupervisorStatus | str] = {}
        self.problems: list[str] = []

    async def ask_names(self) -> None:
        try:
            with trio.fail_after(SECONDS):
                self.owners = await self._names.owners()
        except trio.TooSlowError:
            self.problems.append(
                f"the store did not answer within {SECONDS:g} s: what silent nodes run is not shown"
            )
        except StoreError as error:
            self.problems.append(f"the store could not be asked: {_first_line(error)}")

    async def ask_node(self, node: NodeId) -> None:
        try:
            answer = await self._endpoint.node_service(*node).options(timeout=SECONDS).status()
        except CallError as error:
            self.silent[node] = _why(error)
            self.problems.append(f"node {node[0]} does not answer: {_why(error)}")
        else:
            self.reports[node] = answer["actors"]

    def known(self) -> list[KnownActor]:
        """The actors: those that have names by what is written of them, with what their nodes add;
        and those without.
        """
        told = {
            (node, incarnation, actor["name"], actor["epoch"]): actor
            for (node, incarnation), actors in self.reports.items()
            for actor in actors
        }
        found: dict[str, KnownActor] = {}
        for address, owner in self.owners:
            actor = told.pop((address.node, address.incarnation, address.name, address.epoch), None)
            base = KnownActor(
                name=address.name,
                node=address.node,
                incarnation=address.incarnation,
                epoch=address.epoch,
                class_path=address.class_path,
                supervisor=owner.supervisor,
            )
            found[address.name] = attrs.evolve(base, **_told(actor)) if actor is not None else base
        for (node, incarnation, name, epoch), actor in told.items():
            if name not in found:
                base = KnownActor(
                    name=name,
                    node=node,
                    incarnation=incarnation,
                    epoch=epoch,
                    class_path=actor["class"],
                )
                for_whom, registered = actor.get("supervisor", ""), actor.get("registered", True)
                found[name] = attrs.evolve(
                    base, supervisor=for_whom, registered=registered, **_told(actor)
                )
        return list(found.values())

    async def ask_supervisors(self, known: Iterable[KnownActor]) -> None:
        """Ask all supervisors that can answer; for the others the reason is known already."""
        actors = {actor.name: actor for actor in known}
        parents = {actor.supervisor for actor in actors.values()}
        limit = trio.CapacityLimiter(AT_ONCE)
        with trio.move_on_after(SOME_TIME):
            async with trio.open_nursery() as nursery:
                for actor in actors.values():
                    if not (actor.supervises or actor.name in parents) or actor.started is False:
                        continue
                    identity = NodeId(actor.node, actor.incarnation)
                    self.statuses[actor.name] = self._silence(identity)
                    if identity in self.reports:
                        nursery.start_soon(self._ask_supervisor, actor, limit)

    def _silence(self, node: NodeId) -> str:
        if node in self.silent:
            return f"its node {node[0]} does not answer: {self.silent[node]}"
        if node in self.reports:
            return f"there was no time for it within {SOME_TIME:g} s"
        return f"its node {node[0]} is no member of the cluster"

    async def _ask_supervisor(self, actor: KnownActor, limit: trio.CapacityLimiter) -> None:
        address = Address(
            actor.name,
            actor.node,
            actor.incarnation,
            actor.epoch,
            actor.class_path,
            actor.registered,
        )
        handle = self._endpoint.make_handle(address, Supervisor).options(timeout=SECONDS)
        async with limit:
            try:
                answer: object = await handle.status()
            except CallError as error:
                self.statuses[actor.name] = _why(error)
                return
        if isinstance(answer, SupervisorStatus):
            self.statuses[actor.name] = answer
        else:
            # A user's own class may have a method of this name that means something else.
            self.statuses[actor.name] = (
                f"the method `status` of {actor.class_path} hides the supervisor's own"
            )


async def ask_for_tree(
    endpoint: RpcEndpoint, names: Names, members: Iterable[NodeId], cluster: str
) -> Tree:
    """The tree of the cluster as it is now. `members`: the names and incarnations of its nodes.

    A node or supervisor that does not answer within a second is shown as such, with what others
    know of it, and delays no other. Takes about three seconds at most.
    """
    questions = _NodeQueries(endpoint, names)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(questions.ask_names)
        for member in members:
            nursery.start_soon(questions.ask_node, member)
    known = questions.known()
    await questions.ask_supervisors(known)
    return assemble(cluster, known, questions.statuses, sorted(questions.problems))


async def ask_for_actors(
    endpoint: RpcEndpoint, names: Names, members: Iterable[NodeId]
) -> dict[str, list[dict[str, Any]]]:
    """What each of these nodes says of its actors, by the name of the node. One that does not
    answer within a second is left out.
    """
    questions = _NodeQueries(endpoint, names)
    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(questions.ask_node, member)
    return {node: actors for (node, _), actors in questions.reports.items()}


def _told(actor: dict[str, Any]) -> dict[str, Any]:
    # A node of an earlier version says less.
    return {key: actor.get(key) for key in ("supervises", "started", "waiting", "age")}


def _why(error: CallError) -> str:
    return (
        f"nothing came within {SECONDS:g} s"
        if isinstance(error, TimeoutError)
        else _first_line(error)
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
