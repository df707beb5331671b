"""Unknown keywords, and options that are given without their names: an error that names what there
is.

Python's own text names the function that refused them, which may be one that users never meet, and
not what they could have meant.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from actors.short_repr import short_repr

F = TypeVar("F", bound=Callable[..., object])
C = TypeVar("C", bound=type)

_PLACE = os.path.join(os.path.dirname(__file__), "")

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_WITHOUT_NAME = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


OF_OTHERS = {
    "args": "arguments follow the class, as in spawn(Counter, 10)",
    "chunksize": "a map takes batch=...",
    "errors": 'a map takes on_error="return"',
    "max_concurrency": "mark methods with @method(concurrent=True)",
    "max_restarts": "a supervisor restarts actors: Supervisor, ChildSpec",
    "max_retries": "write retry=RetryPolicy(max_retries=...)",
    "max_task_retries": "write retry=RetryPolicy(max_retries=...)",
    "max_workers": "a pool takes size=..., a local cluster nodes=...",
    "n_workers": "a pool takes size=..., a local cluster nodes=...",
    "num_cpus": 'write resources={"cpus": ...}',
    "num_gpus": 'write resources={"gpus": ...}',
    "num_workers": "a pool takes size=..., a local cluster nodes=...",
    "return_exceptions": 'a map takes on_error="return"',
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


def why_unfit(
    error: TypeError, signature: inspect.Signature, kwargs: Iterable[str]
) -> TypeError | str:
    """What is wrong with arguments that a signature refuses with `error`.

    Python looks for missing parameters first: of a parameter whose name is misspelt it says that it
    is missing, and nothing of the name that was given.
    """
    parameters = signature.parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return error
    named = [one.name for one in parameters.values() if one.kind in _NAMED]
    for given in kwargs:
        if given in parameters and given not in named:
            return f"parameter {given!r} is positional only: it is given without its name"
        if given not in named:
            near = difflib.get_close_matches(given, named, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"got an unexpected keyword argument {given!r}{hint}"
    return error


def names_keywords(function: F) -> F:
    """Decorate a function with options: a call with an unknown keyword raises TypeError with the
    nearest name and all names; so does one with an option that is given without its name.
    """

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            # Looked at only now, so that a call that is right costs nothing more. An error from
            # within the function, whose arguments are right, goes on as it is.
            name = function.__name__
            wrong = (
                _wrong_keyword(name, function, kwargs) or _too_many(name, function, args)
                if isinstance(error, TypeError)
                else None
            )
            if wrong is not None:
                raise wrong from None
            if _raised_in_this_package(error):
                # Its text says what is wrong, and the frames of the checks say nothing.
                error.__traceback__ = None
            raise

    return cast("F", checked)


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
            except (TypeError, ValueError) as error:
                wrong = (
                    _wrong_keyword(what, constructor, kwargs)
                    or _wrong_positions(what, constructor, args)
                    if isinstance(error, TypeError)
                    else None
                )
                if wrong is not None:
                    raise TypeError(f"{wrong}. {advice}" if advice else str(wrong)) from None
                if _raised_in_this_package(error):
                    # Its text says what is wrong, and the frames of the checks say nothing.
                    error.__traceback__ = None
                raise

        cls.__init__ = checked  # type: ignore[misc]
        return cls

    return decorate


def _raised_in_this_package(error: BaseException) -> bool:
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost is not None and innermost.tb_frame.f_code.co_filename.startswith(_PLACE)


def _wrong_positions(
    what: str, function: Callable[..., object], args: tuple[object, ...]
) -> TypeError | None:
    parameters = [
        one for one in inspect.signature(function).parameters.values() if one.name != "self"
    ]
    if args and all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in parameters):
        names = ", ".join(one.name for one in parameters)
        first = f"{parameters[0].name}=..."
        return TypeError(f"{what}(...) takes keywords, such as {first}. It takes {names}")
    return None


def _too_many(
    what: str, function: Callable[..., object], args: tuple[object, ...]
) -> TypeError | None:
    """The error for more arguments without names than `what` takes so; None if they fit."""
    parameters = list(inspect.signature(function).parameters.values())
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    plain = [one.name for one in parameters if one.kind in _WITHOUT_NAME]
    if len(args) <= len(plain):
        return None
    extra = short_repr(args[len(plain)])
    places = " and ".join(name for name in plain if name != "self") or "nothing"
    names = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    names += _names_of_options(function)
    return TypeError(
        f"{what}(...) takes {places} without a name, and {extra} has none: give it by its name, "
        f"which is {' or '.join(names) if len(names) < 3 else 'one of ' + ', '.join(names)}"
    )


def _names_of_options(function: Callable[..., object]) -> list[str]:
    """The names of the keywords that a function takes as `**changes: Unpack[SomeChanges]`."""
    for annotation in getattr(function, "__annotations__", {}).values():
        if isinstance(annotation, str) and annotation.startswith("Unpack["):
            changes = getattr(function, "__globals__", {}).get(annotation[len("Unpack[") : -1])
            return list(getattr(changes, "__annotations__", ()))
    return []


def _wrong_keyword(
    what: str, function: Callable[..., object], kwargs: dict[str, object]
) -> TypeError | None:
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        # What refuses its keywords says so itself.
        return None
    known = [one.name for one in parameters if one.kind in _NAMED and one.name != "self"]
    for name in kwargs:
        if name not in known:
            return unknown_keyword(f"{what}(...)", name, known)
    return None
