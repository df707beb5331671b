"""The tree of supervision, combined from the answers of names, nodes and supervisors. No I/O.

Each source knows a part. Names have the supervisor of each actor, also for nodes that do not
answer. Nodes have actors without registered names, and mailboxes. Supervisors have the order of
their children and their restarts. Where they contradict each other, for they are asked one after
the other while the cluster goes on, the supervisor is right about its children.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

import attrs

from actors.errors import ActorNotFoundError
from actors.html import card, dotted_state, escaped, fixed_width, html_table
from actors.supervision import ChildKind, ExitReason
from actors.supervisor import ChildStatus, DeathReport, SupervisorStatus
from runtime.near_names import nearest
from runtime.observation.roles import POOL, POOL_KEEPER, role_of
from runtime.printable import plain

CLUSTER = "@cluster"
"""Who supervises a singleton; `runtime.membership.names` writes it."""


SILENT = "does not answer"


GONE = "gone"

Column = Literal["state", "strategy", "restarts", "recent", "age", "node", "waiting"]

COLUMNS: tuple[Column, ...] = get_args(Column)

RIGHT: frozenset[str] = frozenset({"restarts", "age", "waiting"})
"""Columns of numbers."""

REASON_LENGTH = 100
"""Characters of a reason on the line of its child. `draw_deaths` shows all of it."""

FAILED = frozenset({"restarting", "starting", "exited", "stopped"})
"""States in which the end of the last actor says why."""


@attrs.frozen(kw_only=True)
class KnownActor:
    """An actor as names and nodes know it.

    `supervisor`: the one for which it was started, "" for none, "@cluster" for a singleton. What
    only its node knows is None where that is silent: `supervises`, `started` (False while
    `on_start` runs), `waiting` (calls in the mailbox), and `age` (seconds, of supervisors alone).
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

    `state`: one of a child's (see `actors.ChildStatus`); of a supervisor also "does not answer",
    with the `problem` in words, and "gone": its children live, and no actor has its name.
    `restarts`: of itself, by its supervisor; None for roots, which have none. `age` in seconds.
    `waiting`: calls in its mailbox. The rest is a supervisor's, None or empty for others: see
    `actors.SupervisorStatus`.
    """

    id: str
    name: str
    role: str = ""
    """What the runtime has it for; "" for an actor of a user: see `runtime.observation.roles`."""
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
    children_left_out: int = 0
    """Further children, which were not asked for because there are too many."""
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
    """All trees of a cluster, by the names of their roots. `problems`: what could not be asked, one
    sentence each. `left_out`: what nodes left out because there was too much, likewise.

    `loose`: actors that are neither supervisors nor children of one, by name.
    """

    cluster: str
    roots: tuple[Branch, ...]
    problems: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def walk(self) -> Iterator[Branch]:
        """All branches, in the order in which they are drawn."""
        for root in self.roots:
            yield from root.walk()

    @property
    def answers(self) -> bool:
        """True if every node and supervisor that was asked has answered."""
        return not self.problems and all(branch.state != SILENT for branch in self.walk())

    def below(self, name: str) -> Tree:
        """The tree of one supervisor, or of one child, alone. Raises `ActorNotFoundError` with the
        nearest names there are.
        """
        branches = list(self.walk())
        for branch in branches:
            if branch.name == name:
                return attrs.evolve(self, roots=(branch,))
        if name in self.loose:
            raise ActorNotFoundError(
                f"{name!r} is an actor, but neither a supervisor nor a child of one", actor=name
            )
        text = f"there is no supervisor called {name!r} in the cluster"
        if near := nearest(name, (branch.name for branch in branches), most=3):
            raise ActorNotFoundError(
                f"{text}; did you mean {' or '.join(map(repr, near))}?", actor=name
            )
        roots = ", ".join(root.name for root in self.roots[:10])
        raise ActorNotFoundError(
            f"{text}; its trees are: {roots}" if roots else f"{text}; it has none", actor=name
        )

    def _repr_html_(self) -> str:
        """For notebooks: what `draw_tree` draws, as a table."""
        rows = [(stem, branch) for root in self.roots for stem, branch in _stems(root, BOXES)]
        cells = (
            [
                fixed_width(stem + _title(branch, stem)),
                dotted_state(branch.state),
                *map(escaped, _cells(branch, COLUMNS)[1:]),
                escaped(_note(branch)),
            ]
            for stem, branch in rows
        )
        shown = [html_table(["name", *COLUMNS, ""], cells, len(rows))] if rows else []
        problems = [*([] if rows else ["no supervisors"]), *self.problems, *self.left_out]
        return card("tree", self.cluster, [], *shown, note="; ".join(problems))

    def facts(self) -> dict[str, object]:
        """As plain data that JSON can hold: an endless `period` is None."""
        plain: dict[str, object] = {
            "cluster": self.cluster,
            "problems": list(self.problems),
            "left_out": list(self.left_out),
            "roots": [attrs.asdict(root, value_serializer=_finite) for root in self.roots],
        }
        return plain


def assemble(
    cluster: str,
    actors: Iterable[KnownActor],
    statuses: Mapping[str, SupervisorStatus | str],
    problems: Iterable[str],
    left_out: Iterable[str] = (),
) -> Tree:
    """The tree. `statuses`: what the supervisors say of themselves, or why one does not, in words,
    by name. `left_out`: see `Tree`.
    """
    known = {actor.name: actor for actor in actors}
    tree = _Assembly(known, statuses).tree(cluster, tuple(problems))
    return attrs.evolve(tree, left_out=tuple(left_out))


class _Assembly:
    """The facts, in the order in which they are needed."""

    def __init__(
        self, known: Mapping[str, KnownActor], statuses: Mapping[str, SupervisorStatus | str]
    ) -> None:
        self._known = known
        self._statuses = statuses
        self._started_for: dict[str, list[KnownActor]] = {}
        # The epoch of a name is the revision of its claim: who has the smaller one was started
        # earlier.
        for actor in sorted(known.values(), key=lambda actor: (actor.epoch, actor.name)):
            if actor.supervisor not in ("", CLUSTER):
                self._started_for.setdefault(actor.supervisor, []).append(actor)
        self._listed = {
            child.name
            for status in statuses.values()
            if isinstance(status, SupervisorStatus)
            for child in status.children
        }

    def tree(self, cluster: str, problems: tuple[str, ...]) -> Tree:
        roots: dict[str, Branch] = {}
        loose: list[str] = []
        for actor in self._known.values():
            if actor.supervisor == CLUSTER or (
                not actor.supervisor and self._supervises(actor.name)
            ):
                roots[actor.name] = self._branch(actor.name, actor.name, frozenset())
            elif not actor.supervisor:
                loose.append(actor.name)
        # Supervisors that no node and no name has any more, while actors that were started for them
        # live on: they are shown as gone.
        for name in self._started_for:
            if name not in self._known and name not in self._listed:
                roots[name] = self._branch(name, name, frozenset())
        return Tree(
            cluster=cluster,
            roots=tuple(roots[name] for name in sorted(roots)),
            problems=problems,
            loose=tuple(sorted(loose)),
        )

    def _supervises(self, name: str) -> bool:
        actor = self._known.get(name)
        return (
            name in self._statuses
            or name in self._started_for
            or (actor is not None and actor.supervises is True)
        )

    def _branch(self, name: str, id: str, above: frozenset[str]) -> Branch:
        """Return the branch of an actor, from the answers of the names and of its node. If it is a
        supervisor, with its children.
        """
        actor = self._known.get(name)
        supervises = self._supervises(name)
        branch = Branch(id=id, name=name, kind="supervisor" if supervises else "worker", state=GONE)
        if actor is not None:
            branch = attrs.evolve(
                branch,
                state="starting" if actor.started is False else "running",
                singleton=actor.supervisor == CLUSTER,
                class_path=actor.class_path,
                role=role_of(actor.class_path),
                node=actor.node,
                epoch=actor.epoch,
                waiting=actor.waiting,
                age=actor.age,
            )
        return self._with_children(branch, above) if supervises else branch

    def _with_children(self, branch: Branch, above: frozenset[str]) -> Branch:
        # Without those above: answers of different moments may say that two supervisors are each
        # other's child, and the tree would have no end.
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
                children_left_out=status.children_left_out,
                deaths=status.deaths,
            )
        if status is not None:
            branch = attrs.evolve(branch, state=SILENT, problem=status)
        started = [
            actor for actor in self._started_for.get(branch.name, ()) if actor.name not in above
        ]
        return attrs.evolve(
            branch,
            children=tuple(
                self._branch(actor.name, _id(branch.name, actor.name), above) for actor in started
            ),
        )

    def _child(self, supervisor: str, child: ChildStatus, above: frozenset[str]) -> Branch:
        """A child as its supervisor sees it, with what others add."""
        actor = self._known.get(child.name)
        # The actor of another supervisor may have the name that this child waits for.
        own = child.name not in above and (actor is None or actor.supervisor == supervisor)
        found = (
            self._branch(child.name, child.id, above)
            if own
            else Branch(id=child.id, name=child.name, state=GONE)
        )
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


# The tree of supervision as text: one line for each child, columns side by side, the latest failure
# where one matters. No I/O.


@attrs.frozen
class TreeLines:
    """The characters that the branches are drawn with."""

    fork: str
    last: str
    bar: str
    cut: str
    """Where a line goes on beyond the edge."""


BOXES = TreeLines("├─ ", "└─ ", "│  ", "…")


ASCII = TreeLines("|- ", "`- ", "|  ", "~")


def lines_for(encoding: str | None) -> TreeLines:
    """Return the line characters that a terminal or file of this encoding can show."""
    try:
        "".join(attrs.astuple(BOXES)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BOXES


def draw_tree(
    tree: Tree,
    *,
    columns: Sequence[Column] = COLUMNS,
    lines: TreeLines = BOXES,
    width: int | None = None,
    paint: Callable[[str, str], str] = lambda state, text: text,
) -> str:
    """The trees, a line for each branch below a line of headings.

    `columns`: what to say beside the names; "recent" is how many of a supervisor's restarts count
    against its intensity. `width`: cut lines to so many characters. `paint(state, text)` may colour
    the state, which is the text. Raises ValueError for an unknown column.
    """
    if unknown := [column for column in columns if column not in COLUMNS]:
        raise ValueError(
            f"there is no column {unknown[0]!r}; the columns are: {', '.join(COLUMNS)}"
        )
    branches = [(stem, branch) for root in tree.roots for stem, branch in _stems(root, lines)]
    table = [
        ["name", *columns],
        *(
            [stem + plain(_title(branch, stem)), *_cells(branch, columns)]
            for stem, branch in branches
        ),
    ]
    widths = [max(len(row[place]) for row in table) for place in range(len(columns) + 1)]
    drawn: list[str] = []
    for row, branch in zip(table, [None, *(branch for _, branch in branches)], strict=True):
        padded = [
            cell.rjust(size) if place and columns[place - 1] in RIGHT else cell.ljust(size)
            for place, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        note = _note(branch) if branch is not None else ""
        text = "  ".join([*padded, note] if note else padded).rstrip()
        text = _cut(text, width, lines)
        if branch is not None and "state" in columns:
            state = padded[columns.index("state") + 1]
            start = sum(len(cell) + 2 for cell in padded[: columns.index("state") + 1])
            if text[start : start + len(state)] == state:
                text = text[:start] + paint(branch.state, state) + text[start + len(state) :]
        drawn.append(text)
    return "\n".join(
        [
            *(drawn if branches else ["no supervisors"]),
            *(_cut(plain(text), width, lines) for text in (*tree.problems, *tree.left_out)),
        ]
    )


def draw_deaths(tree: Tree, at: Callable[[float], str]) -> str:
    """Draw the recorded ends of children, with tracebacks. `at` writes a time, given in seconds
    since 1970 UTC.
    """
    parts: list[str] = []
    for branch in tree.walk():
        for death in branch.deaths:
            where = f" on {death.node} (epoch {death.epoch})" if death.node is not None else ""
            after = (
                f" after {draw_age(death.at - death.started)}" if death.started is not None else ""
            )
            parts.append(
                f"{at(death.at)}  {plain(death.name)}{where}{after}: {plain(str(death.reason))}"
            )
            trace = death.reason.traceback.rstrip()
            parts.extend(f"    {plain(line)}" for line in trace.splitlines())
    return "\n".join(parts) or "no deaths are kept"


def draw_age(seconds: float | None) -> str:
    """For people: in the largest unit of which there is a whole one, and "-" for None."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{int(seconds)} s" if seconds >= 10 else f"{int(seconds * 10) / 10:.1f} s"


def _cut(text: str, width: int | None, lines: TreeLines) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + lines.cut


def _stems(root: Branch, lines: TreeLines) -> Iterator[tuple[str, Branch]]:
    """Every branch with what is drawn before it."""
    waiting: list[tuple[str, str, Branch]] = [("", "", root)]
    while waiting:
        stem, below, branch = waiting.pop()
        yield stem, branch
        children = [
            (
                below + (lines.last if last else lines.fork),
                below + (" " * len(lines.bar) if last else lines.bar),
                child,
            )
            for child, last in zip(branch.children, _is_last(branch.children), strict=True)
        ]
        waiting.extend(reversed(children))


def _is_last(children: Sequence[Branch]) -> list[bool]:
    return [place == len(children) - 1 for place in range(len(children))]


def _title(branch: Branch, stem: str) -> str:
    """A child's id, and its name where that is not what its place tells; a root's name. With what
    the runtime has it for.
    """
    title = branch.id
    if stem and not branch.name.endswith(f"/{branch.id}") and branch.name != branch.id:
        title = f"{title} ({branch.name})"
    if branch.role == POOL and branch.state != SILENT:
        return f"{title} (pool of {_members(branch)})"
    return f"{title} ({branch.role})" if branch.role in (POOL, POOL_KEEPER) else title


def _members(pool: Branch) -> int:
    keepers = sum(child.role == POOL_KEEPER for child in pool.children)
    return len(pool.children) + pool.children_left_out - keepers


def _cells(branch: Branch, columns: Sequence[Column]) -> list[str]:
    texts = {
        "state": branch.state,
        "strategy": branch.strategy or "",
        "restarts": _number(branch.restarts),
        "recent": _recent(branch),
        "age": draw_age(branch.age),
        "node": plain(branch.node) if branch.node is not None else "-",
        "waiting": _number(branch.waiting),
    }
    return [texts[column] for column in columns]


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _recent(branch: Branch) -> str:
    if branch.intensity is None or branch.period is None:
        return ""
    share = f"{branch.recent_restarts}/{branch.intensity}"
    return f"{share} in {branch.period:g} s" if math.isfinite(branch.period) else share


def _note(branch: Branch) -> str:
    """Return the problem of a branch; "" if it has none."""
    if branch.state == SILENT:
        return plain(branch.problem)
    if branch.children_left_out:
        return f"and {branch.children_left_out:,} more children"
    if branch.state in FAILED and branch.last_exit is not None:
        return f"last: {short(branch.last_exit)}"
    return ""


def short(reason: ExitReason) -> str:
    """A reason on one line."""
    text = plain((str(reason).splitlines() or [""])[0])
    return text if len(text) <= REASON_LENGTH else f"{text[: REASON_LENGTH - 3]}..."
