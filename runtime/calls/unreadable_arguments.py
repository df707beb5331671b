"""The refusal of a call whose arguments this node cannot read: it names the argument as the caller
knows it, and says what this node lacks.

It is an error that is not repeated: the node would have to import something first, which a repeat
does not bring about.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Final

from actors.actor import Actor
from actors.class_names import qualified_name
from actors.errors import BadArgumentsError, DecodeError, EncodeError
from actors.reference import constructor, places
from runtime.calls.arguments import StartRequest
from runtime.calls.imports import STARTING
from runtime.hosting.host import ActorHost
from runtime.user_errors import guarded
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer, Frame
from runtime.wire.unreadable import Step, UnreadablePlace

_OF_FUNCTIONS: Final = frozenset({"run", "run_if_room"})
"""Of `STARTING`, the methods whose first argument is the path of a function."""

_OF_MANY: Final = frozenset({"spawn_many", "spawn_each", "start_many"})
"""Of `STARTING`, the methods that take the arguments of several actors, a row for each."""

_OF_RUNTIME: Final = f"{__name__.partition('.')[0]}."
"""Classes of the runtime's own actors, of which callers know nothing, begin like this."""

_ARGUMENTS: Final = 4
"""The place of the arguments in a CALL frame."""


def unreadable_arguments(
    host: ActorHost, codec: Codec, frame: Frame, error: DecodeError
) -> BadArgumentsError:
    """Return the error with which a call is refused whose frame could not be decoded, for the
    reason `error`.
    """
    node = host.node.name
    found = codec.find_unreadable(error, frame.control, frame.segments)
    if found is not None and type(found.whole) is list and len(found.whole) > _ARGUMENTS:
        parts: list[object] = found.whole
        what, argument = _named(host, codec, parts, found.steps)
        if what:
            return BadArgumentsError(f"{what}: node {node} cannot read {argument}: {error}")
    return BadArgumentsError(f"node {node} cannot read the arguments: {error}")


def unreadable_in_local_call(
    host: ActorHost,
    codec: Codec,
    called: tuple[str, str],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    error: DecodeError,
) -> BadArgumentsError:
    """Return the error with which a call from this node itself is refused: the one that a caller on
    another node gets. `called`: the names of the actor and the method.
    """
    node, found = host.node.name, _found(codec, args, kwargs, error)
    what, argument = "", ""
    if found is not None:
        parts: list[object] = [0, called[0], 0, called[1], found.whole]
        what, argument = _named(host, codec, parts, (_ARGUMENTS, *found.steps))
    said = f"node {node} cannot read {argument or 'the arguments'}: {error}"
    refused = BadArgumentsError(f"{what}: {said}" if what else said)
    # It shows what the user's code has raised. Without the frames, which have the arguments.
    refused.__cause__ = error.with_traceback(None)
    return refused


def unreadable_in_local_start(
    node: str, codec: Codec, request: StartRequest, error: DecodeError
) -> BadArgumentsError:
    """Like `unreadable_in_local_call`, for the start of an actor on the own node."""
    found = _found(codec, request.args, request.kwargs, error)
    argument = "the arguments"
    if found is not None and found.steps:
        signature = guarded(lambda: _constructor(request.cls), lambda failure: None)
        argument = _argument(signature, found.steps[0])
    return BadArgumentsError(
        f"an actor of class {qualified_name(request.cls)} was not started: node {node} cannot read "
        f"{argument}: {error}",
        actor=request.options.name,
        node=node,
        attempts=1,
    )


def _found(
    codec: Codec, args: tuple[object, ...], kwargs: Mapping[str, object], error: DecodeError
) -> UnreadablePlace | None:
    """Return the place in arguments of what their copy cannot be built from; None if it is not
    found.
    """
    segments: list[Buffer] = []
    try:
        control = codec.encode_arguments(args, kwargs, segments)
    except EncodeError:
        # Each of them alone could be sent: together they are too large, or user code raises now.
        return None
    return codec.find_unreadable(error, control, list(map(bytes, segments)))


def _named(
    host: ActorHost, codec: Codec, parts: list[object], steps: Sequence[Step]
) -> tuple[str, str]:
    """Return what was not done, and the name of the argument; "" for other parts of a frame, and
    for calls of the runtime itself.
    """
    actor, method = parts[1], parts[3]
    if len(steps) < 2 or steps[0] != _ARGUMENTS:
        return "", ""
    # The whole was not read, so that nothing has checked what a peer sends in their places.
    if type(actor) is not str or type(method) is not str:
        return "", ""
    if (actor, method) in STARTING:
        return _of_start(codec, method, parts[_ARGUMENTS], steps[1:])
    cell = host.cells.get(actor)
    definition = cell.methods.get(method) if cell is not None and not cell.system else None
    if cell is None or definition is None or cell.address.class_path.startswith(_OF_RUNTIME):
        return "", ""
    signature = guarded(lambda: definition.signature, lambda failure: None)
    what = f"{cell.address.name}.{definition.name} was not called"
    return what, _argument(signature, steps[1])


def _of_start(
    codec: Codec, method: str, arguments: object, steps: Sequence[Step]
) -> tuple[str, str]:
    """As `_named`, for a request to start actors or to run a function: the arguments of the actor,
    or of the function, are in its second and third argument.
    """
    given = codec.arguments_in(arguments)
    rows = method in _OF_MANY
    if not given or type(given[0]) is not str or steps[0] not in (1, 2) or len(steps) < 2 + rows:
        return "", ""
    path, argument = given[0], steps[1 + rows]
    if method in _OF_FUNCTIONS:
        # Not looked for: that would import it, if its worker has not.
        return f"{path} was not run", _argument(None, argument)
    # Guarded, because the class may have a metaclass of the user's.
    signature = guarded(lambda: _constructor(codec.find_class(path)), lambda failure: None)
    name = path.rpartition(":")[2]
    return f"an actor of class {name} was not started", _argument(signature, argument)


def _constructor(cls: type) -> inspect.Signature | None:
    return constructor(cls) if issubclass(cls, Actor) else None


def _argument(signature: inspect.Signature | None, step: Step) -> str:
    """Return the words for an argument, by its position or its name."""
    if isinstance(step, str):
        return f"argument {step}"
    names = [name for name, _ in places(signature, [None] * (step + 1), {})]
    return f"argument {names[step]}"
