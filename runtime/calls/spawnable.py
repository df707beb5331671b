"""The classes of actors that others than nodes may start: how an application lists them, and which
classes a request asks to start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, cast

import attrs

from actors.actor import Actor
from actors.errors import DecodeError
from actors.messages import import_path
from actors.supervisor import ChildSpec
from runtime.wire.classes import import_class

PLAIN: Final = frozenset((int, str, bytes, float, bool, type(None)))
"""Types of which a value holds no other one. Not their subclasses, which may."""


def checked_spawnable(given: object) -> frozenset[str]:
    """Return the paths of the classes that clients may start: `module:Class`, or the classes
    themselves, or a module for all that `application_classes` finds in it. The modules of the paths
    are imported. Raises TypeError or ValueError.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(
            f"spawnable is a list of classes, of 'module:Class', or of modules, not {given!r}"
        )
    found: set[str] = set()
    for one in cast("Iterable[object]", given):
        if isinstance(one, ModuleType):
            found |= application_classes(one)
            continue
        if isinstance(one, type) and issubclass(one, Actor):
            found.add(import_path(one))
            continue
        if not isinstance(one, str):
            raise TypeError(
                f"spawnable has classes of actors, 'module:Class', or modules, not {one!r}"
            )
        try:
            # Now: later, a request of a client never imports anything.
            cls = import_class(one)
        except DecodeError as error:
            raise ValueError(f"spawnable={one!r}: {error}") from None
        if not issubclass(cls, Actor):
            raise ValueError(f"spawnable={one!r} is not a subclass of actors.Actor")
        found.add(one)
    return frozenset(found)


def application_classes(module: ModuleType) -> frozenset[str]:
    """Return the paths of the actor classes that a module defines, or that a package takes from its
    own modules: the names in it without an underscore in front. Raises ValueError if there are
    none.
    """
    own = module.__name__
    found: set[str] = set()
    for name, one in sorted(vars(module).items()):
        # By the type of its type: what lies about its `__class__` is no class.
        if name.startswith("_") or not issubclass(type(one), type) or not issubclass(one, Actor):
            continue
        # Not what it has only imported, such as `Actor` itself, or classes of another application.
        if one.__module__ == own or one.__module__.startswith(f"{own}."):
            found.add(import_path(one))
    if not found:
        raise ValueError(f"the module {own} defines no class of actors that a client could start")
    return frozenset(found)


def child_classes(value: object) -> Iterator[str]:
    """The paths of the classes of all child specs in a value that was decoded."""
    # Not recursive. It ends: what was decoded refers to nothing that contains it.
    left = [value]
    while left:
        one = left.pop()
        # First, and not by `isinstance`: most arguments are plain, and each of the questions below
        # takes about a microsecond.
        if type(one) in PLAIN:
            continue
        if isinstance(one, ChildSpec):
            yield one.actor
        if isinstance(one, list | tuple | set | frozenset):
            left.extend(cast("Iterable[object]", one))
        elif isinstance(one, Mapping):
            for pair in cast("Mapping[object, object]", one).items():
                left.extend(pair)
        elif isinstance(one, BaseException):
            left.extend(one.args)
        else:
            left.extend(_fields(one))


def _fields(value: object) -> Iterator[object]:
    """Yield the values in the fields of a message."""
    cls = type(value)
    names: Iterable[Any] = ()
    if attrs.has(cls):
        names = attrs.fields(cls)
    elif dataclasses.is_dataclass(cls):
        names = dataclasses.fields(cls)
    for field in names:
        try:
            yield object.__getattribute__(value, field.name)
        except AttributeError:
            # A field that its class deletes, or has not set.
            continue
