"""Unknown keywords: an error that names the nearest one and all that there are.

Python's own text names the function that refused the keyword, which may be one that users never
meet, and not what they could have meant.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


OF_OTHERS = {
    "args": "arguments follow the class, as in spawn(Counter, 10)",
    "max_concurrency": "mark methods with @method(concurrent=True)",
    "max_restarts": "a supervisor restarts actors: Supervisor, ChildSpec",
    "max_retries": "write retry=RetryPolicy(max_retries=...)",
    "max_task_retries": "write retry=RetryPolicy(max_retries=...)",
    "max_workers": "a pool takes size=..., a local cluster nodes=...",
    "n_workers": "a pool takes size=..., a local cluster nodes=...",
    "num_cpus": 'write resources={"cpus": ...}',
    "num_gpus": 'write resources={"gpus": ...}',
    "num_workers": "a pool takes size=..., a local cluster nodes=...",
}
"""What to write for keywords that other libraries have."""


def unknown_keyword(what: str, given: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword that `what` does not take, where it takes those that are `known`."""
    names = list(known)
    near = difflib.get_close_matches(given, names, n=1)
    if given in OF_OTHERS:
        hint = f": {OF_OTHERS[given]}."
    else:
        hint = f"; did you mean {near[0]!r}?" if near else "."
    return TypeError(f"{what} takes no {given!r}{hint} It takes {', '.join(names)}")


def misplaced(
    kwargs: Iterable[str], signature: inspect.Signature, options: Iterable[str]
) -> str | None:
    """The first keyword of a call that is one of the options and no parameter of the function."""
    elsewhere = set(options) - signature.parameters.keys()
    return next((name for name in kwargs if name in elsewhere), None)


def names_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function with options: a call with an unknown keyword raises TypeError with the
    nearest name and all names.
    """

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            # Looked at only now, so that a call that is right costs nothing more. An error from
            # within the function, whose keywords are right, goes on as it is.
            _check(function.__name__, function, kwargs)
            raise

    return checked


def names_options(what: str, advice: str = "") -> Callable[[C], C]:
    """Decorate a class of options likewise: `what` takes them, of which each is a parameter of the
    constructor, and given by its name. `advice`: what else there is, for the error.
    """

    def decorate(cls: C) -> C:
        constructor: Callable[..., None] = vars(cls)["__init__"]

        @functools.wraps(constructor)
        def checked(self: object, *args: object, **kwargs: object) -> None:
            try:
                constructor(self, *args, **kwargs)
            except TypeError:
                try:
                    _check(what, constructor, kwargs)
                    _check_positions(what, constructor, args)
                except TypeError as error:
                    if not advice:
                        raise
                    raise TypeError(f"{error}. {advice}") from None
                raise

        cls.__init__ = checked  # type: ignore[misc]
        return cls

    return decorate


def _check_positions(what: str, function: Callable[..., object], args: tuple[object, ...]) -> None:
    parameters = [
        one for one in inspect.signature(function).parameters.values() if one.name != "self"
    ]
    if args and all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in parameters):
        names = ", ".join(one.name for one in parameters)
        first = f"{parameters[0].name}=..."
        raise TypeError(f"{what}(...) takes keywords, such as {first}. It takes {names}") from None


def _check(what: str, function: Callable[..., object], kwargs: dict[str, object]) -> None:
    known = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.kind in _NAMED and one.name != "self"
    ]
    for name in kwargs:
        if name not in known:
            raise unknown_keyword(f"{what}(...)", name, known) from None
