"""Media types of requests and answers: JSON and CBOR in, JSON and CBOR out.

JSON cannot say all that plain data may hold. An object with one key says the rest, in both
directions: `{"$bytes": base64}`, `{"$float": "nan"}` (also "inf" and "-inf"), and
`{"$int": "0x..."}` for whole numbers of more than 64 bits, which many JSON parsers would round.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Sequence
from typing import NoReturn, cast

from actors.errors import DecodeError, EncodeError
from runtime.plain_calls.plain_values import (
    MOST_CONTAINERS,
    MOST_INTEGER_BITS,
    MOST_ITEMS,
    check_items,
    check_plain,
    decoded,
    encoded_plain,
    too_many_items,
)

JSON = "application/json"
CBOR = "application/cbor"
PROBLEM_JSON = "application/problem+json"
PROBLEM_CBOR = "application/problem+cbor"
EVENTS = "text/event-stream"
JSON_LINES = "application/jsonl"

STREAMS = (JSON_LINES, "application/x-ndjson", EVENTS)
"""Media types of a stream of items; the first is what clients get that accept anything."""

PIECE = 64 * 1024
"""Bytes of JSON that are looked at in one go."""

MOST_RANGES = 32
"""In one Accept header."""

_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def body_of(data: bytes, media_type: str) -> bytes:
    """The body of a request as plain CBOR; empty if there is none. Raises DecodeError."""
    if not data:
        return b""
    if media_type == JSON:
        _check_json_items(data)
        value = _json_value(data)
    else:
        check_items(data)
        value = decoded(data)
    check_plain(value)
    try:
        return encoded_plain(value)
    except EncodeError as error:
        raise DecodeError(str(error)) from None


def answer_of(body: bytes, media_type: str) -> bytes:
    """A value, as plain CBOR, in the media type that the client wants."""
    return body if media_type == CBOR else json_of(decoded(body))


def json_of(value: object) -> bytes:
    """Plain data as one line of JSON."""
    return json.dumps(
        _sayable(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    ).encode()


def media_type_of(content_type: str) -> str:
    """The media type in a Content-Type header, without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def chosen(accept: str | None, offered: Sequence[str]) -> str | None:
    """The first of the types offered among those that an Accept header likes best; None if it takes
    none of them.
    """
    if accept is None or not accept.strip():
        return offered[0]
    best, quality = None, 0.0
    ranges = [_range(part) for part in accept.split(",")[:MOST_RANGES]]
    for one in offered:
        # The most specific range that fits a type decides about it (RFC 9110, 12.5.1).
        fitting = [
            (specificity, weight)
            for pattern, weight in ranges
            if (specificity := _specificity(pattern, one)) is not None
        ]
        weight = max(fitting)[1] if fitting else 0.0
        if weight > quality:
            best, quality = one, weight
    return best


def names_any(accept: str | None, types: Sequence[str]) -> bool:
    """True if an Accept header names one of the types itself, and not by a wildcard."""
    return any(
        pattern in types and weight > 0
        for pattern, weight in map(_range, (accept or "").split(",")[:MOST_RANGES])
    )


def _range(part: str) -> tuple[str, float]:
    pattern, *parameters = (text.strip().lower() for text in part.split(";"))
    weight = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                weight = 0.0
    return pattern, weight if 0 <= weight <= 1 else 0.0


def _specificity(pattern: str, media_type: str) -> int | None:
    if pattern == media_type:
        return 2
    if pattern == media_type.partition("/")[0] + "/*":
        return 1
    return 0 if pattern == "*/*" else None


def _check_json_items(data: bytes) -> None:
    """Like `check_items`, for JSON. An empty container may count twice."""
    if len(data) <= MOST_CONTAINERS or not _exceeds(data):
        return
    # Perhaps only by what is in strings. Without these escapes each quotation mark begins or ends
    # one.
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    containers, others, inside = 0, 0, False
    # Piece by piece, and so other threads go on meanwhile.
    for at in range(0, len(bare), PIECE):
        parts = bare[at : at + PIECE].split(b'"')
        more = _counts(b"".join(parts[inside::2]))
        containers, others = containers + more[0], others + more[1]
        if containers > MOST_CONTAINERS or containers + others > MOST_ITEMS:
            raise too_many_items()
        inside ^= len(parts) % 2 == 0


def _counts(data: bytes) -> tuple[int, int]:
    """How many containers begin in a text without strings, and how many commas and colons it has:
    as many as further values and keys.
    """
    return data.count(b"[") + data.count(b"{"), data.count(b",") + data.count(b":")


def _exceeds(data: bytes) -> bool:
    containers, others = _counts(data)
    return containers > MOST_CONTAINERS or containers + others > MOST_ITEMS


def _json_value(data: bytes) -> object:
    try:
        # To Python it may be UTF-16 or UTF-32 as well; on the network it is UTF-8 (RFC 8259).
        found: object = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
        return _meant(found)
    except RecursionError:
        raise DecodeError("this JSON nests too deeply") from None
    except (ValueError, binascii.Error) as error:
        raise DecodeError(f"this is not JSON: {error}") from None


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f'{text} is not JSON; write {{"$float": "nan"}}, "inf" or "-inf"')


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a number that a float can hold")
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _meant(value: object) -> object:
    """The value with its marks replaced by what they stand for. The outer marks first: what is
    inside of `$dict` is no mark.
    """
    if isinstance(value, list):
        return [_meant(one) for one in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, object]", value)
    if len(found) == 1 and (key := next(iter(found))).startswith("$"):
        return _marked(key, found[key])
    return {key: _meant(one) for key, one in found.items()}


def _marked(key: str, value: object) -> object:
    if key == "$bytes" and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if key == "$float" and isinstance(value, str) and value in _FLOATS:
        return _FLOATS[value]
    if key == "$int" and isinstance(value, str) and len(value) <= MOST_INTEGER_BITS // 4 + 3:
        # In base 16 alone: reading decimal digits takes time that grows with their square.
        return int(value, 16)
    if key == "$dict" and isinstance(value, dict):
        return {name: _meant(one) for name, one in cast("dict[str, object]", value).items()}
    raise ValueError(f"an object with the one key {key[:40]!r} is none of those that mark a value")


def _sayable(value: object) -> object:
    """The value in types of JSON, with marks for what JSON does not have."""
    if isinstance(value, dict):
        return {key: _sayable(one) for key, one in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_sayable(one) for one in cast("list[object]", value)]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if isinstance(value, int) and value.bit_length() > 64:
        return {"$int": hex(value)}
    return value
