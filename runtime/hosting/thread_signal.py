"""A signal from a thread that computes to its event loop, which does not stop the thread.

`TrioToken.run_sync_soon` writes to a socket, and gives up the interpreter's lock while it does.
When all cores compute, the kernel often runs the woken loop on the same core at once. The loop then
has the lock, and the thread waits until the loop sleeps again: half a millisecond or more.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Final

import trio

# PyDLL, and not CDLL: it calls the function without giving up the interpreter's lock. So the thread
# goes on, and the loop has its turn when the interpreter switches threads, 5 ms later at most.
_write: Final = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_write.restype = ctypes.c_ssize_t

_ONE: Final = (1).to_bytes(8, sys.byteorder)
"""The bytes that are written to the counter in the kernel: the number 1."""


class ThreadSignal:
    """Runs `callback` on the event loop soon after `set`; several calls of `set` may run it once.

    Threads call `set` and `set_at_once`, the loop all else.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._token = trio.lowlevel.current_trio_token()
        self._counter: int | None
        try:
            self._counter = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            # The process may open no more files: the thread waits for the loop, as is said above.
            self._counter = None

    def set(self) -> None:
        """Have the callback run. Not after `close`: the kernel may have given the number of the
        counter to another file.
        """
        if self._counter is None:
            self._token.run_sync_soon(self._callback)
        else:
            _write(self._counter, _ONE, len(_ONE))

    def set_at_once(self) -> None:
        """Like `set`, but at once: the loop need not wait until the interpreter switches threads.
        This thread may have to wait for the loop instead.
        """
        if self._counter is None:
            self._token.run_sync_soon(self._callback)
        else:
            os.eventfd_write(self._counter, 1)

    async def run(self) -> None:
        """Run the callback after each signal, until `close`. Cancelling this has no effect."""
        # Threads may give a signal until `close`, and their results would be lost with this task.
        with trio.CancelScope(shield=True):
            counter = self._counter
            while counter is not None:
                try:
                    await trio.lowlevel.wait_readable(counter)
                except trio.ClosedResourceError:
                    return
                if self._counter is None:
                    # Closed after the signal had come, and before it was this task's turn.
                    return
                os.eventfd_read(counter)
                self._callback()
                # The callback may close it.
                counter = self._counter

    def close(self) -> None:
        """End `run`. Call it once, when no thread gives signals any more."""
        counter, self._counter = self._counter, None
        if counter is not None:
            trio.lowlevel.notify_closing(counter)
            os.close(counter)
