"""Who somebody is: what each side of a connection says of itself, and what it may say.

No I/O, no clock, no randomness.
"""

from __future__ import annotations

from typing import Final, Literal, cast, get_args

import attrs

Role = Literal["node", "client"]

VERSIONS: Final = (2, 2)
"""The lowest and the highest version of the protocol that this code speaks. 2: offers name links rather than sessions, see
`runtime.links.settling`; two ends of which one draws names of sessions could not settle crossed dials.
"""

MAX_NAME: Final = 255
MAX_ADDRESSES: Final = 16
MAX_FEATURES: Final = 64
MAX_LIFE: Final = 64
MAX_INCARNATION: Final = 2**64 - 1
MAX_VERSION: Final = 2**16 - 1


def check_text(value: object, what: str, *, least: int = 1, most: int = MAX_NAME) -> str:
    """Raises ValueError for what is no string of such a length."""
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise ValueError(f"{what} must be a string of {least} to {most} characters")
    return value


def check_integer(value: object, what: str, *, least: int, most: int) -> int:
    """Raises ValueError for what is no integer in that range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{what} must be an integer from {least} to {most}")
    return value


def check_bytes(value: object, what: str, *, length: int) -> bytes:
    """Raises ValueError for what is not so many bytes."""
    if not isinstance(value, bytes) or len(value) != length:
        raise ValueError(f"{what} must be {length} bytes")
    return value


def check_list(value: object, what: str, *, least: int = 0, most: int) -> list[object]:
    """Raises ValueError for what is no list of such a length."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ValueError(f"{what} must be a list of {least} to {most}")
    return cast("list[object]", value)


def check_versions(low: object, high: object) -> tuple[int, int]:
    """Raises ValueError for what is no range of protocol versions."""
    lowest = check_integer(low, "the lowest version", least=1, most=MAX_VERSION)
    return lowest, check_integer(high, "the highest version", least=lowest, most=MAX_VERSION)


@attrs.frozen
class Peer:
    """What one side of a connection says of itself.

    Raises ValueError where a field is of the wrong type or too long; the limits are this module's constants.
    """

    name: str
    incarnation: int
    """Tells this life of the node from earlier ones under the same name."""
    role: Role
    addresses: tuple[str, ...] = ()
    """Where it listens; empty for a side that only dials."""
    host: str = ""
    """Identifies the machine, so that two nodes of one host can find the shorter way; empty where unknown."""
    features: frozenset[str] = frozenset()
    store: str = ""
    """The identity of the store that knows it; "" for clients."""
    life: str = ""
    """Drawn when the process starts, "" where unknown. A store that is lost and begun anew counts incarnations from the beginning again, so
    that a later process may be given the name and the incarnation of an earlier one.
    """

    def __attrs_post_init__(self) -> None:
        check_text(self.name, "a node's name")
        check_integer(self.incarnation, "an incarnation", least=0, most=MAX_INCARNATION)
        if self.role not in get_args(Role):
            raise ValueError(f"a role must be one of {', '.join(get_args(Role))}")
        check_text(self.host, "a host", least=0)
        check_text(self.store, "a store's identity", least=0, most=MAX_LIFE)
        check_text(self.life, "a life", least=0, most=MAX_LIFE)
        check_list(list(self.addresses), "addresses", most=MAX_ADDRESSES)
        check_list(list(self.features), "features", most=MAX_FEATURES)
        for address in self.addresses:
            check_text(address, "an address")
        for feature in self.features:
            check_text(feature, "a feature")

    @property
    def identity(self) -> tuple[str, int]:
        """Name and incarnation: no two processes that one store knows ever share both."""
        return self.name, self.incarnation


@attrs.frozen
class Introduction:
    """What this side brings to every handshake: its cluster, itself, and the lowest and highest protocol version it speaks.

    Raises ValueError where a field is of the wrong type, too long, or the versions are in the wrong order.
    """

    cluster: str
    peer: Peer
    versions: tuple[int, int] = VERSIONS

    def __attrs_post_init__(self) -> None:
        check_text(self.cluster, "a cluster's name")
        check_versions(*self.versions)
