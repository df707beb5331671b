"""Instances of users' classes of actors, before their constructors run, and names made of a class.

`__new__` and the name of a class are the user's: nothing that they give is trusted.
"""

from __future__ import annotations

from actors.actor import Actor
from actors.class_names import bases, class_name, qualified_name
from actors.options import SpawnOptions
from runtime.printable import plain

MOST_CLASS_NAME = 100
"""Characters of a class's name that are part of the names of its actors."""


def plain_instance(cls: type[Actor], options: SpawnOptions) -> Actor:
    """Return the actor itself, not constructed yet. Raises TypeError if what a `__new__` of the
    user's returns cannot be an actor of this class.
    """
    instance = cls.__new__(cls)
    if cls.__new__ is not object.__new__:
        _check(instance, cls)
    return instance


def name_part(cls: type) -> str:
    """Return the name of a class as a part of its actors' generated names, which nothing checks."""
    return plain(class_name(cls))[:MOST_CLASS_NAME]


def _check(instance: object, cls: type[Actor]) -> None:
    name, kind = qualified_name(cls), type(instance)
    # By identity: a metaclass compares as it likes.
    if not any(base is cls for base in bases(kind)):
        raise TypeError(
            f"{name}.__new__ returned an object of class {qualified_name(kind)}, which is no "
            f"instance of {name}; return super().__new__(cls)"
        )
    if object.__getattribute__(instance, "_context") is not None:
        raise TypeError(
            f"{name}.__new__ returned an instance that is an actor already; return a new one "
            "each time"
        )
