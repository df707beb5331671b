"""Random trees of supervisors, and what happens to them: the input for the machines and for their
reference, and all that both share.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from random import Random

import attrs

from actors.supervision import ChildRule, RestartType

NODES = 4
ROOT = "root"
IDS = ("a", "b", "c", "d", "e", "f", "g", "h")
REQUESTS = ("add", "terminate", "restart", "delete")
STRATEGIES = (
    "one-for-one",
    "one-for-one",
    "one-for-all",
    "rest-for-one",
    "rest-for-one",
    "dynamic",
)
EXITS = ("normal", "shutdown", "raised", "raised", "killed", "node left")


@attrs.frozen(eq=False)
class Plan:
    """A leaf, or with a `strategy` a supervisor. Those of `children` that a dynamic one is to have
    are added when it runs.
    """

    rule: ChildRule
    strategy: str = ""
    intensity: int = 0
    period: int = 1
    automatic: str = "never"
    most: int | None = None
    children: tuple[Plan, ...] = ()

    @property
    def first(self) -> tuple[Plan, ...]:
        """Those that it begins with."""
        return () if self.strategy == "dynamic" else self.children


@attrs.frozen
class Request:
    """What is asked of the supervisor at `path`."""

    number: int
    kind: str
    path: str
    plan: Plan


@attrs.frozen
class Happening:
    """What happens in one moment. `exits`: paths that end, and how; `fates`: how the next starts of
    leaves go, and how many of them do so.

    "unplaced" is a fate of supervisors as well: no node fits. `store_away`: nothing at all can be
    started or taken over in this moment. `seed` is of the order in which those concerned act;
    `number` counts the happenings.
    """

    now: int
    number: int
    seed: int
    exits: tuple[tuple[str, str], ...] = ()
    requests: tuple[Request, ...] = ()
    fates: tuple[tuple[str, str, int], ...] = ()
    store_away: bool = False

    def node_of(self, path: str) -> int:
        """Where what is started now is placed."""
        return zlib.crc32(f"{path} {self.number}".encode()) % NODES


def parent_of(path: str) -> str:
    """ "" for the root."""
    return path.rpartition("/")[0]


def id_of(path: str) -> str:
    return path.rpartition("/")[2]


def is_adrift(path: str, orphans: Collection[str]) -> bool:
    """It is an orphan or below one. What it comes to may depend on who acts first: nobody
    is told.
    """
    return any(f"{path}/".startswith(f"{orphan}/") for orphan in orphans)


def a_rule(random: Random, id: str, automatic: str = "never") -> ChildRule:
    restarts: tuple[RestartType, ...] = ("permanent", "permanent", "transient", "temporary")
    restart = random.choice(restarts)
    significant = automatic != "never" and restart != "permanent" and random.random() < 0.6
    return ChildRule(id, restart=restart, significant=significant)


def a_plan(random: Random, rule: ChildRule, depth: int, most: int) -> Plan:
    """A supervisor with 1 to `most` children, at least one of them of the next depth; a leaf at
    depth 0.
    """
    if depth == 0:
        return Plan(rule)
    strategy = random.choice(STRATEGIES)
    automatic = (
        "never"
        if strategy == "dynamic"
        else random.choice(("never", "never", "any-significant", "all-significant"))
    )
    children = []
    count = random.randint(1, most)
    sure = random.randrange(count)
    for index, id in enumerate(IDS[:count]):
        deeper = depth - 1 if index == sure or random.random() < 0.3 else 0
        children.append(a_plan(random, a_rule(random, id, automatic), deeper, max(1, most - 1)))
    return Plan(
        rule,
        strategy,
        intensity=random.choice((0, 1, 1, 2, 3, 5) if rule.id != ROOT else (1, 5, 20, 50)),
        period=random.randint(1, 6),
        automatic=automatic,
        most=random.choice((None, 4)),
        children=tuple(children),
    )


def levels(plan: Plan) -> int:
    """Of supervisors above each other."""
    return 1 + max((levels(child) for child in plan.children), default=0) if plan.strategy else 0


def wishes(plan: Plan, path: str = ROOT) -> Iterator[tuple[str, Plan]]:
    """The children that dynamic supervisors of a tree are to be given, with the paths of these,
    outer ones first.
    """
    for child in plan.children:
        if plan.strategy == "dynamic":
            yield path, child
        yield from wishes(child, f"{path}/{child.rule.id}")


class Fortune:
    """Draws what happens next to a tree. `plans`: of all that live, by path; `nodes`: where they
    are.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = self.number = self.requests = 0

    def beginning(self, plan: Plan) -> Happening:
        leaves = [f"{ROOT}/{child.rule.id}" for child in plan.first if not child.strategy]
        return self._happening(fates=self._fates(leaves, 0.05))

    def given(self, path: str, plan: Plan) -> Happening:
        self.requests += 1
        return self._happening(requests=(Request(self.requests, "add", path, plan),))

    def next(self, plans: dict[str, Plan], nodes: dict[str, int]) -> tuple[str, Happening]:
        """What it is, in a word, and the happening."""
        random = self.random
        self.now += random.choice((0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 6, 6, 70))
        leaves = [path for path, plan in plans.items() if not plan.strategy]
        supervisors = [path for path, plan in plans.items() if plan.strategy]
        others = (
            "supervisor killed",
            "node died",
            "node died",
            "node left",
            "store away",
            "no node fits",
            "time",
        )
        word = random.choice(("exits",) * 8 + ("requests",) * 4 + ("both",) * 3 + others)
        if not supervisors:
            word = "time"
        exits: list[tuple[str, str]] = []
        requests: list[Request] = []
        if word in ("exits", "both") and leaves:
            exits = [
                (path, random.choice(EXITS))
                for path in random.sample(leaves, min(len(leaves), random.randint(1, 3)))
            ]
        if word in ("requests", "both"):
            requests = [
                self._request(random.choice(supervisors), plans)
                for _ in range(random.randint(1, 3))
            ]
        if word == "supervisor killed":
            exits = [(random.choice(supervisors), "killed")]
        unplaced: list[tuple[str, str, int]] = []
        if word in ("node died", "node left", "store away", "no node fits"):
            dead = random.randrange(NODES)
            exits = [
                (path, "node left" if word == "node left" else "node died")
                for path in plans
                if nodes[path] == dead
            ]
            random.shuffle(exits)
        if word == "no node fits":
            unplaced = [
                (path, "unplaced", random.choice((1, 1, 2, 3, 99)))
                for path, _ in exits
                if random.random() < 0.7
            ]
        likely = [path for path, _ in exits if not plans[path].strategy] * 2 + leaves
        return word, self._happening(
            exits, requests, [*self._fates(likely, 0.4), *unplaced], store_away=word == "store away"
        )

    def _request(self, path: str, plans: dict[str, Plan]) -> Request:
        random, supervisor = self.random, plans[path]
        self.requests += 1
        kind = random.choice(REQUESTS)
        if kind == "add" and random.random() < 0.3 and path.count("/") < 3:
            # Not the id of a leaf that its supervisor began with: who survived under that name
            # would be adopted by a leaf.
            return Request(
                self.requests,
                kind,
                path,
                a_plan(random, a_rule(random, random.choice("st"), supervisor.automatic), 1, 2),
            )
        known = (
            [id_of(each) for each in plans if parent_of(each) == path]
            if random.random() < 0.6
            else []
        )
        return Request(
            self.requests,
            kind,
            path,
            Plan(a_rule(random, random.choice(known or IDS), supervisor.automatic)),
        )

    def _fates(self, leaves: Sequence[str], chance: float) -> Collection[tuple[str, str, int]]:
        random = self.random
        if not leaves or random.random() > chance:
            return ()
        fates = {
            path: random.choice(("failed", "failed", "ignored", "unplaced"))
            for path in random.choices(leaves, k=2)
        }
        return [(path, word, random.choice((1, 1, 2, 3, 99))) for path, word in fates.items()]

    def _happening(
        self,
        exits: Collection[tuple[str, str]] = (),
        requests: Collection[Request] = (),
        fates: Collection[tuple[str, str, int]] = (),
        *,
        store_away: bool = False,
    ) -> Happening:
        self.number += 1
        return Happening(
            self.now,
            self.number,
            self.random.getrandbits(32),
            tuple(exits),
            tuple(requests),
            tuple(fates),
            store_away,
        )
