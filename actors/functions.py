"""Running functions: the typed face that nodes, connections and spawners share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")


class RunsFunctions:
    """Runs importable functions in worker processes of the cluster; see `run`."""

    __slots__ = ()

    @overload
    async def run(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def run(
        self, function: Callable[..., object], /, *args: object, **kwargs: object
    ) -> object:
        """Run a function in a worker process of the cluster and return its value: a plain one in a
        thread of that process, an `async def` under trio.

        It is found by its module and name, so lambdas and nested functions are refused. The process
        is its own while it runs: it may block, crash, or be killed, and only this call ends. What
        `options(...)` said before counts: `on`, `labels`, `resources` and `memory_limit` for the
        place, `timeout`, `retry` and `idempotent` for the call. Cancelling the call ends the
        function: the process is killed if it has not ended a second later.

        Raises `RemoteError` with the type of what the function raised; `NotExecutedError`, among
        these `FunctionNotImportableError`, `BadArgumentsError` and `NoWorkerError`; and
        `OutcomeUnknownError`, for example `ActorDiedError` if its process has died.
        """
        return await self._run_function(function, args, kwargs)

    @abstractmethod
    def _run_function(
        self, function: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, object]:
        """Run a function in a worker process of the cluster, and return its result. `run` is the
        typed form.
        """
