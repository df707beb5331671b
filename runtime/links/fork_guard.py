"""Forks of a process with connections: they lose the sockets, and none of them acts as the node.

Code of users may call `os.fork` in a method, and the fork has copies of all sockets, and the event
loop of the node. A fork that came back to the loop would be the node a second time: it would answer
calls, number frames that the node has numbered otherwise, and take the events that the kernel has
for the node. So a fork loses the connections, and ends where it would go on in the loop. One that
runs other code and ends by itself (`os.exec`, `os._exit`, `multiprocessing`) is not affected.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, NoReturn, Protocol

import trio


class Guarded(Protocol):
    """What has a socket that forks must not use."""

    @property
    def descriptor(self) -> int:
        """The file descriptor of the socket; -1 when it is closed."""
        ...


class ForkGuard:
    """Knows the connections of this process, and takes them from its forks."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Guarded] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._forked)

    def add(self, connection: Guarded) -> None:
        """Take this connection from forks, as long as it is in use."""
        self._connections.add(connection)

    def _forked(self) -> None:
        connections = [one for one in self._connections if one.descriptor >= 0]
        if not connections:
            return
        descriptors = [connection.descriptor for connection in connections]
        try:
            null = os.open(os.devnull, os.O_RDWR)
        except OSError:
            # The process is out of descriptors: here the first of the sockets makes room.
            os.close(descriptors[0])
            null = os.open(os.devnull, os.O_RDWR)
        for descriptor in descriptors:
            # Not closed: trio would take the socket out of the loop's epoll, which is the parent's
            # as well.
            os.dup2(null, descriptor)
        if null not in descriptors:
            os.close(null)
        if trio.lowlevel.in_trio_run():
            trio.lowlevel.add_instrument(_EndOfFork(os.getpid()))


class _EndOfFork(trio.abc.Instrument):
    """Ends the process when the step of the loop is over in which it was forked."""

    def __init__(self, process: int) -> None:
        self._process = process

    def after_task_step(self, task: trio.lowlevel.Task) -> NoReturn:
        """End the process."""
        text = (
            f"process {self._process}, a fork of process {os.getppid()}, ends: it came back to "
            "the event loop of the node. End a fork by os._exit or os.exec, or use subprocess or "
            "multiprocessing\n"
        )
        try:
            os.write(2, text.encode())
        finally:
            # Nothing of the parent's may run: no exit handlers, no clean-up of tasks.
            os._exit(1)


FORK_GUARD: Final = ForkGuard()
"""A process has one: a fork has the connections of all its nodes."""
