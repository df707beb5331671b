"""The audit log: which calls a node has refused to peers, and which acts of administration it has
done for them. Lines of the logger `understudy.audit`, few enough that no peer can fill a disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from actors.own_logger import own_logger
from actors.peers import VerifiedPeer
from runtime.limited_log import LimitedLog

REFUSED_LINES = 30
"""Lines about refused calls of one peer in a minute. Anyone who may connect can cause them."""

ACTED_LINES = 300
"""Lines about acts of administration for one peer in a minute."""

MOST_TEXT = 300
"""Characters of what a peer has sent that a line shows."""

logger = own_logger("understudy.audit")


class AuditLog:
    """Writes the lines of one node. `now` gives seconds."""

    def __init__(self, node: str, now: Callable[[], float]) -> None:
        self._node = node
        self._refusals = LimitedLog(logger, now, burst=REFUSED_LINES)
        self._acts = LimitedLog(logger, now, burst=ACTED_LINES)

    def on_refused(self, peer: VerifiedPeer, what: str, why: str) -> None:
        """A call of `peer` was refused. `what` and `why` may have text of the peer's in them."""
        self._refusals.log(
            logging.WARNING,
            "node %s refused a call of %s (by %s, process %s %d): %s: %s",
            self._node,
            peer,
            peer.proof,
            _shown(peer.node),
            peer.incarnation,
            _shown(what),
            _shown(why),
            # One peer's lines must not use up those of another.
            about=str(peer),
        )

    def on_acted(self, peer: VerifiedPeer, what: str) -> None:
        """The node begins to do what `peer` has asked for."""
        self._acts.log(
            logging.INFO,
            "node %s acts for %s (by %s, process %s %d): %s",
            self._node,
            peer,
            peer.proof,
            _shown(peer.node),
            peer.incarnation,
            _shown(what),
            about=str(peer),
        )


def _shown(text: str) -> str:
    """Text of a peer's on one line: it cannot pose as another line."""
    cut = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}..."
    return "".join(one if one.isprintable() else " " for one in cut)
