"""The way of an embedded store's changes to its file: one writer, and all that was changed while it wrote goes into its next commit."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from actors.errors import StoreDataError, StoreError, StoreOutcomeUnknownError, StoreUnavailableError
from runtime.store.changes import Changes
from runtime.store.disk import Medium
from runtime.store.memory import Snapshot, StoreMachine


@attrs.define(eq=False)
class Commit:
    """Steps that are committed together. `error`: why they are not."""

    changes: Changes = attrs.field(factory=Changes)
    over: trio.Event = attrs.field(factory=trio.Event)
    error: StoreError | None = None

    async def done(self, *, wrote: bool) -> None:
        """Wait for the end of it. Raises what has happened to the step that waits: `wrote` or not."""
        await self.over.wait()
        if self.error is None:
            return
        if not wrote:
            raise StoreUnavailableError(f"the store went back to what is on its disk; ask again: {self.error}") from self.error
        if isinstance(self.error, StoreOutcomeUnknownError):
            raise StoreOutcomeUnknownError(str(self.error)) from self.error
        raise type(self.error)(f"not written: {self.error}") from self.error

    def fail(self, error: StoreError) -> None:
        """It is over, and for this reason nothing came of it that anybody may rely upon."""
        self.error = error
        self.over.set()


class Journal:
    """Commits what it is told of to `medium`. Whoever answers a call waits for `latest` first, so that nothing is known before it lasts."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self._waiting = Commit()
        self._writing: Commit | None = None
        self._woken = trio.Event()
        self._closing = False

    def note(self, machine: StoreMachine, before: int, leases: frozenset[int]) -> None:
        """A step of the machine has been made; see `Changes.note`."""
        if self._waiting.changes.note(machine, before, leases):
            self._woken.set()

    def latest(self) -> Commit | None:
        """The commit that holds the last step, unless it is over."""
        return self._writing if self._waiting.changes.is_empty else self._waiting

    async def run(self, machine: Callable[[], StoreMachine], go_back: Callable[[Snapshot], None]) -> None:
        """Write until closed, and then what is left. `go_back` takes what is on disk when a commit has been refused.

        Raises `StoreDataError` if the file can be used no more. However it ends, nobody waits for a commit any longer.
        """
        try:
            while True:
                await self._woken.wait()
                if self._waiting.changes.is_empty:
                    break
                if not self._closing:
                    self._woken = trio.Event()
                self._writing, self._waiting = self._waiting, Commit()
                with trio.CancelScope(shield=True):
                    await self._commit(self._writing, machine(), go_back)
                self._writing = None
        finally:
            ended = "the store has ended; see why on its node, and ask again when it is back"
            if self._writing is not None and not self._writing.over.is_set():
                self._writing.fail(StoreOutcomeUnknownError(ended))
            self._waiting.fail(StoreUnavailableError(ended))
            self._medium.close()

    def close(self) -> None:
        """Let `run` come to its end."""
        self._closing = True
        self._woken.set()

    async def _commit(self, commit: Commit, machine: StoreMachine, go_back: Callable[[Snapshot], None]) -> None:
        try:
            if commit.changes.everything:
                await self._medium.rewrite(machine.snapshot())
            else:
                await self._medium.write(commit.changes)
        except StoreOutcomeUnknownError as error:
            commit.fail(error)
            raise StoreDataError(str(error)) from error
        except StoreError as error:
            kept = await self._medium.load()
            # What was built upon it meanwhile is as void.
            later, self._waiting = self._waiting, Commit()
            go_back(kept)
            commit.fail(error)
            later.fail(error)
        else:
            commit.over.set()
