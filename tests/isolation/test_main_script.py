"""Classes of the main script itself, isolated, on nodes that are processes of a local cluster:
whole programs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import os

import attrs
import trio

from actors import Actor, ChildSpec, Supervisor, message, method
from runtime import open_local_cluster

@message
@attrs.frozen
class Sum:
    value: int
    pid: int

class Counter(Actor):
    def __init__(self, value: int) -> None:
        self.value = value

    @method
    async def add(self, sum: Sum) -> Sum:
        self.value += sum.value
        return Sum(self.value, os.getpid())

async def main() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        pids = {os.getpid(), cluster.process("worker-1").pid}
        for on in ("worker-1", "driver"):
            counter = await cluster.node.options(on=on, isolation="process").spawn(Counter, 40)
            sum = await counter.add(Sum(2, 0))
            assert sum.pid not in pids, "not a process of its own"
            pids.add(sum.pid)
            print(on, sum.value)
        spec = ChildSpec.of("child", Counter, 1).changed(on="worker-1", isolation="process")
        await cluster.node.options(name="tree").spawn(Supervisor, [spec])
        print((await (await cluster.node.lookup("tree/child", Counter)).add(Sum(1, 0))).value)

if __name__ == "__main__":
    trio.run(main)
"""


@pytest.mark.parametrize("way", ["script", pytest.param("module", marks=pytest.mark.long)])
def test_a_class_of_the_main_script_has_a_process_of_its_own_on_any_node_of_a_local_cluster(
    tmp_path: Path, way: str
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(SCRIPT)
    arguments = [str(package / "job.py")] if way == "script" else ["-m", "package.job"]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "worker-1 42\ndriver 42\n2\n"), done.stderr
