"""Forks: references that this node has put into messages, and that their receivers may not have
registered yet. The sender's side. Pure.

The sender keeps a forwarded reference, and with it its own hold on the value, until the receiver
has registered with the owner, or never will. It learns this in two steps:

- The message. While it may still be sent, or sent again, the receiver may not have it. `landed`
  means that it will not be sent any more.
- The receiver. It is then asked which forks are not settled. It knows those of all messages that
  it has received; one that it does not know was settled, or dropped, or never arrived.

So no value is lost if a message is dropped, cannot be read, or arrives twice, and a question
whose answer is lost can be asked again. That a sender must not release before its receiver is
registered is the rule of RRef's fork protocol in torch.distributed.rpc.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Generic, Literal, TypeVar

from actors.identifiers import NodeId

T = TypeVar("T")


ForkState = Literal["on its way", "landed", "asked"]


class _Fork(Generic[T]):
    __slots__ = ("peer", "state", "thing")

    def __init__(self, thing: T, peer: NodeId) -> None:
        self.thing = thing
        self.peer = peer
        self.state: ForkState = "on its way"


class Forks(Generic[T]):
    """The open forks of one node. `T` is the object that keeps its own hold."""

    def __init__(self) -> None:
        self._open: dict[int, _Fork[T]] = {}
        self._landed: dict[NodeId, dict[int, None]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, thing: T, peer: NodeId) -> int:
        """Record that `thing` is in a message to `peer`; returns the number of the fork, which the
        message carries.
        """
        self._next += 1
        assert self._next not in self._open, f"fork {self._next} exists twice"
        self._open[self._next] = _Fork(thing, peer)
        return self._next

    def on_landed(self, number: int) -> None:
        """Note that the message will not be sent any more: its receiver has it, or never will."""
        fork = self._open.get(number)
        if fork is not None and fork.state == "on its way":
            fork.state = "landed"
            self._landed.setdefault(fork.peer, {})[number] = None
        assert len(self._landed) <= len(self._open), "a fork has landed that is not open"

    def state(self, number: int) -> ForkState | None:
        """Return the state of a fork; None if it is settled."""
        fork = self._open.get(number)
        return fork.state if fork is not None else None

    def due(self) -> list[NodeId]:
        """Return the nodes to ask."""
        return list(self._landed)

    def ask(self, peer: NodeId, most: int) -> list[int]:
        """Return up to `most` forks to ask `peer` about now. Call `on_answered` next: without an
        answer, with all of them as `unsettled`.
        """
        landed = self._landed.get(peer, {})
        numbers = list(itertools.islice(landed, most))
        for number in numbers:
            del landed[number]
            assert self._open[number].state == "landed", f"fork {number} is asked about twice"
            self._open[number].state = "asked"
        if not landed:
            self._landed.pop(peer, None)
        return numbers

    def on_answered(self, numbers: Iterable[int], unsettled: Collection[int]) -> None:
        """Apply the answer to a question: all of `numbers` are settled except `unsettled`, which
        are asked about again.
        """
        for number in numbers:
            fork = self._open.get(number)
            if fork is None or fork.state != "asked":
                continue
            if number in unsettled:
                fork.state = "landed"
                self._landed.setdefault(fork.peer, {})[number] = None
            else:
                del self._open[number]
        assert len(self._landed) <= len(self._open), "a fork has landed that is not open"

    def on_node_ended(self, peer: NodeId) -> None:
        """Forget an incarnation that has ended: it registers nothing any more."""
        self._landed.pop(peer, None)
        # Also those whose message may still be on its way: no process receives it.
        for number in [number for number, fork in self._open.items() if fork.peer == peer]:
            del self._open[number]

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every fork: for tests and
        simulations.
        """
        landed = {number for number, fork in self._open.items() if fork.state == "landed"}
        assert sum(map(len, self._landed.values())) == len(landed), "only open forks have landed"
        for peer, numbers in self._landed.items():
            assert numbers, f"{peer} is to be asked about nothing"
            assert landed.issuperset(numbers), f"{peer} is asked about forks that have not landed"
            assert all(self._open[number].peer == peer for number in numbers)
        assert all(0 < number <= self._next for number in self._open)
