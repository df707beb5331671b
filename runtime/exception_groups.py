"""Exceptions that a nursery has wrapped, as whoever catches them wants them."""

from __future__ import annotations

from typing import Any, Final, NoReturn, cast

from runtime.user_errors import members_of

# The interpreter's own places, whatever the class of an exception says.
_CHAIN: Final = tuple(cast("Any", vars(BaseException)[name]) for name in ("__cause__", "__context__", "__suppress_context__"))


def unwrap(error: BaseException) -> BaseException:
    """The exception itself where groups contain just one; the group where it tells of several."""
    while len(members := members_of(error)) == 1:
        error = members[0]
    return error


def raise_alone(group: BaseException) -> NoReturn:
    """Raise `unwrap(group)` with the cause and the context that it came with, which `raise ... from None` would take from it.

    That the group was caught is no part of its history: it is left out of it.
    """
    error = unwrap(group)
    chain = [place.__get__(error) for place in _CHAIN]
    try:
        raise error
    finally:
        # Here, and not before: the raise has put the group in the place of the context, and setting a cause suppresses the context.
        for place, value in zip(_CHAIN, chain, strict=True):
            place.__set__(error, value)
        # This frame is in its traceback from now on, and would keep it alive.
        del error, group, chain


def first(error: BaseException) -> BaseException:
    """The first exception that is no group, for those who asked one question of many side by side: any of the answers will do. What is no
    `Exception`, as KeyboardInterrupt, comes before what is one.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [first(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if not isinstance(leaf, Exception)), leaves[0])
