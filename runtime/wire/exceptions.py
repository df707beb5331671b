"""Exceptions as data: what of them travels, and how they are built again without running their
code.

As pickle does it by default, an exception is its class, its `args` and its attributes; here its
slots and its notes as well. It is built by the builtin exception that it derives from and then
filled, past the class's own `__new__`, `__init__` and `__setattr__`: these serve the code that
raises one, need not take the `args` back, and must not be able to do harm where it arrives.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any, Final, cast

import attrs

from actors.class_names import bases, is_one_of, own_attributes
from actors.short_repr import short_repr
from runtime.user_errors import BUILTIN, guarded

MOST_NOTES = 32
MOST_NOTE = 64 * 1024
"""How many notes of an exception are sent, and how many characters of each: a loop that annotates
what it catches again and again would else make an error that no frame can carry.
"""

CLASSES_KEPT = 512
"""How many classes of exceptions, the latest, are not examined anew for each of their instances."""

_DICT = cast("Any", vars(BaseException)["__dict__"])
_ARGS = cast("Any", vars(BaseException)["args"])
_NOTES: Final = "__notes__"

_STAND_IN: Final = "_understudy_stand_in"
"""The attribute in which a class says for which other class it stands."""

_FILENAME = cast("Any", vars(OSError)["filename"])
_WRITTEN = cast("Any", vars(OSError)["characters_written"])

_OF_GROUPS = frozenset({"message", "exceptions"})
"""Attributes of every group, which it gets as it is built."""

_NOT_SENT = frozenset({"obj", "__dict__", "__weakref__", "__suppress_context__"})
"""`obj` of an AttributeError is excluded: it can be any object, and must not be shown to another
process.
"""


@attrs.frozen(eq=False)
class StandIn:
    """What a class of exceptions says of itself that was made here, and that no other process can
    import: its instances are sent as those of `original`, with the fields and the notes that these
    functions return.
    """

    original: type[BaseException]
    fields_of: Callable[[BaseException], dict[str, object]]
    notes_of: Callable[[BaseException], list[str]]

    @property
    def mark(self) -> dict[str, object]:
        """The attribute of the class that says so."""
        return {_STAND_IN: self}


def stand_in_of(cls: type) -> StandIn | None:
    """Return what `cls` itself says for which class it stands; None if it stands for none."""
    found: object = type.__dict__["__dict__"].__get__(cls).get(_STAND_IN)
    return found if type(found) is StandIn else None


def attributes_of(error: BaseException) -> dict[str, Any]:
    """Return the attributes of an exception: its real `__dict__`, whatever the class claims it
    is.
    """
    found: dict[str, Any] = _DICT.__get__(error)
    return found


def args_of(error: BaseException) -> tuple[object, ...]:
    """Return the `args` of an exception. An OSError has removed the file names from them, which its
    constructor needs.
    """
    args: tuple[object, ...] = _ARGS.__get__(error)
    if issubclass(type(error), OSError) and len(args) == 2:
        name, other = (
            slot.__get__(error) for slot in (vars(OSError)["filename"], vars(OSError)["filename2"])
        )
        if name is not None:
            return (*args, name) if other is None else (*args, name, None, other)
    return args


def fields_of(error: BaseException) -> dict[str, object]:
    """Return the values of its slots and attributes, including those of builtin exceptions, but
    without its notes.
    """
    fields: dict[str, object] = {}
    for name, slot in _slots(type(error)).items():
        try:
            value = slot.__get__(error)
        except AttributeError:
            # A slot that was never set.
            continue
        if value is not None or not is_one_of(_owner(slot), BUILTIN):
            fields[name] = value
    for key, value in attributes_of(error).items():
        if type(key) is str and key != _NOTES:
            fields[key] = value
    return fields


def notes_of(error: BaseException) -> list[str]:
    """Return its notes, as far as they are texts."""
    notes = attributes_of(error).get(_NOTES)
    if type(notes) is not list:
        return []
    texts = (note[:MOST_NOTE] for note in cast("list[object]", notes) if type(note) is str)
    return list(itertools.islice(texts, MOST_NOTES))


def annotate(error: BaseException, note: str) -> None:
    """Add a note with `BaseException.add_note` itself: the class may have overridden that name or
    `__notes__`.
    """
    attributes_of(error)[_NOTES] = [*notes_of(error), note]


def simple_maker(cls: type[BaseException], args: tuple[object, ...]) -> Callable[[], Any] | None:
    """Return what makes one instance of `cls` with these `args` after the other, each with an empty
    `__dict__`; None if they have more state than that, which only `build` sets.
    """
    shape = _shape(cls)
    if shape.slots or shape.defaults:
        return None
    for maker in shape.makers:
        make = functools.partial(cast("Any", maker).__new__, cls, *args)
        try:
            made = make()
        except TypeError:
            # See `_bare`.
            continue
        return make if type(made) is cls and _ARGS.__get__(made) == args else None
    return None


def set_attributes(error: BaseException, attributes: dict[str, Any]) -> None:
    """Replace the real `__dict__` of an exception."""
    _DICT.__set__(error, attributes)


def build(
    cls: type[BaseException], args: tuple[object, ...], fields: dict[str, object], notes: list[str]
) -> BaseException:
    """Build an instance of `cls` with these `args`, fields and notes. Raises what the class raises
    if it cannot be built.
    """
    shape = _shape(cls)
    error, own = _bare(cls, shape.makers, args), shape.own
    if shape.constructs:
        # A builtin exception has more state than its args (an OSError its errno), which only its
        # own constructor sets, and some accept only certain args. An OSError takes its file names
        # out of them: see `args_of`.
        guarded(lambda: own.__init__(error, *args), lambda failure: None)
    _ARGS.__set__(error, _kept_args(error, args, fields))
    attributes = attributes_of(error)
    slots = shape.slots
    if shape.defaults:
        fields = _defaults(shape.defaults, fields) | fields
    for name, value in fields.items():
        if name in slots:
            try:
                slots[name].__set__(error, value)
            except (AttributeError, TypeError, ValueError):
                # Not every slot of a builtin can be set, or accepts any value. Those were set from
                # the args.
                continue
        else:
            attributes[name] = value
    if notes:
        attributes[_NOTES] = list(notes)
    return error


def _kept_args(
    error: BaseException, args: tuple[object, ...], fields: dict[str, object]
) -> tuple[object, ...]:
    """Return the `args` that the constructor has left, after it was given `args`: those of an
    OSError are without its file names.
    """
    if not issubclass(type(error), OSError) or len(args) not in (3, 5):
        return args
    # Every OSError has fields. Where none were sent, nothing is known of the names.
    if not fields or "filename" in fields:
        return args[:2]
    # The third argument was no name. Of a BlockingIOError it is the number of characters that were
    # written, but its constructor takes that for a name in an instance of any derived class.
    _FILENAME.__delete__(error)
    if issubclass(type(error), BlockingIOError):
        guarded(lambda: _WRITTEN.__set__(error, args[2]), lambda failure: None)
    return args


@attrs.frozen(eq=False)
class _Shape:
    """The facts about an exception class that are needed to build instances. `own`: the builtin
    exception that determines its memory layout. `makers`: the builtin exceptions that it derives
    from, in the order of lookup. `constructs`: the constructor of `own` is also the class's.
    `defaults`: the attrs fields that have one.
    """

    own: type[BaseException]
    makers: tuple[type, ...]
    constructs: bool
    slots: dict[str, Any]
    defaults: tuple[attrs.Attribute[Any], ...]


def _shape(cls: type) -> _Shape:
    # The hash of a class with a metaclass of its own is code of the user's.
    return _kept_shape(cls) if type(cls) is type else _shape_anew(cls)


@functools.lru_cache(maxsize=CLASSES_KEPT)
def _kept_shape(cls: type) -> _Shape:
    return _shape_anew(cls)


def _shape_anew(cls: Any) -> _Shape:
    own = builtin_base(cls)
    defaults = (
        tuple(field for field in attrs.fields(cls) if field.default is not attrs.NOTHING)
        if attrs.has(cls)
        else ()
    )
    makers = tuple(base for base in bases(cls) if is_one_of(base, BUILTIN))
    return _Shape(own, makers, own is cls or cls.__init__ is own.__init__, _slots(cls), defaults)


def has_slots(cls: type) -> bool:
    """True if instances of an exception class may have fields besides their `__dict__`."""
    return bool(_slots(cls))


def builtin_base(cls: type[BaseException]) -> type[BaseException]:
    """Return the builtin exception that determines the memory layout of `cls`."""
    for base in bases(cls):
        if is_one_of(base, BUILTIN) and base is not Exception and base is not BaseException:
            return base
    return Exception if issubclass(cls, Exception) else BaseException


def _bare(
    cls: type[BaseException], makers: tuple[type, ...], args: tuple[object, ...]
) -> BaseException:
    for maker in makers:
        try:
            return cast("BaseException", cast("Any", maker).__new__(cls, *args))
        except TypeError:
            # Its constructor cannot make instances of a class with two bases (MemoryError). Try
            # the next one.
            continue
    raise TypeError(f"instances of {short_repr(cls)} cannot be built")


def _slots(cls: type) -> dict[str, Any]:
    """Return the attributes that are not in the `__dict__`, by name. The class's own hide those of
    its bases. Only read it: it is kept.
    """
    return _kept_slots(cls) if type(cls) is type else _slots_anew(cls)


@functools.lru_cache(maxsize=CLASSES_KEPT)
def _kept_slots(cls: type) -> dict[str, Any]:
    return _slots_anew(cls)


def _slots_anew(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in bases(cls):
        if base is object or base is BaseException:
            continue
        for name, member in own_attributes(base).items():
            if type(member) is MemberDescriptorType and name not in _NOT_SENT | _OF_GROUPS:
                found.setdefault(name, member)
    return found


def _owner(slot: Any) -> type:
    owner: type = slot.__objclass__
    return owner


def _defaults(
    with_defaults: tuple[attrs.Attribute[Any], ...], fields: dict[str, object]
) -> dict[str, object]:
    """Return the defaults of attrs fields that were not sent: the peer may have an older version of
    the class.
    """
    found: dict[str, object] = {}
    for field in with_defaults:
        default: Any = field.default
        if field.name not in fields:
            if not isinstance(default, attrs.Factory):  # type: ignore[arg-type]
                found[field.name] = default
            elif not default.takes_self:
                found[field.name] = default.factory()
    return found
