"""Errors that are kept until they are raised somewhere else."""

from __future__ import annotations

import gc
import weakref

import pytest

from runtime.error_to_raise import ErrorToRaise


class Large:
    """What a frame refers to."""


def raise_kept(kept: ErrorToRaise, found: list[weakref.ref[Large]]) -> None:
    large = Large()
    found.append(weakref.ref(large))
    kept.raise_it()


def test_an_error_is_raised_once() -> None:
    error = ValueError("once")
    kept = ErrorToRaise(error)
    assert kept.is_of(error)
    with pytest.raises(ValueError, match="once") as caught:
        kept.raise_it()
    assert caught.value is error
    assert not kept.is_of(error)
    kept.raise_it()


def test_what_the_frames_refer_to_is_free_as_soon_as_the_error_is_dropped() -> None:
    found: list[weakref.ref[Large]] = []
    kept = ErrorToRaise(ValueError("once"))
    gc.collect()
    gc.disable()
    try:
        try:
            raise_kept(kept, found)
        except ValueError:
            assert found[0]() is not None
        assert found[0]() is None
    finally:
        gc.enable()
