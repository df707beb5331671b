"""What the commands answer about a node, and about the process of an isolated actor, that is stopped
(SIGSTOP) while it is asked. Real processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.command_line.shell import LONG_LEASES, UNDERSTUDY, Cluster, Shell, check_mistake

WORKERS = """
from actors import Actor, method

class Worker(Actor):
    @method
    async def pid(self) -> int:
        import os
        return os.getpid()
"""

SCRIPT = """
import sys, trio
from workers import Worker
from runtime import open_node

async def main(address: str) -> None:
    async with open_node("script", join=address) as node:
        alone = await node.options(name="alone", on="w1", isolation="process").spawn(Worker)
        await node.options(name="there", on="w1").spawn(Worker)
        await node.options(name="here", on="first").spawn(Worker)
        print(await alone.pid(), flush=True)
        await trio.sleep_forever()

if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
"""


class StoppedCluster(Cluster):
    """A node w1 with an isolated actor, and the program that has started it."""

    def __init__(self, shell: Shell) -> None:
        (shell.place / "workers.py").write_text(WORKERS)
        super().__init__(shell, "--debuggable", "--post-mortem", command=LONG_LEASES)
        self.script, pid = shell.start_script(SCRIPT, self.address)
        self.isolated = int(pid)

    def run_all(self, *commands: str) -> dict[str, subprocess.CompletedProcess[str]]:
        """Four at a time: each waits for what is stopped, and takes little of a core meanwhile."""
        with ThreadPoolExecutor(4) as threads:
            return dict(
                zip(
                    commands, threads.map(lambda one: self.run(*one.split()), commands), strict=True
                )
            )


@pytest.fixture
def cluster(shell: Shell) -> StoppedCluster:
    return StoppedCluster(shell)


@pytest.mark.cluster
@pytest.mark.long
def test_the_process_of_an_isolated_actor_that_is_stopped_is_named_with_what_continues_it(
    cluster: StoppedCluster,
) -> None:
    os.kill(cluster.isolated, signal.SIGSTOP)
    waits = cluster.shell.start(
        [*UNDERSTUDY, "call", "alone", "pid", "--timeout", "55", "--address", cluster.address]
    )
    while "alone" not in cluster.run("list", "calls", "--filter", "actor=alone").stdout:
        pass
    told = f"its process was stopped by a signal such as SIGSTOP; `kill -CONT {cluster.isolated}`"
    done = cluster.run_all(
        *("inspect alone", "stack alone", "stack w1", "why alone"),
        *("profile alone --seconds 0.5", "debug alone", "logs alone", "call there pid"),
    )
    assert told in done["inspect alone"].stdout
    assert "runs        pid, for " in done["inspect alone"].stdout
    stacks = done["stack alone"].stdout
    assert told in stacks
    assert "alone.pid, for " in stacks
    assert "what they run is not known" in stacks
    assert "runs nothing" not in stacks
    # That it looks after the process is nothing of a user's.
    assert "process of alone)" not in stacks
    check_mistake(done["profile alone --seconds 0.5"], "alone cannot be profiled now", told)
    check_mistake(done["debug alone"], told)
    assert "alone.pid on w1 runs, for " in done["why alone"].stdout
    for words in ("stack w1", "why alone", "logs alone", "call there pid"):
        assert done[words].returncode == 0, done[words]
    os.kill(cluster.isolated, signal.SIGCONT)
    printed, _ = waits.communicate(timeout=60)
    assert printed.strip() == str(cluster.isolated), "the call goes on"


ABOUT_IT = (
    *("inspect there", "stack there", "stack w1", "why there", "profile w1 --seconds 0.5"),
    *("debug there", "logs there", "logs w1"),
)
ABOUT_ALL = (
    *("top --seconds 0.1", "list actors", "list calls", "list links"),
    *("list deaths", "list pools", "why", "timeline --seconds 0.1 -o out.json", "logs"),
    *("tree", "refs", "pools", "status"),
)


@pytest.mark.cluster
@pytest.mark.long
def test_each_command_names_a_node_that_is_stopped_and_shows_the_others(
    cluster: StoppedCluster,
) -> None:
    cluster.worker.send_signal(signal.SIGSTOP)
    done = cluster.run_all(*ABOUT_IT, *ABOUT_ALL, "inspect here", "call here pid")
    cluster.worker.send_signal(signal.SIGCONT)
    for words, one in done.items():
        assert "Traceback" not in one.stderr, (words, one)
        if words in ("inspect here", "call here pid"):
            assert (one.returncode, one.stderr) == (0, ""), (words, one)
            continue
        assert one.returncode == 1, (words, one)
        if words in ABOUT_IT:
            assert "w1" in one.stderr, (words, one)
            assert "answer" in one.stderr, (words, one)
        else:
            assert "w1" in one.stderr + one.stdout, (words, one)
    for words in ("top --seconds 0.1", "list actors", "status"):
        assert "here" in done[words].stdout, (words, done[words])
    assert cluster.run("call", "there", "pid").returncode == 0, "it goes on"
