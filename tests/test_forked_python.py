"""A forked Python is what a test would have got from a real one, as far as the test can see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked_python

FACTS = """
import os, signal, sys
import __main__
print(sys.argv, os.getcwd(), __name__, __main__ is sys.modules["__main__"], vars(__main__)["os"])
print([getattr(__main__, name, None) for name in ("__file__", "__package__")])
print(__main__.__spec__ and __main__.__spec__.name, [*sys.path][:3], os.getppid())
print(sorted(os.environ.items()), signal.getsignal(signal.SIGINT))
print(sys.stdin.read(), file=sys.stderr)
print(sys.stdout.isatty(), sys.stdin.encoding, sys.stdout.errors, sys.stderr.errors)
print(sorted(os.listdir("/proc/self/fd"))[:3])
"""


def outcome(start: Any, words: list[str], **options: Any) -> tuple[object, ...]:
    """What one starts, and how it ends, with a line for its stdin."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with start([sys.executable, *words], text=True, **pipes, **options) as process:
        output, errors = process.communicate("a line", timeout=50)
        return process.returncode, output, errors


@pytest.mark.parametrize(
    "words",
    [["-c", FACTS, "x"], ["facts.py", "--help"], ["-m", "facts"], ["-P", "-m", "facts", "y"]],
    ids=["text", "script", "module", "safe path"],
)
def test_a_forked_process_sees_what_a_real_one_sees(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "facts.py").write_text(FACTS)
    options = {
        "cwd": str(tmp_path),
        "env": {**os.environ, "OF_TEST": "1", "PYTHONPATH": str(tmp_path)},
    }
    real = outcome(subprocess.Popen, words, **options)
    assert outcome(forked_python.Popen, words, **options) == real
    assert real[0] == 0, real


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("raise SystemExit(7)", 7),
        ("import sys; sys.exit('why')", 1),
        ("def f():\n    1 / 0\nf()", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import signal; signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
        ("import atexit; atexit.register(print, 'at the end')", 0),
        ("print('x', end=''); import os; os.close(0)", 0),
    ],
)
def test_it_ends_as_a_real_one(text: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(text)
    for words in (["-c", text], [str(tmp_path / "script.py")]):
        real = outcome(subprocess.Popen, words)
        assert outcome(forked_python.Popen, words) == real
        assert real[0] == status


def test_it_can_be_stopped_and_killed_as_a_child_of_the_test() -> None:
    with forked_python.Popen(
        [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(600)"],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        stopped = os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        process.kill()
        assert stopped
        assert process.wait(timeout=50) == -signal.SIGKILL


def test_what_a_fork_cannot_imitate_is_a_real_start() -> None:
    text = "import sys; print('runtime' in sys.modules, sys.flags.optimize)"
    for words, options, output in (
        (["-c", text], {}, "True 0\n"),
        (["-O", "-c", text], {}, "False 1\n"),
        (["-c", text], {"env": {**os.environ, "PYTHONOPTIMIZE": "2"}}, "False 2\n"),
        (["-c", text], {"umask": 0o77}, "False 0\n"),
    ):
        done = forked_python.run([sys.executable, *words], capture_output=True, **options)
        assert done.stdout == output


def test_descriptors_are_handed_on_under_their_numbers_and_sessions_begin() -> None:
    text = (
        "import os, sys; print(os.read(int(sys.argv[1]), 9).decode(), os.getsid(0) == os.getpid())"
    )
    reader, writer = os.pipe()
    os.write(writer, b"through")
    done = forked_python.run(
        [sys.executable, "-c", text, str(reader)],
        capture_output=True,
        pass_fds=[reader],
        start_new_session=True,
    )
    os.close(reader)
    os.close(writer)
    assert done.stdout == "through True\n", done
