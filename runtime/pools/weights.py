"""How many bytes the items of a `map` and their results take, about: what bounds the items that are
held, and how many travel together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from actors.class_names import is_one_of, module_name

NUMBERS: frozenset[type] = frozenset({bool, float, int, type(None)})
"""Types whose values all weigh the same."""

_LISTS = frozenset({list, tuple})
_CONTAINERS = _LISTS | {dict}
_SEQUENCES: frozenset[type] = frozenset({bytes, bytearray, str})


def weight(value: object) -> int:
    """How many bytes a value takes, about: of large ones, which are plain texts, bytes and arrays,
    or containers of them.
    """
    kind = type(value)
    if is_one_of(kind, NUMBERS):
        return 8
    if is_one_of(kind, _SEQUENCES):
        return len(cast("bytes", value))
    if is_one_of(kind, _LISTS):
        items = cast("list[object]", value)
        return 8 * len(items) + sum(
            weight(item) for item in items[:100] if not is_one_of(type(item), _CONTAINERS)
        )
    size = getattr(value, "nbytes", 0) if module_name(kind) == "numpy" else 0
    return size if isinstance(size, int) else 0


def total_weight(values: Sequence[object]) -> int:
    """The sum of the weights of results, most of which are numbers."""
    if NUMBERS.issuperset(map(type, values)):
        return 8 * len(values)
    return sum(map(weight, values))
