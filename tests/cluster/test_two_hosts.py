"""Nodes on hosts of their own: network namespaces with a wire between them, and what each tells the
others to dial.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.links.interfaces import is_unspecified

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None,
        reason="makes network namespaces, which takes root and `ip`",
    ),
]

ROOT = Path(__file__).resolve().parents[2]
UNDERSTUDY = [sys.executable, "-P", "-m", "runtime.command_line"]

APPLICATION = """
from actors import Actor, method

class Greeter(Actor):
    @method
    async def where(self) -> str:
        return self.node.name
"""

CALL_ALL = """
import sys, trio
from app import Greeter
from runtime import open_node

async def main():
    async with open_node(sys.argv[1], join=sys.argv[2]) as node:
        for name in sys.argv[3:]:
            with trio.fail_after(60):
                print(await (await node.options(on=name).spawn(Greeter)).where())
        print(node.address.rpartition(":")[0])

trio.run(main)
"""


class Hosts:
    """Namespaces of one wire, 10.90.0.N for the Nth; none has a route that leads elsewhere."""

    def __init__(self, place: Path, count: int) -> None:
        self.place = place
        (place / "app.py").write_text(APPLICATION)
        (place / "call_all.py").write_text(CALL_ALL)
        self.environment = {
            **os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{place}", "XDG_STATE_HOME": str(place), "UNDERSTUDY_SECRET": "a secret of two hosts"
        }  # fmt: skip
        self.running: list[subprocess.Popen[str]] = []
        self.names = [f"us{os.getpid()}h{number}" for number in range(count + 1)]
        # The first is the switch.
        for name in self.names:
            _ip(f"netns add {name}")
            _ip(f"-n {name} link set lo up")
        switch = self.names[0]
        _ip(f"-n {switch} link add bridge type bridge")
        _ip(f"-n {switch} link set bridge up")
        for number, name in enumerate(self.names[1:], 1):
            _ip(f"-n {name} link add eth0 type veth peer name port{number} netns {switch}")
            _ip(f"-n {switch} link set port{number} master bridge up")
            _ip(f"-n {name} address add 10.90.0.{number}/24 dev eth0")
            _ip(f"-n {name} link set eth0 up")

    def command(self, host: int, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[host], *words]

    def run(self, host: int, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(host, *words),
            cwd=self.place,
            env=self.environment,
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )

    def start_node(self, host: int, words: str) -> dict[str, Any]:
        process = subprocess.Popen(
            self.command(host, *UNDERSTUDY, "node", "--json", *words.split()),
            cwd=self.place,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    try:
        _ip(f"netns add us{os.getpid()}probe")
        _ip(f"netns delete us{os.getpid()}probe")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr!r}")
    opened = Hosts(tmp_path, 3)
    yield opened
    opened.close()


def test_a_founder_on_all_addresses_gives_others_one_that_they_can_dial(hosts: Hosts) -> None:
    founder = hosts.start_node(1, "--name first --listen 0.0.0.0:7400")
    assert founder["address"] == "10.90.0.1:7400"
    # Nothing but what is joined is said: it listens where the way there begins.
    second = hosts.start_node(2, "--name second --join 10.90.0.1:7400")
    assert second["address"].startswith("10.90.0.2:")
    # It joins by another than the founder, whose store it needs, and every pair of nodes talks to
    # each other.
    shown = hosts.run(2, *UNDERSTUDY, "status", "--address", "10.90.0.1:7400", "--json")
    by_second = next(
        node["address"] for node in json.loads(shown.stdout)["nodes"] if node["node"] == "second"
    )
    done = hosts.run(
        3, sys.executable, "call_all.py", "third", by_second, "first", "second", "third"
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (
        0,
        ["first", "second", "third", "10.90.0.3"],
        "",
    )
    # Still there on the machine itself, by the default address.
    assert hosts.run(1, *UNDERSTUDY, "status").returncode == 0


def test_what_is_advertised_is_what_others_dial(hosts: Hosts) -> None:
    """The second address of a host, as behind a router that maps it."""
    _ip(f"-n {hosts.names[1]} address add 10.90.0.101/24 dev eth0")
    founder = hosts.start_node(1, "--name first --listen 0.0.0.0:7400 --advertise 10.90.0.101")
    assert founder["address"] == "10.90.0.101:7400"
    own = "--listen 10.90.0.2:7401 --advertise 10.90.0.2:7401"
    hosts.start_node(2, f"--name second --join 10.90.0.1:7400 {own}")
    _ip(f"-n {hosts.names[3]} route add blackhole 10.90.0.1/32")
    done = hosts.run(3, sys.executable, "call_all.py", "third", "10.90.0.2:7401", "first", "second")
    assert (done.returncode, done.stdout.split()) == (0, ["first", "second", "10.90.0.3"]), (
        done.stderr
    )


def test_the_error_of_a_node_that_cannot_reach_the_store_names_the_address_that_failed(
    hosts: Hosts,
) -> None:
    hosts.start_node(1, "--name first --listen 10.90.0.1:7400 --advertise 10.90.0.77:7400")
    # By the address that works, whatever is advertised.
    second = hosts.start_node(2, "--name second --join 10.90.0.1:7400")
    done = hosts.run(3, *UNDERSTUDY, "node", "--join", second["address"])
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for words in (
        f"{second['address']} answers",
        "the node first, which keeps the cluster's store",
        "10.90.0.77:7400",
        "--advertise",
    ):
        assert words in done.stderr
    hosts.start_node(3, "--name third --join 10.90.0.1:7400 --listen 127.0.0.1:0")
    third = hosts.running[-1]
    third.terminate()
    assert "other nodes will dial 127.0.0.1:" in third.communicate(timeout=60)[1]


def test_on_a_network_without_ipv4_a_founder_gives_its_ipv6_address_and_says_if_it_cannot(
    hosts: Hosts,
) -> None:
    for number in (1, 2):
        name = hosts.names[number]
        _ip(f"-n {name} address flush dev eth0 scope global")
        # Its own address, which is no address of the interface alone, and without a route out.
        _ip(f"-n {name} address add fd90::{number}/64 dev eth0 nodad")
    founder = hosts.start_node(1, "--name first --listen [::]:7400")
    assert founder["address"] == "[fd90::1]:7400"
    done = hosts.run(2, sys.executable, "call_all.py", "second", "[fd90::1]:7400", "first")
    assert (done.returncode, done.stdout.split()) == (0, ["first", "[fd90::2]"]), done.stderr
    # All IPv4 addresses, of which there is none that others could dial.
    hosts.start_node(2, "--name other --listen 0.0.0.0:7400")
    other = hosts.running[-1]
    other.terminate()
    assert "other nodes will dial 127.0.0.1:" in other.communicate(timeout=60)[1]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0:0:0:0:0:0:0:0"])
def test_the_addresses_that_nobody_can_dial_are_known(host: str) -> None:
    assert is_unspecified(host)
    assert not is_unspecified("10.90.0.1")
    assert not is_unspecified("a-host")
