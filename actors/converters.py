"""Converters: how instances of a class that is not yours are sent as plain data.

`@message` marks classes of your own. A class of another library cannot be marked; a converter says
what is sent in place of its instances, and how they are built again. The table belongs to the
process, as the one of `copyreg` does: it is filled by the imports of a program, and never by what
peers send. A peer can only name a class that is in it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import attrs

from actors.actor import Actor
from actors.handle import Handle
from actors.messages import import_path, message_type
from actors.reference import Reference

T = TypeVar("T")

TRAVEL_ALREADY = frozenset(
    {
        *("builtins.NoneType", "builtins.bool", "builtins.int", "builtins.float", "builtins.str"),
        *("builtins.bytes", "builtins.bytearray", "builtins.memoryview", "builtins.list"),
        *("builtins.tuple", "builtins.dict", "builtins.set", "builtins.frozenset"),
        *("builtins.complex", "builtins.range", "collections.deque", "collections.OrderedDict"),
        *("collections.defaultdict", "collections.Counter", "datetime.datetime", "datetime.date"),
        *("datetime.time", "datetime.timedelta", "decimal.Decimal", "uuid.UUID"),
        *("fractions.Fraction", "pathlib.PosixPath", "pathlib.PurePosixPath"),
        *("ipaddress.IPv4Address", "ipaddress.IPv4Network", "ipaddress.IPv4Interface"),
        *("ipaddress.IPv6Address", "ipaddress.IPv6Network", "ipaddress.IPv6Interface"),
    }
)
"""Types without a mark that are sent as they are, by their top-level package and name."""


@attrs.frozen
class Converter:
    """Converts instances of exactly `cls` for messages: `to_plain` gives what is sent, `from_plain`
    builds an instance of it. `path`: the name of the class in messages.
    """

    cls: type
    path: str
    to_plain: Callable[[Any], object]
    from_plain: Callable[[Any], object]


class _Converters:
    """The converters of this process, by class and by the name of the class in messages."""

    def __init__(self) -> None:
        self._by_class: dict[type, Converter] = {}
        self._by_path: dict[str, Converter] = {}

    def add(self, converter: Converter) -> None:
        # A later one replaces an earlier one: a notebook runs its cell again, a module is loaded
        # anew with a new class of the same name.
        earlier = self._by_path.get(converter.path)
        if earlier is not None:
            self._by_class.pop(earlier.cls, None)
        self._by_class[converter.cls] = converter
        self._by_path[converter.path] = converter

    def of(self, cls: type) -> Converter | None:
        return self._by_class.get(cls)

    def at(self, path: str) -> Converter | None:
        return self._by_path.get(path)


_CONVERTERS = _Converters()


def register_converter(
    cls: type[T], to_plain: Callable[[T], object], from_plain: Callable[[Any], T]
) -> None:
    """Let instances of `cls` be sent: in arguments, results, items of streams and saved state.

    `to_plain` gets an instance and returns anything that can be sent. `from_plain` gets that as it
    has arrived, and returns an instance of `cls`. Both run on the event loop, so they must be
    short. What they raise ends only the call: with EncodeError where the value is sent, with
    DecodeError where it arrives.

    Call it at the top of a module that each process imports which sends or receives such values;
    the best is the module of the actor's class. Only instances of exactly `cls` are converted, and
    not those of its subclasses.

    Raises TypeError for a class that is sent without a converter (plain data, classes with
    `@message`, enums, handles, references), for actors, and for a class inside a function, which no
    other process could find.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_converter: a class is expected, and not {cls!r:.100}")
    path = import_path(cls)
    name = f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"
    if name in TRAVEL_ALREADY or issubclass(cls, Enum | Handle | Reference):
        raise TypeError(f"register_converter: {path} is sent without a converter")
    if message_type(cls) is not None:
        raise TypeError(f"register_converter: {path} has @message; take one of the two away")
    if issubclass(cls, Actor):
        raise TypeError(
            f"register_converter: {path} is a class of actors, which stay where they run; "
            "send the handle"
        )
    if "<locals>" in path:
        raise TypeError(
            f"register_converter: {path} is defined inside a function; move it to the top of its "
            "module, so that others can import it"
        )
    for what, function in (("to_plain", to_plain), ("from_plain", from_plain)):
        if not callable(function):
            raise TypeError(f"register_converter: {what} is a function, and not {function!r:.100}")
    _CONVERTERS.add(Converter(cls, path, to_plain, from_plain))


def converter_of(cls: type) -> Converter | None:
    """The converter of exactly this class."""
    return _CONVERTERS.of(cls)


def converter_at(path: str) -> Converter | None:
    """The converter of the class with this name in messages."""
    return _CONVERTERS.at(path)
