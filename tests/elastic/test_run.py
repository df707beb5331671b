"""`understudy run` as its users meet it: real processes, torchrun's environment and options,
failures, signals, and nothing left behind.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from runtime import open_local_cluster
from runtime.elastic import guardian, record
from runtime.elastic.runner import ERROR_FILE
from runtime.processes.inherited_environment import SECRET_VARIABLES
from tests import forked_python
from tests.process_states import lives, state_of
from tests.waiting import until_blocking

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
UNDERSTUDY = [sys.executable, "-P", "-m", "runtime.command_line", "run"]
LIMIT = 40.0


class Shell:
    """A directory with scripts in it, and the commands that were started there."""

    def __init__(self, place: Path) -> None:
        self.place = place
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PET_", "OMP_"))
        }
        self.environment = {**kept, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(place / "state")}
        self.running: list[subprocess.Popen[str]] = []

    def script(self, text: str, name: str = "train.py") -> str:
        (self.place / name).write_text(
            "import os, pathlib, signal, subprocess, sys, time\nHERE = "
            f"pathlib.Path({str(self.place)!r})\n{text}\n"
        )
        return name

    def run(self, line: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command with the words of a line, as a shell takes it apart, and further ones."""
        return forked_python.run(
            [*UNDERSTUDY, *shlex.split(line), *words],
            cwd=self.place,
            env={**self.environment, **environment},
            capture_output=True,
            timeout=LIMIT,
        )

    def start(self, line: str, *words: str) -> subprocess.Popen[str]:
        process = forked_python.Popen(
            [*UNDERSTUDY, *shlex.split(line), *words],
            cwd=self.place,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.running.append(process)
        return process

    def said(self, name: str) -> str:
        """What a worker wrote into a file, once it is there."""
        path = self.place / name
        until_blocking(
            lambda: path.exists() and path.read_text().endswith("\n"),
            f"a worker has written {name}",
        )
        return path.read_text().strip()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path)
    yield opened
    for process in opened.running:
        process.kill()
        process.communicate()


SAY_ENVIRONMENT = """
import json
said = dict(os.environ) | {"argv": sys.argv, "name": __name__, "path": sys.path[0]}
(HERE / f"said-{os.environ['LOCAL_RANK']}").write_text(json.dumps(said) + "\\n")
"""


def test_a_script_finds_what_torchrun_would_give_it(shell: Shell) -> None:
    script = shell.script(SAY_ENVIRONMENT)
    done = shell.run(
        "--nproc-per-node 2 --rdzv-id job --role trainer --max-restarts 3",
        script,
        "--rank=${local_rank}",
        "$x",
        **dict.fromkeys(SECRET_VARIABLES, "a secret of the agent"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    for rank in ("0", "1"):
        found = json.loads(shell.said(f"said-{rank}"))
        assert not SECRET_VARIABLES & found.keys()
        expected = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "ROLE_RANK": rank,
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "ROLE_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "trainer",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_RUN_ID": "job",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "OMP_NUM_THREADS": "1",
        }
        assert {name: found[name] for name in expected} == expected
        assert found["argv"] == [script, f"--rank={rank}", "$x"]
        assert (found["name"], found["path"]) == ("__main__", str(shell.place))
        assert 0 < int(found["MASTER_PORT"]) < 65536


@pytest.mark.long
def test_options_come_from_the_environment_and_with_underscores_as_with_torchrun(
    shell: Shell,
) -> None:
    script = shell.script(SAY_ENVIRONMENT)
    done = shell.run("--max_restarts 7", script, PET_NPROC_PER_NODE="2", OMP_NUM_THREADS="5")
    assert done.returncode == 0, done.stderr
    found = json.loads(shell.said("said-1"))
    assert (found["WORLD_SIZE"], found["TORCHELASTIC_MAX_RESTARTS"], found["OMP_NUM_THREADS"]) == (
        "2",
        "7",
        "5",
    )


def test_modules_and_other_commands_run_as_well(shell: Shell) -> None:
    (shell.place / "package").mkdir()
    (shell.place / "package" / "__init__.py").write_text("")
    shell.script(SAY_ENVIRONMENT, "package/train.py")
    assert shell.run("-m package.train x").returncode == 0
    found = json.loads(shell.said("said-0"))
    assert (found["name"], found["argv"][1:]) == ("__main__", ["x"])
    done = shell.run("--no-python", "sh", "-c", 'echo "rank $RANK, ${local_rank}"')
    assert (done.returncode, done.stdout) == (0, "rank 0, 0\n")


def test_a_scripts_own_world_is_as_python_makes_it(shell: Shell) -> None:
    script = shell.script(
        """
import multiprocessing, pickle, threading
class Thing: pass
def work(queue): queue.put(pickle.dumps(Thing()))
if __name__ == "__main__":
    import __main__
    assert __main__.Thing is Thing and __main__.__file__ == str(HERE / sys.argv[0]) and __main__.__spec__ is None, vars(__main__)
    assert "write_error" not in globals() and "traceback" not in globals()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    assert isinstance(pickle.loads(queue.get()), Thing)
    child.join()
    def late():
        threading.main_thread().join()
        (HERE / "late").write_text(f"{Thing.__name__}\\n")
    threading.Thread(target=late).start()
"""
    )
    done = shell.run(script)
    assert done.returncode == 0, done.stderr
    assert (done.stderr, shell.said("late")) == ("", "Thing")


def test_the_root_cause_is_reported_first_with_its_traceback_and_without_a_decorator(
    shell: Shell,
) -> None:
    script = shell.script(
        """
def deep(): raise ValueError("the cause")
rank = os.environ["RANK"]
if rank == "2": deep()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
time.sleep(600)
"""
    )
    done = shell.run("--nproc-per-node 3 --log-dir logs --rdzv-id job", script)
    assert done.returncode == 1
    report = done.stderr[done.stderr.index("job job failed") :]
    assert re.search(
        r"root cause: rank 2 \(local rank 2, role default\) on "
        rf"{re.escape(socket.gethostname())}, pid \d+: exit code 1",
        report,
    )
    assert "in deep" in report
    assert "ValueError: the cause" in report
    assert "runner.py" not in done.stderr, "the user's own frames only"
    assert "seen later" not in report, "those that were stopped for it did not fail"
    error = json.loads(
        (shell.place / "logs" / "job" / "attempt_0" / "2" / "error.json").read_text()
    )
    assert error["message"]["message"] == "ValueError: the cause"
    assert "in deep" in error["message"]["extraInfo"]["py_callstack"]


ENDS_IN_STR = """
class Ends(Exception):
    def __str__(self): raise {}
raise Ends
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("os.abort()", "killed by SIGABRT"),
        (ENDS_IN_STR.format("SystemExit(0)"), "exit code 1"),
        pytest.param(
            ENDS_IN_STR.format("KeyboardInterrupt"), "exit code 1", marks=pytest.mark.long
        ),
        pytest.param("sys.exit(7)", "exit code 7", marks=pytest.mark.long),
        ("sys.exit('went wrong')", "went wrong"),
        pytest.param("os._exit(3)", "exit code 3", marks=pytest.mark.long),
        pytest.param("+", "SyntaxError", marks=pytest.mark.long),
    ],
)
def test_every_way_to_fail_is_reported_as_what_it_was(shell: Shell, text: str, said: str) -> None:
    done = shell.run("--json", shell.script(text))
    assert done.returncode == 1
    assert said in done.stderr
    assert "runner.py" not in done.stderr, "the user's own frames only"
    told = json.loads(done.stdout)
    assert told["code"] == 1
    assert len(told["failures"]) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("os.mkfifo(file)", "its error file was not read: it is no regular file"),
        (r"open(file, 'w').write('\\x1b[31mred')", r"\x1b[31mred"),
    ],
    ids=["pipe", "controls"],
)
def test_no_error_file_hurts_its_reader(shell: Shell, text: str, said: str) -> None:
    file = f"file = os.environ[{ERROR_FILE!r}]"
    done = shell.run("", shell.script(f"{file}\n{text}\nos._exit(5)"))
    assert done.returncode == 1
    assert f"exit code 5: {said}" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.long
def test_a_group_is_started_again_as_often_as_is_allowed(shell: Shell) -> None:
    script = shell.script(
        """
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
(HERE / f"{os.environ['RANK']}-{count}").write_text("\\n")
if count < 2 and os.environ["RANK"] == "1": sys.exit(1)
while not all((HERE / f"{rank}-2").exists() for rank in "01"): time.sleep(0.01)
"""
    )
    assert shell.run("--nproc-per-node 2 --max-restarts 2", script).returncode == 0
    for path in shell.place.glob("?-?"):
        path.unlink()
    done = shell.run("--nproc-per-node 2 --max-restarts 1", script)
    assert done.returncode == 1
    assert "1 of 1 allowed" in done.stderr


FAMILY = """
def start(**how):
    return subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"], **how)
children = [start(), start(start_new_session=True)]
(HERE / f"pids-{os.environ['RANK']}").write_text(f"{os.getpid()} {children[0].pid} {children[1].pid}\\n")
"""


@pytest.mark.parametrize(
    "signum",
    [
        signal.SIGKILL,
        signal.SIGTERM,
        *(
            pytest.param(signum, marks=pytest.mark.long)
            for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGSEGV)
        ),
    ],
)
def test_nothing_is_left_behind_whatever_ends_the_agent(shell: Shell, signum: int) -> None:
    script = shell.script(FAMILY + "time.sleep(600)")
    agent = shell.start("--nproc-per-node 2 --shutdown-timeout 5", script)
    pids = [int(pid) for rank in "01" for pid in shell.said(f"pids-{rank}").split()]
    assert all(map(lives, pids))
    agent.send_signal(signum)
    handled = signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    assert agent.wait(LIMIT) == (128 + signum if handled else -signum)
    until_blocking(lambda: not any(map(lives, pids)), "the workers have ended")


def test_what_a_worker_leaves_in_its_group_ends_with_it_and_the_rest_with_the_agent(
    shell: Shell,
) -> None:
    done = shell.run(shell.script(FAMILY))
    assert done.returncode == 0
    assert not any(lives(int(pid)) for pid in shell.said("pids-0").split())


def test_a_worker_that_ignores_sigterm_is_killed_after_the_timeout(shell: Shell) -> None:
    script = shell.script(
        """
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, lambda *_: (HERE / "asked").write_text("\\n"))
    (HERE / "pid").write_text(f"{os.getpid()}\\n")
    while True: time.sleep(600)
while not (HERE / "pid").exists(): time.sleep(0.01)
sys.exit(1)
"""
    )
    done = shell.run("--nproc-per-node 2 --shutdown-timeout 0.5", script)
    assert done.returncode == 1
    assert (shell.place / "asked").exists()
    assert not lives(int(shell.said("pid")))


def test_a_stopped_worker_ends_by_the_signal_and_need_not_be_killed(shell: Shell) -> None:
    script = shell.script(
        """
signal.signal(signal.SIGTERM, lambda *_: ((HERE / "asked").write_text("\\n"), sys.exit(0)))
child = subprocess.Popen(["sleep", "600"])
child.send_signal(signal.SIGSTOP)
(HERE / "pids").write_text(f"{os.getpid()} {child.pid}\\n")
os.kill(os.getpid(), signal.SIGSTOP)
while True: time.sleep(600)
"""
    )
    # Longer than the test may take: nothing waits for it.
    agent = shell.start("--shutdown-timeout", str(10 * LIMIT), "--json", script)
    pids = [int(pid) for pid in shell.said("pids").split()]
    until_blocking(lambda: all(state_of(pid) == "T" for pid in pids), "both are stopped")
    agent.send_signal(signal.SIGTERM)
    said, _ = agent.communicate(timeout=LIMIT)
    assert agent.returncode == 128 + signal.SIGTERM
    assert (shell.place / "asked").exists()
    assert json.loads(said)["killed"] == []
    assert not any(map(lives, pids))


def test_a_worker_that_stops_itself_again_is_killed_and_named(shell: Shell) -> None:
    script = shell.script(
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCONT, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
(HERE / f"pid-{os.environ['RANK']}").write_text(f"{os.getpid()}\\n")
os.kill(os.getpid(), signal.SIGSTOP)
while True: time.sleep(600)
"""
    )
    agent = shell.start(
        "--nproc-per-node 2 --shutdown-timeout 0.2 --event-log events --json", script
    )
    pids = [int(shell.said(f"pid-{rank}")) for rank in "01"]
    until_blocking(lambda: all(state_of(pid) == "T" for pid in pids), "both are stopped")
    agent.send_signal(signal.SIGTERM)
    said, errors = agent.communicate(timeout=LIMIT)
    assert agent.returncode == 128 + signal.SIGTERM
    assert json.loads(said)["killed"] == [
        {"rank": rank, "local_rank": rank, "pid": pid} for rank, pid in enumerate(pids)
    ]
    for rank, pid in enumerate(pids):
        assert f"worker of rank {rank} (local rank {rank}, pid {pid}) has not ended" in errors
        assert not lives(pid)
    events = [json.loads(line) for line in (shell.place / "events").read_text().splitlines()]
    assert [one["killed"] for one in events if one["event"] == "workers stopped"] == [[0, 1]]


def test_a_worker_that_is_stuck_is_killed_and_counts_as_failed(shell: Shell) -> None:
    script = shell.script(
        """
from runtime.elastic import expires
with expires(after=60, scope="epoch"):
    with expires(after=600): pass
    with expires(after=0.2, scope="step"):
        time.sleep(600)
"""
    )
    done = shell.run(script)
    assert done.returncode == 1
    assert "stuck: in 'step' for longer than 0.2 s" in done.stderr


def test_a_scope_of_a_forked_process_ends_that_one_alone_and_one_that_it_died_in_ends_nobody(
    shell: Shell,
) -> None:
    script = shell.script(
        """
import signal
from runtime.elastic import expires
with expires(after=600, scope="all"):
    # One that leaves a scope of the same name, and one that ends within a scope: the worker's own scope stands, and is no one else's.
    if os.fork() == 0:
        with expires(after=600, scope="all"): pass
        with expires(after=0.3, scope="died in"): os._exit(0)
    os.wait()
    stuck = os.fork()
    if stuck == 0:
        with expires(after=0.3, scope="stuck in"): time.sleep(600)
    assert os.waitstatus_to_exitcode(os.waitpid(stuck, 0)[1]) == -signal.SIGKILL
    time.sleep(0.5)
# Forked within a scope that its parent leaves: it comes out of the block as well, and says nothing.
with expires(after=600, scope="outer"):
    forked = os.fork()
if forked == 0: os._exit(0)
os.waitpid(forked, 0)
print("well")
"""
    )
    done = shell.run(script)
    assert done.returncode == 0, done.stderr
    assert "well" in done.stdout
    assert "it was in scope 'stuck in' for longer than 0.3 s" in done.stderr
    assert "died in" not in done.stderr


def test_expires_changes_nothing_without_an_agent_and_refuses_what_is_no_time() -> None:
    from runtime.elastic import expires

    with expires(after=0.001, scope="quick"):
        pass
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive"), expires(after=bad):
            pass


def test_output_goes_where_the_masks_say(shell: Shell) -> None:
    script = shell.script(
        "for n in range(500): print('out', n)\nprint('err', file=sys.stderr)\nprint('no line "
        "end', end='')"
    )
    done = shell.run(
        "--nproc-per-node 3 --log-dir logs --rdzv-id job -r 0:3,1:1 -t 1:2,2:3", script
    )
    assert done.returncode == 0
    logs = shell.place / "logs" / "job" / "attempt_0"
    whole = "".join(f"out {n}\n" for n in range(500)) + "no line end"
    assert {str(path.relative_to(logs)): path.read_text() for path in logs.rglob("*.log")} == {
        "0/stdout.log": whole,
        "0/stderr.log": "err\n",
        "1/stdout.log": whole,
        "1/stderr.log": "err\n",
        "2/stdout.log": whole,
        "2/stderr.log": "err\n",
    }
    assert done.stdout.splitlines() == [f"[default2]: {line}" for line in whole.splitlines()], (
        "whole lines, in order"
    )
    assert sorted(done.stderr.splitlines()) == ["[default1]: err", "[default2]: err"]


@pytest.mark.long
def test_only_chosen_workers_are_shown_and_with_the_prefix_that_is_wanted(shell: Shell) -> None:
    script = shell.script("print('hello from', os.environ['RANK'])")
    words = "--nproc-per-node 2 --local-ranks-filter 1"
    assert shell.run(words, script).stdout == "hello from 1\n"
    template = "--log-line-prefix-template '${role_name}/${rank}/${local_rank} '"
    done = shell.run(f"{words} -t 1 --role r --log-dir logs --rdzv-id j {template}", script)
    assert done.stdout == "r/1/1 hello from 1\n"
    assert (
        shell.place / "logs" / "j" / "attempt_0" / "0" / "stdout.log"
    ).read_text() == "hello from 0\n", "what is not shown is kept"


def test_lines_with_certain_texts_of_all_workers_are_in_one_file_as_well(shell: Shell) -> None:
    script = shell.script(
        "print('loss, 1\\nother'); print('loss 2'); print('error', file=sys.stderr); print('last "
        "loss, 3', end='')"
    )
    filters = "--duplicate-stdout-filters 'loss,, ,nothing' --duplicate-stderr-filters rr"
    done = shell.run(
        f"--nproc-per-node 2 --log-dir logs --rdzv-id j -t 0:1 -r 1:3 {filters}", script
    )
    assert done.returncode == 0, done.stderr
    logs = shell.place / "logs" / "j" / "attempt_0"
    for name, lines in (("stdout", ["loss, 1", "last loss, 3"]), ("stderr", ["error"])):
        found = (logs / f"filtered_{name}.log").read_text().splitlines()
        assert sorted(found) == sorted(
            f"[default{rank}]: {line}" for rank in "01" for line in lines
        )
    # The rest is as without.
    assert done.stdout.splitlines() == [
        f"[default0]: {line}" for line in ("loss, 1", "other", "loss 2", "last loss, 3")
    ]
    assert done.stderr == "error\n"
    assert (logs / "1" / "stdout.log").read_text() == "loss, 1\nother\nloss 2\nlast loss, 3"
    assert (logs / "1" / "stderr.log").read_text() == "error\n"


@pytest.mark.long
def test_two_runs_with_one_log_directory_and_id_do_not_write_into_each_others_files(
    shell: Shell,
) -> None:
    for _ in range(2):
        done = shell.run("--log-dir logs --rdzv-id job -r 3", shell.script("print(1)"))
        assert done.returncode == 0
    assert sorted(path.name for path in (shell.place / "logs").iterdir()) == ["job", "job_1"]


def test_more_output_than_a_console_takes_holds_up_the_worker_and_not_the_agent(
    shell: Shell,
) -> None:
    script = shell.script("(HERE / 'began').write_text('\\n')\nwhile True: print('x' * 1000)")
    agent = shell.start(
        "-t 1 --log-dir logs --rdzv-id job --health-port 0 --shutdown-timeout 1", script
    )
    shell.said("began")
    agent.send_signal(signal.SIGTERM)
    # Nobody reads its standard output, and it ends all the same.
    assert agent.wait(LIMIT) == 143


@pytest.mark.long
def test_rank_0_can_listen_at_the_master_port_and_others_reach_it(shell: Shell) -> None:
    script = shell.script(
        """
import socket
port = int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(("", port)) as server:
        connection, _ = server.accept()
        connection.sendall(b"hello")
else:
    while True:
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], port))
        except ConnectionRefusedError:
            continue
        assert connection.recv(5) == b"hello"
        break
"""
    )
    done = shell.run("--nproc-per-node 2", script)
    assert done.returncode == 0, done.stderr


def test_an_agent_answers_about_its_health(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    script = shell.script("(HERE / 'began').write_text('\\n')\ntime.sleep(600)")
    agent = shell.start("--health-port", str(port), "--rdzv-id", 'a"b', script)
    shell.said("began")

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT) as answer:
            text: str = answer.read().decode()
            return text

    health: dict[str, Any] = json.loads(get("/healthz"))
    assert (health["state"], health["round"], health["workers_running"]) == ("running", 0, 1)
    metrics = get("/metrics")
    assert 'understudy_elastic_rounds_total{run_id="a\\"b",role="default"} 1' in metrics
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get("/else")
    for request, status in (
        (b"\n\n", b"400"),
        (b"\xff" * 9000, b"400"),
        (b"POST / HTTP/1.1\r\n\r\n", b"405"),
        (b"GET http://localhost/healthz HTTP/1.1\r\nHost: evil.x\r\n\r\n", b"200"),
        (b"GET http://evil.x/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"403"),
        (b"GET http:///healthz HTTP/1.1\r\n\r\n", b"400"),
    ):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request)
            assert connection.recv(100).split()[1] == status
    foreign = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Host": "evil.x"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(foreign, timeout=LIMIT)
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert json.loads(get("/healthz"))["state"] == "running"
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(LIMIT) == 143


def test_what_happens_is_written_down_as_events(shell: Shell) -> None:
    script = shell.script("sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')")
    done = shell.run("--max-restarts 1 --event-log events --rdzv-id job", script)
    assert done.returncode == 0
    events = [json.loads(line) for line in (shell.place / "events").read_text().splitlines()]
    assert sorted(each["event"] for each in events if each["event"] != "agent state") == [
        "agent ended",
        "agent started",
        "restart",
        "round began",
        "round began",
        "worker ended",
        "worker ended",
        "worker started",
        "worker started",
        "workers stopped",
    ]
    states = [each["state"] for each in events if each["event"] == "agent state"]
    assert states == ["running", "stopping", "joining", "running", "ended"]
    ended = [each for each in events if each["event"] == "worker ended"]
    assert [(each["round"], each["rank"], each["exit_code"]) for each in ended] == [
        (0, 0, 1),
        (1, 0, 0),
    ]
    assert all({"time", "run_id", "role", "host", "agent_pid"} <= each.keys() for each in events)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nnodes", "x", "train.py"], "MIN:MAX"),
        (["--nnodes", "3:1", "train.py"], "above MAX"),
        (["--nnodes", "2", "train.py"], "--rdzv-endpoint is missing"),
        (["--nnodes", "2", "--standalone", "train.py"], "leave one of them out"),
        (["--nproc-per-node", "gpu", "train.py"], "--nproc-per-node"),
        (["--nproc-per-nod", "1", "train.py"], "--nproc-per-node"),
        (["-r", "7", "train.py"], "--redirects"),
        (["-t", "5:1", "train.py"], "--tee"),
        (["--rdzv-conf", "a", "train.py"], "KEY=VALUE"),
        (["--signals-to-handle", "SIGTRM", "train.py"], "did you mean 'SIGTERM'"),
        (["--signals-to-handle", "SIGKILL", "train.py"], "not a signal that a process can handle"),
        (["--restart-policy", "all", "train.py"], "'group'"),
        (["--membership-signal", "SIGUSR1", "train.py"], "notify"),
        (["-m", "--no-python", "train.py"], "leave one of them out"),
        (["nothing.py"], "there is no script 'nothing.py'"),
        (["--no-python", "no-such-command"], "there is no command"),
        (["--max-restarts", "-1", "train.py"], "--max-restarts"),
        ([], "SCRIPT"),
    ],
)
def test_wrong_usage_is_an_error_of_one_line_and_nothing_is_started(
    shell: Shell, words: list[str], said: str
) -> None:
    from click.testing import CliRunner

    from runtime.command_line.main import main

    shell.script("(HERE / 'began').write_text('\\n')")
    before = os.getcwd()
    os.chdir(shell.place)
    try:
        done = CliRunner().invoke(main, ["run", *words])
    finally:
        os.chdir(before)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output
    assert not (shell.place / "began").exists()


@pytest.mark.long
def test_a_monitor_interval_is_accepted_and_reported_to_mean_nothing(shell: Shell) -> None:
    done = shell.run("--monitor-interval 5", shell.script(""))
    assert (done.returncode, "no meaning" in done.stderr) == (0, True)


def test_a_rendezvous_that_fails_leaves_no_directory_behind(shell: Shell) -> None:
    (shell.place / "temporary").mkdir()
    done = shell.run(
        "--rdzv-endpoint 127.0.0.1:1 --rdzv-id x --rdzv-conf join_timeout=0.5 --json",
        shell.script(""),
        TMPDIR=str(shell.place / "temporary"),
    )
    assert (done.returncode, "cannot be reached" in done.stderr) == (1, True), done.stderr
    assert json.loads(done.stdout)["log_dir"] is None
    assert list((shell.place / "temporary").iterdir()) == []


@pytest.mark.long
def test_a_health_port_that_is_taken_is_an_error_in_one_line(shell: Shell) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        done = shell.run("--health-port", str(taken.getsockname()[1]), shell.script(""))
    assert done.returncode == 1
    assert "the health port" in done.stderr
    assert "Address already in use; give another --health-port" in done.stderr
    assert "Traceback" not in done.stderr


def test_record_writes_what_a_function_raises_and_raises_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import runtime

    assert runtime.record is record

    @record
    def main(text: str) -> str:
        if text:
            raise ValueError(text)
        return "well"

    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "error.json"))
    assert main("") == "well"
    assert not (tmp_path / "error.json").exists()
    with pytest.raises(ValueError, match="went wrong"):
        main("went wrong")
    told = json.loads((tmp_path / "error.json").read_text())
    assert told["message"]["message"] == "ValueError: went wrong"
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "no" / "such" / "place"))
    with pytest.raises(ValueError, match="again"):
        main("again")


SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.mark.parametrize("how", ["the agent ends", "the agent says nothing"])
def test_the_guardian_kills_all_that_has_the_mark_and_nothing_else(how: str) -> None:
    reader, writer = os.pipe()
    seconds = "inf" if how == "the agent ends" else "0.3"
    watching = subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, str(reader), "token", seconds],
        pass_fds=[reader],
    )
    os.close(reader)
    # A process has its environment when Popen returns: not before its exec.
    marked = subprocess.Popen(SLEEPER, env={**os.environ, guardian.MARK: "token/0/0"})
    other = subprocess.Popen(SLEEPER, env={**os.environ, guardian.MARK: "another-token/0/0"})
    try:
        if how == "the agent ends":
            os.close(writer)
            assert watching.wait(LIMIT) == 0
        assert marked.wait(LIMIT) == -signal.SIGKILL
        assert other.poll() is None
        if how != "the agent ends":
            assert watching.poll() is None, "the agent may go on"
            os.close(writer)
            assert watching.wait(LIMIT) == 0
    finally:
        for process in (watching, marked, other):
            process.kill()
            process.wait()


@pytest.mark.long
def test_a_worker_whose_output_nobody_reads_is_logged_to_the_end(shell: Shell) -> None:
    script = shell.script(
        "for n in range(3000): print('line', n)\n(HERE / 'began').write_text('\\n')"
    )
    agent = shell.start("-t 1 --log-dir logs --rdzv-id job", script)
    shell.said("began")
    assert agent.wait(LIMIT) == 0
    log = shell.place / "logs" / "job" / "attempt_0" / "0" / "stdout.log"
    assert log.read_text().splitlines() == [f"line {n}" for n in range(3000)]


async def test_agents_find_the_secret_of_a_local_cluster_that_is_open_at_the_endpoint(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", shell.environment["XDG_STATE_HOME"])
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    script = shell.script("print('trained')")
    async with open_local_cluster(nodes=0, cluster="of this test") as cluster:
        words = ("--rdzv-endpoint", cluster.node.address, "--rdzv-id", "job")
        done = await trio.to_thread.run_sync(lambda: shell.run(*words, script))
        assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
        # What the options say counts: the cluster at the endpoint is another one.
        other = ("--rdzv-conf", "cluster=another,connect_timeout=0")
        done = await trio.to_thread.run_sync(lambda: shell.run(*words, *other, script))
        assert done.returncode == 1
        assert "trained" not in done.stdout
    # A secret on a command line is read by every user of the machine.
    done = await trio.to_thread.run_sync(
        lambda: shell.run(*words, "--rdzv-conf", "secret=abc", script)
    )
    assert done.returncode == 2
    assert "secret_file" in done.stderr
