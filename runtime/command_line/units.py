"""Times and sizes as the commands show them to people."""

from __future__ import annotations

import math
import re
from typing import Any

import click


class Number(click.FloatRange):
    """A finite number in a range: `nan` is in every range otherwise, and `inf` in most."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails with a UsageError."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


def age(seconds: float) -> str:
    """For people; clocks of different hosts may differ, so it is not negative and not exact."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def size(count: int) -> str:
    """A number of bytes in the unit that fits."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while round(amount, 1) >= 1024 and len(units) > 1:
        amount /= 1024
        del units[0]
    return f"{amount:.0f} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def bytes_of(option: str, text: str) -> int:
    """What `512M` says; K, M, G and T are binary. Raises UsageError, which names the option."""
    found = re.fullmatch(r"(\d+)([KMGT]?)(iB|B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise click.UsageError(
            f"{option} takes a number of bytes such as 1000000, 512M or 2G, not {text!r}"
        )
    return int(found[1]) << (10 * " KMGT".index(found[2].upper() or " "))


def many(count: int, thing: str) -> str:
    """`1 value`, `2 values`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
