"""The lifetime of a node: an operation that is asked for after its end, or still waits at its end,
fails at once.

User code may hold a node for longer than its `open_node` block, so every public operation has to
behave correctly after the block as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from actors.errors import (
    DirectoryUnavailableError,
    LeaseLostError,
    NotAMemberError,
    OutcomeUnknownError,
    StoreError,
)


class Lifetime:
    """The lifetime of the node with the name `node`. It ends once."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.has_ended = False
        # A dict for its order: what waits is woken in the order in which it came, in every run of a
        # simulation.
        self._waiting: dict[trio.CancelScope, None] = {}

    def check(self) -> None:
        """Raises NotAMemberError after the end."""
        if self.has_ended:
            raise self.error()

    def error(self) -> NotAMemberError:
        """The error for every operation that is asked for after the end."""
        return NotAMemberError(
            f"node {self.node} has left the cluster: its block has ended; open a node again",
            node=self.node,
        )

    @contextmanager
    def asking(self, what: str, *, acts: bool = False) -> Iterator[None]:
        """Ask the cluster for something within the block, which the end of the node ends.

        Raises NotAMemberError if the node has left, or has lost its lease;
        DirectoryUnavailableError, which says `what` was not done, instead of an error of the store:
        where those leave it open whether a write was applied, what was written is not relied upon,
        and is removed with the lease at the latest. `acts`: what the end of the node interrupts may
        have been done, so that is an OutcomeUnknownError.
        """
        self.check()
        # No await between the check and the entry, so the end of the node meets either of them.
        with trio.CancelScope() as scope:
            self._waiting[scope] = None
            try:
                yield
            except StoreError as error:
                if self.has_ended:
                    raise self.error() from error
                if isinstance(error, LeaseLostError):
                    raise NotAMemberError(
                        f"{what}: node {self.node} is no longer a member of the cluster: {error}",
                        node=self.node,
                    ) from error
                raise DirectoryUnavailableError(f"{what}: {error}", node=self.node) from error
            finally:
                del self._waiting[scope]
        if scope.cancelled_caught:
            if acts:
                raise OutcomeUnknownError(
                    f"{what}, as far as is known: node {self.node} left the cluster meanwhile",
                    node=self.node,
                )
            raise self.error()

    def end(self) -> None:
        """The node has left. Ending twice is ending once."""
        self.has_ended = True
        for scope in self._waiting:
            scope.cancel()
