"""Classes of the main script itself, isolated, on nodes that are processes of a local cluster:
whole programs.
"""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import zipapp
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


LINES = "worker-1 42\ndriver 42\n2\n"

FILES = {
    "script": "job.py",
    "without a suffix": "job",
    "module": "package/job.py",
    "package": "package/__main__.py",
    "directory": "folder/__main__.py",
    "byte code": "job.py",
}

PROFILED = ("-m", "cProfile", "-o", os.devnull)
# Not the lines of the runtime, which would take long.
TRACED = ("-m", "trace", "--count", "--no-report", f"--ignore-dir={ROOT}:{sys.prefix}")

WAYS: dict[str, tuple[str, ...]] = {
    "script": ("job.py",),
    "without a suffix": ("job",),
    "module": ("-m", "package.job"),
    "package": ("-m", "package"),
    "directory": ("folder",),
    "archive": ("job.pyz",),
    "byte code": ("job.pyc",),
    "profiled script": (*PROFILED, "job.py"),
    "profiled module": (*PROFILED, "-m", "package.job"),
    "traced script": (*TRACED, "job.py"),
    "debugged script": ("-m", "pdb", "-c", "continue", "job.py"),
    "debugged module": ("-m", "pdb", "-c", "continue", "-m", "package.job"),
}


def run(place: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{place}"},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )


def write(place: Path, way: str, text: str) -> None:
    """Write the program to the file that it has in this way to run it."""
    kind = way.split()[-1] if way.split()[0] in ("profiled", "traced", "debugged") else way
    file = place / FILES.get(kind, "job.py")
    file.parent.mkdir(exist_ok=True)
    if file.parent.name == "package":
        (file.parent / "__init__.py").touch()
    file.write_text(text)
    if way == "archive":
        (place / "inside").mkdir()
        (place / "inside" / "__main__.py").write_text(text)
        zipapp.create_archive(place / "inside", place / "job.pyz")
    if way == "byte code":
        py_compile.compile(str(file), cfile=str(place / "job.pyc"))
        file.unlink()


QUICK = ("script", "archive")


@pytest.mark.parametrize(
    "way", [way if way in QUICK else pytest.param(way, marks=pytest.mark.long) for way in WAYS]
)
def test_a_class_of_the_main_script_has_a_process_of_its_own_on_any_node_of_a_local_cluster(
    tmp_path: Path, way: str
) -> None:
    write(tmp_path, way, SCRIPT)
    done = run(tmp_path, *WAYS[way])
    assert done.returncode == 0, done.stderr
    # The debugger prints lines of its own, and asks what to do when the program has ended.
    assert LINES in done.stdout if "debugged" in way else done.stdout == LINES, done


ALONE = """
import attrs
import trio
from actors import Actor, message, method
from runtime import open_node

@message
@attrs.frozen
class Sum:
    value: int

class Counter(Actor):
    @method
    async def add(self, sum: Sum) -> Sum:
        return Sum(sum.value + 1)

async def main() -> None:
    async with open_node() as node:
        print((await (await node.spawn(Counter)).add(Sum(1))).value)
        print((await (await node.put(Sum(3))).fetch()).value)

if __name__ == "__main__":
    trio.run(main)
"""


@pytest.mark.parametrize(
    "way", ["profiled script", pytest.param("traced script", marks=pytest.mark.long)]
)
def test_a_node_alone_finds_the_classes_of_a_script_that_a_tool_runs(
    tmp_path: Path, way: str
) -> None:
    write(tmp_path, way, ALONE)
    done = run(tmp_path, *WAYS[way])
    assert (done.returncode, done.stdout) == (0, "2\n3\n"), done.stderr


UNGUARDED = """
import trio
from actors import Actor, method
from runtime import open_local_cluster

class Counter(Actor):
    @method
    async def add(self) -> int:
        return 1

async def main() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        print(await (await cluster.node.spawn(Counter)).add(), flush=True)
        await cluster.node.options(on="worker-1").spawn(Counter)

trio.run(main)
"""


@pytest.mark.parametrize(
    ("way", "arguments"),
    [
        pytest.param("package", ("-m", "package"), marks=pytest.mark.long),
        ("prompt", ("-c", UNGUARDED)),
        ("input", ("-",)),
    ],
)
def test_a_program_that_no_other_process_can_run_still_runs_and_says_so_when_one_needs_it(
    tmp_path: Path, way: str, arguments: tuple[str, ...]
) -> None:
    write(tmp_path, way, UNGUARDED)
    done = run(tmp_path, *arguments, text=UNGUARDED if way == "input" else "")
    assert done.stdout == "1\n"
    assert "__main__:Counter cannot be imported on node worker-1" in done.stderr
    assert "if it is a file with the guard" in done.stderr
    assert "standard input, a prompt or a notebook; move them into a module" in done.stderr


def test_a_script_that_defines_nothing_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(UNGUARDED.replace("trio.run(main)", ""))
    # Like the commands that pip installs, but that it says when it is run.
    (tmp_path / "command").write_text(
        "import sys, trio\nfrom work import main\nprint('run', __name__)\n"
        "if __name__ == '__main__':\n    sys.exit(trio.run(main))\n"
    )
    done = run(tmp_path, "command")
    assert (done.returncode, done.stdout) == (0, "run __main__\n1\n"), done.stderr
    assert "run __mp_main__" not in done.stderr
