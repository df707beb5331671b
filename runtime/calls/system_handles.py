"""Handles of the runtime's own services on other nodes: what these answer is checked against the service's annotations.

What a service answers goes on into tables and tasks of the whole node, as what it is asked does (see `runtime.checking`). A peer that
answers with something else has not answered: the call ends with an `OutcomeUnknownError`, like one whose answer cannot be read.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ParamSpec, TypeVar, Unpack

from actors.errors import OutcomeUnknownError
from actors.handle import Handle
from actors.method import BoundMethod, BoundStream
from actors.options import CallChanges, CallOptions
from runtime.checking import fits_answer

P = ParamSpec("P")
R = TypeVar("R")


class SystemMethod(BoundMethod[P, R]):
    """A method of a service, ready to be called."""

    __slots__ = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """See `BoundMethod.__call__`."""
        return self._answered(super().__call__(*args, **kwargs))

    def options(self, **changes: Unpack[CallChanges]) -> SystemMethod[P, R]:
        """See `BoundMethod.options`."""
        changed = SystemMethod[P, R](self._caller, self.address, self.definition, CallOptions(**changes).over(self.options_))
        changed.route, changed.moved = self.route, self.moved
        return changed

    async def _answered(self, call: Coroutine[Any, Any, R]) -> R:
        answer = await call
        if not fits_answer(self.definition.function, answer):
            address, method = self.address, self.definition.name
            raise OutcomeUnknownError(
                f"node {address.node} answered {address.name}.{method} with something that it never returns: {type(answer).__name__}",
                actor=address.name,
                method=method,
                node=address.node,
            )
        return answer


class SystemHandle(Handle):
    """The handle of a service."""

    def __getattr__(self, attribute: str) -> BoundMethod[..., object] | BoundStream[..., object]:
        bound = super().__getattr__(attribute)
        if isinstance(bound, BoundMethod):
            bound = SystemMethod[..., object](self._caller, bound.address, bound.definition, bound.options_)
            self.__dict__[attribute] = bound
        return bound
