"""Encodes the errors that methods raise most often, without a description in between.

Such an error has short plain arguments, and no cause, notes or attributes of its own. All that is
said of it but the text and the traceback depends on its class, and is encoded once for each class.
The bytes are those of the description that `error_codec.raised_by_method` returns, so that callers
cannot tell the two ways apart.
"""

from __future__ import annotations

from typing import Any, Final, cast

from cbor2 import dumps

from actors.errors import UnderstudyError
from actors.messages import import_path, message_type
from runtime.calls.error_codec import RAISED, size_of_small
from runtime.tracebacks import TracebackWriter
from runtime.user_errors import BUILTIN, MOST_TRACEBACK, is_interrupt
from runtime.wire.arrays import ARRAY_HEADS, EMPTY_ARRAY, EMPTY_MAP, MAP
from runtime.wire.exceptions import CLASSES_KEPT, has_slots

MOST_ARGUMENTS = 8
MOST_ARGUMENT_BYTES = 1024
"""Errors with more in their arguments are described."""

MOST_SAID = 64
MOST_SAID_BYTES = 4096
"""How many errors, without their arguments, are kept encoded, and up to how many bytes each."""

# The interpreter's own ways to what a class can define anew.
_DICT = cast("Any", vars(BaseException)["__dict__"])
_ARGS = cast("Any", vars(BaseException)["args"])

_TRACEBACK: Final = dumps("traceback")
_REST: Final = dumps("notes") + EMPTY_ARRAY + dumps("args")
"""An empty list of notes, then the name of the arguments, which follow."""
_FIELDS: Final = dumps("fields") + EMPTY_MAP


class PlainErrorEncoder:
    """Encodes plain errors, with a bounded table of facts about their classes. `tracebacks` writes
    their tracebacks.
    """

    def __init__(self, tracebacks: TracebackWriter) -> None:
        self._tracebacks = tracebacks
        self._classes: dict[type, tuple[bytes, bytes]] = {}
        """The bytes before the text, and those behind the arguments; twice b"" for classes whose
        instances have to be described.
        """
        self._said: dict[tuple[type, str, str], bytes] = {}
        """The bytes before the arguments, by class, text and frames."""

    def encoded(self, error: BaseException) -> bytes | None:
        """Return the code and the description of an ERROR frame, encoded; None for an error that
        has to be described.
        """
        # The hash of a class with a metaclass of its own is code of the user's.
        if type(type(error)) is not type:
            return None
        try:
            return self._encoded(error)
        except BaseException as failure:  # noqa: ASYNC103  no checkpoint; see `guarded`
            if is_interrupt(failure):
                raise
            return None  # noqa: ASYNC104

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        assert len(self._classes) <= CLASSES_KEPT
        assert len(self._said) <= MOST_SAID
        assert all(len(encoded) <= MOST_SAID_BYTES for encoded in self._said.values())

    def _encoded(self, error: BaseException) -> bytes | None:
        cls = type(error)
        before, behind = self._classes.get(cls) or self._examined(cls)
        args: tuple[object, ...] = _ARGS.__get__(error)
        if not before or _DICT.__get__(error) or not _are_plain(args):
            return None
        # May run code of the user's, which cannot change the arguments any more.
        text = str.__str__(str(error))
        stack = self._tracebacks.stack_of_plain(error)
        if stack is None:
            return None
        said = self._said.get((cls, text, stack)) or self._say(cls, text, stack, before)
        return b"".join((said, ARRAY_HEADS[len(args)], *map(dumps, args), behind)) if said else None

    def _say(self, cls: type, text: str, stack: str, before: bytes) -> bytes:
        """Encode what stands before the arguments, and keep it for the next error that says the
        same; b"" for an error that has to be described.
        """
        last = self._tracebacks.last_line(cls, text)
        trace = stack + last
        if not last or len(trace) > MOST_TRACEBACK or not (text.isascii() and trace.isascii()):
            return b""
        said = b"".join((before, dumps(text), _TRACEBACK, dumps(trace), _REST))
        if len(said) <= MOST_SAID_BYTES:
            # The table begins anew: which errors come again changes with what the program does.
            if len(self._said) >= MOST_SAID:
                self._said.clear()
            self._said[cls, text, stack] = said
        return said

    def _examined(self, cls: type) -> tuple[bytes, bytes]:
        if len(self._classes) >= CLASSES_KEPT:
            self._classes.clear()
        found = b"", b""
        # Ours have notes that are made when they are asked for. Groups have slots.
        if not issubclass(cls, UnderstudyError) and not has_slots(cls):
            fields = _FIELDS if message_type(cls) is not None or cls in BUILTIN else b""
            head = bytes((MAP + (6 if fields else 5),))
            named = dumps("type") + dumps(import_path(cls)) + dumps("text")
            found = dumps(RAISED) + head + named, fields
        self._classes[cls] = found
        return found


def _are_plain(args: tuple[object, ...]) -> bool:
    if len(args) > MOST_ARGUMENTS:
        return False
    total = 0
    for argument in args:
        size = size_of_small(argument)
        if not size:
            return False
        total += size
    return total <= MOST_ARGUMENT_BYTES
