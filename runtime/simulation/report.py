"""What a simulated run leaves: plain facts, for checks, for the command line and for pages."""

from __future__ import annotations

import attrs


@attrs.frozen
class Happening:
    """Something that happened at `at`, in virtual seconds, on `node`; "" for the network or the whole cluster.

    `kind` is one word: "start", "up", "leave", "crash", "restart", "pause", "block", "resume", "partition", "heal", "cut", "clog",
    "slow disk", "calm" (the faults are over), "call", "ok", "failed", "unknown", "log" (a warning of the runtime), "note" (of a scenario),
    "wrong" (a check failed).
    """

    at: float
    node: str
    kind: str
    text: str


@attrs.frozen
class Verdict:
    """What one checker says. `text`: what it looked at, or what is wrong and where to look."""

    name: str
    holds: bool
    text: str


@attrs.frozen(kw_only=True)
class Report:
    """One run. `seconds` are virtual, `took` real ones; `faults` are those that the seed has drawn, with their strengths."""

    seed: int
    nodes: tuple[str, ...]
    seconds: float
    took: float
    trace_hash: str
    faults: dict[str, float]
    calls: dict[str, int]
    """How many calls ended in each way: "ok", "failed", "unknown", "pending"."""
    happenings: tuple[Happening, ...] = attrs.field(repr=False)
    verdicts: tuple[Verdict, ...]

    @property
    def holds(self) -> bool:
        """True if nothing is wrong."""
        return all(verdict.holds for verdict in self.verdicts)
