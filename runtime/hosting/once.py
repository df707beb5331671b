"""Once: calls that led to a saved state do not run again. The shell around `applied`, for all actors of one node.

What was saved by an earlier epoch is read when it is first needed: at the first repeat of a call that was made to another epoch or node,
or at the first save that has a call to record. Nobody else writes it meanwhile, for the name is this epoch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from actors.errors import CallError, EncodeError, NotExecutedError, StaleEpochError, StoreError
from runtime.environment import Environment
from runtime.hosting.applied import Answer, AppliedCalls, CallIdentity, Change, Client, Kept, Origin
from runtime.hosting.cell import Cell, Job
from runtime.hosting.workers import Method, RefusedInTurnError, Workers

MOST_ANSWER_BYTES = 256 * 1024
"""Of one answer: it has to fit into one transaction with its state."""

TIDY_EVERY = 64
"""Saves of an actor after which all clients of whose calls it keeps records are looked at, and not only the one that called."""


class SavedStates(Protocol):
    """States in the store, with the calls that led to them. Each write is fenced by the epoch."""

    async def save(self, name: str, epoch: int, state: object, change: Change | None = None) -> None:
        """See `Actor.save`; `change` is committed with the state. Raises `StaleEpochError`, and then nothing has changed."""
        ...

    async def change_applied(self, name: str, epoch: int, change: Change) -> None:
        """Commit `change` alone."""
        ...

    async def applied(self, name: str) -> Kept:
        """What was committed of calls."""
        ...

    def encode_answer(self, answer: object) -> bytes:
        """An answer as it is kept. Raises EncodeError for what does not outlive its node."""
        ...

    def decode_answer(self, encoded: bytes) -> object:
        """An answer that was kept."""
        ...


class _Table:
    """The applied calls of one actor, as far as they are known: `calls` is None until they are read."""

    __slots__ = ("calls", "doubt", "lock", "saves")

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.calls: AppliedCalls | None = None
        self.doubt: Change | None = None
        """What may have been committed, or not: everything is read again before it is used."""
        self.saves = 0


class Once:
    """See the module. `claims()` gives the store."""

    def __init__(self, claims: Callable[[], SavedStates], workers: Workers, environment: Environment) -> None:
        self._claims = claims
        self._workers = workers
        self._environment = environment
        self._tables: dict[Cell, _Table] = {}
        self._watermarks: dict[Client, int] = {}
        self.is_gone: Callable[[str, int], bool] = lambda name, incarnation: False
        """Whether a start of a node is known to be over."""

    async def save(self, cell: Cell, state: object, answer: object) -> None:
        """Keep the state of an actor, with the call that runs in its method. See `Actor.save`."""
        job = self.job_running(cell)
        await self.save_with(cell, job.call.identity if job is not None and job.call is not None else None, state, answer)

    async def save_with(self, cell: Cell, call: CallIdentity | None, state: object, answer: object) -> None:
        """Keep the state of an actor, with this call, or none."""
        name, epoch = cell.address.name, cell.address.epoch
        claims = self._claims()
        encoded = None if answer is attrs.NOTHING else _checked(claims.encode_answer(answer))
        if call is None:
            await claims.save(name, epoch, state)
            return
        table = self._tables.get(cell)
        if table is None:
            table = self._tables[cell] = _Table()
        async with table.lock:
            calls = await self._known(cell, table)
            self._tidy(table, calls, call.client)
            while (change := calls.plan(call, encoded)).more:
                await self._commit(table, calls, change, claims.change_applied(name, epoch, change))
            await self._commit(table, calls, change, claims.save(name, epoch, state, change))

    async def run(self, job: Job, method: Method) -> object:
        """What to run for a call that was made before: its `method`, unless it led to a state that was saved.

        Raises `RefusedInTurnError` for what must not run again and has no answer.
        """
        try:
            found = await self._found(job)
        except BaseException:
            method.close()
            raise
        if found is None:
            return await method
        method.close()
        return self._claims().decode_answer(found.encoded)

    def confirm(self, client: Client, watermark: int) -> None:
        """The client will not make any call below `watermark` again, to whomever."""
        if watermark > self._watermarks.get(client, 0):
            self._watermarks[client] = watermark

    def over(self, cell: Cell | None, call: CallIdentity) -> None:
        """The client will not make this call of an actor again. A call that it has open for long must not keep later ones on record."""
        table = self._tables.get(cell) if cell is not None else None
        if table is not None and table.calls is not None:
            table.calls.over(call)

    def silent(self, client: Client) -> None:
        """That client has no connection any more. Should it come back, it tells again what is over."""
        self._watermarks.pop(client, None)

    def ended(self, client: Client) -> None:
        """That process is no more."""
        self._watermarks.pop(client, None)
        for table in self._tables.values():
            if table.calls is not None:
                table.calls.ended(client)

    def node_ended(self, name: str, incarnation: int) -> None:
        """That start of a node is no more."""
        known = {client for table in self._tables.values() if table.calls is not None for client in table.calls.clients}
        for client in known | self._watermarks.keys():
            if client[:2] == (name, incarnation):
                self.ended(client)

    def forget(self, cell: Cell) -> None:
        """The actor has ended."""
        self._tables.pop(cell, None)

    def job_running(self, cell: Cell) -> Job | None:
        """The job of this actor whose method runs in this task, or in one that has opened this one's nursery."""
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        while task is not None:
            job = self._workers.running.get(task)
            if job is not None:
                return job if job.cell is cell else None
            task = task.parent_nursery.parent_task if task.parent_nursery is not None else None
        return None

    async def _found(self, job: Job) -> Answer | None:
        """The answer that is kept for a call made before; None if it is to run."""
        cell, origin = job.cell, job.call
        assert isinstance(origin, Origin)
        table = self._tables.get(cell)
        if not cell.leased or (table is None and not origin.elsewhere):
            # Nothing of it can have been saved: this epoch has saved no calls, and no other was asked.
            return None
        if table is None:
            table = self._tables[cell] = _Table()
        async with table.lock:
            try:
                calls = await self._known(cell, table)
            except StoreError as error:
                raise RefusedInTurnError(
                    NotExecutedError(f"{_what(job)} was made before, and its record cannot be read now, so it was not run: {error}")
                ) from error
        calls.confirm(origin.identity.client, self._watermarks.get(origin.identity.client, 0))
        found = calls.find(origin.identity)
        if isinstance(found, CallError):
            raise RefusedInTurnError(type(found)(f"{_what(job)}: {found}"))
        if found is None:
            # Reading may have taken time, in which much may have happened.
            if cell.ended is not None:
                raise RefusedInTurnError(cell.gone())
            if cell.paused or self._environment.now() >= self._workers.names_until:
                text = f"{_what(job)} was not run: node {cell.address.node} is not sure to have the name still"
                raise RefusedInTurnError(NotExecutedError(text))
        return found

    async def _known(self, cell: Cell, table: _Table) -> AppliedCalls:
        if table.calls is not None and table.doubt is None:
            return table.calls
        kept = await self._claims().applied(cell.address.name)
        before, doubt = table.calls, table.doubt
        calls = AppliedCalls(kept) if before is None or doubt is None else before.after_doubt(doubt, kept)
        table.calls, table.doubt, table.saves = calls, None, 0
        return calls

    def _tidy(self, table: _Table, calls: AppliedCalls, caller: Client) -> None:
        """Tell the table which clients will repeat nothing."""
        clients = calls.clients if not table.saves % TIDY_EVERY else (caller,)
        table.saves += 1
        for client in clients:
            if client.incarnation and self.is_gone(client.name, client.incarnation):
                calls.ended(client)
            else:
                calls.confirm(client, self._watermarks.get(client, 0))

    async def _commit(self, table: _Table, calls: AppliedCalls, change: Change, writing: Method) -> None:
        try:
            await writing
        except (EncodeError, StaleEpochError):
            raise
        except BaseException:
            table.doubt = change
            raise
        calls.committed(change)


def _checked(encoded: bytes) -> bytes:
    if len(encoded) > MOST_ANSWER_BYTES:
        raise EncodeError(
            f"an answer of {len(encoded)} bytes is too large to be kept, {MOST_ANSWER_BYTES} are allowed; answer less, or save without it",
            path="answer",
        )
    return encoded


def _what(job: Job) -> str:
    return f"{job.cell.address.name}.{job.definition.name}"
