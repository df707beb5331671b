"""Checks that the actor that has a name is an instance of the class of the handle or lookup. When
an actor has ended, an actor of another class may get its name. Calls for the first must not reach
the second, which may have methods of the same names.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.actor import Actor
from actors.errors import ClassMismatchError, DecodeError
from actors.messages import import_path
from actors.method import Address

FindClass = Callable[[str], type]


def fits(expected: str, actual: str, find_class: FindClass) -> bool:
    """True if an actor of the class `actual` can be called through a handle for the class
    `expected`; both are import paths, "" for any.

    Where the two are not the same, and cannot be imported here to see whether one is derived from
    the other, it is refused.
    """
    if not expected or not actual or is_same(expected, actual):
        return True
    try:
        return issubclass(find_class(actual), find_class(expected))
    except (DecodeError, TypeError):
        return False


def is_same(one: str, other: str) -> bool:
    """True if the two import paths are of the same class. A class of a main script has another
    module's name elsewhere.
    """
    if one == other:
        return True
    (module, _, name), (other_module, _, other_name) = one.partition(":"), other.partition(":")
    return name == other_name and "__main__" in (module, other_module)


def expected_class(address: Address, actor: object, find_class: FindClass) -> str:
    """Return the import path of the class for a handle of the actor at `address`, which the caller
    asked for as an `actor`. Raises ClassMismatchError.

    If `actor` is no class of actors, it is the class at the address. A class at the address that
    cannot be imported here may be derived from `actor`: users write such interfaces for classes
    that exist on other nodes only.
    """
    if not (isinstance(actor, type) and issubclass(actor, Actor)):
        return address.class_path
    expected = import_path(actor)
    if is_same(expected, address.class_path):
        return address.class_path
    try:
        found = find_class(address.class_path)
    except DecodeError:
        return address.class_path
    if issubclass(found, actor):
        return expected
    raise ClassMismatchError(
        f"{address.name} on node {address.node} is of class {address.class_path}, which is not a "
        f"subclass of {expected}; look it up with its own class",
        actor=address.name,
        node=address.node,
        epoch=address.epoch,
    )
