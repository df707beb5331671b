"""How an error crosses the wire, and how it is raised on the other side.

What the runtime itself says of a call (`NotExecutedError`, `OutcomeUnknownError` and their kin) travels as the name of a class of
`actors.errors`. What a method raised travels as type, arguments and traceback text; where the type is a builtin or registered with
`@message`, the caller gets an error that is an instance of both `RemoteError` and that type.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Callable
from typing import cast

import attrs

from actors import errors
from actors.errors import CallError, DecodeError, EncodeError, OutcomeUnknownError, ProtocolError, RemoteError, UnderstudyError
from actors.messages import import_path, message_type

RAISED = "raised"
MAX_TRACEBACK = 16 * 1024

_CARRIED = "_carried"
"""Where a rebuilt error keeps the attributes that it was raised with: some of them have the names of a call error's own."""

_DESCRIBED = "_described"
"""Where a rebuilt error keeps the description that it was made from, for those who pass it on."""

Plain = dict[str, object]


@attrs.frozen
class Place:
    """Whose call it was: what the caller adds to an error."""

    actor: str
    method: str
    node: str
    epoch: int


class PassedOnError(Exception):
    """What a method raised in another process, on its way to the caller: it arrives there as if it had been raised here."""

    def __init__(self, error: RemoteError) -> None:
        described: Plain | None = error.__dict__.get(_DESCRIBED)
        self.plain: Plain = described or {"type": error.remote_type, "args": [str(error)], "traceback": error.remote_traceback}
        super().__init__(f"passed on from another process:\n{self.plain['traceback']}")


def describe(error: BaseException, encodable: Callable[[object], bool]) -> tuple[str, Plain]:
    """The error as code and plain data. `encodable` tells whether a value could be sent: arguments that could not travel as their repr."""
    if isinstance(error, CallError) and not isinstance(error, RemoteError):
        return type(error).__name__, {"text": str(error)}
    args = tuple(argument if encodable(argument) else repr(argument) for argument in _arguments(error))
    attributes = {
        name: value for name, value in vars(error).items() if isinstance(error, UnderstudyError) and isinstance(value, str | int | None)
    }
    lines = traceback.format_exception(error)
    text = "".join(lines)
    if len(text) > MAX_TRACEBACK:
        text = f"{text[: MAX_TRACEBACK // 2]}\n... ({len(text) - MAX_TRACEBACK} characters left out)\n{text[-MAX_TRACEBACK // 2 :]}"
    return RAISED, {"type": import_path(type(error)), "args": list(args), "traceback": text, "attributes": attributes}


def described(error: CallError, encodable: Callable[[object], bool]) -> tuple[str, Plain]:
    """Like `describe`, for the error that a call has ended with: what a method raised stays what it was."""
    if isinstance(error, RemoteError):
        return RAISED, PassedOnError(error).plain
    return describe(error, encodable)


def raised_by_method(error: BaseException, encodable: Callable[[object], bool]) -> tuple[str, Plain]:
    """Like `describe`, for what a user's method raised: even a call error in it says nothing about *this* call but that it raised."""
    if isinstance(error, PassedOnError):
        return RAISED, error.plain
    code, plain = describe(error, encodable)
    if code != RAISED:
        plain = {
            "type": import_path(type(error)),
            "args": [str(error)],
            "traceback": "".join(traceback.format_exception(error)),
            "attributes": {},
        }
    return RAISED, plain


def rebuild(code: object, plain: object, place: Place, find_class: Callable[[str], type]) -> CallError:
    """The error to raise at the caller. Raises ProtocolError for descriptions that no peer of ours sends."""
    if not isinstance(code, str) or not isinstance(plain, dict):
        raise ProtocolError("an error without code or description")
    described = cast("Plain", plain)
    if code == RAISED:
        return _remote(described, place, find_class)
    known = getattr(errors, code, None)
    # A newer peer may know kinds of errors that we do not: all we can say then is that the outcome is unknown.
    cls = known if isinstance(known, type) and issubclass(known, CallError) and known is not RemoteError else OutcomeUnknownError
    return cls(str(described.get("text", code)), actor=place.actor, method=place.method, node=place.node, epoch=place.epoch, attempts=1)


_OWN = frozenset(
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, UnderstudyError) and cls is not UnderstudyError and not issubclass(cls, CallError)
)


def plain_error(error: RemoteError) -> UnderstudyError | None:
    """The runtime's own error inside what a system service raised, as if it had been raised here; None if there is none."""
    for base in type(error).__mro__[1:]:
        if issubclass(base, UnderstudyError) and base in _OWN:
            plain = base.__new__(base, *error.args)
            plain.__dict__.update(error.__dict__.get(_CARRIED, {}))
            return plain
    return None


def _remote(described: Plain, place: Place, find_class: Callable[[str], type]) -> RemoteError:
    path = str(described.get("type", ""))
    args = described.get("args")
    args = tuple(cast("list[object]", args)) if isinstance(args, list) else ()
    original = _exception_class(path, find_class)
    if original is None:
        name = path.rpartition(":")[2] or "an unknown error"
        error = RemoteError(f"{name}: {', '.join(map(str, args))}" if args else name)
    else:
        cls = _both(original)
        try:
            error = cls.__new__(cls, *args)
        except TypeError:
            # MemoryError makes its instances in a way of its own, which a class of two bases cannot take.
            error = BaseException.__new__(cls, *args)
        # Not every constructor takes its own args back (they may be computed): args are what travels, and what is set.
        error.args = args
        if original.__module__ == "builtins":
            # Builtins keep more than their args (an OSError its errno and filename), and only their own constructor sets it.
            try:
                original.__init__(error, *args)
            except Exception:  # it was given arguments that it does not take: they are there as args all the same
                error.args = args
        attributes = described.get("attributes")
        if isinstance(attributes, dict):
            carried = {str(key): value for key, value in attributes.items()}
            error.__dict__.update(carried, **{_CARRIED: carried})
    error.remote_type = path
    error.remote_traceback = str(described.get("traceback", ""))
    error.__dict__[_DESCRIBED] = described
    error.actor, error.method, error.node, error.epoch, error.attempts = place.actor, place.method, place.node, place.epoch, 1
    return error


def _arguments(error: BaseException) -> tuple[object, ...]:
    """What the error was made of. An OSError takes the file names out of its args; its constructor wants them there."""
    if isinstance(error, OSError) and len(error.args) == 2 and error.filename is not None:
        names = (error.filename,) if error.filename2 is None else (error.filename, None, error.filename2)
        return (*error.args, *names)
    return error.args


def _both(original: type[Exception]) -> type[RemoteError]:
    """A class whose instances are caught as `RemoteError` and as `original`."""
    if issubclass(original, RemoteError):
        return RemoteError
    return type(original.__name__, (RemoteError, original), {"__module__": original.__module__})


def _exception_class(path: str, find_class: Callable[[str], type]) -> type[Exception] | None:
    module, _, name = path.partition(":")
    if module == "builtins":
        found = getattr(builtins, name, None)
    elif module == errors.__name__:
        found = getattr(errors, name, None)
        if isinstance(found, type) and issubclass(found, CallError):
            return None
    else:
        try:
            found = find_class(path)
        except (DecodeError, EncodeError):
            return None
        if message_type(found) is None:
            return None
    return found if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, BaseExceptionGroup) else None
