"""Rows of plain values as bytes: what nodes send each other of the store, where messages would cost
many times as much. No I/O.
"""

from __future__ import annotations

from typing import Any, NoReturn

import cbor2

from runtime.user_errors import text_of
from runtime.wire.tags import BUILTIN_TAGS


def read_rows(packed: bytes, depth: int) -> list[Any]:
    """Return the list of rows that a peer has packed. `depth`: containers in containers that it may
    have, the list included. Raises ValueError or TypeError for bytes that are no such list.
    """
    try:
        rows = cbor2.loads(
            packed,
            max_depth=depth,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
            semantic_decoders=_NO_TAGS,
            tag_hook=_refuse_tag,
        )
    # Any error that bytes can cause in a decoder is the peer's fault.
    except Exception as error:
        raise ValueError(text_of(error)) from None
    if type(rows) is not list:
        raise TypeError(f"a {type(rows).__name__} instead of rows")
    return rows


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("rows have no tags")


_NO_TAGS = dict.fromkeys(BUILTIN_TAGS, _refuse_tag)
