"""Whole programs at the blocking door: how they end, what signals do to them, and forks of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime.blocking import Blocking, BlockingLocalCluster
from tests import forked_python
from tests.doors.actors_used import Counter

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
HEAD = """
import asyncio, atexit, os, signal, sys, threading
from actors.errors import *
from runtime.blocking import connect
from tests.doors.actors_used import Counter

cluster = connect(sys.argv[1], name=sys.argv[3])
counter = cluster.lookup(sys.argv[2], Counter)
"""


@contextmanager
def program(
    cluster: BlockingLocalCluster, counter: Blocking[Counter], name: str, text: str
) -> Iterator[subprocess.Popen[str]]:
    """A program that has a connection called `name` and a handle; killed at the end of the block
    if it still runs.
    """
    running = forked_python.Popen(
        [sys.executable, "-c", HEAD + text, cluster.address, counter.name, name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.kill()


def ended(running: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its status and what it printed, once it has ended."""
    out, err = running.communicate(timeout=PATIENCE)
    return running.returncode, out, err


def has_left(cluster: BlockingLocalCluster, name: str) -> bool:
    """Whether the connection has left the cluster in order: its record is gone at once."""
    return name not in {member.name for member in cluster.members()}


@pytest.mark.parametrize(
    ("how", "status", "told"),
    [
        ("", 0, ""),
        ("raise ValueError('so it ended')", 1, "ValueError: so it ended"),
        ("sys.exit(3)", 3, ""),
        ("threading.Thread(target=lambda: print(counter.add(1))).start()", 0, ""),
        ("future = counter.hang.future('still running'); counter.wait_for('x begun')", 0, ""),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "KeyboardInterrupt"),
    ],
    ids=["falls off its end", "raises", "sys.exit", "thread", "call under way", "ctrl-c"],
)
def test_a_program_that_closes_nothing_leaves_in_order(
    how: str,
    status: int,
    told: str,
    cluster: BlockingLocalCluster,
    counter: Blocking[Counter],
    request: pytest.FixtureRequest,
) -> None:
    counter.append("x begun")
    name = request.node.callspec.id.replace(" ", "-")
    with program(cluster, counter, name, f"assert counter.add(1) == 1\n{how}\n") as running:
        code, out, err = ended(running)
    assert (code, told in err) == (status, True), (out, err)
    assert has_left(cluster, name)
    if "Thread" in how:
        # Threads of the program use their connection for as long as they run.
        assert out == "2\n"
    if "hang" in how:
        assert counter.wait_for("still running cancelled")


def test_ctrl_c_cancels_the_method_and_raises(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    text = """
try:
    counter.hang("blocked")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    print(counter.wait_for("blocked cancelled"), counter.add(1))
"""
    with program(cluster, counter, "interrupted", text) as running:
        assert counter.wait_for("blocked begun")
        running.send_signal(signal.SIGINT)
        code, out, err = ended(running)
    assert (code, out) == (0, "interrupted\nTrue 1\n"), err


def test_ctrl_c_while_it_connects(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    text = """
import socket
silent = socket.create_server(("127.0.0.1", 0))
def interrupt():
    silent.accept()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    connect("127.0.0.1:%d" % silent.getsockname()[1], secret="s")
except KeyboardInterrupt:
    print(counter.add(1))
"""
    with program(cluster, counter, "interrupted-early", text) as running:
        code, out, err = ended(running)
    assert (code, out) == (0, "1\n"), err


def test_a_signal_handler_may_call(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    text = """
def handle(signum, frame):
    print(counter.add(1), cluster.run(abs, -3), flush=True)
    counter.append("handled")
signal.signal(signal.SIGUSR1, handle)
counter.wait_for("handled")
print(counter.add(1))
"""
    with program(cluster, counter, "signals", text + "counter.append('end')\n") as running:
        while not has_begun(cluster, "signals"):
            assert running.poll() is None
        # Whenever it comes: before the call, in the middle of it, or while it blocks.
        counter.append("sent")
        wait_for_handler(running.pid, signal.SIGUSR1)
        running.send_signal(signal.SIGUSR1)
        code, out, err = ended(running)
    assert (code, out) == (0, "1 3\n2\n"), err


def has_begun(cluster: BlockingLocalCluster, name: str) -> bool:
    """Whether the connection is a member."""
    return name in {member.name for member in cluster.members()}


def wait_for_handler(pid: int, number: signal.Signals) -> None:
    """Wait until the process catches a signal, which would end it before."""
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        if int(caught.split()[1], 16) >> (number - 1) & 1:
            return


def test_destructors_and_exit_handlers_get_an_error(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    text = """
class Late:
    def __init__(self, how):
        self.how = how
        # The names of this module are gone by then.
        self.refused, self.out = NotAMemberError, sys.stdout
        address = sys.argv[1]
        self.uses = [
            lambda c=counter: c.add(1),
            lambda c=connect: c(address),
            lambda c=cluster: c.run(abs, 1),
            cluster.close,
        ]
    def __del__(self):
        self.call()
    def call(self):
        for use in self.uses:
            try:
                use()
                self.out.write(self.how + " none\\n")
            except self.refused as error:
                self.out.write(self.how + " refused\\n")
        self.out.flush()
late = Late("late")
atexit.register(late.call)
"""
    with program(cluster, counter, "late", text) as running:
        code, out, err = ended(running)
    # By the exit handler, and by the destructor.
    assert out == ("late refused\n" * 3 + "late none\n") * 2, err
    assert code == 0
    assert has_left(cluster, "late")
    assert counter.read() == 0


def test_a_fork_gets_an_error_or_a_connection_of_its_own(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    text = """
from tests.failures.error_examples import check_shown, said
stream = counter.count(10)
executor = cluster.executor(max_workers=1)
pid = os.fork()
if not pid:
    for use in (
        lambda: counter.add(1),
        lambda: counter.add.future(1),
        lambda: cluster.members(),
        lambda: next(stream),
        lambda: cluster.run(abs, 1),
        lambda: executor.submit(abs, 1),
        cluster.close,
    ):
        try:
            use()
            print("none")
        except ForkedProcessError as error:
            assert str(os.getppid()) in str(error) and "connect again" in str(error)
            check_shown("ForkedProcessError", said(error))
    with connect(sys.argv[1], name="child") as own:
        print(own.lookup(sys.argv[2], Counter).add(1), flush=True)
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
print(counter.add(1), list(stream) == list(range(10)))
"""
    with program(cluster, counter, "forked", text) as running:
        code, out, err = ended(running)
    assert (code, out) == (0, "1\n2 True\n"), err
    assert has_left(cluster, "child")


def test_multiprocessing_by_fork(cluster: BlockingLocalCluster, counter: Blocking[Counter]) -> None:
    text = """
import multiprocessing
def work(number):
    with connect(sys.argv[1]) as own:
        return own.lookup(sys.argv[2], Counter).add(number) > 0
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(work, [1, 2, 3]))
print(counter.read())
"""
    with program(cluster, counter, "pool", text) as running:
        code, out, err = ended(running)
    assert (code, out) == (0, "[True, True, True]\n6\n"), err


def test_a_program_that_is_killed_is_known_to_be_gone(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    with program(cluster, counter, "killed", "counter.hang('killed')") as running:
        assert counter.wait_for("killed begun")
        running.kill()
        assert counter.wait_for("killed cancelled")


def test_gunicorn_preloads_an_application_that_connects(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    service = "tests.doors.preloaded_service"
    with subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-c", f"python:{service}", f"{service}:application"],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CLUSTER": cluster.address,
            "COUNTER": counter.name,
        },
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            log = iter(server.stderr.readline, "")
            line = next(line for line in log if "Listening at" in line)
            address = line.partition("Listening at: ")[2].split()[0]
            answers: dict[str, list[str]] = {"own": [], "inherited": []}
            for path, got in answers.items():
                # Until both workers have answered.
                while len({answer.split()[0] for answer in got}) < 2:
                    with urllib.request.urlopen(f"{address}/{path}", timeout=PATIENCE) as answer:
                        got.append(answer.read().decode())
            sums = sorted(int(answer.split()[1]) for answer in answers["own"])
            assert sums == list(range(101, 101 + len(sums)))
            assert all(
                f"process {server.pid}" in answer and "connect again" in answer
                for answer in answers["inherited"]
            )
            # The connection of the master is what it was before the forks.
            assert {"master", *(f"web-{pid}" for pid in pids_of(answers["own"]))} <= {
                member.name for member in cluster.members()
            }
            server.terminate()
            rest = server.stderr.read()
            assert server.wait(PATIENCE) == 0, rest
        finally:
            if server.poll() is None:
                server.kill()
    left = {member.name for member in cluster.members()}
    assert not {"master", *(f"web-{pid}" for pid in pids_of(answers["own"]))} & left, rest
    assert counter.read() == 100 + len(answers["own"])


def pids_of(answers: list[str]) -> set[str]:
    """The processes that have answered."""
    return {answer.split()[0] for answer in answers}


@pytest.mark.slow
def test_a_connection_that_lost_its_lease_says_to_connect_again(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    text = """
future = counter.hang.future("paused")
counter.append("ready")
try:
    counter.wait_for("never")
except OutcomeUnknownError as error:
    print(type(error).__name__)
def refused(use):
    while True:
        try:
            use()
        except OutcomeUnknownError:
            # The end of the connection has just come.
            continue
        except NotAMemberError as error:
            return "lease" in str(error), "connect again" in str(error)
for use in (lambda: counter.add(1), lambda: cluster.members(), lambda: cluster.run(abs, 1)):
    print(*refused(use))
print(isinstance(future.exception(60), OutcomeUnknownError))
cluster.close()
with connect(sys.argv[1], name=sys.argv[3]) as again:
    print(again.handle(counter).add(1))
"""
    with program(cluster, counter, "paused", text) as running:
        assert counter.wait_for("ready")
        assert counter.wait_for("paused begun")
        running.send_signal(signal.SIGSTOP)
        # Its lease runs out, and what it had asked for is cancelled.
        assert counter.wait_for("paused cancelled")
        running.send_signal(signal.SIGCONT)
        code, out, err = ended(running)
    told = out.splitlines()
    assert (code, told[1:]) == (0, ["True True"] * 3 + ["True", "1"]), (out, err)
    assert counter.read() == 1
    assert "Traceback" not in err


def test_the_door_does_not_load_asyncio() -> None:
    text = "import sys, runtime.blocking; print('asyncio' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"
