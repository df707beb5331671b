"""What the store holds of groups, and the keys.

A node writes the members that it has of one group in records of at most `RECORD_MEMBERS`, so that thousands fit and one that joins or
leaves costs one record. All that changes meanwhile goes in one transaction. A write names the revision that it replaces: one that was given
up and arrives late changes nothing.
"""

from __future__ import annotations

from typing import Any

import attrs

from actors.method import Address

PREFIX = "groups/"
RECORD_MEMBERS = 200

Member = tuple[str, int]
"""Name and epoch."""


@attrs.frozen
class Membership:
    """An actor in a group, `times` times."""

    address: Address
    times: int


@attrs.frozen
class Record:
    """A part of the members that one start of a node has of one group."""

    node: str
    incarnation: int
    members: tuple[Membership, ...]


def prefix_of(group: str) -> str:
    """Under which the records of a group are. Names of groups may hold anything, so a slash in them is written otherwise."""
    return f"{PREFIX}{group.replace('%', '%25').replace('/', '%2F')}/"


def plain(record: Record) -> list[Any]:
    """A record as it is written."""
    members = [[one.address.name, one.address.epoch, one.address.class_path, one.address.registered, one.times] for one in record.members]
    return [record.node, record.incarnation, members]


def from_plain(value: Any) -> Record:
    """What `plain` made. Raises ValueError or TypeError for anything else."""
    node, incarnation, members = value
    return Record(
        node,
        incarnation,
        tuple(
            Membership(Address(name, node, incarnation, epoch, class_path, registered), int(times))
            for name, epoch, class_path, registered, times in members
        ),
    )
