"""What is refused at the caller: arguments that do not fit, and those that cannot be sent, by the names of their parameters.

Of what cannot be sent the codec knows places only. An argument that it refuses is looked at once more here, under the name of its
parameter: that costs nothing where all is well.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from actors.actor import Actor
from actors.arguments import constructor, places
from actors.children import check_start
from actors.errors import BadArgumentsError, EncodeError
from actors.method import Bound
from actors.options import SpawnOptions
from runtime.wire.codec import Codec


def class_to_start(asked: str, actor: object, args: Sequence[object], kwargs: Mapping[str, object], options: SpawnOptions) -> type[Actor]:
    """The class of actors that `asked` ("spawn" for example) was given. Raises TypeError if it is none, and BadArgumentsError, which names
    the parameter, for arguments that its constructor does not take.
    """
    if not (isinstance(actor, type) and issubclass(actor, Actor)):
        raise TypeError(f"{asked} takes a subclass of actors.Actor, not {actor!r}")
    try:
        check_start(actor, args, kwargs, options.name)
    except BadArgumentsError as error:
        error.actor = options.name
        raise
    return actor


def refused(
    codec: Codec, error: EncodeError, what: str, signature: inspect.Signature | None, args: Sequence[object], kwargs: Mapping[str, object]
) -> EncodeError:
    """What to raise in place of `error`: `shop.place was not called: argument order.items['x'] is a ...`. `what`: with what is not done."""
    for name, argument in places(signature, args, kwargs):
        try:
            codec.encode(argument, [], name)
        except EncodeError as found:
            return EncodeError(f"{what}: argument {found}", path=found.path)
    # All of them together are too much, or looking at one of them has raised once and does not again.
    return EncodeError(f"{what}: {error}", path=error.path)


def refused_in_call(codec: Codec, error: EncodeError, bound: Bound, args: Sequence[object], kwargs: Mapping[str, object]) -> EncodeError:
    """Like `refused`, for a call. What is said to services of the runtime was somebody else's argument before."""
    actor = bound.address.name
    if actor.startswith("@"):
        return error
    return refused(codec, error, f"{actor}.{bound.definition.name} was not called", bound.definition.signature, args, kwargs)


def refused_in_start(codec: Codec, error: EncodeError, cls: type, args: Sequence[object], kwargs: Mapping[str, object]) -> EncodeError:
    """Like `refused`, for an actor that is to be started."""
    return refused(codec, error, f"an actor of class {cls.__qualname__} was not started", constructor(cls), args, kwargs)
