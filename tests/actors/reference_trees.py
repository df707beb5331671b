"""Whole trees of supervisors once more, written for comparison from the semantics alone: one plain recursive procedure after another.

Shares nothing with `actors.restarts`, `actors.dynamic_restarts`, `actors.adoption` and `actors.intensity` but the rules of children.
Starting a supervisor is starting its children; stopping it is stopping them; what reaches it stands in its mailbox until it acts.
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
    """`body`: what its supervisor believes to live, until told otherwise. `retry`: the message that will try again to restart it."""

    plan: Plan
    body: Body | None = None
    restarts: int = 0
    retry: tuple | None = None

    @property
    def rule(self) -> ChildRule:
        return self.plan.rule


class GivingUpError(Exception):
    """The supervisor that is acting ends with "shutdown"."""


class ReferenceTree:
    """`living`: everything that lives, by path. `replies`: what requests were answered. `gave_up`: supervisors, in the order of it."""

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
        lost = [(self.living.pop(path), kind) for path, kind in happening.exits]
        for body, _ in lost:
            if body.plan.strategy:
                first = [plan.rule.id for plan in body.plan.first]
                self.book[body.path] = [child.plan for id, child in body.children.items() if id not in first]
                self.orphans.update(child.body.path for child in body.children.values() if child.body and self.lives(child.body))
        for body, kind in lost:
            self.tell(body, kind)
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
        while waiting := [""] * self.root_is_missing() + sorted(path for path, body in self.living.items() if body.mailbox):
            self.act(random.choice(waiting))
        while adrift := [path for path in self.orphans if parent_of(path) not in self.living]:
            self.stop(adrift[0])
            self.orphans.discard(adrift[0])
        self.book.clear()

    def root_is_missing(self) -> bool:
        return ROOT not in self.living and ROOT not in self.gave_up

    def lives(self, body: Body) -> bool:
        return self.living.get(body.path) is body

    def tell(self, body: Body, kind: str) -> None:
        supervisor = self.living.get(parent_of(body.path))
        if body.path in self.orphans:
            self.orphans.discard(body.path)
        elif supervisor is not None:
            supervisor.mailbox.append(("exit", body, kind))

    def act(self, path: str) -> None:
        if path == "":
            if isinstance(self.start(ROOT, self.plan), str):
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
            self.tell(supervisor, "shutdown")

    # Starting and stopping

    def start(self, path: str, plan: Plan) -> Body | str:
        if path in self.orphans:
            self.orphans.discard(path)
            return self.living[path]
        fate = self.fates.get(path)
        if not plan.strategy and fate and fate[1]:
            fate[1] -= 1
            return fate[0]
        body = self.living[path] = Body(path, plan)
        if not plan.strategy:
            return body
        added = [one for one in self.book.pop(path, ()) if one.rule.restart != "temporary" or f"{path}/{one.rule.id}" in self.orphans]
        body.children = {one.rule.id: Child(one) for one in plan.first}
        for one in added:
            body.children.setdefault(one.rule.id, Child(one))
        self.stop_what_cannot_be_kept(body)
        for child in list(body.children.values()):
            outcome = self.start_child(body, child)
            if outcome == "failed" and plan.strategy != "dynamic":
                self.stop(path)
                return "failed"
            if outcome != "ok" and plan.strategy == "dynamic":
                body.children.pop(child.rule.id, None)
        return body

    def stop_what_cannot_be_kept(self, body: Body) -> None:
        """Of one-for-all, all live or none is kept; of rest-for-one, those with nobody missing before them."""
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
            child.body = outcome
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
        child.body = child.retry = None
        if child.rule.restart == "temporary" or supervisor.plan.strategy == "dynamic":
            supervisor.children.pop(child.rule.id, None)

    # Exits

    def on_exit(self, supervisor: Body, body: Body, kind: str) -> None:
        child = supervisor.children.get(id_of(body.path))
        if child is None or child.body is not body:
            return
        if child.rule.restart == "permanent" or (child.rule.restart == "transient" and kind not in NORMAL):
            return self.restart(supervisor, child, counts=kind != "node left")
        self.lay_to_rest(supervisor, child)
        left = [each for each in supervisor.children.values() if each.rule.significant and (each.body or each.retry)]
        word = supervisor.plan.automatic
        if child.rule.significant and (word == "any-significant" or (word == "all-significant" and not left)):
            raise GivingUpError

    def on_retry(self, supervisor: Body, id: str, token: object) -> None:
        child = supervisor.children.get(id)
        if child is not None and child.retry == ("retry", id, token):
            self.restart(supervisor, child)

    def restart(self, supervisor: Body, child: Child, counts: bool = True) -> None:
        now, plan = self.happening.now, supervisor.plan
        if counts:
            supervisor.times.append(now)
            if self.recent(supervisor) > plan.intensity:
                raise GivingUpError
        everyone = list(supervisor.children.values())
        index = everyone.index(child)
        group = {"one-for-all": everyone, "rest-for-one": everyone[index:]}.get(plan.strategy, [child])
        self.stop_children(group)
        for each in group:
            if plan.strategy != "dynamic":
                self.lay_to_rest(supervisor, each)
        for each in [each for each in group if each.rule.id in supervisor.children]:
            outcome = self.start_child(supervisor, each)
            each.restarts += outcome == "ok"
            if outcome == "failed":
                each.body, each.retry = None, ("retry", each.rule.id, object())
                supervisor.mailbox.append(each.retry)
                return

    def recent(self, supervisor: Body) -> int:
        return sum(self.happening.now - time <= supervisor.plan.period for time in supervisor.times)

    # Requests

    def on_request(self, supervisor: Body, request: Request) -> None:
        self.replies[request.number] = self.reply(supervisor, request, supervisor.children.get(request.plan.rule.id))

    def reply(self, supervisor: Body, request: Request, child: Child | None) -> str:
        plan = supervisor.plan
        if request.kind == "add":
            if child is not None:
                return "already started" if child.body else "already present"
            if plan.strategy == "dynamic" and plan.most is not None and len(supervisor.children) >= plan.most:
                return "too many children"
            child = supervisor.children[request.plan.rule.id] = Child(request.plan)
            outcome = self.start_child(supervisor, child)
            if outcome == "failed":
                del supervisor.children[child.rule.id]
        elif child is None:
            return "not found"
        elif request.kind == "terminate":
            self.stop_children([child])
            self.lay_to_rest(supervisor, child)
            return "stopped"
        elif child.body or child.retry:
            return "running" if child.body else "restarting"
        elif request.kind == "delete":
            del supervisor.children[child.rule.id]
            return "deleted"
        else:
            outcome = self.start_child(supervisor, child)
        return {"ok": "started", "ignored": "ignored", "failed": "start failed"}[outcome]

    # What it looks like

    def state(self) -> dict[str, object]:
        """Every child of every supervisor that lives: whether it runs, how often it was restarted; and the restarts that count."""
        seen: dict[str, object] = {}
        for path, body in self.living.items():
            if body.plan.strategy:
                seen[path + "/"] = self.recent(body)
                for id, child in body.children.items():
                    seen[f"{path}/{id}"] = ("running" if child.body else "stopped", child.restarts)
        return seen
