"""Refuse at the caller the arguments that do not fit or cannot be sent, by the names of their
parameters.

The codec names a value that cannot be sent by its position only. So an argument that it refuses is
encoded once more here, under the name of its parameter: this costs nothing if there is no error.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Final, cast, get_origin

import attrs

from actors.actor import Actor
from actors.class_names import class_name, qualified_name
from actors.errors import ActorClassError, BadArgumentsError, EncodeError
from actors.method import Bound
from actors.options import SpawnOptions
from actors.reference import constructor, places
from actors.supervisor import check_start
from runtime.user_errors import guarded, repr_of, summary_of
from runtime.wire.codec import Codec

_read_all: Final = attrgetter(
    "__client_filters__",
    "__dict__",
    "__getattribute__",
    "__init__",
    "__methods__",
    "__new__",
    "call_filters",
    "handles_exits",
    "on_start",
    "on_stop",
    "supervises",
)
"""Reads the attributes of a class of actors that are read where one is spawned."""


@attrs.frozen
class StartRequest:
    """An actor that is to be started, with arguments that its constructor takes."""

    cls: type[Actor]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    options: SpawnOptions

    @classmethod
    def checked(
        cls,
        asked: str,
        actor: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        options: SpawnOptions,
    ) -> StartRequest:
        """Check the arguments of `asked` (for example "spawn"), and return the request. Raises
        TypeError if that is no class of actors, and BadArgumentsError, which names the parameter,
        for arguments that its constructor does not take.
        """
        actor = _checked_class(asked, actor)
        try:
            check_start(actor, args, kwargs, options.name, name=options.name)
        except BadArgumentsError as error:
            error.actor = options.name
            raise
        if options.idempotent:
            raise ValueError(
                "idempotent= is for functions (run); methods of actors say it by "
                "@method(idempotent=True)"
            )
        return cls(actor, args, kwargs, options)

    @classmethod
    def of_singleton(
        cls,
        actor: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        options: SpawnOptions,
    ) -> StartRequest:
        """Like `checked`, for a singleton. Raises ValueError if it has no name."""
        request = cls.checked("singleton", actor, args, kwargs, options)
        if options.name is None:
            raise ValueError("a singleton needs a name: node.options(name=...).singleton(...)")
        return request

    @contextmanager
    def naming_arguments(self, codec: Codec) -> Iterator[None]:
        """Raise `refused` instead of the EncodeError of a block that sends the arguments."""
        try:
            yield
        except EncodeError as error:
            what = f"an actor of class {qualified_name(self.cls)} was not started"
            signature = constructor(self.cls)
            raise refused(
                codec, error, what, signature, self.args, self.kwargs
            ) from error.__cause__


@attrs.frozen
class StartManyRequest:
    """Actors of one class that are to be started, each with arguments that its constructor takes.
    `names`: one for each, or none at all. `known`: these were given, and not made up.
    """

    cls: type[Actor]
    rows: list[tuple[object, ...]]
    names: list[str]
    options: SpawnOptions
    known: bool = True

    @classmethod
    def checked(
        cls,
        actor: object,
        argument_list: object,
        names: object,
        options: SpawnOptions,
    ) -> StartManyRequest:
        """Check what `spawn_many` was given. Raises TypeError, ValueError and BadArgumentsError,
        which say in which place of the list.
        """
        if options.name is not None:
            raise ValueError("spawn_many starts many actors: give names=[...], one for each")
        actor = _checked_class("spawn_many", actor)
        if not isinstance(argument_list, Iterable) or isinstance(argument_list, str | bytes):
            raise TypeError(
                f"spawn_many takes a list of argument tuples, one for each actor, not "
                f"{type(argument_list).__name__}"
            )
        # The children that supervisors are given are checked as well, in `StartRequest.checked`.
        plain = None if actor.supervises else _plain_arity(constructor(actor))
        rows: list[tuple[object, ...]] = []
        for place, row in enumerate(cast("Iterable[object]", argument_list)):
            if not isinstance(row, list | tuple):
                raise TypeError(
                    f"argument_list[{place}] is a tuple of the arguments of one actor, as in "
                    f"[(1,), (2,)], not {type(row).__name__}"
                )
            args = tuple(cast("Sequence[object]", row))
            if plain is None or len(args) not in plain:
                try:
                    StartRequest.checked("spawn_many", actor, args, {}, options)
                except BadArgumentsError as error:
                    raise BadArgumentsError(f"argument_list[{place}]: {error}") from None
            rows.append(args)
        return cls(actor, rows, _checked_names(names, len(rows)), options)


def _plain_arity(signature: inspect.Signature | None) -> range | None:
    """Return the numbers of positional arguments that a constructor takes; None if its signature
    alone does not decide that.
    """
    if signature is None:
        return None
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if not kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY}:
        return None
    empty = inspect.Parameter.empty
    least = sum(one.default is empty for one in signature.parameters.values())
    return range(least, len(signature.parameters) + 1)


def _checked_names(names: object, count: int) -> list[str]:
    if names is None:
        return []
    if not isinstance(names, list | tuple):
        raise TypeError(f"names must be a list of names or None, not {type(names).__name__}")
    found = [SpawnOptions(name=name).name for name in cast("Sequence[str]", names)]
    if len(found) != count:
        raise ValueError(f"there are {len(found)} names for {count} actors; give one for each")
    if None in found:
        raise ValueError("names must be a name for each actor, or None for all of them")
    return cast("list[str]", found)


def refused(
    codec: Codec,
    error: EncodeError,
    what: str,
    signature: inspect.Signature | None,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> EncodeError:
    """Return an error that names the argument which cannot be sent, in place of `error`:
    `shop.place was not called: argument order.items['x'] is a ...`. `what`: its beginning, here
    `shop.place was not called`.
    """
    for name, argument in places(signature, args, kwargs):
        try:
            codec.encode(argument, [], name)
        except EncodeError as found:
            return EncodeError(f"{what}: argument {found}", path=found.path)
    # All of them together are too much, or looking at one of them has raised once and does not
    # again.
    return EncodeError(f"{what}: {error}", path=error.path)


def refused_in_call(
    codec: Codec,
    error: EncodeError,
    bound: Bound,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> EncodeError:
    """Like `refused`, for a call. What a service of the runtime is called with was an argument of a
    user's call before.
    """
    actor = bound._address.name
    if actor.startswith("@"):
        return error
    return refused(
        codec,
        error,
        f"{actor}.{bound._definition.name} was not called",
        bound._definition.signature,
        args,
        kwargs,
    )


def unparameterised(given: object) -> object:
    """The class itself for a generic one with parameters (`Keeper` for `Keeper[int]`), which are
    for type checkers only; anything else as it is.
    """
    if issubclass(type(given), type):
        # Not asked further: a metaclass may answer with anything.
        return given
    found: object = get_origin(given)
    return given if found is None else found


def _no_actor_class(given: object) -> str:
    """Return why `given` is no class of actors, as the rest of a sentence."""
    if isinstance(given, Actor):
        name = class_name(type(given))
        return f"takes the class, not an instance of it: give {name} and then its arguments"
    if isinstance(given, type):
        return (
            f"takes a subclass of actors.Actor, not {repr_of(given)}: derive "
            f"{class_name(given)} from Actor"
        )
    hint = ": a name is an option, as in node.options(name=...).spawn(MyActor)"
    return f"takes a subclass of actors.Actor, not {repr_of(given)}{hint * isinstance(given, str)}"


def _checked_class(asked: str, given: object) -> type[Actor]:
    """Return the class of actors that `asked` (for example "spawn") was given. Raises TypeError if
    it is none, and ActorClassError if its attributes cannot be read.
    """
    given = unparameterised(given)
    if not (issubclass(type(given), type) and issubclass(cast("type", given), Actor)):
        raise TypeError(f"{asked} {_no_actor_class(given)}")
    # A metaclass, or a descriptor, runs code of the user's that may raise anything: also what
    # would end the program of the caller.
    cls = cast("type[Actor]", given)
    failed = guarded(lambda: _read_all(cls), summary_of)
    if isinstance(failed, str):
        raise ActorClassError(
            f"{qualified_name(cls)} was not started: reading an attribute of the class raised "
            f"{failed}; mend its metaclass or descriptor"
        )
    return cls
