"""OTP's supervisor once more, written for comparison: one blocking procedure after another over a mailbox, as in `supervisor.erl`.

Shares nothing with `actors.restarts` but the rules: children have pids, exits name pids, and a stop is an exception that unwinds whatever
is going on. The world it acts upon is asked through `world.operation("start" | "stop", id)`, which blocks, and may fill the mailbox
meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from actors.restarts import ChildRule

NORMAL = {"normal", "shutdown", "stopped", "parent stopped", "idle"}


class World(Protocol):
    """What a supervisor acts upon."""

    now: float

    def operation(self, what: str, id: str) -> str:
        """Start or stop a child; answers "ok", "ignore" or "fail"."""
        ...


class EndingError(Exception):
    """The supervisor is to end with this kind of reason."""


class Reference:
    """A supervisor without back-off; `ended` is the kind of its end, `replies` holds what requests were answered."""

    def __init__(self, rules: Sequence[ChildRule], strategy: str, intensity: int, period: float, automatic: str, world: World) -> None:
        self.rules = {rule.id: rule for rule in rules}
        self.strategy, self.intensity, self.period, self.automatic, self.world = strategy, intensity, period, automatic, world
        self.pids: dict[str, int | str | None] = dict.fromkeys(self.rules)
        self.fresh = itertools.count()
        self.dead: set[int] = set()
        self.mailbox: list[tuple] = []
        self.restart_times: list[float] = []
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
        if self.start_in_order(list(self.rules)) is not None:
            raise EndingError("start failed")
        self.booted = True

    def receive(self) -> None:
        if self.told:
            raise EndingError("stopped")
        match self.mailbox.pop(0):
            case "EXIT", pid, kind, now:
                for id in [id for id, its in self.pids.items() if its == pid]:
                    self.child_exited(self.rules[id], kind, now)
            case "try again", id, now:
                if self.pids.get(id) == "restarting":
                    self.restart(id, now)
            case "call", number, kind, rule:
                self.replies[number] = getattr(self, f"{kind}_child")(rule)

    def child_exited(self, rule: ChildRule, kind: str, now: float) -> None:
        if rule.restart == "permanent" or (rule.restart == "transient" and kind not in NORMAL):
            return self.restart(rule.id, now)
        self.lay_to_rest(rule.id)
        if rule.significant and self.automatic != "never":
            left = [other for other in self.rules.values() if other.significant and self.pids[other.id] is not None]
            if self.automatic == "any-significant" or not left:
                raise EndingError("shutdown")

    def restart(self, id: str, now: float) -> None:
        self.restart_times.append(now)
        if len([time for time in self.restart_times if now - time <= self.period]) > self.intensity:
            self.pids[id] = None
            raise EndingError("shutdown")
        order = list(self.rules)
        group = {"one-for-one": [id], "one-for-all": order, "rest-for-one": order[order.index(id) :]}[self.strategy]
        self.pids[id] = None
        self.terminate(group)
        failed = self.start_in_order([each for each in group if each in self.rules])
        if failed is not None:
            self.pids[failed] = "restarting"
            # OTP lets the message of an earlier failure trigger this retry as well; here each failure has its own place in line and time.
            self.mailbox = [message for message in self.mailbox if message[:2] != ("try again", failed)]
            self.mailbox.append(("try again", failed, self.world.now))

    def terminate(self, ids: list[str]) -> None:
        for id in reversed(ids):
            pid = self.pids[id]
            self.lay_to_rest(id)
            if isinstance(pid, int) and pid not in self.dead:
                self.operation("stop", id)

    def lay_to_rest(self, id: str) -> None:
        self.pids[id] = None
        if self.rules[id].restart == "temporary":
            del self.rules[id], self.pids[id]

    def start_in_order(self, ids: list[str]) -> str | None:
        return next((id for id in ids if self.start_one(id) == "fail"), None)

    def start_one(self, id: str) -> str:
        outcome = self.operation("start", id)
        self.pids[id] = next(self.fresh) if outcome == "ok" else None
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
        self.rules[rule.id], self.pids[rule.id] = rule, None
        outcome = self.start_one(rule.id)
        if outcome == "fail":
            del self.rules[rule.id], self.pids[rule.id]
        return {"ok": "started", "ignore": "ignored", "fail": "start failed"}[outcome]

    def terminate_child(self, rule: ChildRule) -> str:
        if rule.id not in self.rules:
            return "not found"
        self.terminate([rule.id])
        return "stopped"

    def restart_child(self, rule: ChildRule) -> str:
        if (refused := self.not_at_rest(rule.id)) is not None:
            return refused
        return {"ok": "started", "ignore": "ignored", "fail": "start failed"}[self.start_one(rule.id)]

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
