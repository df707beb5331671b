"""Settlement: how both ends of a link agree on one session and one connection, however many dials
cross.

A session belongs to a pair of links, one at each end, and not to a dial: each end numbers its
links, and a link learns the number of its counterpart with the first offer or answer that it gets
from it. So two ends that dial each other at the same time mean the same session, whichever dial
wins. A link knows that its session is over only from its own end, or from an offer or answer that
names a later link: its counterpart was given up on purpose. No connection that is lost, refused or
late has that effect.

Over each new connection the dialer makes an offer (RESUME) and the acceptor answers it:

    dialer:    [link, peer_link, dial, accepted, received]
    acceptor:  [verdict, link, received]

`dial` counts the offers of this link, `accepted` is the latest offer of the counterpart that this
end accepted. They decide:

- an offer that is not newer than one accepted before, or that was made before the counterpart
  answered an offer of ours, is *stale*: its dialer has given it up, but its bytes were long under
  way;
- of two offers that cross, the one of the end with the smaller identity stands. The other end's is
  refused as *crossed*, and that end gives its own up when the standing offer arrives;
- an offer that names a link which this end has given up is answered with *forgotten*: the dialer's
  link ends;
- anything else is *accepted*: the previous connection, if there still is one, is dropped first.

No I/O and no clock. Erlang's distribution settles simultaneous connects by names in the same way
(its `ok_simultaneous`, `nok` and `alive`); the counters take the place of its question to the
living connection.
"""

from __future__ import annotations

from enum import IntEnum

import attrs
import cbor2

from actors.errors import ProtocolError
from runtime.wire.frames import Frame, Kind


class SettlementAnswerKind(IntEnum):
    """The kinds of answer to an offer."""

    ACCEPTED = 0
    STALE = 1
    CROSSED = 2
    FORGOTTEN = 3


@attrs.frozen
class Offer:
    """The dialer's offer, after both ends have proven themselves; the module docstring has the
    rules.
    """

    link: int
    """The number of the dialer's link."""
    peer_link: int
    """The number of the acceptor's link, 0 while the dialer has not learned it."""
    dial: int
    accepted: int
    received: int
    """How many frames of the session have arrived at the dialer."""


@attrs.frozen
class SettlementAnswer:
    """The acceptor's answer to an offer; `link` and `received` are the acceptor's, and 0 unless it
    accepts.
    """

    kind: SettlementAnswerKind
    link: int = 0
    received: int = 0


class Settlement:
    """The settlement of one link, as one side sees it. `number`: the number of this link, above
    those of all earlier links of this process. `leads`: if the offers of both sides cross, that of
    this side counts.
    """

    __slots__ = ("_accepted", "_answered", "_dials", "_open_dial", "leads", "number", "peer_number")

    def __init__(self, number: int, *, leads: bool) -> None:
        assert number > 0
        self.number = number
        self.leads = leads
        self.peer_number = 0
        """The number of the counterpart's link, 0 while that is not known."""
        self._dials = 0
        self._open_dial = 0
        """The dial that waits for an answer, or 0. While there is one, no connection may carry the
        session: the count of received frames in the offer must stay true.
        """
        self._answered = 0
        self._accepted = 0

    def dial(self, received: int) -> Offer:
        """Offer to resume over a new connection; an offer that is still open is given up."""
        assert self._answered <= self._dials, "only what was offered is answered"
        self._dials += 1
        # An answer to an earlier offer, still on its way, does not count from here on.
        self._open_dial = self._dials
        return Offer(self.number, self.peer_number, self._dials, self._accepted, received)

    def is_open(self, offer: Offer) -> bool:
        """True while the answer to this offer of ours would count."""
        return self._open_dial == offer.dial

    def give_up(self, offer: Offer) -> None:
        """Give up this offer: its connection is closed, and a later answer is ignored."""
        if self._open_dial == offer.dial:
            self._open_dial = 0

    def on_answered(self, offer: Offer, answer: SettlementAnswer) -> bool:
        """The answer to an offer of ours that is open; True if its connection carries the session
        now.
        """
        assert self.is_open(offer)
        assert self._answered < offer.dial, "each offer is newer than those answered before"
        self._open_dial = 0
        if answer.kind != SettlementAnswerKind.ACCEPTED:
            return False
        if answer.link <= 0 or self.peer_number not in (0, answer.link):
            raise ProtocolError(
                f"the peer accepted the offer to its link {self.peer_number} with its link "
                f"{answer.link}"
            )
        self.peer_number = answer.link
        self._answered = offer.dial
        assert self._answered <= self._dials
        return True

    def is_superseded(self, offer: Offer) -> bool:
        """True if the offer is of a later link of the peer's: the counterpart of this one was given
        up, and the session is over.
        """
        return bool(self.peer_number) and offer.link > self.peer_number

    def judge(self, offer: Offer) -> SettlementAnswerKind:
        """Return the answer to an offer that is not of a later link, without changing anything; see
        `accept`.
        """
        assert not self.is_superseded(offer)
        # The dialer has made a later link since, and has spoken of it: this offer was under way.
        if offer.link < self.peer_number:
            return SettlementAnswerKind.STALE
        if offer.peer_link not in (0, self.number):
            if offer.peer_link > self.number:
                raise ProtocolError(
                    f"the peer offers to go on with link {offer.peer_link}, which was never made "
                    "here"
                )
            return SettlementAnswerKind.FORGOTTEN
        # Overtaken by a later dial of its own end, or made before its end accepted an offer of
        # ours: that connection stands, and this one would take it down.
        if offer.dial <= self._accepted or offer.accepted < self._answered:
            return SettlementAnswerKind.STALE
        if self.leads and self._open_dial > offer.accepted:
            # Our offer is at the peer, or will be there soon, and stands. If it is lost, it is
            # given up in time, and the peer dials again.
            return SettlementAnswerKind.CROSSED
        return SettlementAnswerKind.ACCEPTED

    def accept(self, offer: Offer, received: int) -> SettlementAnswer:
        """Accept an offer that `judge` has accepted, with no await in between. Our own open offer
        is given up.
        """
        assert self.judge(offer) == SettlementAnswerKind.ACCEPTED
        # What `judge` has ruled out: that a counterpart is replaced, or an offer accepted twice.
        assert self.peer_number in (0, offer.link)
        assert self._accepted < offer.dial
        self.peer_number = offer.link
        self._accepted = offer.dial
        self._open_dial = 0
        return SettlementAnswer(SettlementAnswerKind.ACCEPTED, self.number, received)


def encode_offer(offer: Offer) -> bytes:
    """The control part of a dialer's RESUME frame."""
    return cbor2.dumps(list(attrs.astuple(offer)))


def encode_answer(answer: SettlementAnswer) -> bytes:
    """The control part of an acceptor's RESUME frame."""
    return cbor2.dumps([int(answer.kind), answer.link, answer.received])


def read_offer(frame: Frame) -> Offer:
    """A RESUME frame of a dialer. Raises ProtocolError for anything
    else.
    """
    offer = Offer(*_numbers(frame, 5))
    if not offer.link or not offer.dial:
        raise ProtocolError("a resume offer without the number of a link or of a dial")
    return offer


def read_answer(frame: Frame) -> SettlementAnswer:
    """A RESUME frame of an acceptor. Raises ProtocolError for
    anything else.
    """
    kind, link, received = _numbers(frame, 3)
    # What a later version may have more reasons for is not accepted, at any rate.
    return SettlementAnswer(
        SettlementAnswerKind(kind)
        if kind <= max(SettlementAnswerKind)
        else SettlementAnswerKind.STALE,
        link,
        received,
    )


def _numbers(frame: Frame, count: int) -> list[int]:
    """The first `count` numbers of a RESUME; more of them are for later versions."""
    if frame.kind != Kind.RESUME:
        raise ProtocolError(
            f"a frame of kind {frame.kind} where a resume offer, or its answer, was expected"
        )
    try:
        fields = cbor2.loads(frame.control, max_depth=2, allow_indefinite=False)
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise ProtocolError(f"a malformed resume offer: {error}") from error
    if not isinstance(fields, list) or len(fields) < count:
        raise ProtocolError("a malformed resume offer")
    numbers = fields[:count]
    if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers):
        raise ProtocolError("a malformed resume offer")
    return numbers
