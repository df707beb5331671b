"""Differences between snapshots, and what pages are sent: what has changed, at any pace."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runtime.dashboard.snapshots import Feed, PageFeed, TopicSnapshot, difference

NAMES = st.sampled_from(["a", "b", "c", "shop/1", "ü\n"])
VALUES = st.none() | st.booleans() | st.integers(0, 3) | st.lists(st.integers(0, 2), max_size=2)
ROWS = st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=3), max_size=4)
SECTIONS = st.dictionaries(NAMES, ROWS, max_size=3)


def applied(sections: Any, message: dict[str, Any]) -> dict[str, Any]:
    """What a page does with a message; `feed.js` does the same."""
    if "sections" in message:
        return dict(message["sections"])
    found = {name: dict(rows) for name, rows in sections.items()}
    for name, rows in message["changed"].items():
        for key, fields in rows.items():
            row = found.setdefault(name, {})
            row[key] = {**row.get(key, {}), **fields}
    for name, keys in message["gone"].items():
        for key in keys:
            found[name].pop(key, None)
    return found


def shown(sections: Any) -> Any:
    """What a page shows: a field that is None is as one that is missing, an empty section too."""
    return {
        name: {
            key: {field: value for field, value in row.items() if value is not None}
            for key, row in rows.items()
        }
        for name, rows in sections.items()
        if rows
    }


@given(st.lists(SECTIONS, min_size=1, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_page_that_reads_at_any_pace_ends_with_the_latest(states: Any, reads: list[bool]) -> None:
    feed = Feed()
    quick: dict[str, Any] = {}
    slow: dict[str, Any] = {}
    fast_page, slow_page = PageFeed(feed, ["t"]), PageFeed(feed, ["t"])
    for place, sections in enumerate(states):
        feed.publish("t", TopicSnapshot(float(place), sections))
        for message in fast_page.take():
            quick = applied(quick, json.loads(message))
        if reads[place]:
            for message in slow_page.take():
                slow = applied(slow, json.loads(message))
        assert shown(quick) == shown(json.loads(json.dumps(sections)))
    for message in slow_page.take():
        slow = applied(slow, json.loads(message))
    assert shown(slow) == shown(quick)
    assert slow_page.take() == fast_page.take() == []


def test_a_difference_has_the_changed_fields_alone() -> None:
    old = {"nodes": {"w1": {"rate": 1, "state": "up"}, "w2": {"rate": 2, "state": "up"}}}
    new = {"nodes": {"w1": {"rate": 3, "state": "up"}, "w3": {"rate": 0, "state": "up"}}}
    found = difference(old, new)
    assert found.changed == {"nodes": {"w1": {"rate": 3}, "w3": {"rate": 0, "state": "up"}}}
    assert found.gone == {"nodes": ["w2"]}


def test_fifty_pages_in_step_are_written_for_once() -> None:
    feed = Feed()
    pages = [PageFeed(feed, ["t"]) for _ in range(50)]
    feed.publish("t", TopicSnapshot(0.0, {"s": {"k": {"v": 0}}}))
    for page in pages:
        page.take()
    feed.publish("t", TopicSnapshot(1.0, {"s": {"k": {"v": 1}}}))
    messages = [message for page in pages for message in page.take()]
    assert len(messages) == 50
    assert len({id(message) for message in messages}) == 1


def test_text_that_is_no_unicode_can_be_written() -> None:
    feed = Feed()
    page = PageFeed(feed, ["t"])
    feed.publish("t", TopicSnapshot(0.0, {"s": {"\udcff": {"v": "\udcff\u2028</script>"}}}))
    [message] = page.take()
    assert message.isascii()
    assert b"\n" not in message, "a line break would end the event"
