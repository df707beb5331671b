"""The lease page: shared memory in which a node writes until when no other node can have its names,
and which the processes of its isolated actors read.

A process that hears nothing of its node cannot tell a blocked event loop from a node that is gone.
While code blocks the loop, the stand-by thread renews the lease, and moves the time here on.
"""

from __future__ import annotations

import mmap
import os
import weakref

from runtime.environment import shared_seconds

SIZE = 8
"""Bytes: one time, in `shared_seconds`."""


class LeasePage:
    """The node's side. `place`: where processes of the same user find it, while this object exists.
    Raises OSError if there is no memory or no file descriptor.
    """

    def __init__(self) -> None:
        descriptor = os.memfd_create("understudy-lease", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, SIZE)
        # As one number of the machine: eight bytes in a row, aligned, are written in one step.
        self._time = memoryview(mmap.mmap(descriptor, SIZE)).cast("d")
        self.place = f"/proc/{os.getpid()}/fd/{descriptor}"

    def write(self, seconds: float) -> None:
        """Set the time to `seconds` from now. Any thread may call it: if two write at once, one
        time is lost, and both are true, so that is safe.
        """
        self._time[0] = shared_seconds() + seconds


class LeaseView:
    """A process's side. Raises OSError if the page at `place` cannot be read."""

    def __init__(self, place: str) -> None:
        with open(place, "rb") as file:
            self._time = memoryview(mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)).cast("d")

    def left(self) -> float:
        """Return the seconds that are left until the time that was written last; negative if it has
        passed, or none was written.
        """
        return self._time[0] - shared_seconds()
