"""The oracle: what callers were told of each entry, held against what the ledgers have saved.

Pure. An entry is a number that is used once. A caller notes the outcome that it was told; at the
end the saved state of all ledgers says how often each entry was applied. The two must agree:

| told | applied |
|---|---|
| value | once: none is lost, none is doubled |
| not executed | never |
| unknown | never or once |
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import attrs

Outcome = Literal["value", "not executed", "unknown"]

ALLOWED: dict[Outcome, tuple[int, ...]] = {"value": (1,), "not executed": (0,), "unknown": (0, 1)}


@attrs.define
class Books:
    """Outcomes as told, and entries as applied.

    `surprises`: calls that ended with no allowed outcome, or with a wrong value. `leaks`: what was
    still there after all faults had ended and all calls were over. `longest`: seconds of the
    slowest call; `overrun`: seconds by which a call exceeded its own time-out.
    """

    outcomes: dict[int, Outcome] = attrs.field(factory=dict)
    applied: Counter[int] = attrs.field(factory=Counter)
    errors: Counter[str] = attrs.field(factory=Counter)
    faults: Counter[str] = attrs.field(factory=Counter)
    surprises: list[str] = attrs.field(factory=list)
    leaks: list[str] = attrs.field(factory=list)
    longest: float = 0.0
    overrun: float = 0.0
    fetched: int = 0
    seconds: float = 0.0

    def note(self, number: int, outcome: Outcome) -> None:
        """The caller of entry `number` was told its outcome."""
        assert number not in self.outcomes, f"entry {number} has two outcomes"
        self.outcomes[number] = outcome

    @property
    def lost(self) -> list[int]:
        """Entries that were acknowledged and are in no ledger."""
        return [
            number
            for number, outcome in self.outcomes.items()
            if outcome == "value" and self.applied[number] == 0
        ]

    @property
    def doubled(self) -> list[int]:
        """Entries that were applied more than once, whatever their callers were told."""
        return [number for number, times in self.applied.items() if times > 1]

    def mistakes(self) -> list[str]:
        """Everything that must not be, a sentence each."""
        found = [
            f"entry {number}: its caller was told {outcome!r}, and it was applied "
            f"{self.applied[number]} times"
            for number, outcome in self.outcomes.items()
            if self.applied[number] not in ALLOWED[outcome]
        ]
        found += [
            f"entry {number}: applied, and no caller asked for it"
            for number in self.applied
            if number not in self.outcomes
        ]
        # What explains the others comes first: only so many are printed.
        return self.leaks + self.surprises + found

    def summary(self) -> str:
        """For people, in a few lines."""
        told = Counter(self.outcomes.values())
        return (
            f"{len(self.outcomes)} entries in {self.seconds:.0f} s: {told['value']} acknowledged, "
            f"{told['not executed']} not executed, "
            f"{told['unknown']} unknown; {self.fetched} values fetched by reference\n"
            f"  faults: {dict(self.faults)}\n"
            f"  errors: {dict(self.errors)}\n"
            f"  slowest call {self.longest:.1f} s, largest overrun of a time-out "
            f"{self.overrun:.2f} s\n"
            f"  {len(self.lost)} lost, {len(self.doubled)} doubled, {len(self.leaks)} leaked, "
            f"{len(self.mistakes())} mistakes in all"
        )
