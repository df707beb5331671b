"""OTP's supervisor once more, written for comparison: one blocking procedure after another over a
mailbox, as in `supervisor.erl`.

Shares nothing with `actors.restarts` but the rules: children have pids, exits name pids, and a stop
is an exception that unwinds whatever is going on. The world it acts upon is asked through
`world.operation("start" | "stop", id)`, which blocks, and may fill the mailbox meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from actors.restarts import ChildRule

ANSWERS = {"ok": "started", "ignore": "ignored", "fail": "start failed", "unplaced": "start failed"}
NORMAL = {"normal", "shutdown", "stopped", "parent stopped", "idle"}


class World(Protocol):
    """What a supervisor acts upon."""

    now: float

    def operation(self, what: str, id: str) -> str:
        """Start or stop a child; answers "ok", "ignore", "fail", or "unplaced" if there is no node
        for it.
        """
        ...

    def wake(self, at: float, id: str) -> None:
        """Call `due(id)` at that time or later."""
        ...


class EndingError(Exception):
    """The supervisor is to end with this kind of reason."""


class Reference:
    """A supervisor without back-off for failures; `ended` is the kind of its end, `replies` holds
    what requests were answered.

    OTP knows no nodes. Here a child that was lost with its node, left with it, or has none, is
    restarted without being counted: at once after a first death, then after 0.1, 0.2, 0.4 ...
    seconds, 5 at most. A minute of life makes that begin anew.
    """

    def __init__(
        self,
        rules: Sequence[ChildRule],
        strategy: str,
        intensity: int,
        period: float,
        automatic: str,
        world: World,
    ) -> None:
        self.rules = {rule.id: rule for rule in rules}
        self.strategy, self.intensity, self.period, self.automatic, self.world = (
            strategy,
            intensity,
            period,
            automatic,
            world,
        )
        self.pids: dict[str, int | str | None] = dict.fromkeys(self.rules)
        self.fresh = itertools.count()
        self.dead: set[int] = set()
        self.mailbox: list[tuple] = []
        self.restart_times: list[float] = []
        self.since: dict[str, float] = {}
        self.losses = dict.fromkeys(self.rules, 0)
        self.waiting: dict[str, float] = {}
        self.told = self.ending = self.booted = False
        self.ended: str | None = None
        self.replies: dict[int, str] = {}

    def start(self) -> str:
        self.guarded(self.boot)
        return "fail" if self.ended else "ok"

    def stop(self) -> None:
        self.told = True
        self.run()

    def exit(self, id: str, kind: str) -> None:
        pid = self.pids.get(id)
        if isinstance(pid, int):
            self.dead.add(pid)
            self.mailbox.append(("EXIT", pid, kind, self.world.now))

    def lose(self, ids: Sequence[str], kind: str) -> None:
        """A node has died, and these with it."""
        pids = [pid for id in ids if isinstance(pid := self.pids.get(id), int)]
        self.dead.update(pids)
        self.mailbox.append(("NODE DOWN", pids, kind, self.world.now))

    def due(self, id: str) -> None:
        if self.booted:
            self.mailbox.append(("due", id, self.world.now))

    def request(self, number: int, kind: str, rule: ChildRule) -> None:
        self.replies[number] = "supervisor stopped"
        self.mailbox.append(("call", number, kind, rule))

    def run(self) -> None:
        while not self.ended and (self.told or self.mailbox):
            self.guarded(self.receive)

    def guarded(self, procedure) -> None:
        try:
            procedure()
        except EndingError as ending:
            self.ending = True
            self.terminate(list(self.rules))
            self.ended = str(ending)

    def boot(self) -> None:
        failed = self.start_in_order(list(self.rules))
        if failed is not None:
            raise EndingError("not placed" if failed[1] == "unplaced" else "start failed")
        self.booted = True

    def receive(self) -> None:
        if self.told:
            raise EndingError("stopped")
        match self.mailbox.pop(0):
            case "EXIT", pid, kind, now:
                for id in [id for id, its in self.pids.items() if its == pid]:
                    self.child_exited(self.rules[id], kind, now)
            case "NODE DOWN", pids, kind, now:
                for id in [id for id, its in self.pids.items() if its in pids]:
                    if self.pids.get(id) in pids:
                        self.child_exited(self.rules[id], kind, now)
            case "try again", id, outcome, now:
                if self.pids.get(id) == "restarting":
                    self.restart(id, now, "not placed" if outcome == "unplaced" else "raised")
            case "due", id, now:
                if self.pids.get(id) == "restarting" and self.waiting.get(id, now + 1) <= now:
                    self.start_again(id)
            case "call", number, kind, rule:
                self.replies[number] = getattr(self, f"{kind}_child")(rule)

    def child_exited(self, rule: ChildRule, kind: str, now: float) -> None:
        if rule.restart == "permanent" or (rule.restart == "transient" and kind not in NORMAL):
            if now - self.since[rule.id] >= 60:
                self.losses[rule.id] = 0
            return self.restart(rule.id, now, kind)
        self.lay_to_rest(rule.id)
        if rule.significant and self.automatic != "never":
            left = [
                other
                for other in self.rules.values()
                if other.significant and self.pids[other.id] is not None
            ]
            if self.automatic == "any-significant" or not left:
                raise EndingError("shutdown")

    def restart(self, id: str, now: float, kind: str) -> None:
        delay = 0.0
        if kind in ("node died", "not placed"):
            self.losses[id] += 1
            delay = min(0.1 * 2 ** max(self.losses[id] - 2, 0), 5)
            delay = 0 if self.losses[id] == 1 and kind == "node died" else delay
        elif kind != "node left":
            self.restart_times.append(now)
            if (
                len([time for time in self.restart_times if now - time <= self.period])
                > self.intensity
            ):
                self.pids[id] = None
                raise EndingError("shutdown")
        if delay:
            self.pids[id] = "restarting"
            self.waiting.pop(id, None)
            self.terminate([each for each in self.group(id) if each != id])
            self.waiting[id] = now + delay
            self.world.wake(now + delay, id)
        else:
            self.start_again(id)

    def group(self, id: str) -> list[str]:
        order = list(self.rules)
        return {
            "one-for-one": [id],
            "one-for-all": order,
            "rest-for-one": order[order.index(id) :],
        }[self.strategy]

    def start_again(self, id: str) -> None:
        group = self.group(id)
        self.pids[id] = None
        self.terminate(group)
        failed = self.start_in_order([each for each in group if each in self.rules])
        if failed is not None:
            self.pids[failed[0]] = "restarting"
            # OTP lets the message of an earlier failure trigger this retry as well; here each
            # failure has its own place in line and time.
            self.mailbox = [
                message for message in self.mailbox if message[:2] != ("try again", failed[0])
            ]
            self.mailbox.append(("try again", *failed, self.world.now))

    def terminate(self, ids: list[str]) -> None:
        for id in reversed(ids):
            pid = self.pids[id]
            self.lay_to_rest(id)
            if isinstance(pid, int) and pid not in self.dead:
                self.operation("stop", id)

    def lay_to_rest(self, id: str) -> None:
        self.pids[id] = None
        self.waiting.pop(id, None)
        if self.rules[id].restart == "temporary":
            del self.rules[id], self.pids[id]

    def start_in_order(self, ids: list[str]) -> tuple[str, str] | None:
        """The first that does not start, and how that went."""
        for id in ids:
            outcome = self.start_one(id)
            if outcome in ("fail", "unplaced"):
                return id, outcome
        return None

    def start_one(self, id: str) -> str:
        outcome = self.operation("start", id)
        self.pids[id] = next(self.fresh) if outcome == "ok" else None
        self.since[id] = self.world.now
        if outcome == "ignore":
            self.lay_to_rest(id)
        return outcome

    def operation(self, what: str, id: str) -> str:
        outcome = self.world.operation(what, id)
        if self.told and not self.ending:
            if what == "start":
                self.world.operation("stop", id)
                self.lay_to_rest(id)
            raise EndingError("stopped")
        return outcome

    def add_child(self, rule: ChildRule) -> str:
        if rule.id in self.rules:
            return "already started" if isinstance(self.pids[rule.id], int) else "already present"
        self.rules[rule.id], self.pids[rule.id], self.losses[rule.id] = rule, None, 0
        outcome = self.start_one(rule.id)
        if outcome in ("fail", "unplaced"):
            del self.rules[rule.id], self.pids[rule.id]
        return ANSWERS[outcome]

    def terminate_child(self, rule: ChildRule) -> str:
        if rule.id not in self.rules:
            return "not found"
        self.terminate([rule.id])
        return "stopped"

    def restart_child(self, rule: ChildRule) -> str:
        if (refused := self.not_at_rest(rule.id)) is not None:
            return refused
        return ANSWERS[self.start_one(rule.id)]

    def delete_child(self, rule: ChildRule) -> str:
        if (refused := self.not_at_rest(rule.id)) is not None:
            return refused
        del self.rules[rule.id], self.pids[rule.id]
        return "deleted"

    def not_at_rest(self, id: str) -> str | None:
        if id not in self.rules:
            return "not found"
        pid = self.pids[id]
        return {str: "restarting", int: "running", type(None): None}[type(pid)]
