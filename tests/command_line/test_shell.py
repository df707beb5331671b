"""`understudy shell` as its user meets it: in a terminal, with a pipe, as a one-liner, and all the
mistakes one can make.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runtime.blocking import Blocking, BlockingLocalCluster, open_local_cluster
from runtime.command_line.main import main
from tests.command_line.typing_terminal import TypingTerminal
from tests.doors.actors_used import Counter

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
SHELL = [sys.executable, "-m", "runtime.command_line", "shell"]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory of these tests alone, in which the shell keeps its history."""
    place = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(place))
        yield place / "understudy"


@pytest.fixture(scope="module")
def cluster(state: Path) -> Iterator[BlockingLocalCluster]:
    with open_local_cluster(1) as opened, pytest.MonkeyPatch.context() as patch:
        # A node of another test may listen where a shell looks first.
        patch.setenv("UNDERSTUDY_ADDRESS", opened.address)
        opened.options(name="counter", on="worker-1").spawn(Counter)
        yield opened


@pytest.fixture
def counter(cluster: BlockingLocalCluster) -> Blocking[Counter]:
    return cluster.lookup("counter", Counter)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def has_left(cluster: BlockingLocalCluster) -> bool:
    """No shell is a member: it has left in order, or it would be until its lease ends."""
    return not [one.name for one in cluster.members() if one.name.startswith("shell-")]


def one_line_of(address: str, code: str, *more: str, status: int = 0) -> Result:
    """`understudy shell -c`, within this process."""
    done = CliRunner().invoke(main, ["shell", "--address", address, *more, "-c", code])
    assert done.exit_code == status, (done.output, done.exception)
    assert "Traceback" not in done.output
    return done


def test_a_session_in_a_terminal(
    cluster: BlockingLocalCluster, counter: Blocking[Counter], state: Path
) -> None:
    with TypingTerminal(SHELL, ROOT, environment()) as terminal:
        modes = terminal.attributes()
        banner = terminal.read_to(">>> ")
        assert "cluster local: 3 nodes, 1 actor with names" in banner
        # TAB completes the names of actors, and the methods of a handle.
        terminal.type('counter = await lookup("cou\t)\n')
        terminal.read_to('lookup\\("counter"\\)\r\n(.*\r\n)?>>> ')
        terminal.type("await counter.app\t'typed')\n")
        terminal.read_to(">>> ")
        assert counter.wait_for("typed")
        # Without its class, which is not imported here: its node says which methods are streams.
        terminal.type("[number async for number in counter.count(3)]\n")
        terminal.read_to(r"\[0, 1, 2\]\r\n>>> ")
        # A call is cancelled where it runs; the shell goes on.
        terminal.type('await counter.hang("pty")\n')
        assert counter.wait_for("pty begun")
        terminal.type("\x03")
        terminal.read_to("KeyboardInterrupt\r\n>>> ")
        assert counter.wait_for("pty cancelled")
        # A line that was begun is given up.
        terminal.type("print('not this')\x03")
        terminal.read_to("KeyboardInterrupt\r\n>>> ")
        terminal.type("if True:\n")
        terminal.read_to(r"\.\.\. ")
        terminal.type("\x03")
        terminal.read_to("KeyboardInterrupt\r\n>>> ")
        # What is pasted runs line by line.
        terminal.type("\x1b[200~if True:\n    print(3 * 5)\nprint(3 * 6)\x1b[201~\n")
        terminal.read_to(r"15\r\n18\r\n>>> ")
        # What blocks the loop ends as well.
        # (Not time.sleep: a signal that comes just before it sleeps wakes nobody, in any Python.)
        terminal.type("if True:\n    print(6 * 7)\n    while True: pass\n\n")
        terminal.read_to("42\r\n")
        terminal.type("\x03")
        terminal.read_to("KeyboardInterrupt\r\n>>> ")
        # A background task that fails is reported while the prompt waits.
        terminal.type("async def fail(): 1 / 0\n\n")
        terminal.read_to(r"\.\.\. \r\n>>> ")
        terminal.type("nursery.start_soon(fail)\n")
        failed = terminal.read_to("ZeroDivisionError: division by zero")
        assert "background task fail" in failed
        assert "async def fail(): 1 / 0" in failed
        terminal.type("_ = await cluster.tree(); _\n")
        terminal.read_to("no supervisors\r\n>>> ")
        terminal.type("\x04")
        assert terminal.wait() == 0
        assert terminal.attributes() == modes
    assert has_left(cluster)
    history = state / "shell_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    lines = history.read_text().splitlines()
    assert lines[0] == 'counter = await lookup("counter")'
    assert not [line for line in lines if "not this" in line]


def test_a_terminal_is_left_as_it_was_when_the_shell_has_to_end(
    cluster: BlockingLocalCluster,
) -> None:
    with TypingTerminal(SHELL, ROOT, environment()) as terminal:
        modes = terminal.attributes()
        terminal.read_to(">>> ")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.wait() == 128 + signal.SIGTERM
        assert terminal.attributes() == modes
        assert has_left(cluster)
    with TypingTerminal(SHELL, ROOT, environment()) as terminal:
        modes = terminal.attributes()
        terminal.read_to(">>> ")
        terminal.type("node.leave()\n")
        terminal.read_to("this shell ends with it")
        assert terminal.wait() == 1
        assert terminal.attributes() == modes
    assert has_left(cluster)


def test_the_third_ctrl_c_ends_a_shell_whose_statement_does_not_end(
    cluster: BlockingLocalCluster,
) -> None:
    with TypingTerminal(SHELL, ROOT, environment()) as terminal:
        terminal.read_to(">>> ")
        # It runs when the statement has begun to wait: before, Ctrl-C would raise in its code.
        terminal.type("async def say(): print(6 * 8)\n\n")
        terminal.type(
            "try:\n    print(6 * 7); await trio.sleep(600)\nfinally:\n"
            "    nursery.start_soon(say)\n"
            "    with trio.CancelScope(shield=True): await trio.sleep(600)\n\n"
        )
        terminal.read_to("42\r\n")
        terminal.type("\x03")
        # One signal after the other: of those that come at once the kernel delivers one.
        terminal.read_to("48\r\n")
        terminal.type("\x03")
        terminal.read_to("Ctrl-C once more ends the shell")
        terminal.type("\x03")
        assert terminal.wait() == -signal.SIGINT


def piped(text: str) -> subprocess.CompletedProcess[str]:
    """The shell with this text as its standard input."""
    return subprocess.run(
        SHELL,
        cwd=ROOT,
        env=environment(),
        input=text,
        text=True,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


def test_lines_of_a_pipe(cluster: BlockingLocalCluster, counter: Blocking[Counter]) -> None:
    before = counter.read()
    done = piped(
        "counter = await lookup('counter')\n"
        "async def twice():\n    await counter.add(1)\n\n    return await counter.add(1)\n"
        "await twice()\n"
        "for name in await cluster.names():\n    print(name)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{before + 2}\ncounter\n"
    own = piped(
        "class Own(actors.Actor):\n    @actors.method\n    async def double(self, x: int) -> int:\n"
        "        return 2 * x\n"
        "own = await node.spawn(Own)\nawait own.double(21)\n"
        "await options(on='worker-1').spawn(Own)\n"
    )
    assert (own.returncode, own.stdout) == (1, "42\n"), own.stderr
    assert "ActorClassError: __console__:Own cannot be imported on node worker-1" in own.stderr
    assert "a prompt or a notebook; move them into a module" in own.stderr
    failed = piped("print(1)\n[][0]\nprint(2)\n")
    assert (failed.returncode, failed.stdout) == (1, "1\n")
    assert failed.stderr.startswith("Traceback (most recent call last):\n")
    assert failed.stderr.endswith("[][0]\n    ~~^^^\nIndexError: list index out of range\n")
    assert "runtime" not in failed.stderr
    assert has_left(cluster)


def test_a_background_task_that_does_not_end_holds_up_no_exit(
    cluster: BlockingLocalCluster,
) -> None:
    done = piped(
        "async def stay():\n    with trio.CancelScope(shield=True):\n"
        "        await trio.sleep_forever()\n"
        "nursery.start_soon(stay)\nawait trio.sleep(0)\n"
    )
    assert done.returncode == 0
    assert "left without background tasks that do not end: stay" in done.stderr
    assert has_left(cluster)


def test_a_one_liner_prints_its_value(cluster: BlockingLocalCluster) -> None:
    address = cluster.address
    assert one_line_of(address, "await (await lookup('counter')).total([1, 2])").stdout == "3\n"
    assert one_line_of(address, "x = [n.name for n in cluster.members()]; x[0]").stdout == (
        "'driver'\n"
    )
    assert one_line_of(address, "None").stdout == ""
    assert json.loads(one_line_of(address, "{'a': (1, b'')}", "--json").stdout) == {"a": [1, "b''"]}
    spawned = one_line_of(
        address,
        "c = await spawn(actors_used.Counter); await c.where() if 0 else c.address.node",
        "--import",
        "tests.doors.actors_used",
        status=1,
    )
    assert "name 'actors_used' is not defined" in spawned.stderr
    spawned = one_line_of(
        address,
        "from tests.doors.actors_used import Counter; (await spawn(Counter)).address.node",
    )
    # Not in the shell, with which it would have ended.
    assert spawned.stdout in ("'worker-1'\n", "'driver'\n")
    assert has_left(cluster)


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("await (await lookup('counter')).fail('no way')", 1, "counter.fail raised ValueError: no"),
        ("await lookup('nobody')", 1, "nobody"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("a b", 1, "SyntaxError: invalid syntax"),
        ("raise BaseException('x')", 1, "BaseException: x"),
        ("raise KeyboardInterrupt", 130, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('so it ends')", 1, "so it ends"),
        ("await node._close(); await lookup('counter')", 1, "shell-"),
    ],
)
def test_a_one_liner_that_fails_says_so_in_one_line(
    cluster: BlockingLocalCluster, code: str, status: int, told: str
) -> None:
    done = one_line_of(cluster.address, code, status=status)
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == (1 if told else 0), done.stderr
    assert done.stdout == ""


def test_ctrl_c_in_a_one_liner_cancels_the_call(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    words = [*SHELL, "-c", "await (await lookup('counter')).hang('one')"]
    with subprocess.Popen(
        words, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True
    ) as running:
        assert counter.wait_for("one begun")
        running.send_signal(signal.SIGINT)
        assert counter.wait_for("one cancelled")
        assert running.communicate(timeout=PATIENCE)[1] == ""
    assert running.returncode == 130
    assert has_left(cluster)


def test_a_shell_without_a_cluster_is_one_line(
    cluster: BlockingLocalCluster, tmp_path: Path
) -> None:
    nobody = one_line_of("127.0.0.1:1", "1", status=1)
    assert "127.0.0.1:1" in nobody.stderr
    assert len(nobody.stderr.splitlines()) == 1
    secret = tmp_path / "secret"
    secret.write_text("wrong")
    refused = one_line_of(
        cluster.address, "1", "--secret-file", str(secret), "--cluster", "local", status=1
    )
    assert "secret" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert one_line_of("nonsense", "1", status=1).stderr.startswith("error: ")
    wrong = CliRunner().invoke(main, ["shell", "--address", "127.0.0.1:7400", "--json"])
    assert wrong.exit_code == 2
    assert "-c CODE" in wrong.stderr
