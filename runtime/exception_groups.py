"""Exceptions that a nursery has wrapped, as whoever catches them wants them."""

from __future__ import annotations


def unwrap(error: BaseException) -> BaseException:
    """The exception itself where groups contain just one; the group where it tells of several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
