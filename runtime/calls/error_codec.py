"""Encodes errors for the wire, and rebuilds them on the other side.

An error of the runtime (`NotExecutedError`, `OutcomeUnknownError` and their subclasses) is sent as
the name of a class of `actors.errors`. An exception of a method is sent as type, text, arguments,
fields, notes and traceback, a group with its members; where the type is a builtin or registered
with `@message`, the caller gets an error that is an instance of both `RemoteError` and that type.

Either way runs none of the exception's own code unguarded (see `runtime.user_errors` and
`runtime.wire.exceptions`): what cannot be inspected is replaced by a description, and what cannot
be built again arrives as a plain `RemoteError`.
"""

from __future__ import annotations

import builtins
import functools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, SupportsIndex, cast

import attrs

from actors import errors
from actors.class_names import bases, class_name, is_one_of
from actors.errors import (
    ActorStartError,
    CallError,
    DecodeError,
    EncodeError,
    OutcomeUnknownError,
    ProtocolError,
    RemoteError,
    UnderstudyError,
)
from actors.handle import Handle
from actors.messages import import_path, message_type
from actors.reference import Reference
from actors.short_repr import objects_in
from runtime.hosting.cell import with_note
from runtime.printable import many
from runtime.user_errors import (
    BUILTIN,
    guarded,
    members_of,
    repr_of,
    sendable,
    summary_of,
    text_of,
    traceback_of,
)
from runtime.wire.exceptions import (
    CLASSES_KEPT,
    StandIn,
    annotate,
    args_of,
    attributes_of,
    build,
    fields_of,
    has_slots,
    notes_of,
    set_attributes,
    simple_maker,
)

RAISED = "raised"

MOST_BYTES = 4 * 1024 * 1024
"""Bytes of all arguments and fields of one error. Those beyond are sent as their repr."""

MOST_PARTS = 2048
"""Arguments and fields of one error, with those of its members. Those beyond are left out, and
counted: to find out whether one can be sent takes a hundred microseconds.
"""

MOST_OBJECTS = 256 * 1024
"""Objects in the containers among them that are looked at, as far as they are counted without code
of the user's. Those of too many objects are sent as a short repr.
"""

MOST_MEMBERS = 128
"""The most exceptions that the description of a group, with the groups in it, may have. Those
beyond are left out, and counted.
"""

MOST_NESTING = 8
"""Levels of groups within groups. Deeper ones are sent as text."""

LEVELS = 8
"""Levels of containers around an argument that are allowed."""

MOST_REPR = 1024
MOST_OF_MEMBER = 4 * 1024
"""Characters of the repr of an argument that cannot be sent, and of the traceback of one member of
a group.
"""

RELATED_OF_MEMBER = 64
"""Causes and notes of one member of a group, and members of its own, that its traceback shows."""

_ORIGIN = "_understudy_origin"
"""The attribute in which a rebuilt error keeps its description, for sending it on and for
pickle.
"""

_NOTES = "__notes__"

_OURS = ("outcome", "remote_type", "remote_traceback")
"""Attributes of the class `RemoteError`, which an exception may have as well: then they are the
exception's own.
"""

_FACTS = frozenset(
    {
        "remote_type",
        "remote_traceback",
        "actor",
        "method",
        "node",
        "epoch",
        "attempts",
    }
)
"""Attributes that a rebuilt error gets here, unless the exception has them itself."""

Plain = dict[str, object]

_OWN = frozenset(
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type)
    and issubclass(cls, UnderstudyError)
    and cls is not UnderstudyError
    and not issubclass(cls, CallError)
)

_OF_ONE = ("exceptions", "fields", "attributes", "notes")
"""Parts of a description that a repeatable error does not have: they belong to one error."""

_LOOKED_AT = frozenset(
    {
        "__class__",
        "__getattribute__",
        "__dict__",
        "__traceback__",
        "__cause__",
        "__context__",
        "__suppress_context__",
    }
)


@attrs.frozen
class CallPlace:
    """The call that an error belongs to: what the caller adds to the error. `actor` is "" if
    `method` is a function.
    """

    actor: str
    method: str
    node: str
    epoch: int


class PassedOnError(Exception):
    """An exception that a method raised in another process, on its way to the caller: it arrives
    there as if this process had raised it.
    """

    def __init__(self, error: RemoteError) -> None:
        origin = _origin(error)
        text = text_of(error)
        self.plain: Plain = (
            origin.plain
            if origin is not None
            else {"type": import_path(RemoteError), "text": text, "args": [text]}
        )
        super().__init__(f"passed on from another process:\n{self.plain.get('traceback')}")

    @classmethod
    def describing(
        cls, error: BaseException, size_of: Callable[[object], int | None]
    ) -> PassedOnError:
        """Wrap an error of user code that is to end the call only. Raised as it is, it would end
        more, such as a SystemExit, which ends its actor.
        """
        passed = cls(RemoteError(""))
        passed.plain = raised_by_method(error, size_of)[1]
        return passed


def describe(error: BaseException, size_of: Callable[[object], int | None]) -> tuple[str, Plain]:
    """Return the error as code and plain data. `size_of` returns the encoded bytes of a value, None
    if it cannot be sent: then its repr is sent.
    """
    if issubclass(type(error), CallError) and not issubclass(type(error), RemoteError):
        plain: Plain = {"text": text_of(error)}
        if isinstance(error, errors.NoWorkerError) and error.remote_traceback:
            # Previous versions ignore it.
            plain["traceback"] = error.remote_traceback
        return class_name(type(error)), plain
    return raised_by_method(error, size_of)


def described(error: CallError, size_of: Callable[[object], int | None]) -> tuple[str, Plain]:
    """Like `describe`, for the error with which a call has ended: an exception of a method stays
    one.
    """
    if issubclass(type(error), RemoteError):
        return RAISED, PassedOnError(cast("RemoteError", error)).plain
    return describe(error, size_of)


def raised_by_method(
    error: BaseException,
    size_of: Callable[[object], int | None],
    trace_of: Callable[[BaseException], str] = traceback_of,
) -> tuple[str, Plain]:
    """Like `describe`, for an exception of a user's method: even a call error that it raised means
    only that *this* call raised. `trace_of` returns its traceback.
    """
    if type(error) is PassedOnError:
        return RAISED, error.plain
    return RAISED, guarded(
        lambda: _Description(size_of, trace_of).of(error, 0),
        # Its parts are guarded one by one. Whatever is asked besides, the call gets an answer.
        lambda failure: told_plainly(_least(error, failure)),
    )


def _least(error: BaseException, failure: BaseException) -> Plain:
    """Return what is said of an error whose description has raised `failure`."""
    return {
        "type": import_path(type(error)),
        "text": f"{text_of(error)} (describing it raised {summary_of(failure)})",
        "traceback": traceback_of(error),
    }


def told_plainly(plain: Plain) -> Plain:
    """Return a description without arguments, fields and members, for when these cannot be sent
    after all.
    """
    text = plain.get("text", "")
    return {
        "type": plain.get("type", ""),
        "text": text,
        "args": [text],
        "traceback": plain.get("traceback", ""),
    }


def without_values(plain: Plain, why: str) -> Plain:
    """Return a description without what an error holds, which cannot be built here for the reason
    `why`: with the class, texts and traceback of the error, and of each member of a group.
    """
    note = f"Something that it holds could not be rebuilt here, and is there as text only: {why}"
    texts = told_plainly(plain) | {"notes": [*_notes(plain), note], "without": True}
    if all(type(one) is str or (size_of_small(one) and one is not None) for one in _args(plain)):
        # None may stand for what cannot be built.
        texts["args"] = list(_args(plain))
    members = plain.get("exceptions")
    if members and isinstance(members, list):
        texts["exceptions"] = [
            without_values(cast("Plain", member), why) if isinstance(member, dict) else member
            for member in cast("list[object]", members)
        ]
    return texts


def rebuild(
    code: object, plain: object, place: CallPlace, find_class: Callable[[str], type]
) -> CallError:
    """The error to raise at the caller. Raises ProtocolError for descriptions that no peer of ours
    sends.
    """
    if not isinstance(code, str) or not isinstance(plain, dict):
        raise ProtocolError("an ERROR frame without a code or a description")
    described = cast("Plain", plain)
    if code == RAISED:
        return _Rebuilding(place, find_class).error(described, 0)
    known = getattr(errors, code, None)
    # A newer peer may know kinds of errors that we do not: all we can say then is that the outcome
    # is unknown.
    cls = (
        known
        if isinstance(known, type) and issubclass(known, CallError) and known is not RemoteError
        else OutcomeUnknownError
    )
    text = str(described.get("text", code))
    make: Callable[..., CallError] = partial(cls, text)
    if issubclass(cls, errors.NoWorkerError):
        make = partial(cls, text, remote_traceback=str(described.get("traceback", "")))
    return make(
        actor=place.actor,
        method=place.method,
        node=place.node,
        epoch=place.epoch,
        attempts=1,
    )


def at_place(error: RemoteError, place: CallPlace, find_class: Callable[[str], type]) -> CallError:
    """The same error, as what the call at another place has ended with."""
    origin = _origin(error)
    return error if origin is None else rebuild(RAISED, origin.plain, place, find_class)


def place_of(error: CallError) -> CallPlace | None:
    """Return the call that a rebuilt error has ended; None for other errors. Use it instead of the
    attributes, which may be the exception's own.
    """
    origin = _origin(error)
    return origin.place if origin is not None else None


def set_attempts(error: CallError, attempts: int) -> None:
    """Set the number of attempts of the call, unless the exception has an attribute of that name
    itself.
    """
    origin = _origin(error)
    if origin is None or "attempts" not in _fields(origin.plain):
        attributes_of(error)["attempts"] = attempts


def plain_error(raised: RemoteError) -> UnderstudyError | None:
    """Return the runtime's own error that a system service raised, as if it had been raised here;
    None if it raised another one.
    """
    origin = _origin(raised)
    for base in bases(type(raised))[1:]:
        if is_one_of(base, _OWN) and origin is not None:
            error = cast(
                "UnderstudyError",
                build(base, _args(origin.plain), _fields(origin.plain), _notes(origin.plain)),
            )
            return with_note(error) if isinstance(error, ActorStartError) else error
    return None


class _Description:
    """Describes one error, with the members of groups in it, as data of bounded size, and in
    bounded time: an error may have millions of arguments, and the event loop waits.
    """

    def __init__(
        self,
        size_of: Callable[[object], int | None],
        trace_of: Callable[[BaseException], str] = traceback_of,
    ) -> None:
        self._size_of = size_of
        self._trace_of = trace_of
        self._bytes_left = MOST_BYTES
        self._parts_left = MOST_PARTS
        self._objects_left = MOST_OBJECTS
        self._members_left = MOST_MEMBERS

    def of(self, error: BaseException, depth: int) -> Plain:
        """Return the description of an error; `depth`: the number of groups around it."""
        cls = type(error)
        origin = _origin(error)
        if depth == 0:
            trace = self._trace_of(error)
        else:
            trace = traceback_of(error, MOST_OF_MEMBER, RELATED_OF_MEMBER)
        if origin is not None:
            # It was rebuilt from a description: that description travels on, with the notes that
            # were added since.
            added = [
                note
                for note in notes_of(error)
                if note != origin.note and note not in _notes(origin.plain)
            ]
            return {**origin.plain, "notes": [*_notes(origin.plain), *added], "traceback": trace}
        members = members_of(error)
        text = self._said(text_of(error))
        notes = list(map(self._said, notes_of(error)))
        plain: dict[str, Any] = {
            "type": import_path(cls),
            "text": text,
            "traceback": trace,
            "notes": notes,
        }
        if issubclass(cls, CallError):
            plain["args"] = [text]
        elif members:
            plain["args"] = [self._said(_message(error))]
        else:
            plain["args"] = self._of_args(args_of(error), depth)
        if message_type(cls) is not None or is_one_of(cls, BUILTIN) or is_one_of(cls, _OWN):
            fields = guarded(lambda: fields_of(error), lambda failure: {})
            plain["fields"] = self._of_fields(fields, depth)
            if left_out := len(fields) - len(plain["fields"]):
                plain["notes"] = [*notes, f"({many(left_out, 'more attribute')} left out)"]
        if members and depth < MOST_NESTING:
            plain["exceptions"] = self._of_members(members, depth)
        return plain

    def _of_members(self, members: tuple[BaseException, ...], depth: int) -> list[Plain]:
        described: list[Plain] = []
        for member in members:
            # A group may be a tree of thousands: the number is bounded over the whole tree, and the
            # rest is counted.
            if not self._members_left:
                text = f"{len(members) - len(described)} more exceptions, which are left out"
                return [
                    *described,
                    {"type": import_path(RemoteError), "text": text, "args": [text]},
                ]
            self._members_left -= 1
            described.append(self.of(member, depth + 1))
        return described

    def _of_args(self, args: tuple[object, ...], depth: int) -> list[object]:
        described: list[object] = []
        for argument in args:
            if not self._parts_left:
                # In their place, so that who reads the text of the error sees it.
                left_out = len(args) - len(described)
                return [*described, f"... ({many(left_out, 'more argument')} left out)"]
            self._parts_left -= 1
            described.append(self._portable(argument, depth))
        return described

    def _of_fields(self, fields: dict[str, object], depth: int) -> dict[str, object]:
        described: dict[str, object] = {}
        for name, value in fields.items():
            if self._parts_left and len(name) <= MOST_REPR:
                self._parts_left -= 1
                self._bytes_left -= len(name)
                described[name] = self._portable(value, depth)
        return described

    def _portable(self, value: object, depth: int) -> object:
        """Return the value if it can be sent at its depth in the description, else its repr."""
        size: int | None = size_of_small(value)
        if not size:
            size = self._measured(value, depth)
        if size is None or size > self._bytes_left:
            return self._said(repr_of(value, self._objects_left)[:MOST_REPR])
        self._bytes_left -= size
        return value

    def _measured(self, value: object, depth: int) -> int | None:
        """Return the bytes that the value takes; None if it cannot be sent, or if it is not worth
        the time to find out.
        """
        # To encode a text of a gigabyte takes seconds.
        is_text = type(value) is str or type(value) is bytes
        if (len(cast("str", value)) if is_text else 0) >= self._bytes_left:
            return None
        objects = objects_in(value, self._objects_left)
        if objects > self._objects_left:
            # Looked at in vain. The next one may be small, so something is left for it; all in all,
            # no more than twice as many objects are looked at.
            self._objects_left //= 2
            return None
        self._objects_left -= objects
        # Measured as deep as it will lie in the description, because the codec's limit on depth
        # counts from the outside.
        as_it_lies = value
        for _ in range(2 * depth + LEVELS):
            as_it_lies = [as_it_lies]
        return self._size_of(as_it_lies)

    def _said(self, text: str) -> str:
        """Return as much of a text as there is room for."""
        said = sendable(text[: max(self._bytes_left, MOST_REPR)])
        self._bytes_left -= len(said)
        return said


def size_of_small(value: object) -> int:
    """Bytes that a number or an ASCII text takes at most; 0 for any other value. Most arguments are
    one, and no nesting can spoil them: they need not be encoded to find their size.
    """
    # 9: the head of a CBOR item with a length, or a number, of eight bytes.
    kind = type(value)
    if kind is str:
        return len(cast("str", value)) + 9 if cast("str", value).isascii() else 0
    if kind is int:
        return 9 if -(2**63) <= cast("int", value) < 2**63 else 0
    return 9 if kind is float or kind is bool or value is None else 0


@attrs.frozen(eq=False)
class _ErrorOrigin:
    """The parts of a rebuilt error, from which it is built again after pickling. `note`: the note
    that says where it was raised; `classes`: the classes that were found, by their paths.
    """

    plain: Plain
    place: CallPlace
    note: str
    classes: dict[str, type]

    def __reduce__(self) -> tuple[object, ...]:
        return _ErrorOrigin, (_picklable(self.plain), self.place, self.note, self.classes)


class _RebuiltError(RemoteError):
    """The base of classes whose instances are caught as `RemoteError` and as what was raised."""

    def __init_subclass__(cls) -> None:
        """Do nothing: found before the `__init_subclass__` of the class that was raised, which may
        require arguments.
        """

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return _restored, (_origin(self), attributes_of(self).get("attempts"), notes_of(self))


def _restored(origin: _ErrorOrigin, attempts: int, notes: list[str]) -> RemoteError:
    """Rebuild an error that was pickled."""

    def find(path: str) -> type:
        if path not in origin.classes:
            raise DecodeError(f"{path} was not pickled")
        return origin.classes[path]

    error = _Rebuilding(origin.place, find).error(origin.plain, 0)
    set_attempts(error, attempts)
    attributes_of(error)[_NOTES] = notes
    return error


class _Rebuilding:
    """Rebuilds one error, with the members of groups in it, from a description."""

    def __init__(self, place: CallPlace, find_class: Callable[[str], type]) -> None:
        self._place = place
        self._find_class = find_class
        self._members_left = MOST_MEMBERS + MOST_NESTING
        self._classes: dict[str, type] = {}

    def error(self, plain: Plain, depth: int) -> RemoteError:
        """Return the error; `depth`: the number of groups around it. Raises ProtocolError for more
        members than an honest peer sends.
        """
        members: list[Exception] = []
        described = plain.get("exceptions")
        if isinstance(described, list) and depth < MOST_NESTING:
            for member in cast("list[object]", described):
                self._members_left -= 1
                if self._members_left < 0 or not isinstance(member, dict):
                    raise ProtocolError("a group of exceptions with no members, or with too many")
                members.append(self.error(cast("Plain", member), depth + 1))
        error = guarded(
            lambda: self._as_raised_class(plain, members),
            lambda failure: self._plainly(plain, failure),
        )
        _settle(error, plain, self._place, self._classes)
        return error

    def _as_raised_class(self, plain: Plain, members: list[Exception]) -> RemoteError:
        """Build an error that is also an instance of the class that was raised, if that is found.
        May run code of that class, and raises whatever it raises.
        """
        path = str(plain.get("type", ""))
        original = _exception_class(path, self._find_class)
        args = _args(plain)
        if members:
            if original is None or not issubclass(original, ExceptionGroup):
                original = ExceptionGroup
            args = (str(args[0]) if args else "", members)
        elif original is not None and issubclass(original, BaseExceptionGroup):
            original = None
        elif original is not None and "without" in plain and not is_one_of(original, BUILTIN):
            # Its own methods may need what it held.
            return self._plainly(plain, None, "what it holds could not be rebuilt")
        if original is None:
            return self._plainly(plain, None, self._why_unknown(path) if "fields" in plain else "")
        if _looks_false(original):
            return self._plainly(plain, None)
        if not is_one_of(original, BUILTIN):
            self._classes[path] = original
        return cast("RemoteError", build(_both(original), args, _fields(plain), _notes(plain)))

    def _why_unknown(self, path: str) -> str:
        """Return why the class that was raised is not found here; "" if it is. An `except` of that
        class does not catch the error then.
        """
        try:
            self._find_class(path)
        except (DecodeError, EncodeError) as error:
            return str(error)
        return ""

    def _plainly(
        self, plain: Plain, failure: BaseException | None, unknown: str = ""
    ) -> RemoteError:
        """Build a plain `RemoteError`: the class that was raised is not known here, for the reason
        `unknown`, or building an instance of it has raised `failure`.
        """
        path = str(plain.get("type", ""))
        name = path.rpartition(":")[2] or "an unknown error"
        text = str(plain["text"]) if "text" in plain else ", ".join(map(str, _args(plain)))
        error = RemoteError(
            text if path == import_path(RemoteError) else f"{name}: {text}" if text else name
        )
        for note in _notes(plain):
            annotate(error, note)
        if unknown:
            annotate(error, f"It is no {name} here: {unknown}")
        if failure is not None:
            annotate(
                error,
                f"It is no {name} here: building one raised {class_name(type(failure))}: "
                f"{text_of(failure)}",
            )
        return error


class RepeatableError:
    """The parts of a rebuilt error from which further errors of the same description are built:
    without decoding it, and without looking for the class again. `make` makes an instance.
    """

    __slots__ = ("_attributes", "_classes", "_make", "_note", "_place", "_plain")

    def __init__(
        self,
        make: Callable[[], RemoteError],
        plain: Plain,
        classes: dict[str, type],
    ) -> None:
        self._make = make
        self._plain = plain
        self._classes = classes
        self._place: CallPlace | None = None
        """That of the error before, whose attributes are kept."""
        self._attributes: dict[str, Any] = {}
        self._note = ""

    @classmethod
    def of(cls, error: CallError) -> RepeatableError | None:
        """Return the parts of `error`; None if they could change: its copies would share them."""
        origin = _origin(error)
        if origin is None or not issubclass(type(error), _RebuiltError) or has_slots(type(error)):
            return None
        plain, args = origin.plain, _args(origin.plain)
        # Members, fields and notes belong to one error.
        if any(map(plain.get, _OF_ONE)) or not all(map(size_of_small, args)):
            return None
        make = simple_maker(type(error), args)
        return None if make is None else cls(make, plain, origin.classes)

    def at(self, place: CallPlace) -> RemoteError:
        """Rebuild the error for a call at this place."""
        error = self._make()
        if place is not self._place:
            # Copied, for what follows: the attributes of an error are its owner's to change.
            _settle(error, self._plain, place, self._classes)
            self._attributes = attributes_of(error).copy()
            self._note = self._attributes[_ORIGIN].note if _NOTES in self._attributes else ""
            self._place = place
            return error
        attributes = self._attributes.copy()
        if self._note:
            attributes[_NOTES] = [self._note]
        set_attributes(error, attributes)
        return error


def _settle(error: RemoteError, plain: Plain, place: CallPlace, classes: dict[str, type]) -> None:
    """Add to a rebuilt error where it was raised. Attributes of the same names that user code has
    set stay as they are.
    """
    trace = str(plain.get("traceback", ""))
    who = f"{place.actor}.{place.method}" if place.actor else place.method
    note = f"raised by {who} on node {place.node}:\n{trace}"
    facts: dict[str, object] = {
        "remote_type": str(plain.get("type", "")),
        "remote_traceback": trace,
        "actor": place.actor,
        "method": place.method,
        "node": place.node,
        "epoch": place.epoch,
        "attempts": 1,
    }
    own = _fields(plain) if type(error) is not RemoteError else {}
    if own:
        facts = {name: fact for name, fact in facts.items() if name not in own}
    attributes = attributes_of(error)
    attributes.update(facts)
    attributes[_ORIGIN] = _ErrorOrigin(plain, place, note, classes)
    if trace and _NOTES in attributes:
        annotate(error, note)
    elif trace:
        attributes[_NOTES] = [note]


def _own_notes(error: BaseException) -> list[str]:
    """Return the notes of a rebuilt error with which it is sent as a value: where it was raised,
    but not where a `RemoteError` is explained.
    """
    line = errors.explained(cast("type[RemoteError]", type(error)))
    return [note for note in notes_of(error) if note != line]


def _own_fields(error: BaseException) -> dict[str, object]:
    """Return the fields of a rebuilt error with which it is sent as a value: not those that it got
    here.
    """
    origin = _origin(error)
    own = _fields(origin.plain) if origin is not None else {}
    return {
        name: value
        for name, value in fields_of(error).items()
        if name in own or (name not in _FACTS and name != _ORIGIN)
    }


def _origin(error: BaseException) -> _ErrorOrigin | None:
    found = attributes_of(error).get(_ORIGIN)
    return found if type(found) is _ErrorOrigin else None


def _args(plain: Plain) -> tuple[object, ...]:
    args = plain.get("args")
    return tuple(cast("list[object]", args)) if isinstance(args, list) else ()


def _fields(plain: Plain) -> dict[str, object]:
    # "attributes": from peers that sent no others than those of the runtime's own errors.
    fields = plain.get("fields", plain.get("attributes"))
    return (
        {key: value for key, value in fields.items() if type(key) is str}
        if fields and isinstance(fields, dict)
        else {}
    )


def _notes(plain: Plain) -> list[str]:
    notes = plain.get("notes")
    return (
        [note for note in cast("list[object]", notes) if type(note) is str]
        if notes and isinstance(notes, list)
        else []
    )


def _message(group: BaseException) -> str:
    message: object = cast("Any", vars(BaseExceptionGroup)["message"]).__get__(group)
    return str.__str__(cast("str", message)) if issubclass(type(message), str) else ""


def _both(original: type[Exception]) -> type[_RebuiltError]:
    """A class whose instances are caught as `RemoteError` and as `original`."""
    # The hash of a class with a metaclass of its own is code of the user's.
    cls: type = original
    return _kept_both(cls) if type(cls) is type else _both_anew(original)


@functools.lru_cache(maxsize=CLASSES_KEPT)
def _kept_both(original: type) -> type[_RebuiltError]:
    return _both_anew(original)


def _both_anew(original: type) -> type[_RebuiltError]:
    own = {
        name: vars(base)[name]
        for base in reversed(bases(original))
        for name in _OURS
        if name in vars(base)
    }
    names = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        **StandIn(original, _own_fields, _own_notes).mark,
    }
    metaclass: Any = type(original)
    return cast(
        "type[_RebuiltError]", metaclass(original.__name__, (_RebuiltError, original), own | names)
    )


def _looks_false(original: type) -> bool:
    """True for a class that has its own answers to what the runtime, trio and Python ask every
    exception: it is not asked.
    """
    # The hash of a class with a metaclass of its own is code of the user's.
    return _kept_looks_false(original) if type(original) is type else _looks_false_anew(original)


@functools.lru_cache(maxsize=CLASSES_KEPT)
def _kept_looks_false(original: type) -> bool:
    return _looks_false_anew(original)


def _looks_false_anew(original: type) -> bool:
    return any(
        not _LOOKED_AT.isdisjoint(vars(base))
        for base in bases(original)
        if not is_one_of(base, BUILTIN) and base is not object
    )


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
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _pickles(value: object) -> bool:
    """True if a value that came over the wire can be pickled. Handles and references cannot: they
    belong to their node.
    """
    if isinstance(value, Handle | Reference):
        return False
    if isinstance(value, dict):
        return all(
            _pickles(key) and _pickles(item)
            for key, item in cast("dict[object, object]", value).items()
        )
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return all(map(_pickles, cast("list[object]", value)))
    mark = message_type(type(value))
    if mark is None:
        return True
    parts = guarded(lambda: [getattr(value, name) for name, _ in mark.fields], lambda failure: [])
    return all(map(_pickles, parts))


def _picklable(plain: Plain) -> Plain:
    """Return the description with values that cannot be pickled replaced by their reprs."""
    picklable = dict(plain)
    for key in ("args", "fields", "exceptions"):
        part = plain.get(key)
        if isinstance(part, dict):
            picklable[key] = {
                name: value if _pickles(value) else repr_of(value) for name, value in part.items()
            }
        elif isinstance(part, list) and key == "exceptions":
            picklable[key] = [
                _picklable(cast("Plain", member)) for member in cast("list[object]", part)
            ]
        elif isinstance(part, list):
            picklable[key] = [
                value if _pickles(value) else repr_of(value) for value in cast("list[object]", part)
            ]
    return picklable
