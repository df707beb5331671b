"""What goes wrong with a rendezvous, named as in torchelastic."""

from __future__ import annotations

from actors.errors import UnderstudyError


class RendezvousError(UnderstudyError):
    """The base of all of them."""


class RendezvousClosedError(RendezvousError):
    """The rendezvous is closed: no round will follow."""


class RendezvousFinishedError(RendezvousClosedError):
    """It was closed because the job has finished: there is nothing left to do."""


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """Not enough agents came in time. Trying again is safe."""


class RendezvousConnectionError(RendezvousError):
    """The store of the rendezvous cannot be reached."""


class RendezvousStateError(RendezvousError):
    """What the store has of the rendezvous cannot be understood."""


class RendezvousGracefulExitError(RendezvousError):
    """This agent was a spare, and the job ended without it: no failure."""


class RendezvousMismatchError(RendezvousStateError, ValueError):
    """Two different jobs have the same id, or two agents the same rank. Nothing was changed."""


class RoundOverError(RendezvousError):
    """The round is over: its store takes nothing more, and whoever waited in it waits in vain."""


class StoreTimeoutError(RendezvousError, TimeoutError):
    """What a job's store was asked to wait for did not come in time."""
