"""A report as one self-contained HTML page: no network, readable without JavaScript, in light and
dark.

The time line is an SVG without a view box. Positions along the time are percentages, everything
else is in pixels. So the page fits any width, and zooming widens the image while texts and marks
keep their size.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import NamedTuple

from runtime.simulation.report import CheckResult, Report, TraceEvent

CALL_KINDS = ("call", "ok", "failed", "unknown")
SMALL_KINDS = (*CALL_KINDS, "begin", "end")
"""Kinds of events that come in thousands. They are drawn small and thinned separately, so that many
calls never hide a crash.
"""

MOST_SMALL, MOST_MARKS, MOST_WRONG, MOST_BARS, MOST_BANDS = 4000, 2000, 300, 1500, 600
"""The most elements of each sort on the time line; together with the two below they keep a page
under about 5 MB.
"""
MOST_TABLE_BYTES = 2_600_000
LONGEST_TEXT, LONGEST_TOOLTIP = 1000, 160
"""Characters of one event's text in the table and on the time line. Results of checks are never
cut.
"""

NAMED_SHARE = 6.0
"""A partition or clog has its name above if it takes so many hundredths of the width; the text of
a narrower one would be cut.
"""

HEAD, LANE = 52, 44
"""Pixels: what stands above the lanes, and one lane. Within a lane, from the top: the life, begin
and end, calls, how they ended.
"""

GLYPHS = {
    "start": "M-3-5V5L5 0Z",
    "up": "M0-5L5 4H-5Z",
    "leave": "M3-5V5L-5 0Z",
    "crash": "M-5-5L5 5M5-5L-5 5",
    "restart": "M-5-5V5M-2-5V5L6 0Z",
    "pause": "M-2.5-5V5M2.5-5V5",
    "block": "M-4-4H4V4H-4ZM-4 4L4-4",
    "resume": "M-5-5V5M-1 0H5M2-3L5 0L2 3",
    "partition": "M-6 0H-2M2 0H6M-2-5V5M2-5V5",
    "heal": "M-5 0H5M0-5V5",
    "cut": "M-5 5L5-5M-5-1H5",
    "clog": "M-5-4H5L1 0V5H-1V0Z",
    "slow disk": "M-5-5H5V5H-5ZM-2-5V-1H2V-5",
    "calm": "M-6 2Q-3-4 0 0T6-2",
    "wrong": "M0-7L7 6H-7ZM0-2.5V2M0 3.6V4.6",
    "call": "M0-2V2",
    "ok": "M0-2V2",
    "failed": "M-2.5-2.5L2.5 2.5M2.5-2.5L-2.5 2.5",
    "unknown": "M-2.5 0A2.5 2.5 0 1 1 2.5 0A2.5 2.5 0 1 1-2.5 0",
    "begin": "M-2-2.5V2.5L2.5 0Z",
    "end": "M-2-2H2V2H-2Z",
    "note": "M-6-5H6V2H0L-3 6V2H-6Z",
    "": "M0-5L5 0L0 5L-5 0Z",
}
"""The shape of each kind around its centre; "" is for kinds that this page does not know. Colours
only repeat what shapes say.
"""

HEIGHTS = {"begin": 25, "end": 25, "call": 31, "ok": 36, "failed": 39, "unknown": 39}
"""How far below the top of its lane a mark stands; all others stand on the life, at 12."""

_STATIC = resources.files("runtime.simulation") / "static"

STYLE = (_STATIC / "page.css").read_text("utf-8")

SCRIPT = (_STATIC / "page.js").read_text("utf-8")


class Stretch(NamedTuple):
    """A period, from the event that began it to the one that ended it; `last` is None if the run
    ended first.
    """

    first: TraceEvent
    last: TraceEvent | None
    end: float


def page(report: Report) -> str:
    """Return the whole report as one HTML page. The same report gives the same page. Texts and
    names in it are escaped.
    """
    events = sorted(report.events, key=lambda event: event.at)
    # Only this script may run: a second protection beside the escaping, and a guarantee that
    # nothing is fetched.
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Seed {report.seed}: {'all holds' if report.holds else 'WRONG'}</title>",
            f"<style>{STYLE}</style>\n</head>\n<body>",
            *_summary(report, events),
            *_time_line(report, events),
            *_facts_of_run(report, events),
            *_folded(f"{_count(len(events), 'event')}, one by one", _table(events)),
            f"<script>{SCRIPT}</script>\n</body>\n</html>\n",
        ]
    )


def _text(value: object, longest: int | None = None) -> str:
    """Escape text for HTML, also in a quoted attribute. Characters that no page may contain become
    a visible replacement character.
    """
    text = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", "\ufffd", str(value))
    if longest is not None and len(text) > longest:
        text = text[: longest - 1] + "…"
    return html.escape(text)


def _count(number: int, one: str, many: str | None = None) -> str:
    """`1 node`, `20,000 events`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    """Return names above values, side by side. Both are HTML already."""
    return (
        "<dl>"
        + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
        + "</dl>"
    )


def _summary(report: Report, events: Sequence[TraceEvent]) -> Iterable[str]:
    """Return everything above the time line: the outcome, then the errors, the first one first."""
    wrong = report.wrong
    if wrong:
        checks = _count(len(report.check_results), "check")
        state, word = f"✘ WRONG: {len(wrong)} of {checks}", "bad"
    else:
        state, word = (
            "✔ all holds" if report.check_results else "✔ all holds, but nothing was checked",
            "good",
        )
    yield (
        f'<header><h1>Seed <code>{report.seed}</code></h1><span class="state '
        f'{word}">{state}</span></header>'
    )
    marks = [event for event in events if event.kind == "wrong"]
    if marks:
        first = marks[0]
        yield (
            f'<p class="first"><strong class="bad">✘ first at {first.at:.3f} s</strong> '
            f"{_text(first.text, LONGEST_TEXT)}"
            + (f' <span class="dim">and {len(marks) - 1:,} more</span>' if len(marks) > 1 else "")
            + "</p>"
        )
    if wrong:
        yield f'<ul class="results">{"".join(map(_result, wrong))}</ul>'
    if not report.check_results:
        yield '<p class="dim">No checker looked at this run.</p>'


def _folded(title: str, lines: Iterable[str]) -> Iterable[str]:
    """A part of the page that is shown when it is opened. `title` is HTML already."""
    yield f"<details><summary>{title}</summary>"
    yield from lines
    yield "</details>"


def _facts_of_run(report: Report, events: Sequence[TraceEvent]) -> Iterable[str]:
    """What stands below the time line, folded."""
    holding = [result for result in report.check_results if result.holds]
    if holding:
        results = f'<ul class="results">{"".join(map(_result, holding))}</ul>'
        yield from _folded(f"{_count(len(holding), 'check')} that hold", [results])
    marks = sum(event.kind == "wrong" for event in events)
    facts = [
        ("virtual time", f"{report.seconds:,.3f} s"),
        ("real time", f"{report.took:,.3f} s"),
        ("nodes", f"{len(report.nodes):,}"),
        ("events", f"{len(events):,}"),
        ("trace hash", f"<code>{_text(report.trace_hash) or 'none'}</code>"),
    ]
    if marks:
        facts.insert(4, ("of them wrong", f'<span class="bad">✘ {marks:,}</span>'))
    yield from _folded("The run", [_facts(facts)])
    total = sum(report.calls.values())
    shares = [
        (_text(name), f'{count:,} <span class="dim">({count / (total or 1):.1%})</span>')
        for name, count in report.calls.items()
    ]
    calls = (
        _facts([*shares, ("together", f"{total:,}")]) if total else '<p class="dim">No calls.</p>'
    )
    yield from _folded("Calls by outcome", [calls])
    faults = [(_text(name), f"{strength:.6g}") for name, strength in report.faults.items()]
    drawn = _facts(faults) if faults else '<p class="dim">None.</p>'
    yield from _folded("Faults drawn, and seconds between two of a kind", [drawn])


def _result(result: CheckResult) -> str:
    """Return one check result in full."""
    if result.holds:
        return (
            '<li><strong class="good">✔ holds</strong> '
            f"<strong>{_text(result.name)}</strong><p>{_text(result.text)}</p></li>"
        )
    return (
        '<li class="wrong"><strong class="bad">✘ WRONG '
        # A long text scrolls, also by keyboard: the time line stays in sight.
        f'{_text(result.name)}</strong><p tabindex="0">{_text(result.text)}</p></li>'
    )


def _lives(events: Iterable[TraceEvent], end: float) -> list[Stretch]:
    """Return the lives of processes. A restart without a crash before it ends one life and begins
    the next.
    """
    return _stretches(events, end, ("start", "restart", "up"), ("crash", "leave", "restart"))


def _pauses(events: Iterable[TraceEvent], end: float) -> list[Stretch]:
    """Return the pauses of processes. The end of a process ends its pause."""
    return _stretches(events, end, ("pause", "block"), ("resume", "crash", "leave", "restart"))


def _stretches(
    events: Iterable[TraceEvent], end: float, begins: Sequence[str], ends: Sequence[str]
) -> list[Stretch]:
    """Return one period at a time on each node, in the order of their ends."""
    opened: dict[str, TraceEvent] = {}
    found = []
    for event in events:
        if event.kind in ends and (first := opened.pop(event.node, None)):
            found.append(Stretch(first, event, event.at))
        if event.kind in begins:
            opened.setdefault(event.node, event)
    return [*found, *(Stretch(first, None, end) for first in opened.values())]


def _bands(events: Iterable[TraceEvent], end: float) -> list[Stretch]:
    """Return partitions and clogs, each until the heal with the same node and text. A heal without
    a text ends all on its node.
    """
    opened: list[TraceEvent] = []
    found = []
    for event in events:
        if event.kind in ("partition", "clog"):
            opened.append(event)
        elif event.kind == "heal":
            healed = [
                first
                for first in opened
                if first.node == event.node and event.text in ("", first.text)
            ]
            opened = [first for first in opened if first not in healed]
            found += [Stretch(first, event, event.at) for first in healed]
    return [*found, *(Stretch(first, None, end) for first in opened)]


def _thinned(
    events: Sequence[TraceEvent], most: int, end: float
) -> tuple[list[list[TraceEvent]], float]:
    """Groups of the same node and kind, each to be one mark, and how long a group may last: 0.0 if
    every event has its own.
    """
    if len(events) <= most:
        return [[event] for event in events], 0.0
    groups: dict[tuple[str, str, int], list[TraceEvent]] = {}
    slots = 4000
    while slots == 4000 or (len(groups) > most and slots > 1):
        slots //= 2
        groups = {}
        for event in events:
            groups.setdefault((event.node, event.kind, int(event.at / end * slots)), []).append(
                event
            )
    return list(groups.values()), end / slots


class _Chart:
    """Where things stand on the time line, and what had to be left off."""

    def __init__(self, report: Report, events: Sequence[TraceEvent]) -> None:
        self.events = events
        # An empty run still has a time line; its length does not matter.
        self.end = max([report.seconds, *(event.at for event in events)]) or 1.0
        self.nodes = list(dict.fromkeys(["", *report.nodes, *(event.node for event in events)]))
        self.tops = {node: HEAD + LANE * number for number, node in enumerate(self.nodes)}
        self.height = HEAD + LANE * len(self.nodes)
        self.notes: list[str] = []

    def x(self, at: float) -> str:
        """Return a time as a share of the width."""
        return f"{min(max(at / self.end, 0.0), 1.0) * 100:.3f}".rstrip("0").rstrip(".") + "%"

    def width(self, stretch: Stretch) -> str:
        """Return a duration as a share of the width. One that is too short to be seen is drawn
        wider.
        """
        return f"{max(stretch.end - stretch.first.at, self.end / 2000) / self.end * 100:.3f}%"

    def longest(self, stretches: list[Stretch], most: int, what: str) -> list[Stretch]:
        """Return the longest ones, with a note on the page if some are left off."""
        if len(stretches) > most:
            self.notes.append(f"Of {len(stretches):,} {what}, the {most:,} longest are drawn.")
            stretches = sorted(stretches, key=lambda stretch: stretch.first.at - stretch.end)[:most]
        return sorted(stretches, key=lambda stretch: stretch.first.at)

    def title(self, stretch: Stretch) -> str:
        """Return the tooltip of a period."""
        first, last = stretch.first, stretch.last
        until = f"{last.kind} at {last.at:.3f} s" if last else "the end of the run"
        where = (
            f"{first.node or 'network'}: "
            if first.node or first.kind not in ("partition", "clog")
            else ""
        )
        said = (
            f"{where}{first.kind} at {first.at:.3f} s until {until} "
            f"({stretch.end - first.at:.3f} s) {first.text}"
        )
        return f"<title>{_text(said.strip(), LONGEST_TOOLTIP)}</title>"

    def mark(self, group: Sequence[TraceEvent], top: int | None = None) -> str:
        """Return one mark for one event, or for several of the same kind and node."""
        first = group[0]
        said = f"{first.at:.3f} s {first.node or 'network'}: {first.kind} {first.text}".strip()
        if len(group) > 1:
            said = (
                f"{len(group):,} times {first.kind}, {first.at:.3f} to {group[-1].at:.3f} s, "
                f"first: {said}"
            )
        kind = first.kind if first.kind in GLYPHS else ""
        y = top if top is not None else self.tops[first.node] + HEIGHTS.get(kind, 12)
        title = f"<title>{_text(said, LONGEST_TOOLTIP)}</title>"
        return (
            f'<use class="{_class(kind)}" href="#{_name(kind)}" x="{self.x(first.at)}" '
            f'y="{y}">{title}</use>'
        )

    def bands(self) -> Iterable[str]:
        """Partitions and clogs, over all lanes. The name stands above as far as it fits: the inner
        image cuts it.
        """
        for stretch in self.longest(
            _bands(self.events, self.end), MOST_BANDS, "partitions and clogs"
        ):
            x, width, kind = self.x(stretch.first.at), self.width(stretch), stretch.first.kind
            yield (
                f'<rect class="band {kind}" x="{x}" y="18" width="{width}" '
                f'height="{self.height - 18}">{self.title(stretch)}</rect>'
            )
            if float(width[:-1]) < NAMED_SHARE:
                continue
            yield (
                f'<svg x="{x}" y="18" width="{width}" height="14" style="overflow:hidden"><text '
                f'x="3" y="11">{kind}</text></svg>'
            )

    def bars(self) -> Iterable[str]:
        """Lives, and pauses over them."""
        for stretches, what, name in ((_lives, "lives", "life"), (_pauses, "pauses", "paused")):
            for stretch in self.longest(
                stretches(self.events, self.end), MOST_BARS, f"{what} of processes"
            ):
                place = (
                    f'x="{self.x(stretch.first.at)}" y="{self.tops[stretch.first.node] + 5}" '
                    f'width="{self.width(stretch)}" height="14"'
                )
                yield f'<rect class="{name}" {place}>{self.title(stretch)}</rect>'

    def marks(self) -> Iterable[str]:
        """Draw all events of one instant: small ones first, so that nothing large is hidden, and
        errors on top.
        """
        small = [event for event in self.events if event.kind in SMALL_KINDS]
        large = [
            event for event in self.events if event.kind not in (*SMALL_KINDS, "calm", "wrong")
        ]
        for chosen, most, what in (
            (small, MOST_SMALL, "calls, begins and ends of actors"),
            (large, MOST_MARKS, "other events"),
        ):
            groups, slot = _thinned(chosen, most, self.end)
            if slot:
                one = (
                    f"Each mark stands for all of one kind on one node within {slot:.3g} s, and "
                    "says how many."
                )
                self.notes.append(
                    f"{len(chosen):,} {what} are drawn as {_count(len(groups), 'mark')}. {one}"
                )
            yield from map(self.mark, groups)
        for calm in [event for event in self.events if event.kind == "calm"][:MOST_WRONG]:
            x, anchor, shift = (
                self.x(calm.at),
                "end" if calm.at > self.end * 0.9 else "start",
                -5 if calm.at > self.end * 0.9 else 5,
            )
            title = f"<title>{_text(f'{calm.at:.3f} s calm {calm.text}', LONGEST_TOOLTIP)}</title>"
            yield f'<line class="calm" x1="{x}" x2="{x}" y1="32" y2="{self.height}">{title}</line>'
            yield (
                f'<svg x="{x}"><text class="calm" x="{shift}" y="46" '
                f'text-anchor="{anchor}">calm</text></svg>'
            )
        groups, slot = _thinned(
            [event for event in self.events if event.kind == "wrong"],
            MOST_WRONG,
            self.end,
        )
        if slot:
            self.notes.append(f"What is wrong is drawn once for each node and {slot:.3g} s.")
        for group in groups:
            x = self.x(group[0].at)
            yield (
                f'<line class="wrong" x1="{x}" x2="{x}" y1="46" '
                f'y2="{self.height}"/>{self.mark(group, 41)}'
            )
            yield self.mark(group)

    def grid(self) -> Iterable[str]:
        """The lanes, and the seconds at round numbers."""
        for top in list(self.tops.values())[::2]:
            yield f'<rect class="lane" x="0" y="{top}" width="100%" height="{LANE}"/>'
        power = 10.0 ** (len(f"{self.end:.0f}") - 8)
        step = next(
            power * 10**up * by
            for up in range(9)
            for by in (1, 2, 5)
            if self.end / (power * 10**up * by) <= 10
        )
        for number in range(int(self.end / step + 1e-9) + 1):
            x = self.x(number * step)
            anchor = "start" if number == 0 else "end" if x == "100%" else "middle"
            yield f'<line class="grid" x1="{x}" x2="{x}" y1="16" y2="{self.height}"/>'
            yield f'<text x="{x}" y="12" text-anchor="{anchor}">{number * step:g} s</text>'


def _name(kind: str) -> str:
    """The name of the shape of a kind that this page knows."""
    return f"g-{kind.replace(' ', '-') or 'other'}"


def _class(kind: str) -> str:
    """The style of the mark of a kind that this page knows."""
    return f"m {kind.replace(' ', '-') or 'other'}"


def _time_line(report: Report, events: Sequence[TraceEvent]) -> Iterable[str]:
    """The lanes with their names, the key to the shapes, and what was left off."""
    chart = _Chart(report, events)
    shapes = "".join(f'<path id="{_name(kind)}" d="{shape}"/>' for kind, shape in GLYPHS.items())
    drawn = "\n".join([*chart.grid(), *chart.bands(), *chart.bars(), *chart.marks()])
    present = {event.kind if event.kind in GLYPHS else "" for event in events}
    yield "<h2>Time line</h2>"
    yield (
        '<div class="tools script" hidden><button id="out" type="button">&minus; narrower</button>'
    )
    yield '<button id="in" type="button">+ wider</button><span id="now" class="dim"></span></div>'
    yield from (f"<p>{note}</p>" for note in chart.notes)
    names = "".join(
        f'<li title="{_text(node or "network")}">{_text(node or "network")}</li>'
        for node in chart.nodes
    )
    yield f'<div class="line"><ol class="names">{names}</ol><div class="scroll">'
    yield (
        f'<svg id="line" data-end="{chart.end}" width="100%" height="{chart.height + 4}" '
        f'role="img" aria-label="Time line"><defs>{shapes}'
    )
    yield (
        '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)">'
    )
    yield '<line class="hatch" x1="1" y1="0" x2="1" y2="6"/></pattern>'
    yield (
        '<pattern id="slant" width="12" height="12" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(-45)">'
    )
    yield '<line class="slant" x1="1" y1="0" x2="1" y2="12"/></pattern>'
    yield (
        '<pattern id="dots" width="10" height="10" patternUnits="userSpaceOnUse"><rect '
        'class="dots" width="10" height="10"/>'
    )
    yield (
        f'<circle class="dot" cx="3" cy="3" r="1"/></pattern></defs>\n{drawn}'
        f'<rect id="future" class="future" x="100%" y="16" width="0" height="{chart.height}"/>'
        "</svg></div></div>"
    )
    # What a reader scrubs through: what lies in the future of the slider is veiled, and the last
    # events before it are listed.
    yield (
        '<div class="script" hidden><label class="scrub">Replay <input id="at" type="range" '
        'min="0" max="1000" value="1000"><output id="when"></output></label>'
        '<ol id="until" class="until"></ol></div>'
    )
    yield '<ul class="key">'
    for kind in GLYPHS:
        if kind in present:
            shape = (
                '<svg width="16" height="16" viewBox="-8 -8 16 16"><use '
                f'class="{_class(kind)}" href="#{_name(kind)}"/></svg>'
            )
            row = {"call": " (upper row)", "ok": " (lower row)"}.get(kind, "")
            yield f"<li>{shape} {kind or 'other'}{row}</li>"
    yield "</ul>"
    yield (
        '<p class="dim">Bar: a process lives. Hatched bar: it is paused. Dotted band: '
        "partition. Slanted band: clog.</p>"
    )


def _row(event: TraceEvent) -> str:
    """One row of the table; calls and what is wrong have classes."""
    style = (
        ' class="c"' if event.kind in CALL_KINDS else ' class="w"' if event.kind == "wrong" else ""
    )
    cells = (
        f"{event.at:.4f}",
        _text(event.node),
        _text(event.kind),
        _text(event.text, LONGEST_TEXT),
    )
    return f"<tr{style}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _table(events: Sequence[TraceEvent]) -> Iterable[str]:
    """Return the table of all events in order. If there are too many for a page, calls that ended
    well are left off first.
    """
    ranks = {"wrong": 0, "failed": 2, "unknown": 2, "call": 3, "ok": 3}
    rows: dict[int, str] = {}
    left = MOST_TABLE_BYTES
    for number in sorted(range(len(events)), key=lambda number: ranks.get(events[number].kind, 1)):
        row = _row(events[number])
        left -= len(row.encode())
        if left < 0:
            break
        rows[number] = row
    calls = sum(events[number].kind in CALL_KINDS for number in rows)
    if len(rows) < len(events):
        missing = _count(len(events) - len(rows), "event")
        yield (
            f"<p><strong>{missing} left off</strong>, or this page would be too large: calls "
            "that ended well first, the latest first.</p>"
        )
    yield (
        '<p class="tools script" hidden><label>Filter, all words: <input id="filter" '
        'type="search" placeholder="n1 crash"></label>'
    )
    yield f'<span id="shown" class="dim">{len(rows) - calls} of {len(rows)} rows shown</span></p>'
    yield (
        '<input id="calls" type="checkbox"><label for="calls"> show the '
        f"{_count(calls, 'event')} of calls also</label>"
    )
    yield (
        '<table id="events"><thead><tr><th>time, '
        "s</th><th>node</th><th>kind</th><th>text</th></tr></thead><tbody>"
    )
    yield from (rows[number] for number in sorted(rows))
    yield "</tbody></table>"
