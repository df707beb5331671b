"""Names: their owners with epochs, and the states saved under them.

A claim is one transaction tied to the owner's lease; the store's revision of it is the epoch.
Saving state is a transaction on the same record, so a fenced predecessor cannot save. While a name
has no owner but its supervisor intends to restart it, lookups wait: see `RestartIntents`.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import attrs
import trio

from actors.errors import (
    ActorNotFoundError,
    DecodeError,
    EncodeError,
    LeaseLostError,
    NameTakenError,
    StaleEpochError,
    StoreCompactedError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from actors.method import Address
from actors.options import is_unsendable_text
from actors.reference import Reference
from actors.supervisor import ChildSpec
from runtime.hosting.completion_records import Change, CommittedRecords, RequestClient, RequestId
from runtime.identifiers import ActorId, NodeId
from runtime.limited_log import LimitedLog
from runtime.membership.owed_deletions import OwedDeletions
from runtime.store.interface import (
    MAX_OPERATIONS,
    Compare,
    Delete,
    Entry,
    Get,
    Operation,
    Put,
    Store,
    StoreEvent,
    Transaction,
    TransactionResult,
)
from runtime.wire.codec import Codec

# Restart intents: names that will have an owner again, because a supervisor restarts the actors
# that had them.
#
# While a name has an intent and no owner, calls to it wait instead of failing. An intent of a
# supervisor that is itself supervised is lasting: it outlives the supervisor's node, because the
# next epoch of the supervisor carries it out, and it holds as long as that supervisor has an owner
# or an intent. An intent of a supervisor that is not restarted is tied to its node's lease.
# Children that were added while their supervisor ran are recorded beside the intents, so that its
# next epoch has their specs.
#
# A supervisor that will be restarted leaves its intents in the store, however it ends: calls to its
# children wait for the whole branch as they do for a single child. So each such supervisor records
# the names of its children, and to withdraw the intent of the supervisor itself withdraws these,
# and those below them.
#
# For children that failed and are not restarted, the store keeps the reason for a while, for
# callers that waited for them.

NAMES = "names/"


SUPERVISED = "supervised/"


CHILDREN = "children/"


CANDIDATES = "candidates/"


LAST_ENDS = "last-ends/"


LAST_END_SECONDS = 10.0
"""How long the store keeps the last ends of children that are not restarted. Callers that wait for
them look several times in this time.
"""


STATIC = "promised/"
"""Keys with the names of the children that each supervisor began with."""


CLUSTER = "@cluster"
"""The supervisor of a singleton in the store: its candidates, each as long as its node lives."""


logger = logging.getLogger("understudy.supervision")


@attrs.define(eq=False)
class WrittenCandidacy:
    """This node's candidacy for a singleton. `value`: its value in the store, different from that
    of each earlier candidacy. `is_certain`: False if a write of it may still reach the store.
    """

    value: bytes
    is_certain: bool = True


class RestartIntents:
    """The restart intents in the store, as one node writes and reads them. `owed`: deletes what
    could not be withdrawn at once.
    """

    def __init__(
        self,
        store: Store,
        lease: int,
        encode: Callable[[object], bytes],
        decode: Callable[[bytes], object],
        owed: OwedDeletions,
    ) -> None:
        self._store = store
        self._lease = lease
        self._encode = encode
        self._decode = decode
        self._owed = owed
        self._numbers = itertools.count(1)
        self._candidacies: dict[str, WrittenCandidacy] = {}
        """The candidacies by the singletons' names, from before the first write until they are
        withdrawn.
        """
        self._expiring: deque[tuple[float, list[str]]] = deque()
        """Keys of last ends to delete from the store, with the time at which to delete them."""
        self._has_expiring = trio.Event()

    async def run(self) -> None:
        """Delete last ends from the store when their time is over; runs until cancelled. What
        cannot be deleted ends with this node's lease.
        """
        while True:
            await self._has_expiring.wait()
            while self._expiring:
                due, keys = self._expiring.popleft()
                await trio.sleep_until(due)
                try:
                    await self._store.transaction([], [Delete(key) for key in keys])
                except StoreError as error:
                    logger.info(
                        "the exits of %d children stay in the store until this node leaves: %s",
                        len(keys),
                        error,
                    )
            # No await since the queue was seen empty: an end that is recorded later sets this
            # event.
            self._has_expiring = trio.Event()

    async def record_ends(self, ends: Mapping[str, str]) -> None:
        """Record how actors of these names have ended that will not be restarted, or why their
        supervisors do not start them.
        """
        ended = list(ends.items())
        for start in range(0, len(ended), MAX_OPERATIONS):
            part = ended[start : start + MAX_OPERATIONS]
            await self._store.transaction(
                [], [Put(LAST_ENDS + name, self._encode([why]), self._lease) for name, why in part]
            )
            self._expiring.append(
                (trio.current_time() + LAST_END_SECONDS, [LAST_ENDS + name for name, _ in part])
            )
            self._has_expiring.set()

    async def last_end(self, name: str, promise: Entry | None) -> str:
        """Return the recorded last end of `name`, or of a supervisor above it; "" if there is none.
        `promise`: the restart intent of `name`, which no longer holds.
        """
        while True:
            end = await self._store.get(LAST_ENDS + name)
            if end is not None:
                return str(cast("list[object]", self._decode(end.value))[0])
            if promise is None:
                return ""
            name = str(cast("list[object]", self._decode(promise.value))[0])
            promise = await self._store.get(SUPERVISED + name)

    async def give(
        self,
        name: str,
        supervisor: str,
        epoch: int | None,
        *,
        lasting: bool,
        added: ChildSpec | None = None,
    ) -> int:
        """Write the intent of a supervisor to restart `name`. `epoch`: of the supervisor's own
        name, None if it has none; a supervisor that has lost its name writes nothing. `lasting`:
        the supervisor itself will be restarted. `added`: the spec of a child that its constructor
        does not know. Returns the revision of what was written, 0 for nothing.
        """
        # A lasting intent has no lease: it must outlive this node, whose end is what it is for.
        lease = 0 if lasting else self._lease
        then: list[Operation] = []
        if added is None or added.restart != "temporary":
            then.append(Put(SUPERVISED + name, self._encode([supervisor, lasting]), lease))
        if added is not None:
            then.append(Put(_child(supervisor, added.id), self._encode(added.to_keep()), lease))
        result = await self._write(supervisor, epoch, then)
        return result.revision if result.succeeded else 0

    async def begin(self, supervisor: str, epoch: int | None, names: Sequence[str]) -> None:
        """Record the children of a supervisor that begins and will itself be restarted. Withdraw
        the intents of earlier epochs for other children.
        """
        key = STATIC + supervisor
        written = await self._write(
            supervisor, epoch, [Get(key), Put(key, self._encode(list(names)))]
        )
        found = written.responses
        before = (
            cast("list[str]", self._decode(found[0].value))
            if found and isinstance(found[0], Entry)
            else []
        )
        # After the new names are recorded: a supervisor that dies in between leaves names without
        # an intent, which is harmless, never an intent that no later epoch knows of.
        await self.withdraw(supervisor, epoch, sorted(set(before) - set(names)))

    async def withdraw(
        self,
        supervisor: str,
        epoch: int | None,
        names: Sequence[str],
        *,
        forget: Sequence[str] = (),
        last: bool = False,
    ) -> None:
        """Withdraw the intents for these names and for all below them: callers that wait for one of
        them fail.

        `forget`: ids of added children whose records to delete as well. `last`: the supervisor
        ends, and will not be restarted.
        """
        deletes: list[Operation] = [Delete(_child(supervisor, id)) for id in forget]
        if last:
            deletes.append(Delete(STATIC + supervisor))
        for start in range(0, len(deletes), MAX_OPERATIONS):
            await self._write(supervisor, epoch, deletes[start : start + MAX_OPERATIONS])
        # Half, because each name takes two operations: its deletion and the look at what is below.
        most = MAX_OPERATIONS // 2
        for start in range(0, len(names), most):
            part = names[start : start + most]
            then: list[Operation] = [Delete(SUPERVISED + name) for name in part]
            found = await self._write(
                supervisor, epoch, [*then, *(Get(STATIC + name) for name in part)]
            )
            # Not strict: nothing is read if the supervisor has lost its name, and then its
            # successor answers for the children.
            for name, entry in zip(part, found.responses[len(part) :], strict=False):
                if entry is not None:
                    await self.withdraw_below(name)

    def withdraw_later(
        self, supervisor: str, names: Mapping[str, int], forget: Mapping[str, int]
    ) -> None:
        """Withdraw what `withdraw` could not, when the store is there again: the intents for these
        names, and the records of added children by their ids, each if it is still what was written
        in that revision.
        """
        for name, revision in names.items():
            self._owed.owe(Compare(SUPERVISED + name, "mod_revision", revision))
        for id, revision in forget.items():
            self._owed.owe(Compare(_child(supervisor, id), "mod_revision", revision))

    async def withdraw_below(self, supervisor: str) -> None:
        """Withdraw the intents for the children of a supervisor that will not be restarted, and for
        theirs. A supervisor that runs again by then keeps its intents.
        """
        left = deque([supervisor])
        while left:
            name = left.popleft()
            gone = [
                Compare(NAMES + name, "create_revision", 0),
                Compare(SUPERVISED + name, "create_revision", 0),
            ]
            static = await self._store.get(STATIC + name)
            names = cast("list[str]", self._decode(static.value)) if static is not None else []
            added = (await self._store.range(_child(name, ""))).entries
            specs = [cast("ChildSpec", self._decode(entry.value)) for entry in added]
            names += [spec.options.name or f"{name}/{spec.id}" for spec in specs]
            below: list[str] = []
            for start in range(0, len(names), MAX_OPERATIONS // 2):
                part = names[start : start + MAX_OPERATIONS // 2]
                operations: list[Operation] = [Delete(SUPERVISED + each) for each in part]
                result = await self._store.transaction(
                    gone, [*operations, *(Get(STATIC + each) for each in part)]
                )
                # The supervisor has an owner or an intent again, and manages its children itself.
                if not result.succeeded:
                    return
                below += [
                    each
                    for each, entry in zip(part, result.responses[len(part) :], strict=True)
                    if entry is not None
                ]
            # The records of the children go last: an attempt that was cut short is completed by the
            # next one.
            records = [*(entry.key for entry in added), STATIC + name]
            for start in range(0, len(records), MAX_OPERATIONS):
                await self._store.transaction(
                    gone, [Delete(key) for key in records[start : start + MAX_OPERATIONS]]
                )
            left.extend(below)

    async def added(self, supervisor: str) -> list[ChildSpec]:
        """Return the specs of the children that were added to earlier epochs of this supervisor and
        not deleted.
        """
        found = await self._store.range(_child(supervisor, ""))
        return [cast("ChildSpec", self._decode(entry.value)) for entry in found.entries]

    async def supervised(self, name: str) -> bool:
        """True if an actor has `name`, or a restart intent for it holds."""
        result = await self._store.transaction([], [Get(NAMES + name), Get(SUPERVISED + name)])
        entry, promise = result.responses
        return entry is not None or (
            isinstance(promise, Entry) and await self.stands(name, promise)
        )

    async def stands(self, name: str, promise: Entry) -> bool:
        """True if the restart intent for `name` holds: its supervisor has an owner, or an intent
        that holds.
        """
        while True:
            supervisor, lasting = cast("tuple[str, bool]", self._decode(promise.value))
            if supervisor == CLUSTER:
                return bool((await self._store.range(candidate(name, ""))).entries)
            if not lasting:
                return True
            result = await self._store.transaction(
                [], [Get(NAMES + supervisor), Get(SUPERVISED + supervisor)]
            )
            owner, next_promise = result.responses
            if owner is not None:
                return True
            if not isinstance(next_promise, Entry):
                return False
            # Ends at the root, since each intent was written by a supervisor that stands above.
            name, promise = supervisor, next_promise

    async def stand_for(self, name: str, node: str) -> None:
        """Make this node a candidate for the singleton `name`, as long as it lives."""
        ours = self._candidacies.get(name)
        if ours is None:
            # With the lease: another incarnation of this node counts from one as well.
            value = b"%d.%d" % (self._lease, next(self._numbers))
            ours = self._candidacies[name] = WrittenCandidacy(value)
        put = Put(candidate(name, node), ours.value, self._lease)
        try:
            await self._store.transaction(
                [], [put, Put(SUPERVISED + name, self._encode([CLUSTER, True]))]
            )
        except (trio.Cancelled, StoreOutcomeUnknownError):
            ours.is_certain = False
            raise

    async def stand_down(self, name: str, node: str, *, for_good: bool) -> None:
        """Withdraw this node's candidacy. Withdraw the intent for the singleton if this was the
        last candidate, or if the singleton has ended `for_good`.
        """
        key = candidate(name, node)
        ours = self._candidacies.pop(name, None)
        is_certain = False
        try:
            await self._store.delete(key)
            is_certain = ours is None or ours.is_certain
        finally:
            # Lookups of the name would wait for as long as this node lives.
            if ours is not None and not is_certain:
                self._owed.owe(Compare(key, "value", ours.value))
        promise = await self._store.get(SUPERVISED + name)
        last = not (await self._store.range(candidate(name, ""))).entries
        if for_good or last:
            # Without a candidate: unless there is one by now, for each writes the intent anew. For
            # good: unless the singleton was started anew, for then there are other candidates.
            unless = (
                Compare(SUPERVISED + name, "mod_revision", promise.mod_revision)
                if last and promise is not None
                else Compare(NAMES + name, "create_revision", 0)
            )
            await self._store.transaction([unless], [Delete(SUPERVISED + name)])
            await self.withdraw_below(name)

    async def _write(
        self, supervisor: str, epoch: int | None, then: Sequence[Operation]
    ) -> TransactionResult:
        ours = [] if epoch is None else [Compare(NAMES + supervisor, "mod_revision", epoch)]
        result = await self._store.transaction(ours, then)
        if not result.succeeded:
            logger.info(
                "%s (epoch %s) has lost its name: its restart intents for its children have no "
                "effect",
                supervisor,
                epoch,
            )
            assert not result.responses, "there is nothing to do otherwise"
        return result


def candidate(name: str, node: str) -> str:
    """The key of a candidate for a singleton."""
    # A zero byte ends the name: names have no control characters, so no name's candidates are found
    # under the prefix of another.
    return f"{CANDIDATES}{name}\0{node}"


def _child(supervisor: str, id: str) -> str:
    # Ended by a zero byte like a candidate's key: names may begin like other names.
    return f"{CHILDREN}{supervisor}\0{id}"


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


# The states that actors save: under their names in the store, and fenced by their epochs.
#
# A state that is larger than a store takes in one value is written in parts first, under keys that
# only this epoch writes, and then takes effect as a whole with the entry that names them. Parts
# that a writer leaves behind when it dies in between are deleted by the next.
#
# The calls that led to a state are kept beside it, each under a key of its own, so that a save
# writes what is new of them and no more.

STATES = "states/"


PARTS = "state-parts/"


PART_BYTES = 1_000_000
"""etcd takes 1.5 MiB in one request by default."""


WHOLE = b"\0"


IN_PARTS = b"\1"


FENCES = "state-fences/"


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


MOST_REPEATS = 3
"""How often one write is repeated whose answers are lost, for example while the store moves."""


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


# A cache of addresses, kept current by a watch of the names.
#
# Only for lookups: a call that does not find its actor there asks the store itself, so an outdated
# address costs at most one detour.

NAMES_KEPT = 10_000


LOOKUP_RETRY_SECONDS = 0.5
"""Seconds between two attempts to follow the names while the store is away."""


class Lookups:
    """The cache of one node. `run` keeps it current, and while it cannot, every lookup asks the
    store.

    `may_live(address)`: False if this node knows that the actor has ended, even if the store does
    not yet.
    """

    def __init__(
        self,
        store: Store,
        names: Names,
        prefix: str,
        may_live: Callable[[Address], bool],
    ) -> None:
        self._may_live = may_live
        self._store = store
        self._names = names
        self._prefix = prefix
        self._known: OrderedDict[str, Address] = OrderedDict()
        self._seen = 0
        """All changes up to this revision are applied; 0 while the cache is not current."""

    @property
    def is_following(self) -> bool:
        """True while every change of the names is seen."""
        return self._seen > 0

    def will_report(self, revision: int) -> bool:
        """True if `run` follows the names, and has not reported the change of this revision yet."""
        return 0 < self._seen < revision

    async def locate(self, name: str) -> Address:
        """Return the address of the actor of this name. Raises `ActorNotFoundError`."""
        known = self._known.get(name)
        if known is not None and self._may_live(known):
            await trio.lowlevel.checkpoint()
            return known
        address, revision = await self._names.locate_at(name)
        # What was read before the last change that is known of may be out of date already.
        if self._seen and revision >= self._seen:
            assert address.name == name
            self._known[name] = address
            # The oldest entry goes first. A name that is missing costs one request to the store.
            while len(self._known) > NAMES_KEPT:
                self._known.popitem(last=False)
        return address

    def forget(self, name: str) -> None:
        """Drop a name whose actor has ended, or is being stopped."""
        self._known.pop(name, None)

    async def run(self, changed: Callable[[StoreEvent], None], missed: Callable[[], None]) -> None:
        """Follow the names until cancelled. Calls `changed(event)` for every change (a name was
        claimed or released), and `missed()` when changes may have been missed.
        """
        while True:  # noqa: ASYNC913  whatever it comes to, it waits for the store
            try:
                # A prefix under which there is nothing: only the store's revision is wanted, not
                # all names.
                self._seen = (await self._store.range(self._prefix + "\0")).revision
                # What changed before this revision was not seen.
                missed()
                while True:
                    batch = await self._store.poll(self._prefix, self._seen + 1)
                    # Before the events are applied, without an await between: a lookup that read
                    # the store before them must not enter its answer.
                    self._seen = batch.revision
                    for event in batch.events:
                        self.forget(event.key.removeprefix(self._prefix))
                        changed(event)
            except StoreCompactedError:
                missed()
                self._drop()
            except StoreError:
                missed()
                self._drop()
                # Emptied before the wait: an address from before the gap may be that of an old
                # epoch.
                await trio.sleep(LOOKUP_RETRY_SECONDS)

    def _drop(self) -> None:
        # Both at once: with `_seen` at 0 no lookup that is under way may enter its answer.
        self._known.clear()
        self._seen = 0


PROMISE_LOOK_SECONDS = 0.5
"""Seconds between checks whether a restart intent still holds, while waiting for the name to be
claimed.
"""


@attrs.frozen
class NameOwner:
    """The store's record of a name that an actor owns. `supervisor`: the supervisor that started
    it, "" for none. `resources`: what it allocates.
    """

    node: str
    incarnation: int
    class_path: str
    supervisor: str
    resources: Mapping[str, float]


class Names:
    """The names as one node claims and finds them."""

    def __init__(self, store: Store, codec: Codec, lease: int, node: str, incarnation: int) -> None:
        self._log = LimitedLog(logger, trio.current_time)
        self._store = store
        self._codec = codec
        self._lease = lease
        self._node = node
        self._incarnation = incarnation
        self._states = StateRecords(store, NAMES, lease)
        self.owed = OwedDeletions(store)
        """The names that were claimed with an unknown outcome, or could not be released at once."""
        self.intents = RestartIntents(store, lease, self._encode, self._decode, self.owed)
        # The value of a reference ends with its node, and an answer is kept to outlive it.
        self._lasting = codec.refusing(
            Reference,
            "is a reference and ends with its node, so it cannot be kept; keep the value itself",
        )
        self._claims = itertools.count(1)

    async def run(self) -> None:
        """Release the names in `owed`, and delete what is kept for a time; runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.intents.run)
            await self.owed.run()

    async def claim(
        self,
        name: str,
        class_path: str,
        on_behalf_of: str = "",
        resources: Mapping[str, float] | None = None,
    ) -> int:
        """Claim `name` for an actor of this node; returns the epoch. Raises `NameTakenError`."""
        key = NAMES + name
        value = self._claim_value(class_path, on_behalf_of, resources)
        try:
            # create_revision 0: the name has no owner. The revision of this transaction is the
            # epoch.
            result = await self._store.transaction(
                [Compare(key, "create_revision", 0)], [Put(key, value, self._lease)], [Get(key)]
            )
        except (trio.Cancelled, StoreOutcomeUnknownError):
            # It may have been carried out, or may yet be. Compared by value: only this very claim
            # is given back, never a later one of the same name.
            self.owed.owe(Compare(key, "value", value))
            raise
        if result.succeeded:
            return result.revision
        raise self._taken(name, result)

    async def claim_many(
        self,
        names: Sequence[str],
        class_path: str,
        resources: Mapping[str, float] | None = None,
    ) -> list[int | Exception]:
        """Claim names for actors of one class on this node, in one request to the store; returns
        the epoch of each, or the error that `claim` raises.
        """
        batch: list[Transaction] = []
        ours: list[Compare] = []
        for name in names:
            key, value = NAMES + name, self._claim_value(class_path, "", resources)
            free, put = Compare(key, "create_revision", 0), Put(key, value, self._lease)
            batch.append(Transaction((free,), (put,), (Get(key),)))
            ours.append(Compare(key, "value", value))
        try:
            results = await self._store.transactions(batch)
        except (trio.Cancelled, StoreOutcomeUnknownError):
            # As in `claim`, for each of them.
            for each in ours:
                self.owed.owe(each)
            raise
        epochs: list[int | Exception] = []
        for name, each, result in zip(names, ours, results, strict=True):
            if isinstance(result, Exception):
                if isinstance(result, StoreOutcomeUnknownError):
                    self.owed.owe(each)
                epochs.append(result)
            else:
                epochs.append(result.revision if result.succeeded else self._taken(name, result))
        return epochs

    def _claim_value(
        self, class_path: str, on_behalf_of: str, resources: Mapping[str, float] | None
    ) -> bytes:
        # Its number tells this claim from all others of this node.
        number = next(self._claims)
        return self._encode(
            [
                self._node,
                self._incarnation,
                class_path,
                number,
                on_behalf_of,
                dict(resources or {}),
            ]
        )

    def _taken(self, name: str, result: TransactionResult) -> NameTakenError:
        entry = result.responses[0]
        owner = self._address(name, entry) if isinstance(entry, Entry) else None
        where = f" on node {owner.node}" if owner is not None else ""
        return NameTakenError(
            f"the name {name!r} is taken by a live actor{where}; choose another, or use "
            "get_or_spawn to get that actor",
            actor=name,
            node=self._node,
        )

    async def release(self, name: str, epoch: int) -> None:
        """Give up the name, if this epoch still owns it."""
        ours = Compare(NAMES + name, "mod_revision", epoch)
        # A fence that is left because this fails goes with the lease.
        fences = self._states.forget(name, epoch)
        try:
            await self._store.transaction([ours], [Delete(ours.key), *fences])
        except (trio.Cancelled, StoreError):
            self.owed.owe(ours)
            raise

    async def release_many(self, actors: Sequence[ActorId]) -> None:
        """Give up the names that these epochs still own, in one request to the store. Raises
        `StoreError` if that is not certain of all; what was not released is released later.
        """
        ours = [Compare(NAMES + name, "mod_revision", epoch) for name, epoch in actors]
        batch = [
            Transaction((one,), (Delete(one.key), *self._states.forget(name, epoch)))
            for one, (name, epoch) in zip(ours, actors, strict=True)
        ]
        try:
            results = await self._store.transactions(batch)
        except (trio.Cancelled, StoreError):
            for one in ours:
                self.owed.owe(one)
            raise
        for one, result in zip(ours, results, strict=True):
            if isinstance(result, Exception):
                self.owed.owe(one)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def find(self, name: str) -> Address | None:
        """The address of the actor that has `name` now."""
        entry = await self._store.get(NAMES + name)
        return self._address(name, entry) if entry is not None else None

    async def locate(self, name: str, gone: NodeId | None = None) -> Address:
        """Like `find`, but waits while a restart intent for the name holds. Raises
        `ActorNotFoundError`.

        `gone`: an incarnation known to have ended; a name that it still owns in the store does not
        count.
        """
        return (await self.locate_at(name, gone))[0]

    async def locate_at(self, name: str, gone: NodeId | None = None) -> tuple[Address, int]:
        """Like `locate`, with the revision of the store at which that was so."""
        if is_unsendable_text(name):
            # No store can have the key.
            raise ActorNotFoundError(
                f"there is no actor called {name!r} in the cluster: it holds a lone surrogate, "
                "which no name does; check the name"
            )
        while True:
            # Both keys in one transaction: read one after the other, an actor that is restarted in
            # between would seem to have neither.
            result = await self._store.transaction([], [Get(NAMES + name), Get(SUPERVISED + name)])
            entry, promise = result.responses
            if isinstance(entry, Entry):
                address = self._address(name, entry)
                if (address.node, address.incarnation) != gone:
                    return address, result.revision
            if not isinstance(promise, Entry) or not await self.intents.stands(name, promise):
                why = await self.intents.last_end(
                    name, promise if isinstance(promise, Entry) else None
                )
                given_up = f", and it is not restarted any more; its last end: {why}" if why else ""
                raise ActorNotFoundError(
                    f"there is no actor called {name!r} in the cluster{given_up}; spawn it, or "
                    "check the name",
                    actor=name,
                )
            # The end of the supervisor changes other keys than the one that is watched here, so the
            # intent is checked again from time to time.
            with trio.move_on_after(PROMISE_LOOK_SECONDS):
                try:
                    await self._store.poll(NAMES + name, result.revision + 1)
                except StoreCompactedError:
                    # Much has happened meanwhile: what is there now decides.
                    continue

    async def all(self) -> list[Address]:
        """All named actors."""
        return [address for address, _ in await self.owners()]

    async def owners(self) -> list[tuple[Address, NameOwner]]:
        """All named actors, with their records."""
        owners, _ = await self.first_owners(0)
        return owners

    async def first_owners(self, limit: int) -> tuple[list[tuple[Address, NameOwner]], bool]:
        """The first named actors by name, with their records, and whether there are more than
        `limit`; 0: all of them.
        """
        found = await self._store.range(NAMES, limit)
        owners: list[tuple[Address, NameOwner]] = []
        for entry in found.entries:
            name = entry.key.removeprefix(NAMES)
            owner = self.readable_owner(name, entry.value)
            if owner is not None:
                owners.append((_address_of(name, entry, owner), owner))
        return owners, found.more

    async def owned(self, names: Sequence[str]) -> dict[str, tuple[Address, str]]:
        """Return those of these names that actors have, with their addresses and the supervisors
        that started them ("" for none).
        """
        found: dict[str, tuple[Address, str]] = {}
        for start in range(0, len(names), MAX_OPERATIONS):
            part = names[start : start + MAX_OPERATIONS]
            result = await self._store.transaction([], [Get(NAMES + name) for name in part])
            for name, entry in zip(part, result.responses, strict=True):
                if isinstance(entry, Entry) and (owner := self.readable_owner(name, entry.value)):
                    found[name] = _address_of(name, entry, owner), owner.supervisor
        return found

    async def is_promised(self, name: str) -> bool:
        """True if a supervisor intends to restart an actor of this name."""
        promise = await self._store.get(SUPERVISED + name)
        return promise is not None and await self.intents.stands(name, promise)

    async def save(
        self, name: str, epoch: int, state: object, change: Change | None = None
    ) -> None:
        """Save `state` and the changed call records in one transaction, if `epoch` still owns the
        name.
        """
        await self._states.save(name, epoch, self._encode(state, "state"), change)

    async def change_applied(self, name: str, epoch: int, change: Change) -> None:
        """Save changed call records alone, if `epoch` still owns the name."""
        await self._states.change_applied(name, epoch, change)

    async def applied(self, name: str) -> CommittedRecords:
        """Return the call records that all epochs of the name have saved."""
        return await self._states.applied(name)

    def encode_answer(self, answer: object) -> bytes:
        """Encode an answer to be kept with a call record. Raises `EncodeError` for references."""
        return _as_one_piece(self._lasting, answer, "answer")

    def decode_answer(self, encoded: bytes) -> object:
        """Decode an answer that was kept with a call record."""
        return self._decode(encoded)

    async def saved(self, name: str) -> Any:
        """Return the state that any epoch of the name saved last; None if there is none."""
        found = await self._states.saved(name)
        return self._decode(found) if found is not None else None

    def owner(self, name: str, value: bytes) -> NameOwner:
        """Decode the value of a name's key. Raises `DecodeError`."""
        try:
            fields = cast("list[Any]", self._decode(value))
            node, incarnation, class_path, _, supervisor, resources = fields
            owner = NameOwner(node, incarnation, class_path, supervisor, resources)
            if not _is_sound(owner):
                raise ValueError
        except (TypeError, ValueError):
            raise DecodeError(
                f"the record of the name {name!r} in the store is malformed: no node of this "
                "software writes such a record; stop the program that does, and delete the record"
            ) from None
        return owner

    def readable_owner(self, name: str, value: bytes) -> NameOwner | None:
        """Like `owner`; None for a malformed record, which must not disturb other work."""
        try:
            return self.owner(name, value)
        except DecodeError as error:
            self._log.log(logging.ERROR, "%s; ignored", error)
            return None

    def _address(self, name: str, entry: Entry) -> Address:
        return _address_of(name, entry, self.owner(name, entry.value))

    def _encode(self, value: object, where: str = "") -> bytes:
        return _as_one_piece(self._codec, value, where)

    def _decode(self, data: bytes) -> object:
        """Decode what a node has written. Raises DecodeError for anything else."""
        if not data:
            raise DecodeError("a record in the store is empty")
        count = data[0]
        if not count:
            return self._codec.decode_stored(data[1:])
        sizes = [int.from_bytes(data[1 + 4 * i : 5 + 4 * i], "big") for i in range(count + 1)]
        place = 1 + 4 * (count + 1)
        encoded = data[place : place + sizes[-1]]
        place += sizes[-1]
        segments: list[bytes] = []
        for size in sizes[:-1]:
            segments.append(data[place : place + size])
            place += size
        return self._codec.decode_stored(encoded, segments)


def _is_sound(owner: NameOwner) -> bool:
    """True if all fields have the types that nodes write."""
    texts: tuple[object, ...] = (owner.node, owner.class_path, owner.supervisor)
    numbers: object = owner.resources
    return (
        all(isinstance(text, str) for text in texts)
        and type(owner.incarnation) is int
        and isinstance(numbers, dict)
        and all(
            isinstance(key, str) and isinstance(number, int | float)
            for key, number in cast("dict[object, object]", numbers).items()
        )
    )


def _address_of(name: str, entry: Entry, owner: NameOwner) -> Address:
    return Address(name, owner.node, owner.incarnation, entry.mod_revision, owner.class_path, True)


def _as_one_piece(codec: Codec, value: object, where: str) -> bytes:
    """Encode a value with its segments into one piece of bytes, because a store has no segments."""
    segments: list[Any] = []
    encoded = codec.encode(value, segments, where)
    if not segments:
        return b"\0" + encoded
    if any(len(segment) >= 1 << 32 for segment in segments):
        raise EncodeError("a value in the store may have 4 GiB at most")
    sizes = b"".join(len(segment).to_bytes(4, "big") for segment in segments)
    return b"%c%b%b%b%b" % (
        len(segments),
        sizes,
        len(encoded).to_bytes(4, "big"),
        encoded,
        b"".join(segments),
    )
