"""From what CBOR said back to values: the content of each tag of ours, checked and built.

Each reader gets content that is decoded already and belongs to nobody else. Readers raise DecodeError for what this process cannot
build, ProtocolError (or TypeError, ValueError, for shapes that do not fit) for what no peer of ours sends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from actors.errors import DecodeError, ProtocolError
from actors.messages import MessageType, message_type
from runtime.wire.frames import Buffer
from runtime.wire.values import (
    ARRAY,
    DATE,
    DATETIME,
    DECIMAL,
    ENUM,
    FROZENSET,
    IDENTIFIER,
    MESSAGE,
    PAIRS,
    SCALAR,
    SEGMENT,
    SET,
    TIME,
    TIMEDELTA,
    TUPLE,
)

ContentReader = Callable[[Any], object]

MAX_COLLISIONS = 64
"""Keys of one dict or set that may share hashes with others. Honest data has next to none; a peer that could make thousands of integers
collide would make building the dict take the square of their number."""

_DTYPE = re.compile(r"[<>|=][biufcSUMmV]\d{1,9}(\[\d{0,9}[A-Za-zμ]{1,2}\])?")


class Segment:
    """A segment where a value refers to it; `bytes` for users, but an array is built over it as it is."""


def content_readers(take: Callable[[object], Buffer], find_class: Callable[[str], type]) -> dict[int, ContentReader]:
    """A reader for each tag. `take` hands out a segment by its index, `find_class` a class by its import path."""
    return {
        SEGMENT: lambda content: bytes(take(content)),
        ARRAY: lambda content: _array(content, take),
        SCALAR: _numpy_scalar,
        MESSAGE: lambda content: _message(content, find_class),
        ENUM: lambda content: _enum(content, find_class),
        TUPLE: lambda content: tuple(_list(content)),
        PAIRS: _pairs,
        SET: lambda content: set(_distinct(_list(content))),
        FROZENSET: lambda content: frozenset(_distinct(_list(content))),
        DATETIME: _datetime,
        DATE: date.fromisoformat,
        TIME: _time,
        TIMEDELTA: lambda content: timedelta(*_integers(content, 3)),
        DECIMAL: _decimal,
        IDENTIFIER: lambda content: UUID(bytes=content),
    }
