"""The page of a report: well-formed, escaped, complete where it matters, and never too large."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from importlib import resources

import attrs
import pytest

from runtime.simulation.page import GLYPHS, STYLE, page
from runtime.simulation.report import CheckResult, Report, TraceEvent

VOID = {"meta", "input"}
"""The elements of the page that have no end tag in HTML."""


class Reader(HTMLParser):
    """Reads a page as a browser does: the tree must close, and what is text is gathered by the
    element that holds it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.opened, f"</{tag}> ends nothing"
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.opened[-1] if self.opened else "", data))

    def count(self, tag: str, style: str) -> int:
        """How many elements there are of a tag and a class."""
        return sum(
            name == tag and style in (attributes.get("class") or "").split()
            for name, attributes in self.tags
        )

    def all(self, tag: str) -> str:
        """The texts directly in elements of one tag, one a line."""
        return "\n".join(text for name, text in self.texts if name == tag)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.opened == []
    return reader


def empty() -> Report:
    return Report(
        seed=0,
        nodes=(),
        seconds=0.0,
        took=0.0,
        trace_hash="",
        faults={},
        calls={},
        events=(),
        check_results=(),
    )


def faults(names: tuple[str, ...], seconds: float, chance: random.Random) -> list[TraceEvent]:
    """The starts of the nodes, and faults for the first two thirds of the time."""
    found = [TraceEvent(0.01 * number, name, "start", "") for number, name in enumerate(names)]
    found += [
        TraceEvent(0.5 + 0.03 * number, name, "up", "epoch 1") for number, name in enumerate(names)
    ]
    for at in range(10, int(seconds * 2 / 3), 15):
        node = chance.choice(names)
        found += [
            TraceEvent(at, node, "crash", "power"),
            TraceEvent(at + 4.0, node, "restart", ""),
            TraceEvent(at + 4.6, node, "up", ""),
        ]
        node = chance.choice(names)
        found += [
            TraceEvent(at + 1.0, node, "pause", "6 s"),
            TraceEvent(at + 7.0, node, "resume", ""),
        ]
        kind = chance.choice(["partition", "clog"])
        text_of_cut = f"{chance.choice(names)} | all others"
        found += [
            TraceEvent(at + 5.0, "", kind, text_of_cut),
            TraceEvent(at + 11.0, "", "heal", text_of_cut),
        ]
        found += [
            TraceEvent(at + 3.0, "", "cut", "n1 - n2"),
            TraceEvent(at + 8.0, chance.choice(names), "slow disk", "20 ms a write"),
        ]
    return found


def large(
    nodes: int = 20,
    seconds: float = 300.0,
    events: int = 20_000,
    text: str = "counter-17.add(3) from n4, attempt 2",
) -> Report:
    """Made up: faults for the first two thirds of the time, then calm, and calls all along."""
    chance = random.Random(7)
    names = tuple(f"n{number}" for number in range(nodes))
    found = faults(names, seconds, chance)
    found += [
        TraceEvent(seconds * 0.7, "", "calm", ""),
        TraceEvent(seconds * 0.62, "n1", "wrong", "read 4, but 5 was acknowledged"),
    ]
    ends = ["ok"] * 17 + ["failed", "unknown", "begin"]
    while len(found) + 1 < events:
        moment, node = chance.uniform(1.0, seconds), chance.choice(names)
        found += [
            TraceEvent(moment, node, "call", text),
            TraceEvent(min(moment + 0.01, seconds), node, chance.choice(ends), text),
        ]
    check_results = (
        CheckResult("calls", True, "9,871 calls, each ended once"),
        CheckResult(
            "linearizable",
            False,
            "counter-17: a read at 186.0 s gave 4\nafter 5 was acknowledged at 185.2 s; look at n1",
        ),
        CheckResult("single owner", True, "no two nodes held a name at once"),
        CheckResult("liveness", False, "n3 <did> not come back & nobody noticed"),
    )
    return Report(
        seed=1234567,
        nodes=names,
        seconds=seconds,
        took=4.21,
        trace_hash="9f86d081884c7d659a2feaa0c55ad015",
        faults={
            "crash": 0.25,
            "partition": 0.1,
            "clog": 0.033333333,
            "slow disk": 0.5,
            "pause": 1.0,
        },
        calls={"ok": 8412, "failed": 507, "unknown": 490, "pending": 3},
        events=tuple(sorted(found, key=lambda event: event.at)),
        check_results=check_results,
    )


@pytest.fixture(scope="module")
def report() -> Report:
    return large(nodes=5, seconds=60.0, events=400)


def test_a_page_is_well_formed_and_fetches_nothing(report: Report) -> None:
    text = page(report)
    assert text.startswith("<!DOCTYPE html>")
    reader = read(text)
    addresses = [
        value for _, held in reader.tags for name, value in held.items() if name in {"src", "href"}
    ]
    assert all(value is not None and value.startswith("#") for value in addresses)
    names = [held["id"] for _, held in reader.tags if "id" in held]
    assert len(names) == len(set(names))
    assert {str(value)[1:] for value in addresses} <= set(names)


def test_the_same_report_gives_the_same_page(report: Report) -> None:
    assert page(report) == page(report)


def test_an_empty_run_makes_a_page() -> None:
    reader = read(page(empty()))
    assert "nothing was checked" in reader.all("span")
    assert reader.all("li").split() == ["network"]
    assert "nan" not in page(empty()).lower()


def test_what_comes_from_the_report_is_escaped() -> None:
    evil = "<script>alert('1')</script> & \"quoted\" \x00\ud800"
    shown = "<script>alert('1')</script> & \"quoted\" \ufffd\ufffd"
    events = tuple(
        TraceEvent(float(at), evil, kind, evil)
        for at, kind in enumerate(
            ["start", "partition", "pause", "call", "calm", "wrong", "end", evil]
        )
    )
    check_results = (CheckResult(evil, False, evil), CheckResult(evil, True, evil))
    report = attrs.evolve(
        empty(),
        nodes=(evil,),
        trace_hash=evil,
        faults={evil: 1.0},
        calls={evil: 1},
        events=events,
        check_results=check_results,
    )
    text = page(report)
    text.encode()
    reader = read(text)
    assert [tag for tag, _ in reader.tags].count("script") == 1
    for tag in ("p", "code", "dt", "li", "td"):
        assert shown in reader.all(tag), tag
    assert reader.all("td").count(shown) == 2 * len(events) + 1
    assert "<script>alert" in reader.all("title")
    assert all(
        "alert" not in (value or "")
        for _, held in reader.tags
        for name, value in held.items()
        if name != "title"
    )


def test_the_top_tells_the_facts_and_the_wrong_results_first(report: Report) -> None:
    reader = read(page(report))
    assert "✘ WRONG: 2 of 4 checks" in reader.all("span")
    for result in report.check_results:
        assert result.text in reader.all("p")
    assert reader.all("strong").split("\n")[:3] == [
        "✘ first at 37.200 s",
        "✘ WRONG linearizable",
        "✘ WRONG liveness",
    ]
    text = page(report)
    assert text.index("✘ WRONG liveness") < text.index("Time line</h2>") < text.index("✔ holds")
    assert text.index("<details>") < text.index("✔ holds"), "what holds is folded"
    assert {"1234567", report.trace_hash} <= set(reader.all("code").split())
    for fact in ("60.000 s", "4.210 s", "8,412 ", "0.0333333"):
        assert fact in reader.all("dd")


def test_a_run_without_anything_wrong_says_so() -> None:
    reader = read(
        page(attrs.evolve(empty(), check_results=(CheckResult("calls", True, "3 calls"),)))
    )
    assert reader.all("span").split("\n")[0] == "✔ all holds"
    assert "WRONG" not in reader.all("title")


def test_lives_pauses_and_bands_end_where_they_should() -> None:
    told = [
        (0.0, "a", "start", ""),
        (1.0, "a", "up", ""),
        (2.0, "a", "pause", ""),
        (3.0, "", "partition", "a | b"),
        (4.0, "a", "crash", ""),
        (5.0, "", "partition", "a | c"),
        (6.0, "a", "restart", ""),
        (7.0, "", "heal", "a | b"),
        (8.0, "b", "heal", ""),
        (9.0, "a", "restart", ""),
    ]
    report = attrs.evolve(
        empty(), nodes=("a", "b"), seconds=10.0, events=tuple(TraceEvent(*one) for one in told)
    )
    places = {
        style: [
            (held["x"], held["width"])
            for tag, held in read(page(report)).tags
            if tag == "rect" and held["class"] == style
        ]
        for style in ("life", "paused", "band partition")
    }
    assert places["life"] == [("0%", "40.000%"), ("60%", "30.000%"), ("90%", "10.000%")]
    assert places["paused"] == [("20%", "20.000%")]
    assert places["band partition"] == [("30%", "40.000%"), ("50%", "50.000%")]


def test_marks_say_what_happened_and_wrong_goes_over_all_lanes(report: Report) -> None:
    reader = read(page(report))
    assert "n1: wrong read 4, but 5 was acknowledged" in reader.all("title")
    assert reader.count("line", "wrong") == reader.count("line", "calm") == 1
    crashes = sum(event.kind == "crash" for event in report.events)
    assert reader.count("use", "crash") == crashes + 1, "one in the key"
    assert reader.count("tr", "c") == sum(
        event.kind in {"call", "ok", "failed", "unknown"} for event in report.events
    )


def test_many_happenings_are_thinned_and_stay_small() -> None:
    report = large()
    assert len(report.events) >= 19_999
    text = page(report)
    assert len(text.encode()) < 5_000_000
    reader = read(text)
    assert "are drawn as" in reader.all("p")
    assert "left off" not in text
    assert reader.count("use", "crash") == sum(event.kind == "crash" for event in report.events) + 1


@pytest.mark.parametrize(
    "kind", ["ok", "wrong", "crash", "restart", "partition", "calm", "a kind of its own"]
)
def test_no_kind_makes_a_page_too_large(kind: str) -> None:
    events = tuple(
        TraceEvent(at / 70, f"n{at % 20}", kind, f"{at} " + "é&" * 300) for at in range(20_000)
    )
    text = page(attrs.evolve(empty(), seconds=300.0, events=events))
    assert len(text.encode()) < 6_000_000
    assert "left off" in text


def test_what_is_left_off_is_what_ended_well() -> None:
    events = tuple(
        TraceEvent(at / 70, "n1", "ok" if at % 100 else "failed", "x" * 900) for at in range(20_000)
    )
    reader = read(page(attrs.evolve(empty(), seconds=300.0, events=events)))
    assert reader.all("td").split().count("failed") == 200


def test_times_beyond_the_end_and_short_runs_have_a_place() -> None:
    for seconds in (1e-6, 0.02, 1.0, 7.3, 86_400.0):
        events = (
            TraceEvent(seconds * 1.5, "n1", "crash", ""),
            TraceEvent(seconds * 1.5, "n1", "calm", ""),
        )
        reader = read(page(attrs.evolve(empty(), seconds=seconds, events=events)))
        assert 3 <= reader.count("line", "grid") <= 11, seconds


def test_marks_look_as_on_the_time_line_of_the_dashboard() -> None:
    script = (resources.files("runtime.dashboard") / "static" / "timeline.js").read_text()
    shapes = dict(re.findall(r'(\w+): "(M[^"]+)"', script))
    for ours, theirs in (
        ("start", "joined"),
        ("leave", "leaving"),
        ("leave", "left"),
        ("crash", "gone"),
        ("pause", "silent"),
        ("resume", "back"),
        ("partition", "cut"),
        ("heal", "found"),
    ):
        assert GLYPHS[ours] == shapes[theirs], ours
    style = (resources.files("runtime.dashboard") / "static" / "style.css").read_text()
    for name in ("ink", "dim", "line", "good", "bad", "warn"):
        wanted = re.findall(rf"--{name}: (#\w+)", style)[:2]
        assert re.findall(rf"--{name}:(#\w+)", STYLE) == wanted, name
