"""`understudy dashboard` and `understudy node --dashboard`: real processes, and wrong input."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from click.testing import CliRunner

from runtime.command_line.main import main
from tests import forked_python
from tests.authority import Authority, node_uri
from tests.waiting import until

pytestmark = pytest.mark.cluster

COMMAND = (sys.executable, "-m", "runtime.command_line")
NODE = (*COMMAND, "node", "--name", "solo", "--listen", "127.0.0.1:0", "--json", "--dashboard")


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that fails at once."""
    return forked_python.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **variables},
    )


def ask(url: str) -> int:
    """The status of an answer with the token of the address."""
    base, _, token = url.partition("#token=")
    request = urllib.request.Request(f"{base}api/snapshot?topic=cluster")
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            told = json.load(answer)
            assert "solo" in told["cluster"]["sections"]["nodes"]
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--address", "127.0.0.1:1"), "no node answers at 127.0.0.1:1"),
        (("--address", "127.0.0.1:1", "--listen", "nowhere"), "nowhere"),
        (("--address", "127.0.0.1:1", "--secret-file", "/nowhere"), "cannot be read"),
    ],
)
def test_wrong_input_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    found = run("dashboard", *arguments)
    assert found.returncode in (1, 2)
    assert words in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("command", "role", "words"),
    [
        (("dashboard",), "client", ["nodes refuse what the pages ask for"]),
        (("dashboard", "--allow-actions"), "observer", ["nodes refuse the actions of the pages"]),
        (("dashboard", "--allow-actions"), "operator", []),
        (("dashboard",), "observer", []),
        (("gateway",), "observer", ["nodes refuse all calls but those of methods that allow it"]),
        (("gateway",), "client", []),
    ],
)
def test_a_role_that_is_not_enough_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    role: str,
    words: list[str],
) -> None:
    module = importlib.import_module(f"runtime.command_line.{command[0]}")
    # It would serve until a signal.
    monkeypatch.setattr(module, "trio", SimpleNamespace(run=lambda *_: None))
    tls = Authority(tmp_path / "ca").tls(node_uri("x", role=role))
    files = ("--tls-ca", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key)
    found = CliRunner().invoke(main, [*command, "--address", "127.0.0.1:1", *files])
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert len(lines) == len(words)
    for line, text in zip(lines, words, strict=True):
        assert line.startswith(f"with the role {role!r} {text}: the role ")


@pytest.mark.parametrize("token", ["short", "with a space in it, long", "ümlautümlautümlaut"])
def test_a_token_that_cannot_stand_in_an_address_is_refused(token: str) -> None:
    found = run("dashboard", "--address", "127.0.0.1:1", UNDERSTUDY_DASHBOARD_TOKEN=token)
    assert (found.returncode, "letters and digits" in found.stderr) == (2, True)
    assert token not in found.stderr


async def test_a_node_s_dashboard_serves_it_and_ends_with_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret that only this node has")
    secret.chmod(0o600)
    node = await trio.lowlevel.open_process(
        [*NODE, "--secret-file", str(secret)],
        stdout=subprocess.PIPE,
    )
    try:
        assert node.stdout is not None
        told = b""
        with trio.fail_after(60):
            while told.count(b"\n") < 2:
                told += await node.stdout.receive_some()
        url = json.loads(told.splitlines()[1])["url"]
        assert await trio.to_thread.run_sync(ask, url) == 200
        assert await trio.to_thread.run_sync(ask, url.replace("#token=", "#token=x")) == 401
        [dashboard] = children(node.pid)
        # Killed, so that the node can do nothing about it.
        node.kill()
        await node.wait()
        await until(lambda: is_running(dashboard), "the dashboard has ended", lambda one: not one)
    finally:
        node.kill()


async def test_a_dashboard_that_dies_takes_no_node_with_it() -> None:
    node = await trio.lowlevel.open_process(
        NODE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert node.stdout is not None
        assert node.stderr is not None
        told = b""
        with trio.fail_after(60):
            while told.count(b"\n") < 2:
                told += await node.stdout.receive_some()
            [dashboard] = children(node.pid)
            os.kill(dashboard, signal.SIGKILL)
            said = b""
            while b"the node goes on" not in said:
                said += await node.stderr.receive_some()
        node.terminate()
        with trio.fail_after(60):
            assert await node.wait() == 0
    finally:
        node.kill()


def children(pid: int) -> list[int]:
    """The dashboards that a process has started."""
    found = []
    for one in Path("/proc").iterdir():
        if one.name.isdecimal():
            try:
                parent = int((one / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid and b"dashboard\0--from-node" in (one / "cmdline").read_bytes():
                    found.append(int(one.name))
            except OSError:
                continue
    return found


def is_running(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
