"""The answers of members to the batches of a `map`: checked, and turned into an outcome for each
item. An outcome that this process cannot build is that of its item alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from actors.class_names import is_one_of
from actors.errors import CallError, DecodeError, ProtocolError, ReplyDecodeError, ReplyEncodeError
from actors.identifiers import ActorId
from runtime.calls.error_codec import RAISED as RAISED_CODE
from runtime.calls.error_codec import CallPlace, Plain, rebuild, without_values
from runtime.hosting.running_batch import (
    ENCODED,
    NOT_STARTED,
    RAISED,
    REFUSED,
    RETURNED,
    UNSENDABLE,
)
from runtime.pools.held_items import MapItem
from runtime.pools.weights import total_weight
from runtime.wire.codec import Codec

_PAIR_TYPES = frozenset({list, tuple})
"""Types in which members report on an item: members of earlier versions send tuples."""


class AnswerReader:
    """Reads the answers to the batches of one map. `method`: its name."""

    def __init__(self, codec: Codec, method: str) -> None:
        self._codec = codec
        self._method = method

    def read(
        self, answer: object, items: Sequence[MapItem], member: ActorId, node: str
    ) -> tuple[float, list[tuple[int, object]], int]:
        """Return the seconds that a batch took, and for each item a code with the value, or with
        the error that it has ended with; and the weight of the values. `member`: it has answered,
        on `node`. Raises ProtocolError for a malformed answer.
        """
        seconds, codes, values = _checked(answer, len(items))
        size = total_weight(values)
        if not any(codes):
            return seconds, list(zip(codes, values, strict=True)), size
        place = CallPlace(member.name, self._method, node, member.epoch)
        outcomes = [
            (code, value) if code == RETURNED else self._outcome(code, value, item.index, place)
            for code, value, item in zip(codes, values, items, strict=True)
        ]
        return seconds, outcomes, size

    def _outcome(
        self, code: int, value: object, index: int, place: CallPlace
    ) -> tuple[int, object]:
        if code == ENCODED and type(value) is bytes:
            encoded = value
            try:
                code, value = _pair(self._codec.decode(encoded))
            except DecodeError as error:
                return self._unreadable(encoded, error, index, place)
        if code in (RETURNED, NOT_STARTED):
            return code, value
        if code == RAISED:
            return RAISED, rebuild(RAISED_CODE, value, place, self._codec.find_class)
        if code == REFUSED:
            is_pair = is_one_of(type(value), _PAIR_TYPES) and len(cast("list[object]", value)) == 2
            kind, plain = cast("list[object]", value) if is_pair else (None, None)
            return REFUSED, rebuild(kind, plain, place, self._codec.find_class)
        if code == UNSENDABLE:
            text = f"its result cannot be sent: {value}"
            return UNSENDABLE, _lost(ReplyEncodeError, text, index, place)
        raise ProtocolError(f"a member answers an item with an outcome of kind {code}")

    def _unreadable(
        self, encoded: bytes, error: DecodeError, index: int, place: CallPlace
    ) -> tuple[int, object]:
        """The outcome in `encoded`, something in which cannot be built here: the error as texts, if
        the method has raised one.
        """
        code, plain = _without_objects(self._codec, encoded)
        if code == RAISED and type(plain) is dict:
            texts = without_values(cast("Plain", plain), str(error))
            return RAISED, rebuild(RAISED_CODE, texts, place, self._codec.find_class)
        text = f"its result cannot be read here: {error}"
        return UNSENDABLE, _lost(ReplyDecodeError, text, index, place)


def _without_objects(codec: Codec, encoded: bytes) -> tuple[int, object]:
    """Return the code and the value of an outcome as lists, maps, texts and numbers alone."""
    try:
        return _pair(codec.skim(encoded, (), lambda path, fields: None))
    except ProtocolError:
        # Without the objects, some keys of a dict look alike.
        return UNSENDABLE, None


def _lost(kind: type[CallError], why: str, index: int, place: CallPlace) -> CallError:
    return kind(
        f"{place.actor}.{place.method} ran for item {index}, but {why}",
        actor=place.actor,
        method=place.method,
        node=place.node,
        epoch=place.epoch,
    )


def _checked(answer: object, count: int) -> tuple[float, list[int], list[object]]:
    """Check a member's answer to a batch of `count` items, and return the seconds that it took, and
    the code and the value of each item. Raises ProtocolError for a malformed answer.
    """
    if (
        isinstance(answer, list | tuple)
        and len(cast("list[object]", answer)) == 2
        and isinstance(answer[0], int | float)
        and isinstance(answer[1], list)
        and len(cast("list[object]", answer[1])) == count
    ):
        outcomes = cast("list[list[object]]", answer[1])
        if _PAIR_TYPES.issuperset(map(type, outcomes)) and {2}.issuperset(map(len, outcomes)):
            codes = [outcome[0] for outcome in outcomes]
            if {int}.issuperset(map(type, codes)):
                values = [outcome[1] for outcome in outcomes]
                return float(answer[0]), cast("list[int]", codes), values
    raise ProtocolError(f"a member answers {count} items with what is not a list of outcomes")


def _pair(value: object) -> tuple[int, object]:
    """Return the code and the value of an outcome. Raises ProtocolError."""
    # Not `in`: that asks the class for its hash, and a metaclass of users may raise.
    if is_one_of(type(value), _PAIR_TYPES):
        code, *values = cast("list[object]", value)
        if type(code) is int and len(values) == 1:
            return code, values[0]
    raise ProtocolError("a member answers an item with what is not an outcome")
