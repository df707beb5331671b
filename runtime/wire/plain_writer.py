"""A walk over one value of a user, from what it is to what CBOR can express.

The walk bounds the depth, collects large buffers as segments and keeps the path to the value that
it is at. How each type is written is the matter of `runtime.wire.codec`, which gives it a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from types import NoneType
from typing import Any, cast

from cbor2 import CBORTag

from runtime.wire.frames import Buffer
from runtime.wire.tags import SEGMENT

SCALARS = frozenset({NoneType, bool, int, float, str})
"""Exact types that CBOR expresses without a tag and without a copy."""


_ROWS = frozenset({list})
"""The exact type of an item that may itself be a row of scalars."""


MAX_SEGMENTS = 128
"""The number of segments that one value may use. Further buffers are written in place, so many
arrays are slower but never refused.
"""


Step = Callable[["PlainWriter", Any, int], object]


class UnsendableError(Exception):
    """Raised within a walk. `steps` lead from the refused value outwards to the whole value.
    Becomes an EncodeError.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.steps: list[str] = []

    def at(self, step: str) -> UnsendableError:
        """Return the error with the next outer step."""
        self.steps.append(step)
        return self


class PlainWriter:
    """A walk over one value. It appends to `segments`. If `careful`, it checks each text, to find
    the one that UTF-8 cannot encode.
    """

    __slots__ = ("careful", "max_depth", "segments", "steps", "threshold")

    def __init__(
        self,
        steps: dict[type, Step],
        segments: list[Buffer],
        threshold: int,
        max_depth: int,
        careful: bool,
    ) -> None:
        self.steps = steps
        self.segments = segments
        self.threshold = threshold
        self.max_depth = max_depth
        self.careful = careful

    def write(self, value: object, depth: int) -> object:
        """Return what cbor2 is to encode for `value`, which is `depth` containers deep. Raises
        UnsendableError.
        """
        kind = type(value)
        if kind in SCALARS:
            if self.careful and kind is str:
                check_text(cast("str", value))
            return value
        if depth >= self.max_depth:
            raise UnsendableError(
                f"nests deeper than {self.max_depth} levels, or contains itself; send it flat, "
                "for example as a list of links"
            )
        return self.steps[kind](self, value, depth + 1)

    def write_all(self, items: Iterable[object], depth: int) -> list[object]:
        """Apply `write` to each item, with its index in the path of a refused value."""
        if not self.careful:
            found = items if isinstance(items, list) else list(items)
            # The list of the caller itself is handed to cbor2, uncopied. If another thread changes
            # it before cbor2 has read it, the list that is sent is the changed one; cbor2 refuses
            # objects all the same, because it knows none of the types of users.
            if SCALARS.issuperset(map(type, found)):
                return cast("list[object]", found)
            if (
                depth < self.max_depth
                and _ROWS.issuperset(map(type, found))
                and SCALARS.issuperset(map(type, chain.from_iterable(cast("Any", found))))
            ):
                # Batches of items are such lists of lists, with thousands of them.
                return cast("list[object]", found)
        written: list[object] = []
        try:
            for item in items:
                written.append(self.write(item, depth))
        except UnsendableError as error:
            raise error.at(f"[{len(written)}]") from None
        return written

    def write_fields(self, fields: Mapping[str, object], depth: int) -> dict[str, object]:
        """Apply `write` to each value of a map whose keys are texts, with `.name` in the path of a
        refused value.
        """
        written: dict[str, object] = {}
        for name, value in fields.items():
            try:
                if self.careful:
                    check_text(name)
                written[name] = self.write(value, depth)
            except UnsendableError as error:
                raise error.at(f".{name}") from None
        return written

    def raw(self, data: Buffer) -> object:
        """Encode bytes: in place while they are small, as a segment from the threshold on."""
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if size < self.threshold or len(self.segments) >= MAX_SEGMENTS:
            # A copy: what is encoded in place may not change until cbor2 has read it.
            return bytes(data)
        if isinstance(data, memoryview):
            data = data.cast("B") if data.c_contiguous else bytes(data)
        self.segments.append(data)
        return CBORTag(SEGMENT, len(self.segments) - 1)


def check_text(text: str) -> None:
    """Raise UnsendableError for a text that UTF-8 cannot encode."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnsendableError(
            f"is a text with a lone surrogate ({text[error.start]!a} at {error.start}), which "
            "UTF-8 cannot encode; send it as bytes"
        ) from None
