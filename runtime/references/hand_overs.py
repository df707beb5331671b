"""Hand-overs: references that this node has put into messages, and that their receivers may not have registered yet. The sender's side.

No I/O and no clock. What was handed on is kept, and with it this node's own hold on the value, until the receiver is known to have
registered itself with the owner, or never to do so. Two things tell:

- The message. While it may still be sent, or sent again, the receiver may not have it: `landed` says that this is over.
- The receiver, which is asked afterwards what of it is not settled yet. It knows all that was in messages which it has received; what it
  does not know it has dropped, or settled, or never got.

So nothing is lost by a message that is dropped, cannot be read, or comes twice, and no answer is missed: a question can be put again.
The rule that a sender may not let go before its receiver is known to the owner is that of RRef's fork protocol in torch.distributed.rpc.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Generic, Literal, TypeVar

from runtime.references.claims import Identity

T = TypeVar("T")

State = Literal["on its way", "landed", "asked"]


class _HandOver(Generic[T]):
    __slots__ = ("peer", "state", "thing")

    def __init__(self, thing: T, peer: Identity) -> None:
        self.thing = thing
        self.peer = peer
        self.state: State = "on its way"


class HandOvers(Generic[T]):
    """What one node has handed on. `T` is what keeps its own hold."""

    def __init__(self) -> None:
        self._open: dict[int, _HandOver[T]] = {}
        self._landed: dict[Identity, dict[int, None]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._open)

    def hand_on(self, thing: T, peer: Identity) -> int:
        """`thing` is in a message to `peer`; returns the number of the hand-over, which goes with it."""
        self._next += 1
        self._open[self._next] = _HandOver(thing, peer)
        return self._next

    def landed(self, number: int) -> None:
        """The message will not be sent any more: its receiver has it, or never will."""
        hand_over = self._open.get(number)
        if hand_over is not None and hand_over.state == "on its way":
            hand_over.state = "landed"
            self._landed.setdefault(hand_over.peer, {})[number] = None

    def state(self, number: int) -> State | None:
        """How far a hand-over is; None if it is settled."""
        hand_over = self._open.get(number)
        return hand_over.state if hand_over is not None else None

    def due(self) -> list[Identity]:
        """Whom to ask."""
        return list(self._landed)

    def ask(self, peer: Identity, most: int) -> list[int]:
        """Up to `most` numbers to ask `peer` about now. It must come to `answered` or `failed`."""
        landed = self._landed.get(peer, {})
        numbers = list(landed)[:most]
        for number in numbers:
            del landed[number]
            self._open[number].state = "asked"
        if not landed:
            self._landed.pop(peer, None)
        return numbers

    def answered(self, numbers: Iterable[int], unsettled: Collection[int]) -> None:
        """The answer to a question: all is settled but what is `unsettled`, which is to be asked about again."""
        for number in numbers:
            hand_over = self._open.get(number)
            if hand_over is None or hand_over.state != "asked":
                continue
            if number in unsettled:
                hand_over.state = "landed"
                self._landed.setdefault(hand_over.peer, {})[number] = None
            else:
                del self._open[number]

    def failed(self, numbers: Collection[int]) -> None:
        """There was no answer."""
        self.answered(numbers, numbers)

    def died(self, peer: Identity) -> None:
        """That incarnation is no more: it registers nothing any more."""
        self._landed.pop(peer, None)
        for number in [number for number, hand_over in self._open.items() if hand_over.peer == peer]:
            del self._open[number]
