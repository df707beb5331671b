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
    UnderstudyError,
)
from runtime.user_errors import end_with_users_part


class Lifetime:
    """The lifetime of the node with the name `node`. It ends once."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.has_ended = False
        self.given_up = ""
        """Why the cluster counts the node as dead, or refuses it; "" if it does not."""
        # A dict for its order: what waits is woken in the order in which it came, in every run of a
        # simulation.
        self._waiting: dict[trio.CancelScope, bool] = {}
        """True for those that need no other node."""

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

    @property
    def is_over(self) -> bool:
        """True if the cluster answers this node no more: it has left, or was given up."""
        return self.has_ended or bool(self.given_up)

    def asking(self, what: str, *, acts: bool = False, alone: bool = False) -> AskingBlock:
        """Ask the cluster for something within the block, which the end of the node ends, and its
        being given up by the cluster: no answer comes then. `alone`: this node does it by itself,
        also when it was given up.

        Raises NotAMemberError if the node has left, was given up, or has lost its lease;
        DirectoryUnavailableError, which says `what` was not done, instead of an error of the store:
        where those leave it open whether a write was applied, what was written is not relied upon,
        and is removed with the lease at the latest. `acts`: what the end of the node interrupts may
        have been done, so that is an OutcomeUnknownError.
        """
        return AskingBlock(self, what, acts, alone)

    def give_up(self, why: str) -> None:
        """The cluster counts the node as dead, or refuses it. What waits for the cluster ends:
        otherwise it would wait for as long as the program lets the node's block go on.
        """
        self.given_up = why
        for scope, alone in self._waiting.items():
            if not alone:
                scope.cancel()

    def end(self) -> None:
        """The node has left. Ending twice is ending once."""
        self.has_ended = True
        for scope in self._waiting:
            scope.cancel()


class AskingBlock:
    """The block of `Lifetime.asking`. A class, because a generator costs twice as much, and each
    spawn and stop has such a block.
    """

    __slots__ = ("_acts", "_alone", "_lifetime", "_scope", "_what")

    def __init__(self, lifetime: Lifetime, what: str, acts: bool, alone: bool) -> None:
        self._lifetime = lifetime
        self._what = what
        self._acts = acts
        self._alone = alone

    # Ctrl-C may not come between the scope and what is noted about it.
    @trio.lowlevel.enable_ki_protection
    def __enter__(self) -> None:
        lifetime = self._lifetime
        lifetime.check()
        if lifetime.given_up and not self._alone:
            raise self._refused()
        # No await between the checks and the entry, so the end of the node meets either of them.
        self._scope = scope = trio.CancelScope()
        scope.__enter__()
        lifetime._waiting[scope] = self._alone

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
        if isinstance(error, UnderstudyError):
            # It names what was done with which actor: the runtime's own frames below say no more.
            end_with_users_part(error)
        # Raises what it does not catch, if it is not what it was given.
        scope.__exit__(kind, error, trace)
        if scope.cancelled_caught:
            if self._acts:
                why = "" if lifetime.has_ended else lifetime.given_up
                raise OutcomeUnknownError(
                    f"{self._what}, as far as is known: "
                    f"{why or f'node {lifetime.node} left the cluster meanwhile'}",
                    node=lifetime.node,
                ) from None
            raise (lifetime.error() if lifetime.has_ended else self._refused()) from None

    def _refused(self) -> NotAMemberError:
        lifetime = self._lifetime
        return NotAMemberError(f"{self._what}: {lifetime.given_up}", node=lifetime.node)

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
