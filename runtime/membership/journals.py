"""The journals of maps, as the store keeps them: parts in their order, which one driver at a time
appends to.

The driver of a journal has a key that is tied to its node's lease: when the node dies, the key goes
with it, and another driver may go on. Every write has the condition that the key is still the same
one, so a driver that was taken for dead writes nothing more. What the parts say is left to
`runtime.pools.journal`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from actors.errors import (
    JournalError,
    JournalInUseError,
    JournalMismatchError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from actors.own_logger import own_logger
from actors.retry import check_number
from actors.short_repr import short_repr
from runtime.environment import Environment
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

HEADS, PARTS, DRIVERS = "journals/", "journal-parts/", "journal-drivers/"

TIMES = "journal-times/"
"""When a journal was last used, in whole seconds of Unix time. A key of its own: nodes of earlier
versions compare the whole head, and write journals without it.
"""

STAMP_SECONDS = 60.0
"""Seconds between two times that a map writes."""

MOST_NAME = 200
"""Characters in the name of a journal."""

READ_AT_ONCE = 8
"""Parts in one answer of the store: etcd takes 1.5 MiB in one request by default."""

WAIT_LEASES = 3.0
"""How many leases the end of a journal's earlier driver is waited for: that of a node that was
killed ends with its lease.
"""

AGAIN_SECONDS = 0.25
"""Seconds between attempts while the store is away, or another driver has the journal."""

RELEASE_SECONDS = 2.0
"""How long the end of a map may take to give its journal up; afterwards that happens beside it."""


logger = own_logger("understudy.membership")


def check_journal_name(name: object) -> None:
    """Raise TypeError or ValueError if this cannot be the name of a journal."""
    if not isinstance(name, str):
        raise TypeError(f"journal must be a name, not {short_repr(name)}")
    if not 0 < len(name) <= MOST_NAME or "/" in name or not name.isprintable():
        raise ValueError(
            f"the name of a journal has 1 to {MOST_NAME} printable characters and no '/', "
            f"unlike {name[:MOST_NAME]!r}"
        )


def check_unused(name: object, unused_for: object) -> None:
    """Raise TypeError or ValueError if the name or the time is not valid."""
    check_journal_name(name)
    check_number("unused_for", unused_for)


class Journals:
    """The journals in one store, for the drivers on one node. `lease`: the node's lease. `token`:
    draws a text that is unique to one opening. `patience`: seconds to wait for the end of another
    driver. `clock`: the time, in seconds of Unix time. `owed`: deletes the keys that could not be
    deleted at once.
    """

    def __init__(
        self,
        store: Store,
        lease: int,
        node: str,
        token: Callable[[], str],
        patience: float,
        clock: Callable[[], float],
        owed: OwedDeletions,
    ) -> None:
        self._store = store
        self._lease = lease
        self._node = node
        self._token = token
        self._patience = patience
        self._clock = clock
        self._owed = owed
        self._stamped: dict[str, float] = {}
        """When the times of the journals were last written that are driven here."""

    @classmethod
    def on_node(
        cls, store: Store, lease: int, node: str, environment: Environment, owed: OwedDeletions
    ) -> Journals:
        """Make the journals for the maps that run on `node`."""
        return cls(
            store,
            lease,
            node,
            lambda: environment.token(8).hex(),
            WAIT_LEASES * environment.timings.lease,
            environment.wall_time,
            owed,
        )

    async def open(self, name: str, what: str) -> tuple[int, int]:
        """Become the driver of a journal, which is made if there is none; returns what `write`
        needs, and what names its parts. Waits for the end of another driver. Raises
        `JournalInUseError` if that does not end, and `JournalMismatchError` if it is the journal of
        something else than `what`.
        """
        check_journal_name(name)
        fence = await self._become_driver(name)
        try:
            made = await self._find_or_make(name, what, fence)
            await self._change(name, fence, self._stamp(name))
            return fence, made
        except BaseException:
            await self.release(name, fence)  # noqa: ASYNC102  shielded, and bounded, there
            raise

    async def parts(self, name: str, made: int, first: int) -> list[bytes]:
        """The parts from number `first` on, some at a time; none at the end."""
        return _leading(await self._transaction([], _gets(name, made, first), []))

    async def write(
        self, name: str, opening: tuple[int, int], number: int, version: int, value: bytes
    ) -> None:
        """Write a part, for the first time or again: `version` is how often it was written before.
        Returns when it is in the store; waits while the store is away. Raises `JournalError` if
        another driver has taken over.
        """
        fence, made = opening
        driver = Compare(DRIVERS + name, "mod_revision", fence)
        key = _part(name, made, number)
        # With the version as a condition, an attempt whose answer was lost, and which is carried
        # out late, cannot undo a later one.
        result = await self._transaction(
            [driver, Compare(key, "version", version)],
            [Put(key, value), *self._stamp(name)],
            [Get(driver.key), Get(key)],
        )
        if result.succeeded:
            return
        owner, part = result.responses
        if not isinstance(owner, Entry) or owner.mod_revision != fence:
            raise JournalError(
                f"journal {name!r} has another driver now, because node {self._node} was taken for "
                "dead or had no contact with the store: that driver runs the items again whose "
                "results were not written"
            )
        if not isinstance(part, Entry) or part.value != value:
            raise JournalError(f"part {number} of journal {name!r} was written by something else")
        # An earlier attempt, whose answer was lost, has written it.

    async def release(self, name: str, fence: int) -> None:
        """Be its driver no more. Raises nothing: without the store, that happens later."""
        self._stamped.pop(name, None)
        driver = Compare(DRIVERS + name, "mod_revision", fence)
        if not await self._give_back(driver):
            self._owed.owe(driver)

    async def _give_back(self, driver: Compare) -> bool:
        """Return False if the store has not answered in time."""
        # Shielded, because a map that is cancelled gives its journal up as well.
        with trio.move_on_after(RELEASE_SECONDS, shield=True):
            try:
                await self._transaction([driver], [Delete(driver.key)], [])
                return True
            except StoreError as error:
                logger.debug("%s was not released: %s", driver.key, error)
        return False

    async def remove(self, name: str, unused_for: float = 0.0) -> bool:
        """Remove a journal that was not used for so many seconds; True if there was one. Raises
        `JournalInUseError` while it has a driver.
        """
        check_journal_name(name)
        fence = await self._become_driver(name)
        try:
            head = await self._store.get(HEADS + name)
            if head is None:
                return False
            # Looked at as its driver: no map uses it from here on.
            unused = unused_seconds(await self._store.get(TIMES + name), self._clock())
            if unused_for > 0 and (unused is None or unused < unused_for):
                return False
            made, count = head.create_revision, 0
            while found := await self.parts(name, made, count):
                count += len(found)
            # From the last on: if this ends in between, what is left is a journal still.
            for end in range(count, 0, -(MAX_OPERATIONS - 1)):
                numbers = range(max(0, end - MAX_OPERATIONS + 1), end)
                await self._change(
                    name, fence, [Delete(_part(name, made, number)) for number in numbers]
                )
            await self._change(name, fence, [Delete(HEADS + name), Delete(TIMES + name)])
            return True
        finally:
            await self.release(name, fence)  # noqa: ASYNC102  shielded, and bounded, there

    async def _become_driver(self, name: str) -> int:
        ours = f"{self._node} {self._token()}".encode()
        key = DRIVERS + name
        holder = ""
        try:
            with trio.move_on_after(self._patience):
                while True:
                    result = await self._transaction(
                        [Compare(key, "create_revision", 0)],
                        [Put(key, ours, self._lease)],
                        [Get(key)],
                    )
                    if result.succeeded:
                        return result.revision
                    (entry,) = result.responses
                    if isinstance(entry, Entry):
                        if entry.value == ours:
                            # An earlier attempt, whose answer was lost, has written it.
                            return entry.mod_revision
                        holder = entry.value.decode(errors="replace").rpartition(" ")[0]
                    await trio.sleep(AGAIN_SECONDS)
            raise self._not_free(name, holder)
        except BaseException:
            # An attempt whose answer was lost, or was not waited for, may have been carried out,
            # or may be yet: after what gives it back.
            claimed = Compare(key, "value", ours)
            self._owed.owe(claimed)
            await self._give_back(claimed)  # noqa: ASYNC102  shielded there
            raise

    def _not_free(self, name: str, holder: str) -> Exception:
        if not holder:
            return StoreUnavailableError(
                f"journal {name!r} was not opened, since the store cannot be reached; try later"
            )
        return JournalInUseError(
            f"journal {name!r} is in use by a map on node {holder}: a journal has one driver at a "
            "time; wait for its end, or use another name"
        )

    async def _find_or_make(self, name: str, what: str, fence: int) -> int:
        head = Compare(HEADS + name, "create_revision", 0)
        driver = Compare(DRIVERS + name, "mod_revision", fence)
        result = await self._transaction(
            [driver, head], [Put(head.key, what.encode())], [Get(head.key)]
        )
        if result.succeeded:
            return result.revision
        (entry,) = result.responses
        if not isinstance(entry, Entry):
            raise JournalError(f"node {self._node} has lost its lease, so it drives no journal")
        if entry.value != what.encode():
            raise JournalMismatchError(
                f"journal {name!r} is that of {entry.value.decode(errors='replace')}, not of "
                f"{what}: use another name, or remove it with `await pool.remove_journal({name!r})`"
            )
        return entry.create_revision

    def _stamp(self, name: str) -> list[Operation]:
        """Return the write that notes the use of a journal; none soon after the last one."""
        now = self._clock()
        # The clock of a host may be set back.
        if 0 <= now - self._stamped.get(name, -STAMP_SECONDS) < STAMP_SECONDS:
            return []
        self._stamped[name] = now
        return [Put(TIMES + name, b"%d" % now)]

    async def _change(self, name: str, fence: int, operations: Sequence[Operation]) -> None:
        driver = Compare(DRIVERS + name, "mod_revision", fence)
        if not (await self._transaction([driver], operations, [])).succeeded:
            raise JournalError(f"node {self._node} has lost its lease, so it drives no journal")

    async def _transaction(
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> TransactionResult:
        """A transaction that may be repeated, until the store answers. Raises what else the store
        raises, as when the node has ended.
        """
        while True:
            try:
                return await self._store.transaction(compare, then, otherwise)
            except (StoreUnavailableError, StoreOutcomeUnknownError):
                await trio.sleep(AGAIN_SECONDS)


def unused_seconds(time: Entry | None, now: float) -> float | None:
    """Return how many seconds ago a journal was used, from its entry of times; None if unknown."""
    if time is None or not time.value.isdigit():
        return None
    # Clocks of two hosts may differ.
    return max(0.0, now - int(time.value))


async def read_parts(store: Store, name: str, made: int, first: int) -> list[bytes]:
    """The parts of a journal from number `first` on, some at a time; none at the end. `made`: the
    revision in which the journal was created. Raises what the store raises.
    """
    result = await store.transaction([], _gets(name, made, first), [])
    return _leading(result)


def _gets(name: str, made: int, first: int) -> list[Get]:
    return [Get(_part(name, made, number)) for number in range(first, first + READ_AT_ONCE)]


def _leading(result: TransactionResult) -> list[bytes]:
    """The values up to the first key that is missing."""
    found: list[bytes] = []
    for entry in result.responses:
        if not isinstance(entry, Entry):
            break
        found.append(entry.value)
    return found


def _part(name: str, made: int, number: int) -> str:
    return f"{PARTS}{name}/{made}/{number:08}"
