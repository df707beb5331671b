"""Several hosts on this machine: network namespaces on one bridge, with faults of the network
between them.

A host can be cut off: its cable is pulled, and the link loses its carrier. One host can be made
unable to reach another while the other way works: a permanent neighbour entry leads to a MAC
address that is not there, so that packets are lost without any error. Both need nothing of the
kernel but namespaces, veth and bridges. Needs root and `ip` (iproute2); `missing()` says what is
not there.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from shutil import which

import attrs
import trio

NOWHERE = "02:00:00:00:fe:fe"
"""The MAC address of no host."""


def missing() -> str:
    """Why hosts cannot be made on this machine; empty if they can."""
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux")):
        if which(program) is None:
            return f"there is no `{program}` on this machine: apt-get install {package}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tried = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "ip", "link", "add", "type", "bridge"],
        capture_output=True,
        text=True,
    )
    return (
        ""
        if tried.returncode == 0
        else f"this kernel makes no namespaces with bridges: {tried.stderr.strip()}"
    )


@attrs.frozen
class Host:
    """One host: its namespace, the end of its cable at the bridge, and its address."""

    namespace: str
    port: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """The command that starts another command on this host, in a process namespace of its own,
        which ends with the command.
        """
        return (
            *("ip", "netns", "exec", self.namespace),
            *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
        )


class Network:
    """Hosts on a bridge; `address` is this machine's own end of it."""

    def __init__(self, tag: str) -> None:
        self.bridge = f"u{tag}"
        self.subnet = f"10.{int(tag, 16) % 200 + 20}.{int(tag, 16) // 256 % 250}"
        self.address = f"{self.subnet}.254"
        self.hosts: list[Host] = []

    async def cut(self, host: Host) -> None:
        """Pull the cable of a host."""
        await ip(f"link set {host.port} down")

    async def join(self, host: Host) -> None:
        """Plug it in again."""
        await ip(f"link set {host.port} up")

    async def deafen(self, from_host: Host, to: Host) -> None:
        """Lose all packets from one host to another, without an error; the other way goes on."""
        entry = f"{to.address} lladdr {NOWHERE} dev eth0 nud permanent"
        await ip(f"-n {from_host.namespace} neigh replace {entry}")

    async def restore(self, from_host: Host, to: Host) -> None:
        """Let them through again."""
        await ip(f"-n {from_host.namespace} neigh del {to.address} dev eth0")

    async def add(self) -> Host:
        """One more host."""
        number = len(self.hosts) + 1
        host = Host(f"{self.bridge}-{number}", f"{self.bridge}p{number}", f"{self.subnet}.{number}")
        await ip(f"netns add {host.namespace}")
        self.hosts.append(host)
        await ip(f"link add {host.port} type veth peer name eth0 netns {host.namespace}")
        await ip(f"link set {host.port} master {self.bridge}")
        await ip(f"link set {host.port} up")
        await ip(f"-n {host.namespace} addr add {host.address}/24 dev eth0")
        await ip(f"-n {host.namespace} link set eth0 up")
        await ip(f"-n {host.namespace} link set lo up")
        return host


@asynccontextmanager
async def open_network(count: int, tag: str) -> AsyncIterator[Network]:
    """A network of `count` hosts; it goes with the block. `tag`: four hexadecimal digits that no
    other network here has.
    """
    network = Network(tag)
    await ip(f"link add {network.bridge} type bridge")
    try:
        await ip(f"addr add {network.address}/24 dev {network.bridge}")
        await ip(f"link set {network.bridge} up")
        for _ in range(count):
            await network.add()
        yield network
    finally:
        with trio.CancelScope(shield=True):
            for host in network.hosts:
                await ip(f"netns del {host.namespace}")
            await ip(f"link del {network.bridge}")


async def ip(words: str) -> None:
    """Run `ip`. Raises OSError with what it printed."""
    command = ["ip", *words.split()]
    run = partial(subprocess.run, command, capture_output=True, text=True, check=False)
    done = await trio.to_thread.run_sync(run)
    if done.returncode:
        raise OSError(f"ip {words}: {done.stderr.strip()}")
