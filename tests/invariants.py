"""Tables that look through themselves: for tests that drive one step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import pytest


@contextmanager
def checked(*classes: type[Any]) -> Iterator[None]:
    """While the block runs, each public method of these classes is followed by their
    `check_invariants`, also where it raises: a step that raises leaves nothing half done.
    """
    with ExitStack() as stack:
        for cls in classes:
            inside: Counter[int] = Counter()
            for name, method in list(vars(cls).items()):
                if callable(method) and not name.startswith("_") and name != "check_invariants":
                    stack.enter_context(patch.object(cls, name, _followed(method, inside)))
        yield


def checked_in_module(*classes: type[Any]) -> Callable[[], Iterator[None]]:
    """A fixture under which all tests of a module run: give it a name there."""

    @pytest.fixture(scope="module", autouse=True)
    def look_through_tables() -> Iterator[None]:
        with checked(*classes):
            yield

    return look_through_tables


def _followed(method: Callable[..., Any], inside: Counter[int]) -> Callable[..., Any]:
    """`inside`: how many steps of each table are under way. One that is a part of another is not
    followed by anything: the table is not between two steps yet.
    """

    @wraps(method)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        inside[id(self)] += 1
        try:
            return method(self, *args, **kwargs)
        finally:
            inside[id(self)] -= 1
            if not inside[id(self)]:
                del inside[id(self)]
                self.check_invariants()

    return step
