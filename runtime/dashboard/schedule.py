"""When a dashboard asks the cluster, and for what. No I/O: the time comes in as a number.

A topic is asked for only while a page shows it, at its own interval, once at a time: the number of
pages changes nothing, and an answer that takes long delays the next question.
"""

from __future__ import annotations

import math

import attrs

TOPICS = {
    "cluster": 1.0,
    "tree": 2.0,
    "calls": 2.0,
    "pools": 2.0,
    "store": 2.0,
    "logs": 2.0,
    "jobs": 3.0,
    "references": 5.0,
}
"""What there is to ask for, and the seconds between two questions."""

ACTOR = "actor/"
"""The topic of one actor is this and the actor's name."""

ACTOR_SECONDS = 1.0
"""Between two questions about an actor that a page shows in detail."""

MOST_ACTORS = 16
"""Actors that are looked at in detail at the same time, by all pages together."""

REST = 0.5
"""After an answer that took long, a topic rests for this share of the time: a cluster that is busy
or broken is asked less often.
"""

LONGEST_REST = 5.0


def is_topic(name: str) -> bool:
    """True for what a page may show."""
    return name in TOPICS or (name.startswith(ACTOR) and len(ACTOR) < len(name) <= 1000)


@attrs.define
class _Demand:
    """One topic: how many pages show it, when it is due, and whether it is being asked for."""

    pages: int = 0
    due: float = 0.0
    began: float | None = None


class SamplingSchedule:
    """Decides which topics are wanted, and when each is due."""

    def __init__(self) -> None:
        self._demands: dict[str, _Demand] = {}

    @property
    def wanted(self) -> tuple[str, ...]:
        """The topics that some page shows."""
        return tuple(topic for topic, demand in self._demands.items() if demand.pages)

    def want(self, topic: str, now: float) -> bool:
        """A page shows the topic from now on. False if so many actors are looked at already that
        there is no room for one more: then nothing has changed.
        """
        actors = sum(one.startswith(ACTOR) for one in self._demands)
        is_new_actor = topic.startswith(ACTOR) and topic not in self._demands
        if is_new_actor and actors >= MOST_ACTORS:
            return False
        demand = self._demands.setdefault(topic, _Demand(due=now))
        demand.pages += 1
        return True

    def unwant(self, topic: str) -> None:
        """A page does not show it any more."""
        demand = self._demands[topic]
        demand.pages -= 1
        assert demand.pages >= 0, "each page that shows a topic has said so"
        if not demand.pages and demand.began is None:
            del self._demands[topic]

    def begin(self, now: float) -> list[str]:
        """The topics that are to be asked for now; they count as asked for until `finished`."""
        found = [
            topic
            for topic, demand in self._demands.items()
            if demand.pages and demand.began is None and demand.due <= now
        ]
        for topic in found:
            self._demands[topic].began = now
        return found

    def finished(self, topic: str, now: float) -> None:
        """The answer is there, or it is known that there is none."""
        demand = self._demands[topic]
        assert demand.began is not None, "what has finished was begun"
        interval = TOPICS.get(topic, ACTOR_SECONDS)
        rest = min(LONGEST_REST, REST * (now - demand.began))
        demand.due = max(demand.began + interval, now + rest)
        demand.began = None
        if not demand.pages:
            del self._demands[topic]

    def next_at(self) -> float:
        """When the next topic is due; infinity if none will be without a change."""
        return min(
            (one.due for one in self._demands.values() if one.pages and one.began is None),
            default=math.inf,
        )

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps."""
        assert all(one.pages >= 0 for one in self._demands.values())
        assert all(one.pages or one.began is not None for one in self._demands.values())
        actors = sum(topic.startswith(ACTOR) for topic in self._demands)
        assert actors <= MOST_ACTORS, "the number of actors that are looked at is bounded"
