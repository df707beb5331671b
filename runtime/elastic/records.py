"""What the agents of a job share beyond rounds, in the job's store: its restarts, its failures, and who has finished.

The store may be away just when there is something to write. Failures and restarts wait for it no longer than `SECONDS`: a failure is then
known to this agent alone, and a restart is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from runtime.elastic.budget import History, Verdict, ask, decode_history, encode_history
from runtime.elastic.failures import Failure, decode_failure, encode_failure, in_order
from runtime.environment import Environment
from runtime.rendezvous.errors import RendezvousError, RendezvousStateError
from runtime.rendezvous.interface import KeyValueStore

SECONDS = 5.0
MAX_FAILURES = 64
"""The latest that are read for a report."""

RESTARTS = "elastic/restarts"
FAILURE_COUNT = "elastic/failures/count"


class Records:
    """One agent's view of them. `store` is set with the first round."""

    def __init__(self, environment: Environment, limit: int, window: float) -> None:
        self.store: KeyValueStore | None = None
        self._environment = environment
        self._limit = limit
        self._window = window
        self._seen = 0
        self._seen_at: float | None = None
        self._own: list[Failure] = []

    async def restarts(self) -> int:
        """How many the job has had."""
        return (await self._history()).granted

    async def ask_restart(self, incident: str, agent: str) -> tuple[bool, str]:
        """Ask for one; whether it is granted, and if not, why."""
        why = f"the job's store could not be asked for one within {SECONDS:g} s"
        try:
            with trio.move_on_after(SECONDS):
                verdict = await self._ask(incident, agent)
                if verdict.granted:
                    return True, ""
                if not self._limit:
                    return False, "no restart is allowed (--max-restarts 0)"
                within = "" if self._window == float("inf") else f" within {self._window:g} s"
                return False, f"no restart is left: {verdict.recent} of {self._limit} allowed{within} have been used"
        except RendezvousError as error:
            why = str(error)
        return False, f"no restart: {why}"

    async def add_failure(self, failure: Failure) -> Failure:
        """Keep a failure; with the number that the store gave it, which orders it among those of all agents."""
        numbered = failure
        try:
            with trio.move_on_after(SECONDS):
                if self.store is not None:
                    number = await self.store.add(FAILURE_COUNT, 1)
                    numbered = attrs.evolve(failure, number=number)
                    await self.store.set(_failure_key(number), encode_failure(numbered))
        except RendezvousError:
            # Known to this agent alone, then; it ends with its own report.
            pass
        self._own.append(numbered)
        del self._own[:-MAX_FAILURES]
        return numbered

    async def failures(self, from_round: int) -> list[Failure]:
        """Those of all agents since a round began, that which was seen first at the head."""
        found = [failure for failure in self._own if failure.round >= from_round]
        try:
            with trio.move_on_after(SECONDS):
                if self.store is not None:
                    count = int(await self.store.peek(FAILURE_COUNT) or b"0")
                    for number in range(max(1, count - MAX_FAILURES + 1), count + 1):
                        value = await self.store.peek(_failure_key(number))
                        failure = decode_failure(value) if value is not None else None
                        if failure is not None and failure.round >= from_round:
                            found.append(failure)
        except (RendezvousError, ValueError):
            # What is known here has to do.
            pass
        return in_order(found)

    async def mark_done(self, agent: str, *, failed: bool) -> None:
        """All workers of an agent have ended. Raises `RendezvousError`."""
        if self.store is not None:
            await self.store.set(_done_key(agent), b"failed" if failed else b"finished")

    async def done(self, agents: Sequence[str]) -> dict[str, bool]:
        """Those of these agents that are done, and whether a worker of theirs failed for good. Raises `RendezvousError`."""
        found: dict[str, bool] = {}
        if self.store is not None:
            for agent in agents:
                value = await self.store.peek(_done_key(agent))
                if value is not None:
                    found[agent] = value == b"failed"
        return found

    async def _history(self) -> History:
        history = decode_history(await self.store.peek(RESTARTS)) if self.store is not None else History()
        self._look_at(history)
        return history

    def _look_at(self, history: History) -> None:
        """Note when the last entry was first seen: from then on its age is known."""
        total = history.dropped + len(history.counted)
        if total != self._seen:
            self._seen, self._seen_at = total, self._environment.now()

    async def _ask(self, incident: str, agent: str) -> Verdict:
        if self.store is None:
            raise RendezvousStateError("there is no store before the first round")
        while True:
            before = await self.store.peek(RESTARTS)
            history = decode_history(before)
            self._look_at(history)
            gap = 0.0 if self._seen_at is None else self._environment.now() - self._seen_at
            verdict = ask(history, incident, agent, gap, self._limit, self._window)
            if verdict.history == history:
                return verdict
            done, _ = await self.store.compare_set(RESTARTS, before, encode_history(verdict.history))
            if done:
                self._look_at(verdict.history)
                return verdict


def _failure_key(number: int) -> str:
    return f"elastic/failures/{number}"


def _done_key(agent: str) -> str:
    return f"elastic/done/{agent}"
