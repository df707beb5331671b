"""Exceptions that a nursery has wrapped, as whoever catches them wants them."""

from __future__ import annotations

from runtime.user_errors import members_of


def unwrap(error: BaseException) -> BaseException:
    """The exception itself where groups contain just one; the group where it tells of several."""
    while len(members := members_of(error)) == 1:
        error = members[0]
    return error


def first(error: BaseException) -> BaseException:
    """The first exception that is no group, for those who asked one question of many side by side: any of the answers will do. What is no
    `Exception`, as KeyboardInterrupt, comes before what is one.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [first(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if not isinstance(leaf, Exception)), leaves[0])
