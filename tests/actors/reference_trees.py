"""Whole trees of supervisors once more, written for comparison from the semantics alone: one plain
recursive procedure after another.

Shares nothing with `actors.restarts`, `actors.dynamic_restarts`, `actors.restart_intensity` and
`actors.adoption` but the rules of children. Starting a supervisor is starting its children;
stopping it is stopping them; what reaches it stands in its mailbox until it acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from random import Random

import attrs

from actors.supervision import ChildRule
from tests.actors.trees import ROOT, Happening, Plan, Request, id_of, is_adrift, parent_of

NORMAL = ("normal", "shutdown", "stopped", "parent stopped", "idle")


@attrs.define(eq=False)
class Body:
    """What lives: a leaf, or a supervisor with the children that it knows of."""

    path: str
    plan: Plan
    children: dict[str, Child] = attrs.Factory(dict)
    mailbox: list[tuple] = attrs.Factory(list)
    times: list[int] = attrs.Factory(list)


@attrs.define(eq=False)
class Child:
    """`body`: what its supervisor believes to live, until told otherwise. `retry`: the message that
    will try again to restart it.

    `due`: when it will be restarted, if that waits. `losses`: how often in a row its node died, or
    there was none for it.
    """

    plan: Plan
    body: Body | None = None
    restarts: int = 0
    retry: tuple | None = None
    due: float | None = None
    losses: int = 0
    since: int = 0

    @property
    def comes(self) -> bool:
        """It is being restarted."""
        return self.retry is not None or self.due is not None

    @property
    def rule(self) -> ChildRule:
        return self.plan.rule


class GivingUpError(Exception):
    """The supervisor that is acting ends with "shutdown"."""


class ReferenceTree:
    """`living`: everything that lives, by path. `replies`: what requests were answered. `gave_up`:
    supervisors, in the order of it.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.living: dict[str, Body] = {}
        self.orphans: set[str] = set()
        self.book: dict[str, list[Plan]] = {}
        self.replies: dict[int, str] = {}
        self.gave_up: list[str] = []

    def happen(self, happening: Happening) -> None:
        self.happening, random = happening, Random(happening.seed)
        self.fates = {path: [word, times] for path, word, times in happening.fates}
        self.root_tried = False
        lost = [(self.living.pop(path), kind) for path, kind in happening.exits]
        for body, _ in lost:
            if body.plan.strategy:
                first = [plan.rule.id for plan in body.plan.first]
                self.book[body.path] = [
                    child.plan for id, child in body.children.items() if id not in first
                ]
                self.orphans.update(
                    child.body.path
                    for child in body.children.values()
                    if child.body and self.lives(child.body)
                )
        for body, kind in lost:
            if kind != "node died":
                self.tell(body, kind)
        self.tell_of_death([body for body, kind in lost if kind == "node died"])
        for path in sorted(self.living):
            body = self.living[path]
            due = sorted(
                id
                for id, child in body.children.items()
                if child.due is not None and child.due <= happening.now
            )
            body.mailbox += [("due", id) for id in due]
        for request in happening.requests:
            supervisor = self.living.get(request.path)
            if supervisor is None or not supervisor.plan.strategy:
                continue
            self.replies[request.number] = "supervisor stopped"
            if supervisor.plan.strategy == "dynamic":
                self.act(request.path)
            supervisor.mailbox.append(("request", request))
            if supervisor.plan.strategy == "dynamic":
                self.act(request.path)
        while waiting := [""] * self.root_is_missing() + sorted(
            path for path, body in self.living.items() if body.mailbox
        ):
            self.act(random.choice(waiting))
        while adrift := [path for path in self.orphans if not self.will_live(parent_of(path))]:
            self.stop(adrift[0])
            self.orphans.discard(adrift[0])
        self.book = {
            path: plans
            for path, plans in self.book.items()
            if path not in self.living and self.will_live(path)
        }

    def root_is_missing(self) -> bool:
        return ROOT not in self.living and ROOT not in self.gave_up and not self.root_tried

    def will_live(self, path: str) -> bool:
        """It lives, or it is to be started again: by those that restart it, or those who are to
        restart these.
        """
        if path in self.living or path == ROOT:
            return path not in self.gave_up
        above = parent_of(path)
        supervisor = self.living.get(above)
        return (
            self.will_live(above) if supervisor is None else id_of(path) in self.coming(supervisor)
        )

    def coming(self, supervisor: Body) -> set[str]:
        """The children that have no body now, and will be given one, with others of their group if
        there are any.
        """
        found: set[str] = set()
        for child in supervisor.children.values():
            if child.comes:
                found.update(
                    each.rule.id for each in self.group(supervisor, child) if not each.body
                )
        return found

    def group(self, supervisor: Body, child: Child) -> list[Child]:
        everyone = list(supervisor.children.values())
        return {"one-for-all": everyone, "rest-for-one": everyone[everyone.index(child) :]}.get(
            supervisor.plan.strategy, [child]
        )

    def lives(self, body: Body) -> bool:
        return self.living.get(body.path) is body

    def tell(self, body: Body, kind: str) -> None:
        supervisor = self.living.get(parent_of(body.path))
        if body.path in self.orphans:
            self.orphans.discard(body.path)
        elif supervisor is not None:
            supervisor.mailbox.append(("exit", body, kind))

    def tell_of_death(self, bodies: Sequence[Body]) -> None:
        """A node has died: each supervisor learns of all its children there at once."""
        told: dict[str, list[Body]] = {}
        for body in bodies:
            if body.path in self.orphans:
                self.orphans.discard(body.path)
            else:
                told.setdefault(parent_of(body.path), []).append(body)
        for path, lost in told.items():
            if path in self.living:
                self.living[path].mailbox.append(("death", lost))

    def act(self, path: str) -> None:
        if path == "":
            self.root_tried = True
            if self.start(ROOT, self.plan) in ("failed", "ignored"):
                self.gave_up.append(ROOT)
            return
        supervisor = self.living.get(path)
        try:
            while supervisor and supervisor.mailbox:
                what, *details = supervisor.mailbox.pop(0)
                getattr(self, f"on_{what}")(supervisor, *details)
        except GivingUpError:
            if not is_adrift(path, self.orphans):
                self.gave_up.append(path)
            self.stop(path)
            self.tell(supervisor, "shutdown")  # type: ignore[arg-type]

    # Starting and stopping

    def start(self, path: str, plan: Plan) -> Body | str:
        if self.happening.store_away:
            return "unplaced"
        if path in self.orphans:
            self.orphans.discard(path)
            return self.living[path]
        fate = self.fates.get(path)
        if fate and fate[1] and (fate[0] == "unplaced" or not plan.strategy):
            fate[1] -= 1  # type: ignore[operator]
            return fate[0]  # type: ignore[return-value]
        body = self.living[path] = Body(path, plan)
        if not plan.strategy:
            return body
        added = [
            one
            for one in self.book.pop(path, ())
            if one.rule.restart != "temporary" or f"{path}/{one.rule.id}" in self.orphans
        ]
        body.children = {one.rule.id: Child(one) for one in plan.first}
        for one in added:
            body.children.setdefault(one.rule.id, Child(one))
        self.stop_what_cannot_be_kept(body)
        for child in list(body.children.values()):
            outcome = self.start_child(body, child)
            if outcome in ("failed", "unplaced") and plan.strategy != "dynamic":
                self.stop(path)
                return outcome
            if outcome == "unplaced":
                self.restart(body, child, "not placed")
            elif outcome != "ok" and plan.strategy == "dynamic":
                body.children.pop(child.rule.id, None)
        return body

    def stop_what_cannot_be_kept(self, body: Body) -> None:
        """Of one-for-all, all live or none is kept; of rest-for-one, those with nobody missing
        before them.
        """
        ids = list(body.children)
        lives = [id for id in ids if f"{body.path}/{id}" in self.orphans]
        kept = lives
        if body.plan.strategy == "one-for-all" and lives != ids:
            kept = []
        if body.plan.strategy == "rest-for-one":
            kept = list(takewhile(lambda id: id in lives, ids))
        for id in reversed([id for id in lives if id not in kept]):
            self.stop(f"{body.path}/{id}")
            self.orphans.discard(f"{body.path}/{id}")

    def start_child(self, supervisor: Body, child: Child) -> str:
        outcome = self.start(f"{supervisor.path}/{child.rule.id}", child.plan)
        if isinstance(outcome, Body):
            child.body, child.since = outcome, self.happening.now
            return "ok"
        if outcome == "ignored":
            self.lay_to_rest(supervisor, child)
        return outcome

    def stop(self, path: str) -> None:
        body = self.living.pop(path)
        self.stop_children(list(body.children.values()))
        for id in reversed(list(body.children)):
            if f"{path}/{id}" in self.orphans:
                self.stop(f"{path}/{id}")
                self.orphans.discard(f"{path}/{id}")

    def stop_children(self, children: Sequence[Child]) -> None:
        for child in reversed(children):
            if child.body and self.lives(child.body):
                self.stop(child.body.path)

    def lay_to_rest(self, supervisor: Body, child: Child) -> None:
        child.body = child.retry = child.due = None
        if child.rule.restart == "temporary" or supervisor.plan.strategy == "dynamic":
            supervisor.children.pop(child.rule.id, None)

    # Exits

    def on_exit(self, supervisor: Body, body: Body, kind: str) -> None:
        child = supervisor.children.get(id_of(body.path))
        if child is None or child.body is not body:
            return
        if child.rule.restart == "permanent" or (
            child.rule.restart == "transient" and kind not in NORMAL
        ):
            if self.happening.now - child.since >= 60:
                child.losses = 0
            return self.restart(supervisor, child, kind)
        self.lay_to_rest(supervisor, child)
        left = [
            each
            for each in supervisor.children.values()
            if each.rule.significant and (each.body or each.comes)
        ]
        word = supervisor.plan.automatic
        if child.rule.significant and (
            word == "any-significant" or (word == "all-significant" and not left)
        ):
            raise GivingUpError

    def on_death(self, supervisor: Body, bodies: Sequence[Body]) -> None:
        for child in list(supervisor.children.values()):
            if child.body in bodies and supervisor.children.get(child.rule.id) is child:
                self.on_exit(supervisor, child.body, "node died")  # type: ignore[arg-type]

    def on_retry(self, supervisor: Body, id: str, kind: str, token: object) -> None:
        child = supervisor.children.get(id)
        if child is not None and child.retry == ("retry", id, kind, token):
            self.restart(supervisor, child, kind)

    def on_due(self, supervisor: Body, id: str) -> None:
        child = supervisor.children.get(id)
        if child is not None and child.due is not None and child.due <= self.happening.now:
            self.start_again(supervisor, child)

    def restart(self, supervisor: Body, child: Child, kind: str) -> None:
        """Only what a child did itself is counted. Losing its node, or having none, is not: that
        waits, but for a first death.
        """
        now = self.happening.now
        if kind in ("node died", "not placed"):
            child.losses += 1
            if kind == "not placed" or child.losses > 1:
                self.wait(supervisor, child, now + min(0.1 * 2 ** max(child.losses - 2, 0), 5))
                return
        elif kind != "node left":
            supervisor.times.append(now)
            if self.recent(supervisor) > supervisor.plan.intensity:
                raise GivingUpError
        self.start_again(supervisor, child)

    def wait(self, supervisor: Body, child: Child, due: float) -> None:
        others = [each for each in self.group(supervisor, child) if each is not child]
        self.stop_children(others)
        for each in others:
            self.lay_to_rest(supervisor, each)
        child.body = child.retry = None
        child.due = due

    def start_again(self, supervisor: Body, child: Child) -> None:
        plan, group = supervisor.plan, self.group(supervisor, child)
        self.stop_children(group)
        for each in group:
            each.due = each.retry = None
            if plan.strategy != "dynamic":
                self.lay_to_rest(supervisor, each)
        for each in [each for each in group if each.rule.id in supervisor.children]:
            outcome = self.start_child(supervisor, each)
            each.restarts += outcome == "ok"
            if outcome in ("failed", "unplaced"):
                each.body, each.retry = (
                    None,
                    (
                        "retry",
                        each.rule.id,
                        "not placed" if outcome == "unplaced" else "start failed",
                        object(),
                    ),
                )
                supervisor.mailbox.append(each.retry)
                return

    def recent(self, supervisor: Body) -> int:
        return sum(self.happening.now - time <= supervisor.plan.period for time in supervisor.times)

    # Requests

    def on_request(self, supervisor: Body, request: Request) -> None:
        self.replies[request.number] = self.reply(
            supervisor, request, supervisor.children.get(request.plan.rule.id)
        )

    def reply(self, supervisor: Body, request: Request, child: Child | None) -> str:
        plan = supervisor.plan
        if request.kind == "add":
            if child is not None:
                return "already started" if child.body else "already present"
            if (
                plan.strategy == "dynamic"
                and plan.most is not None
                and len(supervisor.children) >= plan.most
            ):
                return "too many children"
            child = supervisor.children[request.plan.rule.id] = Child(request.plan)
            outcome = self.start_child(supervisor, child)
            if outcome in ("failed", "unplaced"):
                del supervisor.children[child.rule.id]
        elif child is None:
            return "not found"
        elif request.kind == "terminate":
            self.stop_children([child])
            self.lay_to_rest(supervisor, child)
            return "stopped"
        elif child.body or child.comes:
            return "running" if child.body else "restarting"
        elif request.kind == "delete":
            del supervisor.children[child.rule.id]
            return "deleted"
        else:
            outcome = self.start_child(supervisor, child)
        return {"ok": "started", "ignored": "ignored"}.get(outcome, "start failed")

    # What it looks like

    def state(self) -> dict[str, object]:
        """Every child of every supervisor that lives: whether it runs, how often it was restarted;
        and the restarts that count.
        """
        seen: dict[str, object] = {}
        for path, body in self.living.items():
            if body.plan.strategy:
                seen[path + "/"] = self.recent(body)
                coming = self.coming(body)
                for id, child in body.children.items():
                    word = "running" if child.body else "restarting" if id in coming else "stopped"
                    seen[f"{path}/{id}"] = (word, child.restarts)
        return seen
