"""The lifetime of a node: an operation that is asked for after its end, or still waits at its end,
fails at once.

User code may hold a node for longer than its `open_node` block, so every public operation has to
behave correctly after the block as well.
"""

from __future__ import annotations

from types import TracebackType

import trio

from actors.errors import (
    CallError,
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

    def asking(self, what: str, *, acts: bool = False) -> AskingBlock:
        """Ask the cluster for something within the block, which the end of the node ends.

        Raises NotAMemberError if the node has left, or has lost its lease;
        DirectoryUnavailableError, which says `what` was not done, instead of an error of the store:
        where those leave it open whether a write was applied, what was written is not relied upon,
        and is removed with the lease at the latest. `acts`: what the end of the node interrupts may
        have been done, so that is an OutcomeUnknownError.
        """
        return AskingBlock(self, what, acts)

    def end(self) -> None:
        """The node has left. Ending twice is ending once."""
        self.has_ended = True
        for scope in self._waiting:
            scope.cancel()


class AskingBlock:
    """The block of `Lifetime.asking`. A class, because a generator costs twice as much, and each
    spawn and stop has such a block.
    """

    __slots__ = ("_acts", "_lifetime", "_scope", "_what")

    def __init__(self, lifetime: Lifetime, what: str, acts: bool) -> None:
        self._lifetime = lifetime
        self._what = what
        self._acts = acts

    # Ctrl-C may not come between the scope and what is noted about it.
    @trio.lowlevel.enable_ki_protection
    def __enter__(self) -> None:
        lifetime = self._lifetime
        lifetime.check()
        # No await between the check and the entry, so the end of the node meets either of them.
        self._scope = scope = trio.CancelScope()
        scope.__enter__()
        lifetime._waiting[scope] = None

    @trio.lowlevel.enable_ki_protection
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lifetime, scope = self._lifetime, self._scope
        del lifetime._waiting[scope]
        if isinstance(error, StoreError):
            scope.__exit__(None, None, None)
            raise self._instead(error) from error
        # Raises what it does not catch, if it is not what it was given.
        scope.__exit__(kind, error, trace)
        if scope.cancelled_caught:
            if self._acts:
                raise OutcomeUnknownError(
                    f"{self._what}, as far as is known: node {lifetime.node} left the cluster "
                    "meanwhile",
                    node=lifetime.node,
                ) from None
            raise lifetime.error() from None

    def _instead(self, error: StoreError) -> CallError:
        """Return the error that callers get instead of one of the store."""
        what, lifetime = self._what, self._lifetime
        if lifetime.has_ended:
            return lifetime.error()
        if isinstance(error, LeaseLostError):
            return NotAMemberError(
                f"{what}: node {lifetime.node} is no longer a member of the cluster: {error}",
                node=lifetime.node,
            )
        return DirectoryUnavailableError(f"{what}: {error}", node=lifetime.node)
