"""How applied calls are written in a store: a key for each, and one for each mark.

    applied/LENGTH:NAME/call/NUMBER/INCARNATION/LENGTH:LIFE/CLIENT    0, or 1 and the answer
    applied/LENGTH:NAME/mark/INCARNATION/LENGTH:LIFE/CLIENT           the highest number that had to go
    applied/LENGTH:NAME/floor                                         the highest incarnation whose marks had to go

Lengths come first, because names may hold any character: no key of an actor begins like one of another's.
"""

from __future__ import annotations

from collections.abc import Iterable

from runtime.hosting.applied import CallIdentity, Change, Client, Kept
from runtime.store.interface import Delete, Entry, Put

APPLIED = "applied/"

UNANSWERED = b"\0"
ANSWERED = b"\1"


def prefix_of(name: str) -> str:
    """Where the keys of one actor begin."""
    return f"{APPLIED}{len(name)}:{name}/"


def changes_of(name: str, change: Change) -> list[Put | Delete]:
    """What a transaction writes for `change`; no key twice."""
    prefix = prefix_of(name)
    operations: list[Put | Delete] = []
    if change.record is not None:
        call, answer = change.record
        operations.append(Put(_call_key(prefix, call), UNANSWERED if answer is None else ANSWERED + answer))
    operations += [Put(_mark_key(prefix, client), b"%d" % number) for client, number in change.marks.items()]
    if change.floor is not None:
        operations.append(Put(prefix + "floor", b"%d" % change.floor))
    operations += [Delete(_call_key(prefix, call)) for call in change.forgotten]
    operations += [Delete(_mark_key(prefix, client)) for client in change.unmarked]
    return operations


def kept_in(entries: Iterable[Entry], name: str) -> Kept:
    """What the entries of one actor say, those written first first."""
    prefix = prefix_of(name)
    records: list[tuple[CallIdentity, bytes | None]] = []
    marks: dict[Client, int] = {}
    floor = -1
    for entry in sorted(entries, key=lambda entry: entry.mod_revision):
        kind, _, rest = entry.key.removeprefix(prefix).partition("/")
        if kind == "call":
            number, _, client = rest.partition("/")
            answer = entry.value[1:] if entry.value[:1] == ANSWERED else None
            records.append((CallIdentity(_client(client), int(number)), answer))
        elif kind == "mark":
            marks[_client(rest)] = int(entry.value)
        elif kind == "floor":
            floor = int(entry.value)
    return Kept(tuple(records), marks, floor)


def _call_key(prefix: str, call: CallIdentity) -> str:
    return f"{prefix}call/{call.number}/{_client_text(call.client)}"


def _mark_key(prefix: str, client: Client) -> str:
    return f"{prefix}mark/{_client_text(client)}"


def _client_text(client: Client) -> str:
    return f"{client.incarnation}/{len(client.life)}:{client.life}/{client.name}"


def _client(text: str) -> Client:
    incarnation, _, rest = text.partition("/")
    length, _, rest = rest.partition(":")
    end = int(length)
    return Client(rest[end + 1 :], int(incarnation), rest[:end])
