"""The lifetime of a node: an operation that is asked for after its end, or still waits at its end,
fails at once.

User code may hold a node for longer than its `open_node` block, so every public operation has to
behave correctly after the block as well.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

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


class Interruptible(Protocol):
    """A wait that the end of a node interrupts: a cancel scope, or a task that is parked."""

    def cancel(self) -> None:
        """Interrupt it. Calling this twice is calling it once."""


class InterruptedByEndError(Exception):
    """Raised in a task that was parked when its node ended or was given up; see
    `AskingBlock.park`. Only `AskingBlock` sees it.
    """


class Lifetime:
    """The lifetime of the node with the name `node`. It ends once."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.has_ended = False
        self.given_up = ""
        """Why the cluster counts the node as dead, or refuses it; "" if it does not."""
        # A dict for its order: what waits is woken in the order in which it came, in every run of a
        # simulation.
        self._waiting: dict[Interruptible, bool] = {}
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

    def asking(
        self,
        what: str | Callable[[], str],
        *,
        acts: bool = False,
        alone: bool = False,
        waits: bool = True,
    ) -> AskingBlock:
        """Ask the cluster for something within the block, which the end of the node ends, and its
        being given up by the cluster: no answer comes then. `alone`: this node does it by itself,
        also when it was given up. Without `waits`, the block says itself where it begins to wait:
        see `AskingBlock.wait` and `park`.

        Raises NotAMemberError if the node has left, was given up, or has lost its lease;
        DirectoryUnavailableError, which says `what` was not done, instead of an error of the store:
        where those leave it open whether a write was applied, what was written is not relied upon,
        and is removed with the lease at the latest. `what` may be a function, which is called only
        for an error. `acts`: what the end of the node interrupts may have been done, so that is an
        OutcomeUnknownError.
        """
        return AskingBlock(self, what, acts, alone, waits)

    def give_up(self, why: str) -> None:
        """The cluster counts the node as dead, or refuses it. What waits for the cluster ends:
        otherwise it would wait for as long as the program lets the node's block go on.
        """
        self.given_up = why
        for one, alone in self._waiting.items():
            if not alone:
                one.cancel()

    def end(self) -> None:
        """The node has left. Ending twice is ending once."""
        self.has_ended = True
        for one in self._waiting:
            one.cancel()


class AskingBlock:
    """The block of `Lifetime.asking`. A class, because a generator costs twice as much, and each
    spawn and stop has such a block.
    """

    __slots__ = ("_acts", "_alone", "_lifetime", "_said", "_scope", "_waits")

    def __init__(
        self,
        lifetime: Lifetime,
        what: str | Callable[[], str],
        acts: bool,
        alone: bool,
        waits: bool,
    ) -> None:
        self._lifetime = lifetime
        self._said = what
        self._acts = acts
        self._alone = alone
        self._waits = waits
        self._scope: trio.CancelScope | None = None

    @property
    def _what(self) -> str:
        return self._said if isinstance(self._said, str) else self._said()

    # Ctrl-C may not come between the scope and what is noted about it.
    @trio.lowlevel.enable_ki_protection
    def __enter__(self) -> Self:
        lifetime = self._lifetime
        lifetime.check()
        if lifetime.given_up and not self._alone:
            raise self._refused()
        # No await between the checks and the entry, so the end of the node meets either of them.
        if self._waits:
            self.wait()
        return self

    @trio.lowlevel.enable_ki_protection
    def wait(self) -> None:
        """Let the end of the node interrupt what the block waits for from here on. Called in no
        cancel scope that is within the block. Calling it twice is calling it once.
        """
        if self._scope is None:
            lifetime = self._lifetime
            self._scope = scope = trio.CancelScope()
            scope.__enter__()
            lifetime._waiting[scope] = self._alone
            if lifetime.has_ended or (lifetime.given_up and not self._alone):
                # The task was parked before, and its answer came in the pass in which the node
                # ended: it waits for another one.
                scope.cancel()

    def park(self, one: Interruptible) -> None:
        """Let the end of the node interrupt the task of the block, which is about to park, until
        `unpark`. Costs a fifth of a cancel scope. `one.cancel()` lets the task go on, which then
        raises `InterruptedByEndError`.
        """
        if self._scope is None:
            self._lifetime._waiting[one] = self._alone

    def unpark(self, one: Interruptible) -> None:
        """The task goes on, or was never parked."""
        self._lifetime._waiting.pop(one, None)

    @trio.lowlevel.enable_ki_protection
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        scope = self._scope
        if scope is None:
            if error is None:
                return
        else:
            del self._lifetime._waiting[scope]
        if isinstance(error, StoreError):
            if scope is not None:
                scope.__exit__(None, None, None)
            raise self._instead(error) from error
        if isinstance(error, UnderstudyError):
            # It names what was done with which actor: the runtime's own frames below say no more.
            end_with_users_part(error)
        if scope is None:
            if isinstance(error, InterruptedByEndError):
                raise self._interrupted() from None
            return
        # Raises what it does not catch, if it is not what it was given.
        scope.__exit__(kind, error, trace)
        if scope.cancelled_caught:
            raise self._interrupted() from None

    def _interrupted(self) -> CallError:
        """Return the error of a wait that the end of the node has interrupted."""
        lifetime = self._lifetime
        if self._acts:
            why = "" if lifetime.has_ended else lifetime.given_up
            return OutcomeUnknownError(
                f"{self._what}, as far as is known: "
                f"{why or f'node {lifetime.node} left the cluster meanwhile'}",
                node=lifetime.node,
            )
        return lifetime.error() if lifetime.has_ended else self._refused()

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
