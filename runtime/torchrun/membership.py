"""What has become of one round, as an agent of torch is told: pure.

Torch's agent asks ten times a second whether it is to begin a new round. It has no question for agents that are gone; so they count here as
a reason like agents that wait, and a job hears of a loss before its workers run into it.
"""

from __future__ import annotations

from runtime.rendezvous.errors import RendezvousError
from runtime.rendezvous.interface import RendezvousChange


class Membership:
    """One round that is complete. `name`: that of this agent in it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting = 0
        self._trouble: RendezvousError | None = None
        self.closed = ""
        """Why no round will follow, if none will."""
        self.lost: tuple[str, ...] = ()
        """Who was in the round and is not any more; this agent's own name if it was cut off."""

    def tell(self, change: RendezvousChange) -> None:
        """Something has happened to the round."""
        self._waiting = change.waiting
        self.closed = self.closed or change.closed
        self.lost += change.left

    def fail(self, trouble: RendezvousError) -> None:
        """Nothing more will be heard of the round."""
        self._trouble = trouble

    @property
    def is_cut_off(self) -> bool:
        """Whether others take this agent for dead, or may do so any moment now."""
        return self._name in self.lost

    def reasons_for_another(self) -> int:
        """How many agents have come or gone, if another round is to begin for them; none does once the rendezvous is closed.

        Raises what went wrong with the rendezvous.
        """
        if self.closed:
            return 0
        if self._trouble is not None:
            raise self._trouble
        return self._waiting + len(self.lost)
