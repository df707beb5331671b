"""Whose sockets listen at a port of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.links import interfaces
from runtime.links.interfaces import listening_users
from tests.limits import out_of_descriptors

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these tables")

OF_ANOTHER = """
import os, socket, sys
os.setuid(4321)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@LINUX
@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_the_users_of_listeners_are_found_until_they_close(bound: str) -> None:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    target = "::1" if bound == "::1" else "127.0.0.1"
    with socket.socket(family) as listener:
        if bound == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((bound, 0))
        port = listener.getsockname()[1]
        assert listening_users(target, port) == frozenset(), "it is bound, and does not listen"
        listener.listen()
        assert listening_users(target, port) == {os.geteuid()}
        with socket.create_connection((target, port)) as connected:
            host, dialled, *_ = connected.getpeername()
            assert listening_users(host, dialled) == {os.geteuid()}
            own_port = connected.getsockname()[1]
            assert listening_users(target, own_port) == frozenset(), "connected, not listening"
    assert listening_users(target, port) == frozenset()


@LINUX
def test_without_descriptors_no_listener_is_taken_for_one_of_this_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, out_of_descriptors():
        # None would say that the system has no such tables, and that nothing can be known.
        assert listening_users("127.0.0.1", listener.getsockname()[1]) == frozenset()


@LINUX
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_told_from_this_one() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OF_ANOTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert listening_users("127.0.0.1", int(process.stdout.readline())) == {4321}
        process.stdin.close()


def test_the_tables_are_read_as_the_kernel_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = sys.byteorder
    loopback = int.from_bytes(socket.inet_aton("127.0.0.1"), order)
    rows = (
        (f"{loopback:08X}:1CE8", "0A", 1000),
        (f"{0:08X}:1CE9", "0A", 1001),
        (f"{loopback:08X}:1CE8", "01", 1002),
        (f"{loopback:08X}:1CEA", "0A", 1003),
    )
    table, absent = tmp_path / "tcp", tmp_path / "tcp6"
    table.write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        + "".join(
            f"   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {user}"
            "        0 650 1\n"
            for local, state, user in rows
        )
    )
    monkeypatch.setattr(interfaces, "TABLES", (str(table), str(absent)))
    assert listening_users("127.0.0.1", 7400) == {1000}
    assert listening_users("127.0.0.1", 7401) == {1001}
    assert listening_users("127.0.0.1", 7402) == frozenset(), "those that listen come first"
    assert listening_users("127.0.0.2", 7400) == frozenset()
    table.unlink()
    assert listening_users("127.0.0.1", 7400) is None, "a system without such tables"
