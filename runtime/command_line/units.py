"""Times and sizes as the commands show them to people."""

from __future__ import annotations

import math
import os
import re
from datetime import datetime
from typing import Any

import click

from actors.retry import MOST_COUNT
from runtime.command_line.locales import unreadable
from runtime.environment import SystemEnvironment

MOST = 1e9
"""The largest number that an option takes if it says no other: as seconds, 31 years."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Number(click.FloatRange):
    """A finite number in a range: `nan` is in every range otherwise, and `inf` in most. Without a
    largest number of its own it takes none above `MOST`: with 1e300 a command would never end.
    """

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails with a UsageError."""
        number = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        if self.max is None and number > MOST:
            self.fail(f"{value} is too large: {MOST:g} at most.", param, ctx)
        return super().convert(number, param, ctx)


class PathName(click.Path):
    """A path. An empty text is refused, which an unset variable of a shell gives: to the system it
    is the current directory.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Fails with a UsageError."""
        if not os.fspath(value):
            self.fail("an empty text names no file or directory.", param, ctx)
        return super().convert(value, param, ctx)


class Readable(click.types.StringParamType):
    """A text that the locale's encoding can read."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text. Fails with a UsageError."""
        text = super().convert(value, param, ctx)
        if problem := unreadable(text):
            self.fail(problem, param, ctx)
        return text


class Text(Readable):
    """A text that is not empty: an unset variable of a shell gives an empty one, which would mean
    the default, or match nothing.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text. Fails with a UsageError."""
        text = super().convert(value, param, ctx)
        if not text:
            self.fail("an empty text names nothing.", param, ctx)
        return text


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
    found = re.fullmatch(r"(\d{1,19})([KMGT]?)(iB|B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise click.UsageError(
            f"{option} takes a number of bytes such as 1000000, 512M or 2G, not {text!r}"
        )
    count = int(found[1]) << (10 * " KMGT".index(found[2].upper() or " "))
    if count > MOST_COUNT:
        raise click.UsageError(f"{option} takes at most {MOST_COUNT} bytes, not {text!r}")
    return count


def seconds_ago(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> float | None:
    """How many seconds ago `10m`, `90s` or a time is: the callback of an option. Raises
    BadParameter.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)\s*([smhd])", text.strip())
    if found is not None:
        return float(found[1]) * _UNITS[found[2]]
    try:
        moment = datetime.fromisoformat(text.strip())
        seconds = SystemEnvironment().wall_time() - moment.timestamp()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{text!r} is neither an age such as 30s, 10m, 2h or 1d, nor a time such as "
            "2026-11-23T04:30",
            context,
            parameter,
        ) from None
    return max(0.0, seconds)
