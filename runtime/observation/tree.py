"""The tree of supervision, put together from what names, nodes and supervisors say. No I/O.

Each source knows a part. Names tell which actor was started for which supervisor, also of nodes that are silent. Nodes tell of actors
without names of their own, and of mailboxes. Supervisors tell the order of their children and how these fared. Where they contradict each
other, for they are asked one after the other while the cluster goes on, the supervisor is right about its children.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping

import attrs

from actors.children import ChildStatus, DeathReport, SupervisorStatus
from actors.errors import ActorNotFoundError
from actors.supervision import ChildKind, ExitReason

CLUSTER = "@cluster"
"""Who supervises a singleton; `runtime.membership.promises` writes it."""

SILENT = "does not answer"
GONE = "gone"


@attrs.frozen(kw_only=True)
class KnownActor:
    """An actor as names and nodes know it.

    `supervisor`: for whom it was started, "" for nobody, "@cluster" for a singleton. What only its node knows is None where that is silent:
    `supervises`, `started` (False while `on_start` runs), `waiting` (calls in the mailbox), and `age` (seconds, of supervisors alone).
    """

    name: str
    node: str
    incarnation: int
    epoch: int
    class_path: str
    supervisor: str = ""
    registered: bool = True
    supervises: bool | None = None
    started: bool | None = None
    waiting: int | None = None
    age: float | None = None


@attrs.frozen(kw_only=True)
class Branch:
    """One actor, or a child without one, and what is below it.

    `state`: one of a child's (see `actors.ChildStatus`); of a supervisor also "does not answer", with the `problem` in words, and "gone":
    its children live, and nobody has its name. `restarts`: of itself, by its supervisor; None for roots, which have none. `age` in seconds.
    `waiting`: calls in its mailbox. The rest is a supervisor's, None or empty for others: see `actors.SupervisorStatus`.
    """

    id: str
    name: str
    kind: ChildKind = "worker"
    state: str
    problem: str = ""
    singleton: bool = False
    class_path: str = ""
    node: str | None = None
    epoch: int | None = None
    restarts: int | None = None
    age: float | None = None
    waiting: int | None = None
    last_exit: ExitReason | None = None
    strategy: str | None = None
    intensity: int | None = None
    period: float | None = None
    recent_restarts: int | None = None
    automatic_shutdown: str | None = None
    max_children: int | None = None
    children: tuple[Branch, ...] = ()
    deaths: tuple[DeathReport, ...] = ()

    def walk(self) -> Iterator[Branch]:
        """This one and all below, in the order in which they are drawn."""
        waiting: list[Branch] = [self]
        while waiting:
            branch = waiting.pop()
            yield branch
            waiting.extend(reversed(branch.children))


@attrs.frozen(kw_only=True)
class Tree:
    """All trees of a cluster, by the names of their roots. `problems`: what could not be asked, one sentence each.

    `loose`: actors that are neither supervisors nor children of one, by name.
    """

    cluster: str
    roots: tuple[Branch, ...]
    problems: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()

    def walk(self) -> Iterator[Branch]:
        """All branches, in the order in which they are drawn."""
        for root in self.roots:
            yield from root.walk()

    @property
    def answers(self) -> bool:
        """True if everybody who was asked has answered."""
        return not self.problems and all(branch.state != SILENT for branch in self.walk())

    def below(self, name: str) -> Tree:
        """The tree of one supervisor, or of one child, alone. Raises `ActorNotFoundError` with the nearest names there are."""
        branches = list(self.walk())
        for branch in branches:
            if branch.name == name:
                return attrs.evolve(self, roots=(branch,))
        if name in self.loose:
            raise ActorNotFoundError(f"{name!r} is an actor, but neither a supervisor nor a child of one", actor=name)
        text = f"there is no supervisor called {name!r} in the cluster"
        if near := difflib.get_close_matches(name, [branch.name for branch in branches], n=3):
            raise ActorNotFoundError(f"{text}; did you mean {' or '.join(map(repr, near))}?", actor=name)
        roots = ", ".join(root.name for root in self.roots[:10])
        raise ActorNotFoundError(f"{text}; its trees are: {roots}" if roots else f"{text}; it has none", actor=name)

    def facts(self) -> dict[str, object]:
        """As plain data that JSON can hold: an endless `period` is None."""
        plain: dict[str, object] = {
            "cluster": self.cluster,
            "problems": list(self.problems),
            "roots": [attrs.asdict(root, value_serializer=_finite) for root in self.roots],
        }
        return plain


def assemble(cluster: str, actors: Iterable[KnownActor], statuses: Mapping[str, SupervisorStatus | str], problems: Iterable[str]) -> Tree:
    """The tree. `statuses`: what the supervisors say of themselves, or why one does not, in words, by name."""
    known = {actor.name: actor for actor in actors}
    return _Assembly(known, statuses).tree(cluster, tuple(problems))


class _Assembly:
    """The facts, in the order in which they are needed."""

    def __init__(self, known: Mapping[str, KnownActor], statuses: Mapping[str, SupervisorStatus | str]) -> None:
        self._known = known
        self._statuses = statuses
        self._started_for: dict[str, list[KnownActor]] = {}
        # The epoch of a name is the revision of its claim: who has the smaller one was started earlier.
        for actor in sorted(known.values(), key=lambda actor: (actor.epoch, actor.name)):
            if actor.supervisor not in ("", CLUSTER):
                self._started_for.setdefault(actor.supervisor, []).append(actor)
        self._listed = {child.name for status in statuses.values() if isinstance(status, SupervisorStatus) for child in status.children}

    def tree(self, cluster: str, problems: tuple[str, ...]) -> Tree:
        roots: dict[str, Branch] = {}
        loose: list[str] = []
        for actor in self._known.values():
            if actor.supervisor == CLUSTER or (not actor.supervisor and self._supervises(actor.name)):
                roots[actor.name] = self._branch(actor.name, actor.name, frozenset())
            elif not actor.supervisor:
                loose.append(actor.name)
        for name in self._started_for:
            if name not in self._known and name not in self._listed:
                roots[name] = self._branch(name, name, frozenset())
        return Tree(cluster=cluster, roots=tuple(roots[name] for name in sorted(roots)), problems=problems, loose=tuple(sorted(loose)))

    def _supervises(self, name: str) -> bool:
        actor = self._known.get(name)
        return name in self._statuses or name in self._started_for or (actor is not None and actor.supervises is True)

    def _branch(self, name: str, id: str, above: frozenset[str]) -> Branch:
        """What names and nodes say of an actor, and what it says of its children if it is a supervisor."""
        actor = self._known.get(name)
        supervises = self._supervises(name)
        branch = Branch(id=id, name=name, kind="supervisor" if supervises else "worker", state=GONE)
        if actor is not None:
            branch = attrs.evolve(
                branch,
                state="starting" if actor.started is False else "running",
                singleton=actor.supervisor == CLUSTER,
                class_path=actor.class_path,
                node=actor.node,
                epoch=actor.epoch,
                waiting=actor.waiting,
                age=actor.age,
            )
        return self._with_children(branch, above) if supervises else branch

    def _with_children(self, branch: Branch, above: frozenset[str]) -> Branch:
        above = above | {branch.name}
        status = self._statuses.get(branch.name)
        if isinstance(status, SupervisorStatus):
            return attrs.evolve(
                branch,
                strategy=status.strategy,
                intensity=status.intensity,
                period=status.period,
                recent_restarts=status.recent_restarts,
                automatic_shutdown=status.automatic_shutdown,
                max_children=status.max_children,
                children=tuple(self._child(branch.name, child, above) for child in status.children),
                deaths=status.deaths,
            )
        if status is not None:
            branch = attrs.evolve(branch, state=SILENT, problem=status)
        started = [actor for actor in self._started_for.get(branch.name, ()) if actor.name not in above]
        return attrs.evolve(branch, children=tuple(self._branch(actor.name, _id(branch.name, actor.name), above) for actor in started))

    def _child(self, supervisor: str, child: ChildStatus, above: frozenset[str]) -> Branch:
        """A child as its supervisor sees it, with what others add."""
        actor = self._known.get(child.name)
        # Somebody else's actor may have the name that this child waits for.
        own = child.name not in above and (actor is None or actor.supervisor == supervisor)
        found = self._branch(child.name, child.id, above) if own else Branch(id=child.id, name=child.name, state=GONE)
        return attrs.evolve(
            found,
            kind=child.kind if found.kind == "worker" else found.kind,
            state=SILENT if found.state == SILENT and child.state == "running" else child.state,
            node=child.node,
            epoch=child.epoch,
            restarts=child.restarts,
            age=child.age,
            waiting=found.waiting if found.epoch == child.epoch else None,
            last_exit=child.last_exit,
        )


def _id(supervisor: str, name: str) -> str:
    """A child's id, as far as its name tells."""
    return name.removeprefix(f"{supervisor}/")


def _finite(owner: type, field: object, value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
