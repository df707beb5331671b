"""The states that actors save, and the records of calls beside them: under the actors' names in
the store, and fenced by their epochs.

A state that is larger than a store takes in one value is written in parts first, under keys that
only this epoch writes, and then takes effect as a whole with the entry that names them. Parts
that a writer leaves behind when it dies in between are deleted by the next.

The calls that led to a state are kept beside it, each under a key of its own, so that a save
writes what is new of them and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import trio

from actors.errors import (
    LeaseLostError,
    StaleEpochError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from actors.identifiers import ActorId
from runtime.hosting.completion_records import Change, CommittedRecords, RequestClient, RequestId
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Get,
    Put,
    Store,
)

# How applied calls are written in a store: a key for each, and one for each mark.
#
#     applied/LENGTH:NAME/call/NUMBER/INCARNATION/LENGTH:LIFE/CLIENT    0, or 1 and the answer
#     applied/LENGTH:NAME/mark/INCARNATION/LENGTH:LIFE/CLIENT           the highest number evicted
#     applied/LENGTH:NAME/floor                                         the last incarnation evicted
#
# Lengths come first, because names may hold any character: no key of an actor begins like one of
# another's.

APPLIED = "applied/"


UNANSWERED = b"\0"


ANSWERED = b"\1"

STATES = "states/"

PARTS = "state-parts/"

PART_BYTES = 1_000_000
"""etcd takes 1.5 MiB in one request by default."""

WHOLE = b"\0"

IN_PARTS = b"\1"

FENCES = "state-fences/"

MOST_REPEATS = 3
"""How often one write is repeated whose answers are lost, for example while the store moves."""


def prefix_of(name: str) -> str:
    """The prefix of the keys of one actor."""
    return f"{APPLIED}{len(name)}:{name}/"


def changes_of(name: str, change: Change) -> list[Put | Delete]:
    """Return the operations that write `change`; none has the key of another."""
    prefix = prefix_of(name)
    operations: list[Put | Delete] = []
    if change.record is not None:
        call, answer = change.record
        operations.append(
            Put(_call_key(prefix, call), UNANSWERED if answer is None else ANSWERED + answer)
        )
    operations += [
        Put(_mark_key(prefix, client), b"%d" % number) for client, number in change.marks.items()
    ]
    if change.floor is not None:
        operations.append(Put(prefix + "floor", b"%d" % change.floor))
    # Marks and deletions in one transaction: a record that is dropped without its mark would let a
    # repeat of that call run a second time.
    operations += [Delete(_call_key(prefix, call)) for call in change.forgotten]
    operations += [Delete(_mark_key(prefix, client)) for client in change.unmarked]
    # A transaction refuses to write one key twice, and a refused save would end the actor.
    assert len({operation.key for operation in operations}) == len(operations)
    return operations


def kept_in(entries: Iterable[Entry], name: str) -> CommittedRecords:
    """Decode the entries of one actor, in the order in which they were written."""
    prefix = prefix_of(name)
    records: list[tuple[RequestId, bytes | None]] = []
    marks: dict[RequestClient, int] = {}
    floor = -1
    for entry in sorted(entries, key=lambda entry: entry.mod_revision):
        kind, _, rest = entry.key.removeprefix(prefix).partition("/")
        if kind == "call":
            number, _, client = rest.partition("/")
            answer = entry.value[1:] if entry.value[:1] == ANSWERED else None
            records.append((RequestId(_client(client), int(number)), answer))
        elif kind == "mark":
            marks[_client(rest)] = int(entry.value)
        elif kind == "floor":
            floor = int(entry.value)
    return CommittedRecords(tuple(records), marks, floor)


def _call_key(prefix: str, call: RequestId) -> str:
    return f"{prefix}call/{call.number}/{_client_text(call.client)}"


def _mark_key(prefix: str, client: RequestClient) -> str:
    return f"{prefix}mark/{_client_text(client)}"


def _client_text(client: RequestClient) -> str:
    return f"{client.incarnation}/{len(client.life)}:{client.life}/{client.name}"


def _client(text: str) -> RequestClient:
    incarnation, _, rest = text.partition("/")
    length, _, rest = rest.partition(":")
    end = int(length)
    # The name comes last and takes all that is left, since it may hold slashes and colons.
    return RequestClient(rest[end + 1 :], int(incarnation), rest[:end])


async def saved_bytes(store: Store, name: str) -> int | None:
    """The size of the state that an actor saved last, encoded; None if it has saved none, or saves
    another at this moment.
    """
    entry = await store.get(STATES + name)
    if entry is None or entry.value[:1] == WHOLE:
        return None if entry is None else len(entry.value) - 1
    epoch, number, count = map(int, entry.value[1:].split())
    # All parts but the last are full.
    last = await store.get(_part(name, epoch, number, count - 1))
    return None if last is None else (count - 1) * PART_BYTES + len(last.value)


@attrs.frozen(eq=False)
class _Doubt:
    """A write of this epoch has an unknown outcome: it may still be carried out."""

    epoch: int


class StateRecords:
    """The states in one store. `owners` + a name: the key whose modification is the epoch that may
    write. `lease`: that of the node, to which fences are tied.

    A write whose answer was lost may be carried out late, by a server that was stopped for example,
    and would then undo what was saved after it. So each write of an epoch has a condition on a
    fence, a key of that epoch, and after a write of unknown outcome the fence is written first:
    what was on its way is refused from then on, and what is read is final.
    """

    def __init__(self, store: Store, owners: str, lease: int = 0) -> None:
        self._store = store
        self._owners = owners
        self._lease = lease
        self._in_doubt: dict[str, _Doubt] = {}
        self._fences: dict[ActorId, int] = {}
        """Revisions of the fences, by name and epoch. Most epochs never write theirs: 0."""
        # What this node has written in parts: the first part of their keys, by name and epoch, and
        # how many.
        self._written: dict[ActorId, tuple[int, int]] = {}

    async def save(self, name: str, epoch: int, state: bytes, change: Change | None = None) -> None:
        """Save `state`, and the changes of call records in `change`.

        Raises `StaleEpochError` if the name has another owner; then nothing has changed.
        """
        actor = ActorId(name, epoch)
        # Parts are written first, under keys that no reader knows, and take effect with the entry
        # that names them; the old ones are deleted last, for a reader may be among them.
        before = self._written.get(actor)
        if len(state) <= PART_BYTES:
            await self._put(name, epoch, WHOLE + state, change)
            if before is not None:
                del self._written[actor]
        else:
            # A new number: a reader may still be among the parts of the one before.
            number = before[0] + 1 if before is not None else 0
            parts = [
                state[start : start + PART_BYTES] for start in range(0, len(state), PART_BYTES)
            ]
            # `saved_bytes` counts on it.
            assert all(len(part) == PART_BYTES for part in parts[:-1]), "only the last is shorter"
            if before is None:
                # Once for an epoch, before its first parts: what its predecessors left behind when
                # they died would stay for ever, since parts have no lease.
                await self._sweep(name, epoch)
            for index, part in enumerate(parts):
                await self._store.put(_part(name, epoch, number, index), part)
            self._written[actor] = (number, len(parts))
            await self._put(
                name, epoch, IN_PARTS + b"%d %d %d" % (epoch, number, len(parts)), change
            )
        if before is not None:
            await self._forget([_part(name, epoch, before[0], index) for index in range(before[1])])

    async def saved(self, name: str) -> bytes | None:
        """Return the state that was saved last, by any epoch."""
        await self._settle(name)
        while True:
            entry = await self._store.get(STATES + name)
            if entry is None:
                return None
            if entry.value[:1] == WHOLE:
                return entry.value[1:]
            epoch, number, count = map(int, entry.value[1:].split())
            parts = [
                await self._store.get(_part(name, epoch, number, index)) for index in range(count)
            ]
            if all(parts):
                return b"".join(part.value for part in parts if part is not None)
            # Another state was saved meanwhile, and this one taken away.

    async def change_applied(self, name: str, epoch: int, change: Change) -> None:
        """Save the changes of call records in `change`, and leave the state as it is. Raises
        `StaleEpochError` like `save`.
        """
        await self._write(name, epoch, changes_of(name, change))

    async def applied(self, name: str) -> CommittedRecords:
        """Return the call records of the actor, of all epochs."""
        await self._settle(name)
        return kept_in((await self._store.range(prefix_of(name))).entries, name)

    async def _put(self, name: str, epoch: int, value: bytes, change: Change | None = None) -> None:
        changes = changes_of(name, change) if change is not None else []
        await self._write(name, epoch, [Put(STATES + name, value), *changes])

    def forget(self, name: str, epoch: int) -> list[Delete]:
        """Drop the bookkeeping of an epoch that writes no more. Returns the operations that remove
        its fence.
        """
        self._written.pop(ActorId(name, epoch), None)
        doubt = self._in_doubt.get(name)
        if doubt is not None and doubt.epoch == epoch:
            del self._in_doubt[name]
        fenced = self._fences.pop(ActorId(name, epoch), 0) or doubt is not None
        return [Delete(_fence(name, epoch))] if fenced else []

    async def _write(self, name: str, epoch: int, operations: Sequence[Put | Delete]) -> None:
        await self._settle(name)
        unknown: StoreOutcomeUnknownError | None = None
        # Bounded: a store whose every answer is lost must not hold the actor's turn for ever.
        left = MOST_REPEATS
        # Two conditions: this epoch still owns the name, and its fence is unchanged. A write of
        # unknown outcome that `_settle` has fenced since fails the second.
        owner = Compare(self._owners + name, "mod_revision", epoch)
        while True:
            revision = self._fences.get(ActorId(name, epoch), 0)
            fence = Compare(_fence(name, epoch), "mod_revision", revision)
            try:
                result = await self._store.transaction(
                    [owner, fence], operations, [Get(owner.key), Get(fence.key)]
                )
            except trio.Cancelled:
                # The caller goes away, so the next operation on this name settles it.
                self._in_doubt[name] = _Doubt(epoch)
                raise
            except StoreOutcomeUnknownError as error:
                self._in_doubt[name] = _Doubt(epoch)
                unknown, left = error, left - 1
                await self._settle_to_repeat(name, error, left)
                continue
            if result.succeeded:
                return
            owned, fenced = result.responses
            if not isinstance(owned, Entry) or owned.mod_revision != epoch:
                if unknown is not None:
                    # It may have been carried out before the name went to another epoch.
                    raise unknown
                raise StaleEpochError(
                    f"{name} (epoch {epoch}) no longer owns its name, so its state was not saved; "
                    "a successor has taken over",
                    actor=name,
                )
            # The fence was written by an attempt of `_settle` whose answer was lost, and which was
            # carried out late. Nothing else writes it.
            now = fenced.mod_revision if isinstance(fenced, Entry) else 0
            assert now != revision, f"the fence of {name} holds, and refused a write"
            self._fences[ActorId(name, epoch)] = now

    async def _settle_to_repeat(
        self, name: str, unknown: StoreOutcomeUnknownError, left: int
    ) -> None:
        """Fence a write of unknown outcome: it has been carried out by now, or never will be. In
        both cases it can be repeated, because it writes the same again. Raises `unknown` if the
        store does not answer, or no repeats are left.
        """
        if left < 0:
            raise unknown
        try:
            await self._settle(name)
        except StoreUnavailableError:
            raise unknown from None

    async def _settle(self, name: str) -> None:
        """Fence an earlier write of unknown outcome, if there is one: it has been carried out by
        now, or never will be. Raises `StoreUnavailableError` if the store does not answer.
        """
        doubt = self._in_doubt.get(name)
        if doubt is None:
            return
        owner = Compare(self._owners + name, "mod_revision", doubt.epoch)
        put = Put(_fence(name, doubt.epoch), b"", self._lease)
        try:
            result = await self._store.transaction([owner], [put])
        except LeaseLostError:
            # The name went with the lease, and so no write of this epoch is carried out any more.
            pass
        except StoreOutcomeUnknownError as error:
            raise StoreUnavailableError(
                f"the outcome of an earlier save of {name} is unknown, and the store cannot be "
                f"asked about it now: {error}; nothing was written since; repeat this later"
            ) from error
        else:
            if result.succeeded:
                self._fences[ActorId(name, doubt.epoch)] = result.revision
        # Another write may have come into doubt while the store was asked.
        if self._in_doubt.get(name) is doubt:
            del self._in_doubt[name]

    async def _sweep(self, name: str, epoch: int) -> None:
        """Delete the parts that earlier epochs have left behind, except those in use."""
        head = await self._store.get(STATES + name)
        used = (
            b"/".join(head.value[1:].split()[:2]).decode()
            if head is not None and head.value[:1] == IN_PARTS
            else ""
        )
        prefix = f"{PARTS}{name}/"
        left: list[str] = []
        for entry in (await self._store.range(prefix)).entries:
            pieces = entry.key.removeprefix(prefix).split("/")
            # More pieces are those of an actor whose name begins with this one's.
            if len(pieces) == 3 and int(pieces[0]) < epoch and "/".join(pieces[:2]) != used:
                left.append(entry.key)
        await self._forget(left)

    async def _forget(self, keys: list[str]) -> None:
        for key in keys:
            try:
                await self._store.delete(key)
            except StoreError:
                # What matters is kept. The next epoch sweeps this up.
                return


def _fence(name: str, epoch: int) -> str:
    return f"{FENCES}{name}/{epoch}"


def _part(name: str, epoch: int, number: int, index: int) -> str:
    return f"{PARTS}{name}/{epoch}/{number}/{index}"
