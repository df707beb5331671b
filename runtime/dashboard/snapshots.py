"""What pages are sent: of each topic a whole snapshot first, and then the differences. No I/O.

A page that reads slowly is sent fewer and larger differences: what is kept for it is the one
snapshot that it has, never a queue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

Row = Mapping[str, Any]
Sections = Mapping[str, Mapping[str, Row]]

MOST_ROWS = 1000
"""Rows of one section of a snapshot. Who makes a snapshot says what was left out."""


@attrs.frozen(eq=False)
class TopicSnapshot:
    """A topic at a moment: rows by key in sections, and `at`, seconds since 1970 UTC. `history`:
    what went before, which a page is sent once and then continues itself.
    """

    at: float
    sections: Sections
    history: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        assert all(len(rows) <= MOST_ROWS for rows in self.sections.values()), "it is bounded"


@attrs.frozen
class Difference:
    """The change from one snapshot to a later one. `changed`: the fields of each row that differ,
    None for a field that is gone; all fields of a new row. `gone`: keys of rows.
    """

    changed: dict[str, dict[str, dict[str, Any]]]
    gone: dict[str, list[str]]


def difference(old: Sections, new: Sections) -> Difference:
    """Return the difference between two snapshots."""
    changed: dict[str, dict[str, dict[str, Any]]] = {}
    gone: dict[str, list[str]] = {}
    for name in {**old, **new}:
        before, after = old.get(name, {}), new.get(name, {})
        rows = {
            key: fields
            for key, row in after.items()
            if (fields := _changed_fields(before.get(key), row)) is not None
        }
        if rows:
            changed[name] = rows
        if missing := [key for key in before if key not in after]:
            gone[name] = missing
    return Difference(changed, gone)


def _changed_fields(old: Row | None, new: Row) -> dict[str, Any] | None:
    if old is None:
        return dict(new)
    if old is new:
        return None
    fields = {name: value for name, value in new.items() if name not in old or old[name] != value}
    fields.update(dict.fromkeys(name for name in old if name not in new))
    return fields or None


class Feed:
    """The latest snapshot of each topic, and what it is in writing for pages that have an earlier
    one. Many pages have the same, so that is written once.
    """

    def __init__(self) -> None:
        self._latest: dict[str, TopicSnapshot] = {}
        self._written: dict[tuple[str, int], bytes] = {}

    def publish(self, topic: str, snapshot: TopicSnapshot) -> None:
        """A newer snapshot is there."""
        self._forget_written(topic)
        self._latest[topic] = snapshot

    def forget(self, topic: str) -> None:
        """Nothing is known of a topic any more: the next page waits for a new snapshot."""
        self._forget_written(topic)
        self._latest.pop(topic, None)

    def latest(self, topic: str) -> TopicSnapshot | None:
        """The latest snapshot of a topic."""
        return self._latest.get(topic)

    def message(self, topic: str, had: TopicSnapshot | None) -> bytes:
        """Return the difference from the snapshot that a page `had` to the latest one, as JSON."""
        latest = self._latest[topic]
        # The identity of a snapshot that a page keeps is not given to another one.
        key = (topic, id(had) if had is not None else 0)
        found = self._written.get(key)
        if found is None or had is None:
            found = _json(_message(topic, had, latest))
            if had is not None:
                self._written[key] = found
        return found

    def _forget_written(self, topic: str) -> None:
        self._written = {key: text for key, text in self._written.items() if key[0] != topic}


class PageFeed:
    """The snapshots that one page has been sent."""

    def __init__(self, feed: Feed, topics: Iterable[str]) -> None:
        self._feed = feed
        self._had: dict[str, TopicSnapshot | None] = dict.fromkeys(topics)

    def take(self) -> list[bytes]:
        """Return the news for the page, one message for each topic. They count as sent."""
        found: list[bytes] = []
        for topic, had in self._had.items():
            latest = self._feed.latest(topic)
            if latest is not None and latest is not had:
                found.append(self._feed.message(topic, had))
                self._had[topic] = latest
        return found


def _message(topic: str, had: TopicSnapshot | None, latest: TopicSnapshot) -> dict[str, Any]:
    if had is None:
        return {
            "topic": topic,
            "at": latest.at,
            "sections": latest.sections,
            "history": latest.history,
        }
    found = difference(had.sections, latest.sections)
    return {"topic": topic, "at": latest.at, "changed": found.changed, "gone": found.gone}


def _json(value: object) -> bytes:
    # Infinities and NaN are no JSON; who makes rows leaves them out.
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=str).encode(
        "utf-8", "backslashreplace"
    )
