"""A local etcd, for tests and for trying things out: real processes of the `etcd` that is
installed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from shutil import which

import attrs
import trio

from actors.errors import StoreError
from runtime.processes.linux_processes import die_with_parent
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.gateway import Gateway

START_SECONDS = 20.0
"""How long the processes may take until they have elected a leader."""


@attrs.define(eq=False)
class EtcdServerMember:
    """One process of an etcd, its ports and its files."""

    name: str
    directory: Path
    client_port: int
    peer_port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The file with its output."""
        return self.directory / f"{self.name}.log"


@attrs.frozen
class EtcdCertificates:
    """Paths of PEM files, by which an etcd and its clients prove themselves to each other. The
    certificate is for 127.0.0.1, and both the server's and the clients'.
    """

    ca: Path
    certificate: Path
    key: Path


class EtcdServer:
    """A running etcd of one or more members: `open_etcd(...)`."""

    def __init__(
        self,
        members: list[EtcdServerMember],
        binary: str,
        arguments: Sequence[str] = (),
        certificates: EtcdCertificates | None = None,
    ) -> None:
        self.members = members
        self._binary = binary
        self._arguments = arguments
        self._certificates = certificates

    @property
    def address(self) -> str:
        """Its address, for `open_node(store=...)` and `--store`."""
        members = ",".join(f"127.0.0.1:{member.client_port}" for member in self.members)
        return f"etcd://{members}{self._options}"

    @property
    def _options(self) -> str:
        files = self._certificates
        if files is None:
            return ""
        return f"?ca={files.ca}&cert={files.certificate}&key={files.key}"

    def kill(self, index: int = 0) -> None:
        """End a member at once (SIGKILL)."""
        self._signal(index, signal.SIGKILL)

    def pause(self, index: int = 0) -> None:
        """Stop a member from running (SIGSTOP) until `resume`."""
        self._signal(index, signal.SIGSTOP)

    def resume(self, index: int = 0) -> None:
        """Let a paused member go on."""
        self._signal(index, signal.SIGCONT)

    async def start(self, index: int = 0) -> None:
        """Start a member that has ended, on the files that it had."""
        member = self.members[index]
        if member.process is not None:
            await trio.to_thread.run_sync(member.process.wait)
        self._launch(member)

    def _launch(self, member: EtcdServerMember) -> None:
        peers = ",".join(f"{each.name}=http://127.0.0.1:{each.peer_port}" for each in self.members)
        files = self._certificates
        scheme = "http" if files is None else "https"
        client, peer = (
            f"{scheme}://127.0.0.1:{member.client_port}",
            f"http://127.0.0.1:{member.peer_port}",
        )
        command = [
            self._binary,
            "--name",
            member.name,
            "--data-dir",
            str(member.directory / member.name),
        ]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += [
            "--initial-cluster",
            peers,
            "--heartbeat-interval",
            "50",
            "--election-timeout",
            "500",
            *self._arguments,
        ]
        if files is not None:
            command += ["--client-cert-auth", "--trusted-ca-file", str(files.ca)]
            command += ["--cert-file", str(files.certificate), "--key-file", str(files.key)]
        with member.log.open("ab") as log:
            # Started by this thread: the kernel's signal at the parent's end comes when the thread
            # ends that asked for it.
            member.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGKILL, os.getpid()),
            )

    async def ready(self) -> None:
        """Wait until each member answers, with a leader: the next may be killed then. Raises
        `StoreError` with the end of a member's log if it does not come to that.
        """
        for member in self.members:
            address = f"etcd://127.0.0.1:{member.client_port}{self._options}"
            gateway = Gateway(EtcdAddress.parse(address))
            try:
                with trio.fail_after(START_SECONDS):
                    await self._answers(gateway)
            except trio.TooSlowError:
                raise StoreError(
                    f"etcd was not ready within {START_SECONDS:g} s: {_end_of(member.log)}"
                ) from None
            finally:
                gateway.close()

    async def _answers(self, gateway: Gateway) -> None:
        while True:
            for member in self.members:
                if member.process is not None and member.process.poll() is not None:
                    raise StoreError(
                        f"etcd ended with status {member.process.returncode}: {_end_of(member.log)}"
                    )
            try:
                await gateway.ask("/v3/kv/range", {"key": "AA=="}, seconds=0.5)
            except StoreError:
                await trio.sleep(0.05)
                continue
            return

    async def stop(self) -> None:
        """End all members. Their files go as well, so nothing is gained by asking them first."""
        for member in self.members:
            if member.process is not None:
                member.process.kill()
                await trio.to_thread.run_sync(member.process.wait)

    def _signal(self, index: int, signum: signal.Signals) -> None:
        process = self.members[index].process
        if process is not None and process.poll() is None:
            process.send_signal(signum)


@asynccontextmanager
async def open_etcd(
    members: int = 1,
    *,
    arguments: Sequence[str] = (),
    certificates: EtcdCertificates | None = None,
) -> AsyncIterator[EtcdServer]:
    """A local etcd of `members` processes on free ports and temporary files, which end with the
    block. Raises `StoreError` without etcd.

    `arguments`: more of them for `etcd` itself, for example `["--quota-backend-bytes",
    "100000000"]`. `certificates`: clients connect over TLS, and must show one.
    """
    binary = which("etcd")
    if binary is None:
        raise StoreError("there is no etcd on this machine: apt-get install etcd-server")
    with tempfile.TemporaryDirectory(prefix="understudy-etcd-") as directory:
        ports = await _free_ports(2 * members)
        found = [
            EtcdServerMember(
                f"member-{index}", Path(directory), ports[2 * index], ports[2 * index + 1]
            )
            for index in range(members)
        ]
        server = EtcdServer(found, binary, arguments, certificates)
        try:
            for index in range(members):
                await server.start(index)
            await server.ready()
            yield server
        finally:
            # A cancelled test must leave no etcd behind. `stop` kills, so it is bounded.
            with trio.CancelScope(shield=True):
                await server.stop()


async def _free_ports(count: int) -> list[int]:
    sockets = [trio.socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            await each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return " | ".join(lines[-3:]) or "it printed nothing"
