"""Whole programs at the blocking door: how they end, what signals do to them, and forks of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from runtime.blocking import Blocking, BlockingLocalCluster
from runtime.doors.loop_thread import SPARE_THREADS, keep_spare_threads
from tests import forked_python
from tests.doors.actors_used import Counter
from tests.waiting import until

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


OF_ITS_OWN = """
import multiprocessing, signal, sys
from actors import Actor, method
from runtime.blocking import open_local_cluster

def double(number):
    return 2 * number

class Shop(Actor):
    def __init__(self):
        self.stopped = "stopped in order"

    @method
    def doubles(self, way):
        with multiprocessing.get_context(way).Pool(1) as pool:
            return pool.map(double, [1, 2])

    @method
    def ends(self, way):
        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
        getattr(child, way)()
        child.join()
        return child.exitcode

    def on_stop(self, reason):
        print(self.stopped, flush=True)

if __name__ == "__main__":
    cluster = open_local_cluster(1)
    shop = cluster.options(name="shop", on=sys.argv[1]).spawn(Shop)
    for called, way in zip(sys.argv[2::2], sys.argv[3::2]):
        print(getattr(shop, called)(way), flush=True)
    sys.exit(7)
"""


def program_of_its_own(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script with a local cluster, which it leaves open, and that has ended."""
    script = directory / "of_its_own.py"
    script.write_text(OF_ITS_OWN)
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_program_that_leaves_its_local_cluster_open_ends(tmp_path: Path) -> None:
    done = program_of_its_own(tmp_path, "driver")
    assert (done.returncode, done.stdout) == (7, "stopped in order\n"), done.stderr


@pytest.mark.parametrize(
    ("uses", "told"),
    [
        (["doubles", "fork"], "[2, 4]\n"),
        # These find the script's functions by the name that multiprocessing gives the script there.
        (["doubles", "spawn", "doubles", "forkserver"], "[2, 4]\n[2, 4]\n"),
        # A fork has the default handlers, and not those by which the node leaves.
        (["ends", "terminate", "ends", "kill"], "-15\n-9\n"),
    ],
    ids=lambda one: one[0] if isinstance(one, list) else "",
)
def test_a_method_uses_processes_of_multiprocessing(
    tmp_path: Path, uses: list[str], told: str
) -> None:
    done = program_of_its_own(tmp_path, "worker-1", *uses)
    assert (done.returncode, done.stdout) == (7, told), done.stderr


def test_threads_are_kept_for_the_end_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    async def idle_threads() -> int:
        """How many there are: each waits for all others."""
        done = 0
        barrier = threading.Barrier(SPARE_THREADS)

        async def wait() -> None:
            nonlocal done
            try:
                await trio.to_thread.run_sync(barrier.wait)
            except RuntimeError:
                barrier.abort()
            else:
                done += 1

        async with trio.open_nursery() as nursery:
            for _ in range(SPARE_THREADS):
                nursery.start_soon(wait)
        return done

    async def main() -> int:
        return await until(idle_threads, "all are idle", lambda count: count == SPARE_THREADS)

    keep_spare_threads()
    monkeypatch.setattr(threading.Thread, "start", refused)
    assert trio.run(main) == SPARE_THREADS


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
