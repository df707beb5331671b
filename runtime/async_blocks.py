"""Async context managers that say what to write where they are not used by `async with`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

from actors.errors import UnderstudyError
from runtime.user_errors import (
    begin_with_users_part,
    end_with_users_part,
    is_same_in_other_groups,
    skip_to_users_part,
)

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")


class _Opener(AbstractAsyncContextManager[T]):
    """What a function such as `open_node` returns: nothing is open before its block."""

    def __init__(self, name: str, manager: AbstractAsyncContextManager[T]) -> None:
        self._name = name
        self._manager = manager

    async def __aenter__(self) -> T:
        try:
            return await self._manager.__aenter__()
        except UnderstudyError as error:
            # Its text says what to do; the frames of the opening say nothing of it.
            end_with_users_part(error)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            # Whether it waits, and for how long, is the manager's own.
            return await self._manager.__aexit__(kind, error, traceback)  # noqa: ASYNC102
        except BaseException as raised:
            if error is not None and is_same_in_other_groups(raised, error):
                # Only the nurseries of the runtime have packed it anew, or have taken it out of a
                # group of the user's, who may have made it by a nursery: the block lets its own
                # error pass, as one without the runtime would.
                begin_with_users_part(raised)
                error.__traceback__ = traceback
                return False  # noqa: ASYNC104 (then Python raises what the block has raised)
            skip_to_users_part(raised)
            raise

    @property
    def _advice(self) -> str:
        return f"{self._name} opens in a block: `async with {self._name}(...) as ...:`"

    if not TYPE_CHECKING:
        # To a type checker it has none of these.

        def __await__(self) -> NoReturn:
            raise TypeError(self._advice)

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"{self._advice}, in an `async def`; programs without an event loop use "
                "runtime.blocking"
            )

        def __exit__(self, *exc_info: object) -> None:
            """Never called; Python asks for both."""

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"there is no {name!r} before the block: {self._advice}")


def opens_in_block(
    function: Callable[P, AbstractAsyncContextManager[T]],
) -> Callable[P, AbstractAsyncContextManager[T]]:
    """Decorate a function that returns an async context manager."""

    @functools.wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _Opener(function.__name__, function(*args, **kwargs))

    return opened
