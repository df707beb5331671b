"""What cannot be built is found in the whole again, or nothing is said of its place."""

from __future__ import annotations

import contextlib
import gc
from itertools import count
from typing import Any

import attrs
import cbor2
import pytest

from actors import register_converter
from actors.errors import DecodeError, ProtocolError
from actors.messages import message
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer

CODEC = Codec(sentinel=b"sentinel", segment_threshold=64)


@message
@attrs.frozen
class Lost:
    number: int


LOST = [Lost]
del Lost


@message
@attrs.frozen
class Key:
    number: int

    def __str__(self) -> str:
        raise SystemExit("a key is not to be written")


class Fickle:
    """Fails at each attempt to build one, for another reason."""


REASONS = count()


def fickle_of(data: object) -> Fickle:
    raise ValueError(f"reason {next(REASONS)}")


register_converter(Fickle, lambda fickle: None, fickle_of)


def lost() -> Any:
    """A new one."""
    return LOST[0](1)


def place_in(value: object) -> tuple[int | str, ...] | None:
    """Where the decoder finds what it cannot build."""
    segments: list[Buffer] = []
    control = CODEC.encode(value, segments)
    arrived = [bytes(segment) for segment in segments]
    with pytest.raises(DecodeError) as caught:
        CODEC.decode(control, arrived)
    found = CODEC.find_unreadable(caught.value, control, arrived)
    return None if found is None else found.steps


def test_the_first_that_cannot_be_built_is_found_by_indices_and_names() -> None:
    assert place_in([1, (2, lost()), lost()]) == (1, 1)
    assert place_in({"some": [{}], "other": lost()}) == ("other",)
    assert place_in([b"x" * 100, lost(), {Key(1)}]) == (1,)
    assert place_in(["x" * 200_000, lost()]) == (1,)
    assert place_in(lost()) == ()


def test_keys_of_users_are_not_asked_for_their_texts() -> None:
    assert place_in([{Key(1): lost()}]) is not None


def test_nothing_is_said_of_what_fails_in_another_way_the_second_time() -> None:
    assert place_in([Fickle()]) is None


def test_what_is_part_of_a_key_is_found_among_keys_and_values() -> None:
    assert place_in([{(1, lost()): 2}]) == (0, 0, 1)


@pytest.mark.parametrize(
    "control",
    [
        CODEC.encode([1, lost()], []),
        CODEC.encode([1, {lost(): 2}], []),
        cbor2.dumps([cbor2.CBORTag(77, 1)]),
        b"\x82\x01",
        b"\xff",
    ],
    ids=["a value", "a key", "a tag", "an end", "no item"],
)
def test_what_cannot_be_read_is_freed_with_its_error(control: bytes) -> None:
    """Its error is in no circle: the frames of the traceback have the bytes that a peer has sent,
    and would keep them until the cyclic collector comes.
    """
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(DecodeError, ProtocolError):
            CODEC.decode(control)
        assert gc.collect() == 0
    finally:
        gc.enable()
