"""Transports: connections that carry bytes between two processes, without any policy. A
`Connection` sends as much as the kernel takes without waiting (`send_some`), and waits until it
takes more (`wait_writable`): the caller decides what to batch. Addresses are texts: `tcp:HOST:PORT`
and `unix:PATH`, where a path that begins with `@` is in Linux's abstract namespace and leaves no
file behind, however the process ends.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import trio

from actors.errors import ListenError
from actors.own_logger import own_logger
from runtime.host_port import HostPort, host_problem
from runtime.limited_log import LimitedLog
from runtime.links.cores import run_delay, usable_cores
from runtime.links.fork_guard import FORK_GUARD
from runtime.links.interfaces import own_address
from runtime.links.spinner import RECEIVE_SIZE, PollableConnection, Spinner
from runtime.tcp_connector import TcpConnector
from runtime.timings import Timings
from runtime.wire.handshake import Channel

KEPT_BYTES = 1024 * 1024
"""Half of what malloc keeps of freed memory; see `keep_freed_memory`."""
SOCKET_BUFFER = 1024 * 1024
GATHER_LIMIT = 512
MOST_ACCEPTED = 64
"""Connections that are accepted in one pass of the scheduler."""
BACKLOG = 512
"""Connections that the kernel keeps until they are accepted."""

UNIX_AGAIN_SECONDS = 0.005
UNIX_MOST_SECONDS = 0.1
"""How long until a Unix socket is connected again whose listener had no room, at first and
at most.
"""

SPIN_CHOICES = ("auto", "on", "off")

_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""The system has no descriptor or no memory for a further connection."""

_ACCEPT_AGAIN = _NO_ROOM | {
    errno.ECONNABORTED,
    errno.EPERM,
    # Errors of the network that were there before the connection was accepted: accept(2).
    errno.ENETDOWN,
    errno.EPROTO,
    errno.ENOPROTOOPT,
    errno.EHOSTDOWN,
    errno.ENONET,
    errno.EHOSTUNREACH,
    errno.EOPNOTSUPP,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
}

logger = own_logger("understudy.links")


class Connection(Protocol):
    """A stream of bytes in both directions, with one reader task and one writer task: a socket, or
    a simulated one.
    """

    @property
    def channel(self) -> Channel:
        """What the layer that carries this connection proves of the peer; see `Channel`."""
        ...

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Hand bytes to the transport without waiting; returns how many it took, 0 if it is full.
        Raises OSError if broken.
        """
        ...

    async def wait_writable(self) -> None:
        """Wait until `send_some` may take more."""
        ...

    async def receive(self) -> bytes:
        """The next bytes, as many as are there; b"" when the peer has ended. Raises OSError if
        broken.
        """
        ...

    async def receive_into(self, buffer: memoryview) -> int:
        """Like `receive`, into `buffer`; returns the count, 0 at the end."""
        ...

    def let_others_receive(self, act: Callable[[bytes], None]) -> PollableConnection | None:
        """Let other tasks receive in the place of the reader while it spins, and give `act` what
        they receive. Returns what they poll; None if only the reader can receive.
        """
        ...

    def close(self) -> None:
        """Drop the connection at once; waiting calls raise trio.ClosedResourceError. It may be
        closed again. Raises no OSError.
        """
        ...


class Network(Protocol):
    """Connects a node to others: over the real network below, or over a simulated one."""

    async def connect(self, address: str) -> Connection:
        """Dial `address`. Raises OSError or ValueError (an address that does not parse)."""
        ...

    async def listen(
        self,
        address: str,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept for ever and run `handler` in a task for each connection; starts with the address
        really bound.
        """
        ...

    async def own_host(self, toward: str, *, ipv4: bool = False) -> str:
        """The host that a process at `toward` dials to reach this machine. Where `toward` is on
        this machine or "", the host that a process outside it dials. `toward`: a host and a port,
        perhaps with a scheme. `ipv4`: only such an address will do.
        """
        ...

    def beside(self) -> Network | None:
        """The same network for another event loop of this process; None if there is none."""
        ...

    @property
    def spinner(self) -> Spinner | None:
        """What those of its connections share that may spin; None if none may."""
        ...


def keep_freed_memory() -> None:
    """Have malloc keep up to 2 MiB of freed memory at the end of the heap, instead of 128 KiB, so
    that messages of some ten KiB do not get theirs from the kernel, page by page, and give it back
    each time.

    glibc adapts its thresholds to the first block that is freed which was larger: this is one.
    Nothing happens with other libraries, or where the environment sets the thresholds.
    """
    # Never touched, so that it takes no memory: a `bytearray` would be filled with zeros, page by
    # page, by every process.
    bytes(KEPT_BYTES)


class SocketConnection(PollableConnection):
    """A `Connection` over a connected stream socket, which it owns from now on. With a `spinner`,
    `receive` may spin before it sleeps. `remote`: the host at the other end, "" for Unix sockets.
    """

    channel = Channel()

    def __init__(
        self, connected: socket.socket, spinner: Spinner | None = None, remote: str = ""
    ) -> None:
        connected.setblocking(False)
        self.remote = remote
        self._socket = connected
        super().__init__(spinner, connected.recv, partial(trio.lowlevel.wait_readable, connected))
        FORK_GUARD.add(self)
        self._send = connected.send

    @property
    def descriptor(self) -> int:
        """The file descriptor of the socket; -1 when it is closed."""
        return self._socket.fileno()

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Hand bytes to the kernel without waiting; returns how many it took, 0 if its buffer is
        full. Raises OSError if the connection is broken.
        """
        try:
            if len(buffers) == 1:
                return self._send(buffers[0])
            return self._socket.sendmsg(buffers[:GATHER_LIMIT])
        except BlockingIOError:
            return 0

    async def wait_writable(self) -> None:
        """Wait until the kernel's buffer has room."""
        await trio.lowlevel.wait_writable(self._socket)

    async def first_byte(self) -> int | None:
        """The next byte, which is still received after that; None at the end. Raises OSError if
        broken.
        """
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return next(iter(self._socket.recv(1, socket.MSG_PEEK)), None)
            except BlockingIOError:
                continue

    def peer_address(self) -> tuple[str, int] | None:
        """The IP address and port at the other end. None if there is none, as for Unix sockets, or
        the connection is broken.
        """
        if self._socket.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            host, port, *_ = self._socket.getpeername()
        except OSError:
            return None
        return host, port

    def peer_user(self) -> int | None:
        """The user id of the process at the other end; None if the kernel does not report it, as
        for TCP.
        """
        found = self._peer_credentials()
        return found[1] if found is not None else None

    def peer_process(self) -> int | None:
        """The pid of the process at the other end. None if it belongs to another user, if the
        kernel does not report it, or if the process is not visible from here.
        """
        found = self._peer_credentials()
        if found is None or found[1] != os.geteuid():
            return None
        # Of a process in another pid namespace the kernel says 0.
        return found[0] or None

    def _peer_credentials(self) -> tuple[int, int, int] | None:
        """Return process, user and group at the other end, as the kernel reports them (unix(7))."""
        if self._socket.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
            return None
        layout = struct.Struct("3i")
        found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
        process, user, group = layout.unpack(found)
        return process, user, group

    async def receive(self) -> bytes:
        """Return the next bytes, as many as have arrived; b"" when the peer has ended. Raises
        OSError if the connection is broken.
        """
        spinner = self._spinner
        if spinner is not None:
            if self._spin.resting:
                self._spin.resting -= 1
            elif spinner.current is None and (spinner.may_spin is None or spinner.may_spin()):
                return await self._receive_watched(spinner)
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._receive(RECEIVE_SIZE)
            except BlockingIOError:
                continue

    async def receive_into(self, buffer: memoryview) -> int:
        """Like `receive`, into `buffer`; returns the count, 0 at the end."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv_into(buffer)
            except BlockingIOError:
                continue

    def close(self) -> None:
        """Close the socket at once. Waiting calls raise trio.ClosedResourceError."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            # Code of users may have closed the descriptor already, by `os.close` or in native code.
            with suppress(OSError):
                self._socket.close()
            self._spin_no_more()


class SocketNetwork:
    """TCP and Unix sockets of the operating system.

    `spin`: whether receives look again for a while before they sleep, where that pays (see
    `runtime.links.spin`). "auto": if this process may use two cores or more; "on": however many it
    may use; "off": never. Raises ValueError for anything else. `timings`: of the node. `may_spin`:
    asked before each receive, where other threads of the process may need the interpreter: a spin
    gives it up so shortly that they hardly get it.
    """

    spinner: Spinner | None = None

    def __init__(
        self,
        spin: str = "off",
        timings: Timings | None = None,
        may_spin: Callable[[], bool] | None = None,
    ) -> None:
        self._timings = Timings() if timings is None else timings
        self._connector = TcpConnector()
        keep_freed_memory()
        if spin not in SPIN_CHOICES:
            raise ValueError(
                f"{spin!r} is not a spin mode; choose one of {', '.join(SPIN_CHOICES)}"
            )
        delay = run_delay() if spin == "on" or (spin == "auto" and usable_cores() >= 2.0) else None
        if delay is not None:
            self.spinner = Spinner(delay, may_spin)

    @property
    def spinning(self) -> int:
        """Connections whose spin is on."""
        return self.spinner.on if self.spinner is not None else 0

    def beside(self) -> Network | None:
        """Return a network for another event loop of this process. It does not spin: one loop of a
        process may.
        """
        return SocketNetwork(timings=self._timings) if type(self) is SocketNetwork else None

    async def connect(self, address: str) -> Connection:
        """Dial `address`, TCP or a Unix socket. Raises OSError, and ValueError for an address that
        does not parse.
        """
        kind, where = split_address(address)
        if kind == "unix":
            return SocketConnection(await _connected_unix(_unix_path(where)), self.spinner)
        host, port = split_host_port(where)
        stream = await self._connector.connect(host, port)
        return SocketConnection(_taken(stream.socket, self._timings.user_timeout), self.spinner)

    async def listen(
        self,
        address: str,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept connections until cancelled, and run `handler` in a task for each. Starts with the
        address that is really bound. Raises `ListenError` if the address cannot be bound.
        """
        listener, bound = await _bind(address)
        log = LimitedLog(logger, trio.current_time, burst=1)
        user_timeout = self._timings.user_timeout
        with listener:
            async with trio.open_nursery() as nursery:
                task_status.started(bound)
                while True:
                    await trio.lowlevel.wait_readable(listener)
                    try:
                        # All that have come, and not one in each pass of the scheduler: where
                        # hundreds dial at once, the last of them would be accepted after hundreds
                        # of passes, each of them longer for all the others.
                        for _ in range(MOST_ACCEPTED):
                            accepted, remote = listener.accept()
                            tuned = _tuned(accepted, user_timeout)
                            host = remote[0] if accepted.family != socket.AF_UNIX else ""
                            nursery.start_soon(handler, SocketConnection(tuned, self.spinner, host))
                    except BlockingIOError:
                        continue
                    except OSError as error:
                        if error.errno not in _ACCEPT_AGAIN:
                            raise
                        # Out of descriptors, or the peer has gone already: neither ends a listener,
                        # but the former needs a breath.
                        if error.errno in _NO_ROOM:
                            log.warning(
                                "%s takes no further connections for now: %s; raise the limit "
                                "(ulimit -n, LimitNOFILE=), or find what keeps so many open",
                                bound.removeprefix("tcp:"),
                                error.strerror,
                            )
                        await trio.sleep(0.1)

    async def own_host(self, toward: str, *, ipv4: bool = False) -> str:
        """Return the host that a process at `toward` dials to reach this machine, an IPv4 address
        if `ipv4`.
        """
        # In a thread, for it may look up a name.
        family = socket.AF_INET if ipv4 else None
        return await self._connector.in_thread(partial(own_address, toward, family))


def split_address(address: str) -> tuple[str, str]:
    """`tcp:HOST:PORT`, `unix:PATH` or plain `HOST:PORT` into kind and rest. Raises ValueError
    otherwise.
    """
    kind, _, where = address.partition(":")
    if kind in ("tcp", "unix") and where and not where.startswith("//"):
        return kind, where
    split_host_port(address)
    return "tcp", address


def split_host_port(text: str) -> HostPort:
    """Split `HOST:PORT` or `[V6]:PORT` into its parts. Raises ValueError, which says what is
    expected.
    """
    scheme, slashes, rest = text.partition("://")
    if slashes:
        raise ValueError(
            f"{text!r} is not an address; expected HOST:PORT without {scheme}://, as in "
            f"{rest.rstrip('/') or '127.0.0.1:7400'}"
        )
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    # Of at most five digits: Python refuses to read a number of thousands of them.
    if (
        not bare
        or "[" in bare
        or "]" in bare
        or re.fullmatch("[0-9]{1,5}", port) is None
        or int(port) > 65535
    ):
        raise ValueError(
            f"{text!r} is not an address; expected HOST:PORT, for example 127.0.0.1:7400, with a "
            "port from 0 to 65535"
        )
    if problem := host_problem(bare):
        raise ValueError(f"{text!r} is not an address: {problem}; expected HOST:PORT")
    return HostPort(bare, int(port))


def join_host_port(host: str, port: int) -> str:
    """The address that `split_host_port` splits."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def why_not_dialled(error: BaseException) -> str:
    """Return the system's reason why the first of the addresses that were tried could not be
    dialled.
    """
    while (
        inner := error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    ) is not None:
        error = inner
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        # trio puts the address in front of the system's text, which is reported anyway.
        return os.strerror(error.errno)
    return (
        (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    )


def with_address(address: str, reason: str) -> str:
    """Return `reason` with the address in front, unless `reason` contains it."""
    where = address.removeprefix("tcp:")
    # Not the beginning of another address, with a longer port.
    named = re.search(rf"{re.escape(where)}(?!\d)", reason)
    return reason if named else f"{where}: {reason}"


def is_loopback(address: str) -> bool:
    """True if only this machine can reach `address`."""
    kind, where = split_address(address)
    if kind == "unix":
        return True
    host, _ = split_host_port(where)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name, which may lead anywhere, whatever it begins with.
        return False


async def _bind(address: str) -> tuple[socket.socket, str]:
    kind, where = split_address(address)
    try:
        return await (_bind_unix(where) if kind == "unix" else _bind_tcp(where))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ListenError(
            f"cannot listen on {where}: {reason}; choose another address, or port 0 for any free "
            "one"
        ) from error


# Names are looked up by trio, in a thread; what accepts is the plain socket, of which each
# connection is taken without a checkpoint.


async def _bind_unix(where: str) -> tuple[socket.socket, str]:
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # As bytes: trio would start a thread for the file system also where the name is in none.
        await listener.bind(os.fsencode(_unix_path(where)))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return _plain(listener), f"unix:{where}"


async def _bind_tcp(where: str) -> tuple[socket.socket, str]:
    host, port = split_host_port(where)
    family = socket.AF_INET6 if await _is_ipv6(host) else socket.AF_INET
    listener = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # All addresses are those of IPv4 as well, independent of the machine's default.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        await listener.bind((host, port))
        name = listener.getsockname()
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return _plain(listener), f"tcp:{join_host_port(name[0], name[1])}"


async def _is_ipv6(host: str) -> bool:
    """True for an IPv6 address, and for a name that has no other. Raises OSError for a name without
    an address.
    """
    if ":" in host:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(family == socket.AF_INET6 for family, *_ in found)
    return False


def _unix_path(where: str) -> str:
    return "\0" + where[1:] if where.startswith("@") else where


async def _connected_unix(path: str) -> socket.socket:
    """A socket that is connected to `path`. Raises OSError."""
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    delay = UNIX_AGAIN_SECONDS
    try:
        connecting.setblocking(False)
        await trio.lowlevel.checkpoint()
        while True:  # noqa: ASYNC913  there was one, and each further turn sleeps
            try:
                connecting.connect(path)
                return _tuned(connecting)
            except BlockingIOError:
                # The listener's queue is full. Nothing is under way then, unlike with TCP, and
                # trio's `connect` would wait until the socket is writable, which it is at once, and
                # return one that is not connected.
                await trio.sleep(delay)
                delay = min(2 * delay, UNIX_MOST_SECONDS)
    except BaseException:
        connecting.close()
        raise


def _plain(wrapped: trio.socket.SocketType) -> socket.socket:
    """The plain socket behind a trio one, which does not have it any more."""
    plain = socket.socket(wrapped.family, socket.SOCK_STREAM, fileno=wrapped.detach())
    plain.setblocking(False)
    return plain


def _taken(wrapped: trio.socket.SocketType, user_timeout: float) -> socket.socket:
    """The plain socket behind a trio one: sending without a checkpoint needs it."""
    return _tuned(_plain(wrapped), user_timeout)


def _tuned(raw: socket.socket, user_timeout: float = 0.0) -> socket.socket:
    """A connected socket, with the options that connections have. `user_timeout`: of TCP."""
    if raw.family != socket.AF_UNIX:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None:
            raw.setsockopt(socket.IPPROTO_TCP, option, round(1000 * user_timeout))
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        raw.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
    return raw
