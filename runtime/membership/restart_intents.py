"""Restart intents: names that will have an owner again, because a supervisor restarts the actors
that had them.

While a name has an intent and no owner, calls to it wait instead of failing. An intent of a
supervisor that is itself supervised is lasting: it outlives the supervisor's node, because the
next epoch of the supervisor carries it out, and it holds as long as that supervisor has an owner
or an intent. An intent of a supervisor that is not restarted is tied to its node's lease.
Children that were added while their supervisor ran are recorded beside the intents, so that its
next epoch has their specs.

A supervisor that will be restarted leaves its intents in the store, however it ends: calls to its
children wait for the whole branch as they do for a single child. So each such supervisor records
the names of its children, and to withdraw the intent of the supervisor itself withdraws these,
and those below them.

For children that failed and are not restarted, the store keeps the reason for a while, for
callers that waited for them; and for singletons that wait to be started, why each candidate has
not done it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import attrs
import trio

from actors.errors import (
    StoreError,
    StoreOutcomeUnknownError,
)
from actors.own_logger import own_logger
from actors.supervisor import ChildSpec
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
    TransactionResult,
)

NAMES = "names/"
"""Keys of the names that have owners; `runtime.membership.names` writes them."""


SUPERVISED = "supervised/"


CHILDREN = "children/"


CANDIDATES = "candidates/"


LAST_ENDS = "last-ends/"


LAST_END_SECONDS = 10.0
"""How long the store keeps the last ends of children that are not restarted. Callers that wait for
them look several times in this time.
"""


REASONS_SHOWN = 5
"""Of how many candidates an error says why they have not started their singleton."""


STATIC = "promised/"
"""Keys with the names of the children that each supervisor began with."""


CLUSTER = "@cluster"
"""The supervisor of a singleton in the store: its candidates, each as long as its node lives."""


RESTARTED: Final = frozenset(
    {
        "node died",
        "node left",
        "raised",
        "exit code",
        "signal",
        "start failed",
        "not placed",
        "no such actor",
    }
)
"""The kinds of ends after which a candidate starts a singleton again. "killed" is not among them,
because a stop by request that took too long ends in this way. "no such actor" is: a start whose
claim of the name was carried out may have failed all the same, because the answer was lost. If it
had ended for good instead, the intent would have been withdrawn, and each candidate looks at that
before it starts it.
"""


logger = own_logger("understudy.supervision")


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
        self._singleton_intent = encode([CLUSTER, True])
        """What each candidate for any singleton writes."""
        self._candidacies: dict[str, WrittenCandidacy] = {}
        """The candidacies by the singletons' names, from before the first write until they are
        withdrawn.
        """
        self._unstarted: dict[str, tuple[str, bytes]] = {}
        """The reasons that `record_unstarted` has written, and their values in the store, by key,
        until they are deleted.
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

    def holds_for_singleton(self, name: str) -> Compare:
        """Return the condition that the intent of the candidates for the singleton `name` was not
        withdrawn.
        """
        return Compare(SUPERVISED + name, "value", self._singleton_intent)

    async def stand_for(self, name: str, node: str) -> None:
        """Make this node a candidate for the singleton `name`, as long as it lives."""
        ours = self._candidacies.get(name)
        if ours is None:
            # With the lease: another incarnation of this node counts from one as well.
            value = b"%d.%d" % (self._lease, next(self._numbers))
            ours = self._candidacies[name] = WrittenCandidacy(value)
        put = Put(candidate(name, node), ours.value, self._lease)
        try:
            await self._store.transaction([], [put, Put(SUPERVISED + name, self._singleton_intent)])
        except (trio.Cancelled, StoreOutcomeUnknownError):
            # Its answer was lost: it may be carried out after a withdrawal, so `stand_down` owes
            # its end.
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

    async def record_unstarted(self, name: str, node: str, why: str) -> None:
        """Record why this node, a candidate for the singleton `name`, has not started it, for those
        that wait for it: as long as this node lives, until `forget_unstarted`.
        """
        key = unstarted(name, node)
        before = self._unstarted.get(key)
        if before is not None and before[0] == why:
            return
        # With a number: what is owed for an earlier reason does not delete the same one of today.
        value = self._encode([why, next(self._numbers)])
        try:
            await self._store.put(key, value, self._lease)
        except BaseException:
            # Either may be there. The next attempt to start it writes its reason anew.
            self._owed.owe(Compare(key, "value", value))
            if before is not None and self._unstarted.pop(key, None) is not None:
                self._owed.owe(Compare(key, "value", before[1]))
            raise
        self._unstarted[key] = why, value

    async def forget_unstarted(self, name: str, node: str) -> None:
        """The singleton runs, or this node is no candidate for it any more."""
        key = unstarted(name, node)
        written = self._unstarted.pop(key, None)
        if written is None:
            return
        try:
            await self._store.delete(key)
        except BaseException:
            self._owed.owe(Compare(key, "value", written[1]))
            raise

    async def why_absent(self, name: str, promise: Entry) -> str:
        """Say why no actor has `name`, whose restart intent holds."""
        supervisor = str(cast("list[object]", self._decode(promise.value))[0])
        if supervisor != CLUSTER:
            return (
                f"its supervisor {supervisor} is to start {name} again: `understudy tree` says "
                "what it waits for"
            )
        found = await self._store.range(unstarted(name, ""), REASONS_SHOWN)
        reasons = [str(cast("list[object]", self._decode(one.value))[0]) for one in found.entries]
        more = ["and others"] if found.more else []
        because = f": {'; '.join([*reasons, *more])}" if reasons else " yet"
        return f"no node has started the singleton {name}{because}"

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


def unstarted(name: str, node: str) -> str:
    """The key of the reason for which a candidate has not started its singleton."""
    # Beside its last ends, which all who may look up names may read.
    return f"{LAST_ENDS}{name}\0{node}"


def _child(supervisor: str, id: str) -> str:
    # Ended by a zero byte like a candidate's key: names may begin like other names.
    return f"{CHILDREN}{supervisor}\0{id}"
