"""Functions by their names: `module:qualified.name`, as the caller gives them and as the worker
finds them.

Code never travels. What has no name by which another process finds the same function, such as a
lambda, is refused where it is given.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import attrs

from actors.errors import BadArgumentsError, EncodeError, FunctionNotImportableError
from actors.keywords import why_unfit
from actors.messages import MAIN_ALIAS
from actors.method import Marked
from actors.options import SpawnOptions
from actors.own_logger import own_logger
from actors.reference import taken
from actors.short_repr import short_repr
from runtime.calls.arguments import refused
from runtime.user_errors import guarded, is_interrupt, summary_of
from runtime.wire.codec import Codec

logger = own_logger("understudy.functions")

OPTIONS: Final = frozenset(
    {
        "idempotent",
        "isolation",
        "labels",
        "memory_limit",
        "on",
        "resources",
        "retry",
        "timeout",
    }
)
"""The options that concern a function, which has a process to itself while it runs; the others are
about actors.
"""

PLAIN_SPAWN: Final = SpawnOptions()

_NOT_RUN_BY_A_CALL: Final = (
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
    inspect.isgeneratorfunction,
)
"""Which functions return an object when they are called, and run later or never."""


@attrs.frozen
class FunctionCall:
    """A function that is to be run, with arguments that it takes."""

    path: str
    """`module:qualified.name`."""
    signature: inspect.Signature | None
    """None if it cannot be read, as of some functions that are written in C."""
    args: tuple[object, ...]
    kwargs: dict[str, object]
    options: SpawnOptions

    @classmethod
    def checked(
        cls,
        function: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        options: SpawnOptions,
    ) -> FunctionCall:
        """The call of what `run` was given. Raises FunctionNotImportableError for what has no name
        that others find it by, BadArgumentsError for arguments that it does not take, and
        ValueError for options that concern only actors.
        """
        path = function_path(function)
        for field in attrs.fields(SpawnOptions):
            if field.name not in OPTIONS and getattr(options, field.name) != getattr(
                PLAIN_SPAWN, field.name
            ):
                raise ValueError(
                    f"{field.name}= is for actors; run takes {', '.join(sorted(OPTIONS))}"
                )
        signature = _signature(function)
        if signature is not None:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise BadArgumentsError(
                    f"{path} was not run: {why_unfit(error, signature, kwargs)}; "
                    f"it takes {taken(signature)}",
                    method=path,
                ) from None
        return cls(path, signature, args, dict(kwargs), options)

    @contextmanager
    def naming_arguments(self, codec: Codec) -> Iterator[None]:
        """Raise, instead of the EncodeError of a block that sends the arguments, one that names the
        parameter.
        """
        try:
            yield
        except EncodeError as error:
            what = f"{self.path} was not run"
            raise refused(
                codec, error, what, self.signature, self.args, self.kwargs
            ) from error.__cause__


def function_path(function: object) -> str:
    """`module:qualified.name` of a function that other processes find by it. Raises
    FunctionNotImportableError, which says what to do instead.
    """
    if isinstance(function, functools.partial):
        raise FunctionNotImportableError(
            f"{short_repr(function)} has no name by which another process could find it: give "
            "run the "
            "function itself, and the arguments after it"
        )
    if isinstance(function, Marked):
        raise FunctionNotImportableError(
            f"run takes a function, and {function.definition.name} is a method of an actor: spawn "
            "the actor, and call the method of its handle"
        )
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not callable(function) or not isinstance(module, str) or not isinstance(name, str):
        raise FunctionNotImportableError(
            f"run takes a function that can be imported, not {type(function).__name__!r}"
        )
    path = f"{'__main__' if module == MAIN_ALIAS else module}:{name}"
    if "<lambda>" in name or "<locals>" in name:
        raise FunctionNotImportableError(
            f"{path} is {'a lambda' if '<lambda>' in name else 'defined inside a function'}, which "
            "no other process can find by its name: write it as a `def` at the top of a module, "
            "and give what it needs as arguments",
            method=path,
        )
    if inspect.ismethod(function) and not isinstance(function.__self__, type):
        raise FunctionNotImportableError(
            f"{path} is bound to an object, which stays here: use a function at the top of a "
            "module, or an actor for what has state",
            method=path,
        )
    main = sys.modules.get("__main__")
    if module == "__main__" and not hasattr(main, "__file__"):
        raise FunctionNotImportableError(
            f"{path} was written at a prompt or in a notebook, and no other process can import it: "
            "write it in a module, and import that",
            method=path,
        )
    found = guarded(lambda: _walked(sys.modules.get(module), name), lambda error: None)
    if found is not function and found != function:
        raise FunctionNotImportableError(
            f"{path} names another object than the one that was given, perhaps because a "
            "decorator has replaced it: give run what the module has under that name",
            method=path,
        )
    return path


def find_function(path: str) -> Callable[..., Any]:
    """The function of this name, its module imported if need be, which runs the module's code.
    Raises FunctionNotImportableError, also for whatever the module raises.
    """
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name) or module_name.startswith(".") or "<" in name:
        raise FunctionNotImportableError(f"{path!r} is not the name of a function", method=path)

    def looked_up() -> object:
        return _walked(importlib.import_module(module_name), name)

    failures: list[str] = []
    found = guarded(
        looked_up, lambda error: failures.append(summary_of(error) or type(error).__name__)
    )
    if failures or not callable(found):
        advice = (
            "functions of the main script are known to the nodes that run the same script, such as "
            "those of a local cluster; move it into a module"
            if module_name == "__main__"
            else "install the same code on all nodes, with the function at the top of the module, "
            'not under `if __name__ == "__main__":`'
        )
        why = failures[0] if failures else "it cannot be called"
        raise FunctionNotImportableError(
            f"{path} cannot be imported where it was to run ({why}): {advice}", method=path
        )
    return cast("Callable[..., Any]", found)


def hook_path(hook: object) -> str:
    """The path of a function that other processes call, given as itself or as its path. "" for
    None. Raises FunctionNotImportableError, and TypeError for what is neither, and for a function
    whose call would not run it.
    """
    if hook is None:
        return ""
    if not isinstance(hook, str) and not callable(hook):
        raise TypeError(
            f"on_process_start is a function, or its 'module:function', not {short_repr(hook)}"
        )
    path = hook if isinstance(hook, str) else function_path(hook)
    found = find_function(hook) if isinstance(hook, str) else hook
    if any(is_other(found) for is_other in _NOT_RUN_BY_A_CALL):
        raise TypeError(
            f"on_process_start is called before the process has an event loop, and {path} is an "
            "`async def` or has a `yield`, so that the call would not run it: make it a plain `def`"
        )
    return path


def call_hook(path: str) -> None:
    """Call the function of this path, unless that is "". What it raises is logged: the process
    goes on without what it was to set up. Raises a genuine interrupt of the process.
    """
    if not path:
        return
    try:
        find_function(path)()
    except BaseException as error:  # noqa: ASYNC103  no checkpoint
        # A SystemExit as well: others of its kind would end one after the other, and nothing would
        # say why.
        if is_interrupt(error):
            # Python's own handler leaves no frame behind, so the hook may have raised it.
            logger.error("%s, the on_process_start of this process, was interrupted", path)
            raise
        logger.exception("%s, the on_process_start of this process, raised", path)


def _walked(module: object, name: str) -> object:
    found = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _signature(function: object) -> inspect.Signature | None:
    return guarded(
        lambda: inspect.signature(cast("Callable[..., Any]", function)), lambda error: None
    )
