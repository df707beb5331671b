"""The completion log: calls that led to a saved state do not run again. It does the I/O for the
tables of `runtime.hosting.completion_records`, for all actors of one node.

Records of earlier epochs are read when they are first needed: at the first repeat of a call that
was made to another epoch or node, or at the first save that has a call to record. No other epoch
writes them meanwhile, because this epoch holds the name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from actors.errors import CallError, EncodeError, NotExecutedError, StaleEpochError, StoreError
from runtime.environment import Environment
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.completion_records import (
    Change,
    CommittedRecords,
    CompletedAnswer,
    CompletionRecords,
    RequestClient,
    RequestId,
    RequestOrigin,
)
from runtime.hosting.own_context import Method
from runtime.hosting.workers import RefusedInTurnError, TaskWorkers

MOST_ANSWER_BYTES = 256 * 1024
"""Bytes of one recorded answer: it has to fit into one transaction together with the state."""

TIDY_EVERY = 64
"""After this many saves of an actor, the records of all its clients are checked, and not only those
of the client that called.
"""


class SavedStates(Protocol):
    """Saved states in the store, with the calls that led to them. The epoch fences each write.

    An interface because the room `membership`, which has `Names`, imports this one; the process of
    an isolated actor has another one.
    """

    async def save(
        self, name: str, epoch: int, state: object, change: Change | None = None
    ) -> None:
        """See `Actor.save`; `change` is committed with the state. Raises `StaleEpochError`, and
        then nothing has changed.
        """
        ...

    async def change_applied(self, name: str, epoch: int, change: Change) -> None:
        """Commit `change` alone."""
        ...

    async def applied(self, name: str) -> CommittedRecords:
        """Read the committed completion records of this actor."""
        ...

    def encode_answer(self, answer: object) -> bytes:
        """Encode an answer for the store. Raises EncodeError for a value that does not outlive its
        node, such as a reference.
        """
        ...

    def decode_answer(self, encoded: bytes) -> object:
        """Decode an answer that was kept."""
        ...


class _Table:
    """The completion records of one actor. `calls` is None until they have been read."""

    __slots__ = ("calls", "doubt", "lock", "saves")

    def __init__(self) -> None:
        self.lock = trio.Lock()
        """Held from reading the records to the end of the write that is planned from them: a plan
        is valid only for the records that are committed.
        """
        self.calls: CompletionRecords | None = None
        self.doubt: Change | None = None
        """A change of unknown outcome: all records are read again before they are used."""
        self.saves = 0
        """Saves since the records were read."""

    @property
    def is_unsettled(self) -> bool:
        """True if the next save may undo the effect of a call that is on record."""
        return self.doubt is not None or (self.calls is not None and self.calls.disowns)


class CompletionLog:
    """Reads and writes the completion records of the actors of one node. `claims()` gives the
    store. `is_gone(name, incarnation)`: True for a node that is known to have ended.
    """

    def __init__(
        self,
        claims: Callable[[], SavedStates],
        workers: TaskWorkers,
        environment: Environment,
        is_gone: Callable[[str, int], bool] = lambda name, incarnation: False,
    ) -> None:
        self._claims = claims
        self._workers = workers
        self._environment = environment
        self._tables: dict[ActorCell, _Table] = {}
        self._watermarks: dict[RequestClient, int] = {}
        """The watermarks of clients with a connection: each is removed when it has lost that, or
        ended.
        """
        self._is_gone = is_gone

    @property
    def has_tables(self) -> bool:
        """False while no actor of this node has records: then no call that is over is looked up."""
        return bool(self._tables)

    async def save(self, cell: ActorCell, state: object, answer: object) -> None:
        """Save the state of an actor, with the call that runs in its method. See `Actor.save`."""
        invocation = self.invocation_running(cell)
        await self.save_with(
            cell,
            invocation.call.identity
            if invocation is not None and invocation.call is not None
            else None,
            state,
            answer,
        )

    async def save_with(
        self, cell: ActorCell, call: RequestId | None, state: object, answer: object
    ) -> None:
        """Save the state of an actor, with this call, or with none."""
        name, epoch = cell.address.name, cell.address.epoch
        claims = self._claims()
        encoded = None if answer is attrs.NOTHING else _checked(claims.encode_answer(answer))
        table = self._tables.get(cell)
        if call is None and (table is None or not table.is_unsettled):
            await claims.save(name, epoch, state)
            return
        if table is None:
            table = self._tables[cell] = _Table()
        async with table.lock:
            calls = await self._known(cell, table)
            if call is not None:
                self._tidy(table, calls, call.client)
            # What must be evicted first, in as many transactions as that needs. The last part goes
            # with the state, so that the call and its effect are saved together or not at all.
            while (change := calls.plan(call, encoded)).more:
                await self._commit(table, calls, change, claims.change_applied(name, epoch, change))
            await self._commit(table, calls, change, claims.save(name, epoch, state, change))

    async def run(self, invocation: Invocation, method: Method) -> object:
        """Run `method` for a call that was made before, or return the recorded answer if the call
        led to a saved state.

        Raises `RefusedInTurnError` if the call must not run again and no answer is recorded.
        """
        try:
            found = await self._found(invocation)
        except BaseException:
            # A coroutine that is never awaited would be reported by Python as forgotten.
            method.close()
            raise
        if found is None:
            return await method
        method.close()
        return self._claims().decode_answer(found.encoded)

    async def recorded(self, invocation: Invocation) -> object:
        """Return the recorded answer to a call that must not run again; attrs.NOTHING if there is
        no record. Raises the CallError to answer with if its record has no answer or cannot be
        read.
        """
        try:
            found = await self._found(invocation)
        except RefusedInTurnError as refused:
            raise refused.refusal from None
        return attrs.NOTHING if found is None else self._claims().decode_answer(found.encoded)

    def confirm(self, client: RequestClient, watermark: int) -> None:
        """Note that the client will repeat no call below `watermark`, to any actor."""
        if watermark > self._watermarks.get(client, 0):
            self._watermarks[client] = watermark

    def on_over(self, cell: ActorCell | None, call: RequestId) -> None:
        """Note that the client will not repeat this call of an actor.

        The watermark alone would not do: a call that stays open for long would keep all later ones
        on record.
        """
        table = self._tables.get(cell) if cell is not None else None
        if table is not None and table.calls is not None:
            table.calls.on_over(call)

    def on_silent(self, client: RequestClient) -> None:
        """Forget the watermark of a client that has lost its connection. If it reconnects, it sends
        its confirmations again.
        """
        self._watermarks.pop(client, None)

    def on_ended(self, client: RequestClient) -> None:
        """Note that the client's process has ended."""
        self._watermarks.pop(client, None)
        for table in self._tables.values():
            if table.calls is not None:
                table.calls.on_ended(client)

    def on_node_ended(self, name: str, incarnation: int) -> None:
        """Note that this incarnation of a node has ended."""
        known = {
            client
            for table in self._tables.values()
            if table.calls is not None
            for client in table.calls.clients
        }
        for client in known | self._watermarks.keys():
            if client[:2] == (name, incarnation):
                self.on_ended(client)

    def forget(self, cell: ActorCell) -> None:
        """Drop the table of an actor that has ended."""
        self._tables.pop(cell, None)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every record: for tests and
        simulations.
        """
        for table in self._tables.values():
            if table.calls is not None:
                table.calls.check_invariants()
            assert table.doubt is None or table.calls is not None

    def invocation_running(self, cell: ActorCell) -> Invocation | None:
        """Return the invocation of this actor whose method runs in this task, or in a task that
        opened this one's nursery; None if there is none.
        """
        invocation = self._workers.running_here()
        return invocation if invocation is not None and invocation.cell is cell else None

    async def _found(self, invocation: Invocation) -> CompletedAnswer | None:
        """Return the recorded answer to a call made before; None if it is to run."""
        cell, origin = invocation.cell, invocation.call
        assert isinstance(origin, RequestOrigin)
        table = self._tables.get(cell)
        if not cell.leased or (table is None and not origin.elsewhere):
            # The call cannot be recorded: this epoch has recorded none, and no attempt went to
            # another epoch.
            return None
        if table is None:
            table = self._tables[cell] = _Table()
        async with table.lock:
            try:
                calls = await self._known(cell, table)
            except StoreError as error:
                raise RefusedInTurnError(
                    NotExecutedError(
                        f"{invocation.full_name} was made before, and its record cannot be "
                        f"read now, so it was not run: {error}"
                    )
                ) from error
        calls.confirm(origin.identity.client, self._watermarks.get(origin.identity.client, 0))
        found = calls.find(origin.identity)
        if isinstance(found, CallError):
            raise RefusedInTurnError(type(found)(f"{invocation.full_name}: {found}"))
        if found is None:
            # Reading took time: the actor may have ended or been paused meanwhile.
            if cell.ended is not None:
                raise RefusedInTurnError(cell.gone())
            if not self._workers.may_run(cell):
                text = (
                    f"{invocation.full_name} was not run: node {cell.address.node} may have "
                    "lost its lease, and with it the name; repeat the call"
                )
                raise RefusedInTurnError(NotExecutedError(text))
        return found

    async def _known(self, cell: ActorCell, table: _Table) -> CompletionRecords:
        if table.calls is not None and table.doubt is None:
            return table.calls
        kept = await self._claims().applied(cell.address.name)
        before, doubt = table.calls, table.doubt
        calls = (
            CompletionRecords(kept)
            if before is None or doubt is None
            else before.after_doubt(doubt, kept)
        )
        table.calls, table.doubt, table.saves = calls, None, 0
        return calls

    def _tidy(self, table: _Table, calls: CompletionRecords, caller: RequestClient) -> None:
        """Pass watermarks and the ends of clients on to the table."""
        clients = calls.clients if not table.saves % TIDY_EVERY else (caller,)
        table.saves += 1
        for client in clients:
            if client.incarnation and self._is_gone(client.name, client.incarnation):
                calls.on_ended(client)
            else:
                calls.confirm(client, self._watermarks.get(client, 0))

    async def _commit(
        self, table: _Table, calls: CompletionRecords, change: Change, writing: Method
    ) -> None:
        try:
            await writing
        except (EncodeError, StaleEpochError):
            # Nothing was written, certainly.
            raise
        except BaseException:
            # A cancellation as well: the write may be on its way to the store.
            table.doubt = change
            raise
        calls.on_committed(change)


def _checked(encoded: bytes) -> bytes:
    if len(encoded) > MOST_ANSWER_BYTES:
        raise EncodeError(
            f"an answer of {len(encoded)} bytes is too large to be kept, {MOST_ANSWER_BYTES} are "
            "allowed; return a smaller answer, or save the state without it",
            path="answer",
        )
    return encoded
