"""Whole programs with a fork server: their `__main__` classes exist in the children, and no end of
theirs leaves a process behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from runtime.processes.linux_processes import children_of, state_of
from tests.failures.error_examples import check_shown
from tests.processes.conftest import Marked
from tests.waiting import until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]

HEAD = """
import pathlib, signal, sys
import attrs, trio
from actors.messages import MAIN_ALIAS, import_path, message, message_type
from actors.retry import RetryPolicy
from runtime.processes import open_fork_server
"""

CLASSES = (
    HEAD
    + """
@message
@attrs.frozen
class Counter:
    class Part:
        pass

class Mishap(Exception):
    pass

POLICY = RetryPolicy(max_retries=1, retry_on=(Mishap,))

def paths():
    return [import_path(Counter), import_path(Counter.Part), message_type(Counter).path, *POLICY.retry_on]

def build(argument, report):
    import importlib
    from __main__ import Counter as by_main
    by_alias = importlib.import_module(MAIN_ALIAS).Counter
    assert by_main is by_alias is Counter
    report(f"{paths()} {sys.argv[1:]}".encode())

async def main():
    async with open_fork_server() as server:
        child = await server.start("__main__:build", b"", "builder")
        print((await child.ready()).decode())
        child = await server.start(f"{MAIN_ALIAS}:build", b"", "builder")
        print((await child.ready()).decode())
        print(paths(), sys.argv[1:])

if __name__ == "__main__":
    print("guarded part runs")
    trio.run(main)
"""
)

PATHS = ["__main__:Counter", "__main__:Counter.Part", "__main__:Counter", "__main__:Mishap"]

PROCESSES = 3 + 4 + 5
"""Of `PARENT`: itself, the outer process and the warm process; four children, one with four of its
own, one of which has another.
"""

PARENT = (
    HEAD
    + """
import signal
# A shell that starts its commands in the background has them ignore SIGINT; here it is the terminal's.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main():
    async with open_fork_server(grace=600) as server:
        for number in range(3):
            child = await server.start("tests.processes.targets:ignore_sigterm", b"", f"child-{number}")
            await child.ready()
        child = await server.start("tests.processes.targets:start_families", b"stay", "parent")
        await child.ready()
        print("ready", flush=True)
        await trio.sleep_forever()

if __name__ == "__main__":
    trio.run(main)
"""
)


def environment(marked: Marked) -> dict[str, str]:
    return {**os.environ, **marked.environment, "PYTHONPATH": str(ROOT)}


def run(marked: Marked, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment(marked),
        capture_output=True,
        text=True,
        timeout=30,
    )


@contextmanager
def launch(marked: Marked, script: Path) -> Iterator[subprocess.Popen[str]]:
    """In a process group of its own, as a shell starts a command; killed at the end of the block at
    the latest.
    """
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        env=environment(marked),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    with parent:
        try:
            yield parent
        finally:
            parent.kill()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def test_classes_of_the_main_script_are_found_in_children_under_both_names_and_have_one_path(
    tmp_path: Path, marked: Marked
) -> None:
    script = write(tmp_path / "script.py", CLASSES)
    done = run(marked, tmp_path, script.name, "an argument")
    expected = f"{PATHS} ['an argument']\n"
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == "guarded part runs\n" + 3 * expected
    assert not (tmp_path / "__pycache__").exists()
    assert marked.pids() == set()


def test_a_main_module_run_by_its_import_name_may_import_relatively(
    tmp_path: Path, marked: Marked
) -> None:
    write(tmp_path / "package" / "__init__.py", "")
    write(tmp_path / "package" / "other.py", "VALUE = 1")
    write(tmp_path / "package" / "job.py", "from .other import VALUE\n" + CLASSES)
    done = run(marked, tmp_path, "-W", "error", "-m", "package.job")
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.count(f"{PATHS} []") == 3


def test_a_program_without_a_main_script_works_too(tmp_path: Path, marked: Marked) -> None:
    program = (
        "import trio; from runtime.processes import open_fork_server\n"
        "async def main():\n"
        "    async with open_fork_server() as server:\n"
        "        child = await server.start('tests.processes.targets:echo', b'x', 'one')\n"
        "        print(await child.ready(), await child.wait())\n"
        "trio.run(main)"
    )
    done = run(marked, tmp_path, "-c", program)
    assert done.stdout == "b'x' ExitStatus(code=0, signal=None)\n", done.stderr


def test_the_options_of_the_interpreter_are_those_of_the_children(
    tmp_path: Path, marked: Marked
) -> None:
    script = write(
        tmp_path / "script.py",
        CLASSES.replace(
            "{paths()}", "{sys.flags.optimize, sys.flags.dev_mode, sys._xoptions, sys.warnoptions}"
        ),
    )
    done = run(
        marked,
        tmp_path,
        "-OO",
        "-X",
        "dev",
        "-X",
        "faulthandler",
        "-W",
        "error::UserWarning",
        script.name,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    expected = "(2, True, {'dev': True, 'faulthandler': True}, ['default', 'error::UserWarning'])"
    assert done.stdout.count(expected) == 2


def test_arguments_and_file_names_that_are_not_text_reach_the_children(
    tmp_path: Path, marked: Marked
) -> None:
    name = os.fsdecode(b"scr\xffpt.py")
    write(tmp_path / name, CLASSES.replace("{sys.argv[1:]}", "{sys.argv!a}"))
    done = run(marked, tmp_path, name, os.fsdecode(b"\xff\xfe"))
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.count(r"['scr\udcffpt.py', '\udcff\udcfe']") == 2
    write(tmp_path / name, CLASSES + "\nelse:\n    raise LookupError('only as main')\n")
    assert r"could not import" in (failed := run(marked, tmp_path, name)).stderr
    assert "LookupError: only as main" in failed.stderr


def test_a_script_that_raises_when_imported_is_a_clear_error(
    tmp_path: Path, marked: Marked
) -> None:
    script = write(
        tmp_path / "script.py", CLASSES + "\nelse:\n    raise LookupError('only as main')\n"
    )
    done = run(marked, tmp_path, script.name)
    assert done.returncode == 1
    assert "ForkServerStartError" in done.stderr
    assert "LookupError: only as main" in done.stderr
    assert str(script) in done.stderr
    assert marked.pids() == set()


def test_a_script_without_the_guard_gets_an_error_and_does_not_start_itself_for_ever(
    tmp_path: Path, marked: Marked
) -> None:
    script = write(tmp_path / "script.py", PARENT.replace('if __name__ == "__main__":', "if True:"))
    done = run(marked, tmp_path, script.name)
    assert done.returncode == 1
    # Before the line that names the page of the error.
    last = done.stderr.partition("\nMore: ")[0].rstrip().splitlines()[-1]
    assert 'put what the script runs under `if __name__ == "__main__":`' in last
    line = script.read_text().splitlines().index("if True:") + 2
    assert f"{script}, line {line}, starts processes" in last
    check_shown("ForkServerStartError", last.removeprefix("runtime.processes.exit_status."))
    assert "fork_loop" not in done.stderr, "the other process's traceback says nothing more"
    assert marked.pids() == set()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
async def test_a_parent_that_is_killed_leaves_nothing_behind(
    signum: signal.Signals, tmp_path: Path, marked: Marked
) -> None:
    script = write(tmp_path / "script.py", PARENT)
    with launch(marked, script) as parent:
        assert parent.stdout is not None
        assert await trio.to_thread.run_sync(parent.stdout.readline) == "ready\n"
        await until(marked.pids, "all are there", lambda pids: len(pids) == PROCESSES)
        parent.send_signal(signum)
        await marked.gone()


async def test_a_parent_that_is_killed_leaves_nothing_behind_though_the_warm_process_is_stopped(
    tmp_path: Path, marked: Marked
) -> None:
    script = write(tmp_path / "script.py", PARENT)
    with launch(marked, script) as parent:
        assert parent.stdout is not None
        assert await trio.to_thread.run_sync(parent.stdout.readline) == "ready\n"
        (outer,) = children_of(parent.pid)
        (warm,) = children_of(outer)
        os.kill(warm, signal.SIGSTOP)
        await until(lambda: state_of(warm) == "T", "it is stopped")
        parent.kill()
        await marked.gone()


async def test_a_parent_killed_while_the_imports_hang_leaves_nothing_behind(
    tmp_path: Path, marked: Marked
) -> None:
    hang = "\nelse:\n    print('importing', flush=True)\n    while True: signal.pause()\n"
    script = write(tmp_path / "script.py", PARENT + hang)
    with launch(marked, script) as parent:
        assert parent.stderr is not None
        assert await trio.to_thread.run_sync(parent.stderr.readline) == "[fork-server] importing\n"
        parent.kill()
        await marked.gone()


async def test_ctrl_c_in_the_terminal_reaches_the_parent_alone(
    tmp_path: Path, marked: Marked
) -> None:
    script = write(tmp_path / "script.py", PARENT.replace("grace=600", "grace=0.05"))
    with launch(marked, script) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        assert await trio.to_thread.run_sync(parent.stdout.readline) == "ready\n"
        os.killpg(parent.pid, signal.SIGINT)
        errors = await trio.to_thread.run_sync(parent.stderr.read)
        await marked.gone()
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1, "no child was interrupted"
