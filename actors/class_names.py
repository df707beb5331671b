"""Names of classes, and what else is asked of them, without running code of the class's own.

A metaclass may define `__name__`, `__qualname__`, `__module__`, `__getattribute__`, `__hash__` or
`__eq__` anew, and raise anything there, `SystemExit` included. So the interpreter's own
descriptors are asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import GetSetDescriptorType
from typing import Any, cast

_NAME = cast("GetSetDescriptorType", vars(type)["__name__"])
_QUALIFIED_NAME = cast("GetSetDescriptorType", vars(type)["__qualname__"])
_MODULE = cast("GetSetDescriptorType", vars(type)["__module__"])
_MRO = cast("Any", vars(type)["__mro__"])
_DICT = cast("Any", vars(type)["__dict__"])


def class_name(cls: type) -> str:
    """Return the name of a class, without asking its metaclass."""
    return str.__str__(cast("str", _NAME.__get__(cls)))


def qualified_name(cls: type) -> str:
    """Return the qualified name of a class, without asking its metaclass."""
    return str.__str__(cast("str", _QUALIFIED_NAME.__get__(cls)))


def module_name(cls: type) -> str:
    """The module of a class, as it says; "" if it says none, or what is no text."""
    try:
        found: object = _MODULE.__get__(cls)
    except AttributeError:
        return ""
    return str.__str__(cast("str", found)) if issubclass(type(found), str) else ""


def bases(cls: type) -> tuple[type, ...]:
    """The class and what it derives from, in the order of lookup."""
    found: tuple[type, ...] = _MRO.__get__(cls)
    return found


def own_attributes(cls: type) -> Mapping[str, Any]:
    """Return what the class itself defines, without asking its metaclass."""
    found: Mapping[str, Any] = _DICT.__get__(cls)
    return found


def is_one_of(cls: type, classes: AbstractSet[type]) -> bool:
    """True if `cls` is in a set of classes that have no metaclass of their own.

    `cls in classes` asks the metaclass for a hash, and for equality. It may have neither, or they
    may raise anything, or claim that the class is another one.
    """
    return type(cls) is type and cls in classes
