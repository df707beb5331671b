"""Every example of docs/reference/sendable_types.md, sent to an actor on another node and back."""

from __future__ import annotations

import ast
import enum
import math
import os
import re
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import numpy
import pydantic
import pytest
from packaging.version import Version

from actors import Actor, message, method, register_converter
from actors.errors import EncodeError
from runtime.testing import VirtualCluster
from runtime.wire.codec import Codec
from tests.house import ROOT
from tests.wire.test_codec import alike

PAGE = ROOT / "docs" / "reference" / "sendable_types.md"


# The classes of the page.
class Colour(enum.Enum):
    RED = "red"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@message
@attrs.frozen
class Point:
    x: int
    y: int = 0


@message
@dataclass
class Order:
    item: str
    amount: int


@message
class OutOfStockError(Exception):
    pass


@attrs.frozen
class Unmarked:
    x: int


@attrs.frozen
class Point3(Point):
    z: int = 0


@message
class Item(pydantic.BaseModel):
    name: str


class UnmarkedItem(pydantic.BaseModel):
    name: str


class Tags(list[str]):
    pass


register_converter(Version, to_plain=str, from_plain=Version)

Coordinates = namedtuple("Coordinates", "x y")


class Berlin(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, moment: datetime | None) -> timedelta:
        return timedelta(0)


# Until here.


class Echo(Actor):
    @method
    async def back(self, value: object) -> object:
        return value


def table(heading: str) -> list[list[str]]:
    """The rows of the table below a heading; their cells as Markdown."""
    text = PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows[1:]]


def example(cell: str, names: dict[str, object]) -> Any:
    """What the first code of a cell evaluates to."""
    found = re.match(r"`(.+?)`", cell)
    assert found, f"no code in {cell!r}"
    return eval(found[1].replace(r"\|", "|"), {**globals(), **names})


def same(arrived: object, sent: object) -> bool:
    if isinstance(sent, numpy.ndarray):
        assert isinstance(arrived, numpy.ndarray)
        return arrived.dtype == sent.dtype and bool((arrived == sent).all())
    if isinstance(sent, Exception):
        return type(arrived) is type(sent) and arrived.args == sent.args
    if isinstance(sent, list):
        assert isinstance(arrived, list)
        return len(arrived) == len(sent) and all(map(same, arrived, sent))
    return alike(arrived, sent)


async def test_what_the_page_calls_sendable_arrives_as_it_says(cluster: VirtualCluster) -> None:
    echo = await cluster.options(name="echo", on="worker-1").spawn(Echo)
    near = await cluster.options(on="driver").spawn(Echo)
    names = {"echo": echo, "reference": await echo.back.remote(5)}
    as_they_are = table("As they are")
    changed = table("With a change")
    assert len(as_they_are) >= 34
    assert len(changed) >= 4
    for _, cell, *arrives in [*as_they_are, *changed]:
        sent = example(cell, names)
        expected = example(arrives[0], names) if arrives else sent
        for actor in (echo, near):
            assert same(await actor.back(sent), expected), f"{cell} by {actor}"


async def test_what_the_page_calls_refused_is_refused_and_its_replacement_is_not(
    cluster: VirtualCluster,
) -> None:
    echo = await cluster.options(on="worker-1").spawn(Echo)
    rows = table("Refused, and what to send instead")
    assert len(rows) >= 12
    for _, cell, instead in rows:
        with pytest.raises(EncodeError, match="was not called: argument value"):
            await echo.back(example(cell, {}))
        sent = example(instead, {})
        assert same(await echo.back(sent), sent), instead


class Timestamp(datetime):
    """As pandas has it, which need not be installed."""

    __module__ = "pandas._libs.tslibs.timestamps"


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        (Timestamp(2026, 1, 2), "send its .to_pydatetime()"),
        (PureWindowsPath("x"), "send str(...) of it"),
        (UnmarkedItem(name="tea"), "mark the model with @message, or send its .model_dump()"),
        (len, "send its name"),
        ({}.keys(), "send list(...) of it"),
        (map(str, ()), "send list(...) of it"),
        (re.compile("x"), "send its .pattern"),
        (same, "send its name"),
        ((each for each in "abc"), "send list(...) of it"),
    ],
    ids=lambda case: type(case).__name__,
)
def test_the_error_says_what_to_send_instead(value: object, instead: str) -> None:
    with pytest.raises(EncodeError, match=re.escape(f"cannot be sent; {instead}")):
        Codec(sentinel=b"sentinel").encode(value, [])


def test_each_example_of_the_page_is_an_expression() -> None:
    """A cell whose code is cut off by a bar would test something else than what readers see."""
    for heading in ("As they are", "With a change", "Refused, and what to send instead"):
        for _, *cells in table(heading):
            for cell in cells:
                for code in re.findall(r"`(.+?)`", cell):
                    if not code.startswith("@"):
                        ast.parse(code.replace(r"\|", "|"), mode="eval")


NAMES: tuple[object, ...] = (
    *(Counter, Decimal, Fraction, OrderedDict, Path, PurePosixPath, UUID, ZoneInfo, date),
    *(defaultdict, deque, ip_address, ip_interface, ip_network, math, os, time, timezone),
)
"""Used by the examples only."""
