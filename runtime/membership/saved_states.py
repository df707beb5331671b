"""The states that actors save, and the records of calls beside them: under the actors' names in
the store, and fenced by their epochs.

A state that is larger than a store takes in one value is written in parts first, under keys that
only this epoch writes, and then takes effect as a whole with the entry that names them.

All parts of an actor are in a list in the store, which is written with the first of them and
shortened with the last. The first save of an epoch reads the list, and deletes what a predecessor
has left behind when it died. A save that fails or is cancelled owes the deletion of its parts.

The calls that led to a state are kept beside it, each under a key of its own, so that a save
writes what is new of them and no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import attrs
import trio

from actors.errors import (
    LeaseLostError,
    StaleEpochError,
    StoreDataError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from actors.identifiers import ActorId
from runtime.hosting.completion_records import Change, CommittedRecords, RequestClient, RequestId
from runtime.membership.owed_deletions import OwedDeletions
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Get,
    Put,
    Store,
    TransactionResult,
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

LISTS = "state-part-lists/"

DELETED_AT_ONCE = 4
"""Parts that one transaction deletes: SQLite overwrites what it deletes, so a deletion needs as
much room in the log as the part had, for a moment.
"""

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


@attrs.frozen
class _PartGroup:
    """The parts of one state, all of which an epoch has written. `number`: no other state of the
    epoch has it; `count`: how many parts.
    """

    epoch: int
    number: int
    count: int

    @property
    def text(self) -> bytes:
        """The group as the store has it."""
        return b"%d %d %d" % (self.epoch, self.number, self.count)

    def keys(self, name: str) -> list[str]:
        """The keys of the parts, in order."""
        return [f"{PARTS}{name}/{self.epoch}/{self.number}/{index}" for index in range(self.count)]


def _group_of(head: Entry | None) -> _PartGroup | None:
    """The parts that the entry of a state names; None if it has none."""
    if head is None or head.value[:1] != IN_PARTS:
        return None
    return next(iter(_groups_in(head.value[1:])), None)


def _listed(entry: object) -> list[_PartGroup]:
    """The parts in a list."""
    return _groups_in(entry.value) if isinstance(entry, Entry) else []


def _groups_in(text: bytes) -> list[_PartGroup]:
    """The groups in a value of the store; none if no node writes such a value."""
    try:
        return [_PartGroup(*map(int, group.split())) for group in text.split(b";")]
    except (TypeError, ValueError):
        return []


def _listing(name: str, groups: Iterable[_PartGroup]) -> Put | Delete:
    """The operation that writes the list of an actor's parts."""
    text = b";".join(group.text for group in groups)
    return Put(LISTS + name, text) if text else Delete(LISTS + name)


@attrs.define(eq=False)
class _Parts:
    """The parts that an actor may have in the store, as one epoch knows it: its own, and those of
    its predecessors.

    `lock` is held while parts are written or deleted. So the holder knows that of `groups` only
    the one that the state names is needed.
    """

    groups: dict[_PartGroup, None] = attrs.field(factory=dict)
    lock: trio.Lock = attrs.field(factory=trio.Lock)


async def saved_bytes(store: Store, name: str) -> int | None:
    """The size of the state that an actor saved last, encoded; None if it has saved none, or saves
    another at this moment.
    """
    entry = await store.get(STATES + name)
    group = _group_of(entry)
    if entry is None or group is None:
        return None if entry is None else len(entry.value) - 1
    # All parts but the last are full.
    last = await store.get(group.keys(name)[-1])
    return None if last is None else (group.count - 1) * PART_BYTES + len(last.value)


@attrs.frozen(eq=False)
class _Doubt:
    """A write of this epoch has an unknown outcome: it may still be carried out."""

    epoch: int


class StateRecords:
    """The states in one store. `owners` + a name: the key whose modification is the epoch that may
    write. `lease`: that of the node, to which fences are tied. `owed`: deletes the parts of saves
    that did not succeed, while it runs.

    A write whose answer was lost may be carried out late, by a server that was stopped for example,
    and would then undo what was saved after it. So each write of an epoch has a condition on a
    fence, a key of that epoch, and after a write of unknown outcome the fence is written first:
    what was on its way is refused from then on, and what is read is final.
    """

    def __init__(
        self, store: Store, owners: str, lease: int = 0, owed: OwedDeletions | None = None
    ) -> None:
        self._store = store
        self._owners = owners
        self._lease = lease
        self._owed = OwedDeletions(store) if owed is None else owed
        self._in_doubt: dict[str, _Doubt] = {}
        self._fences: dict[ActorId, int] = {}
        """Revisions of the fences, by name and epoch. Most epochs never write theirs: 0."""
        self._parts: dict[ActorId, _Parts] = {}
        """Of the epochs that save here and may have parts."""
        self._read: set[ActorId] = set()
        """The epochs that have read the list of their parts."""
        self._numbers = itertools.count()
        """The numbers of groups. None is used twice: a reader, or a deletion whose answer was lost,
        may still be on its way to the parts of a group that is gone.
        """
        self._found: dict[str, _PartGroup] = {}
        """The parts of states that were read here, by name, until the next save: those that version
        0.1.0 wrote are in no list.
        """

    async def save(self, name: str, epoch: int, state: bytes, change: Change | None = None) -> None:
        """Save `state`, and the changes of call records in `change`.

        Raises `StaleEpochError` if the name has another owner; then nothing has changed.
        """
        actor, is_large = ActorId(name, epoch), len(state) > PART_BYTES
        parts = self._parts.setdefault(actor, _Parts()) if is_large else self._parts.get(actor)
        if parts is None or not (is_large or parts.groups):
            await self._put(name, epoch, WHOLE + state, change)
            # The first save of an epoch shows what its predecessors have left. Parts that this
            # epoch writes meanwhile, in another task, are left to that save.
            parts = self._parts.get(actor)
            if parts is not None and any(group.epoch != epoch for group in parts.groups):
                async with parts.lock:
                    left = [group for group in parts.groups if group.epoch != epoch]
                    await self._delete(actor, parts, left)
            return
        async with parts.lock:
            used: _PartGroup | None = None
            try:
                if is_large:
                    used = await self._put_parts(actor, parts, state, change)
                else:
                    await self._put(name, epoch, WHOLE + state, change)
            except BaseException:
                # Cancelled as well. Not deleted here: if the outcome of the last write is unknown,
                # the state may name these parts, and finding that out takes time.
                self._owe(actor, parts)
                raise
            # Last, for a reader may be among the old ones.
            await self._delete(actor, parts, [group for group in parts.groups if group != used])

    async def _put_parts(
        self, actor: ActorId, parts: _Parts, state: bytes, change: Change | None
    ) -> _PartGroup:
        """Write a large state: first the parts, under keys that no reader knows, then the entry
        that names them. Returns their group.
        """
        name, epoch = actor
        if actor not in self._read:
            await self._settle(name)
            self._note_list(actor, await self._store.get(LISTS + name))
        pieces = [state[start : start + PART_BYTES] for start in range(0, len(state), PART_BYTES)]
        # `saved_bytes` counts on it.
        assert all(len(piece) == PART_BYTES for piece in pieces[:-1]), "only the last is shorter"
        group = _PartGroup(epoch, next(self._numbers), len(pieces))
        # Before the first of them is on its way, here and in the store.
        parts.groups[group] = None
        listing = [_listing(name, parts.groups)]
        for key, piece in zip(group.keys(name), pieces, strict=True):
            # With the conditions of all writes of the epoch: what is still on its way when the
            # epoch ends, or is fenced, is refused, and so no part appears after its deletion.
            await self._write(name, epoch, [Put(key, piece), *listing])
            listing = []
        await self._put(name, epoch, IN_PARTS + group.text, change)
        return group

    async def saved(self, name: str) -> bytes | None:
        """Return the state that was saved last, by any epoch. Raises `StoreDataError` if parts of
        it are missing.
        """
        await self._settle(name)
        seen = 0
        while True:
            entry = await self._store.get(STATES + name)
            if entry is None:
                return None
            group = _group_of(entry)
            if group is None:
                return entry.value[1:]
            if entry.mod_revision == seen:
                # Not a save that has replaced it: parts are there before the entry that names them,
                # and are deleted after the entry that names others.
                raise StoreDataError(
                    f"the saved state of {name} is damaged: parts of it are missing in the store, "
                    "though no node deletes them; find what else writes to the store, then restore "
                    f"{group.keys(name)[0].rpartition('/')[0]}/ or delete {STATES}{name}"
                )
            seen = entry.mod_revision
            self._found[name] = group
            parts = [await self._store.get(key) for key in group.keys(name)]
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
        """Write the entry of a state. The first time in an epoch, read the list of parts in the
        same transaction.
        """
        changes = changes_of(name, change) if change is not None else []
        actor = ActorId(name, epoch)
        if actor in self._read:
            await self._write(name, epoch, [Put(STATES + name, value), *changes])
            return
        operations = [Put(STATES + name, value), *changes, Get(LISTS + name)]
        self._note_list(actor, (await self._write(name, epoch, operations)).responses[-1])

    def _note_list(self, actor: ActorId, entry: object) -> None:
        """Note what an epoch has found in the store as the list of its parts."""
        if actor in self._read:
            # Another task of the epoch was first, and may have written parts since.
            return
        self._read.add(actor)
        groups = _listed(entry)
        if (found := self._found.pop(actor.name, None)) is not None:
            groups.append(found)
        if groups:
            parts = self._parts.setdefault(actor, _Parts())
            parts.groups.update((group, None) for group in groups)

    def forget(self, name: str, epoch: int) -> list[Delete]:
        """Drop the bookkeeping of an epoch that writes no more. Returns the operations that remove
        its fence.
        """
        self._parts.pop(ActorId(name, epoch), None)
        self._read.discard(ActorId(name, epoch))
        self._found.pop(name, None)
        doubt = self._in_doubt.get(name)
        if doubt is not None and doubt.epoch == epoch:
            del self._in_doubt[name]
        fenced = self._fences.pop(ActorId(name, epoch), 0) or doubt is not None
        return [Delete(_fence(name, epoch))] if fenced else []

    async def _write(
        self, name: str, epoch: int, operations: Sequence[Put | Delete | Get]
    ) -> TransactionResult:
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
                return result
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
        try:
            await self._fence_off(name, doubt.epoch)
        except StoreOutcomeUnknownError as error:
            raise StoreUnavailableError(
                f"the outcome of an earlier save of {name} is unknown, and the store cannot be "
                f"asked about it now: {error}; nothing was written since; repeat this later"
            ) from error
        # Another write may have come into doubt while the store was asked.
        if self._in_doubt.get(name) is doubt:
            del self._in_doubt[name]

    async def _fence_off(self, name: str, epoch: int) -> None:
        """Write the fence of an epoch, if that owns the name. When this returns, no write of the
        epoch that was on its way before is carried out any more.
        """
        owner = Compare(self._owners + name, "mod_revision", epoch)
        try:
            result = await self._store.transaction(
                [owner], [Put(_fence(name, epoch), b"", self._lease)]
            )
        except LeaseLostError:
            # The name went with the lease, and so no write of this epoch is carried out any more.
            return
        if result.succeeded:
            self._fences[ActorId(name, epoch)] = result.revision

    async def _delete(self, actor: ActorId, parts: _Parts, left: Sequence[_PartGroup]) -> None:
        """Delete parts of an epoch that goes on, after a save that has succeeded: the state cannot
        name them any more. Does not fail: what is not deleted now is owed.
        """
        if not left:
            return
        name, epoch = actor
        kept = [group for group in parts.groups if group not in left]
        try:
            for operations in _deletions(name, left, _listing(name, kept)):
                await self._write(name, epoch, operations)
        except (StoreError, StaleEpochError):
            # The state is saved, and that is what the caller asked for.
            self._owe(actor, parts)
        except BaseException:
            self._owe(actor, parts)
            raise
        else:
            for group in left:
                parts.groups.pop(group, None)

    def _owe(self, actor: ActorId, parts: _Parts) -> None:
        self._owed.owe_by((STATES, actor), partial(self._take_back, actor, parts))

    async def _take_back(self, actor: ActorId, parts: _Parts) -> None:
        """Delete the parts of an epoch that its state does not name. The epoch may have ended.
        Raises `StoreError` if that is to be tried again.
        """
        if parts.lock.locked():
            # The save that holds it deletes them when it succeeds, and owes them when it does not.
            return
        name, epoch = actor
        async with parts.lock:
            # A write whose outcome is unknown may have named these parts, or name them later. After
            # this it has, or never will: a fence is written, or the name has another owner or none,
            # and each write of the epoch has both as conditions. So what is read next is final: no
            # state that is saved later names a group which this one does not.
            await self._fence_off(name, epoch)
            used = _group_of(await self._store.get(STATES + name))
            left = [group for group in parts.groups if group != used]
            for operations in _deletions(name, left):
                await self._store.transaction([], operations)
            await self._shorten_list(name, left)
            for group in left:
                parts.groups.pop(group, None)

    async def _shorten_list(self, name: str, left: Sequence[_PartGroup]) -> None:
        """Take deleted groups out of the list, which may be that of a later epoch by now."""
        entry = await self._store.get(LISTS + name)
        if entry is None:
            return
        kept = [group for group in _listed(entry) if group not in left]
        unchanged = Compare(LISTS + name, "mod_revision", entry.mod_revision)
        result = await self._store.transaction([unchanged], [_listing(name, kept)])
        if not result.succeeded:
            raise StoreUnavailableError(
                f"the list of the parts of {name} has changed meanwhile; repeat this"
            )


def _deletions(
    name: str, groups: Iterable[_PartGroup], *last: Put | Delete
) -> Iterator[list[Put | Delete]]:
    """The operations that delete these groups, and then `last`, by transactions."""
    operations: list[Put | Delete] = [Delete(key) for group in groups for key in group.keys(name)]
    operations += last
    for start in range(0, len(operations), DELETED_AT_ONCE):
        yield operations[start : start + DELETED_AT_ONCE]


def _fence(name: str, epoch: int) -> str:
    return f"{FENCES}{name}/{epoch}"
