"""The classes of actors that others than nodes may start: how an application lists them, and which
classes a request asks to start.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, cast

import attrs

from actors.actor import Actor
from actors.errors import DecodeError
from actors.messages import import_path
from actors.short_repr import short_repr
from actors.supervisor import ChildSpec
from runtime.near_names import nearest
from runtime.wire.classes import failure_of_import, find_class, is_imported

PLAIN: Final = frozenset((int, str, bytes, float, bool, type(None)))
"""Types of which a value holds no other one. Not their subclasses, which may."""

MOST_SHOWN: Final = 5
"""Classes that an error names."""


def checked_spawnable(given: object) -> frozenset[str]:
    """Return the paths of the classes that clients may start: `module:Class`, or the classes
    themselves, or a module for all that `application_classes` finds in it. The modules of the paths
    are imported. Raises TypeError or ValueError.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(
            "spawnable is a list of classes, of 'module:Class', or of modules, not "
            f"{short_repr(given)}"
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
                "spawnable has classes of actors, 'module:Class', or modules, not "
                f"{short_repr(one)}"
            )
        # Imported now: later, a request of a client never imports anything.
        _check_listed(one)
        found.add(one)
    return frozenset(found)


def _check_listed(path: str) -> None:
    """Raises ValueError, in one line for who has written the list, unless this is the path of a
    class of actors.
    """
    module_name, _, qualified = path.partition(":")
    if not (module_name and qualified) or module_name.startswith("."):
        raise ValueError(
            f"spawnable={path!r} is not the path of a class: write module:Class; for all classes "
            "of actors that a module defines, list the module itself (--app)"
        )
    failure = "" if is_imported(path) else failure_of_import(module_name)
    if failure:
        raise ValueError(
            f"spawnable={path!r}: the import of {module_name} raised {' '.join(failure.split())}; "
            + (
                "check that name, or add the directory of the module to PYTHONPATH"
                if failure.startswith("ModuleNotFoundError")
                else "correct the module, or list another one"
            )
        )
    try:
        cls = find_class(path)
    except DecodeError:
        raise ValueError(
            f"spawnable={path!r}: {module_name} has no class {qualified}; "
            f"{_instead(sys.modules[module_name], qualified)}"
        ) from None
    if not issubclass(cls, Actor):
        raise ValueError(
            f"spawnable={path!r} is not a subclass of actors.Actor; "
            f"{_instead(sys.modules[module_name], qualified)}"
        )


def _instead(module: ModuleType, name: str) -> str:
    """Which classes of actors of a module may be listed instead of a name that is none."""
    try:
        names = [path.partition(":")[2] for path in sorted(application_classes(module))]
    except ValueError:
        return f"{module.__name__} defines no class of actors"
    if likely := nearest(name, names):
        return f"did you mean {likely[0]}?"
    shown = ", ".join(names[:MOST_SHOWN])
    more = ", ..." if len(names) > MOST_SHOWN else ""
    return f"the classes of actors in {module.__name__} are {shown}{more}"


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
        # First, and not by `isinstance`: most arguments are plain, or rows of what is plain, and
        # the questions below take about a microsecond, on the event loop.
        kind = type(one)
        if kind in PLAIN:
            continue
        if kind is list or kind is tuple:
            row = cast("Sequence[object]", one)
            # Of a short one, the comprehension would cost more than it saves.
            left.extend(row if len(row) < 8 else [each for each in row if type(each) not in PLAIN])
            continue
        if kind is dict:
            pairs = cast("dict[object, object]", one)
            left.extend([each for each in pairs if type(each) not in PLAIN])
            left.extend([each for each in pairs.values() if type(each) not in PLAIN])
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
