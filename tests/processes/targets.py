"""What the children of these tests run; imported by the fork server's children by name."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from runtime.processes.linux_processes import children_of

Report = Callable[[bytes], None]


def echo(argument: bytes, report: Report) -> None:
    report(argument)


def digest(argument: bytes, report: Report) -> None:
    report(hashlib.sha256(argument).digest())


def garble_reports_and_exit(argument: bytes, report: Report) -> None:
    """Write where only reports belong, as a stray write to a wrong descriptor does."""
    # Output and reports are this process's only pipes.
    pipes = {
        name: _target(name)
        for name in os.listdir("/proc/self/fd")
        if _target(name).startswith("pipe:")
    }
    (descriptor,) = (int(name) for name, target in pipes.items() if target != pipes["1"])
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, argument)


def garble_reports(argument: bytes, report: Report) -> None:
    garble_reports_and_exit(argument, report)
    stay_silent(argument, report)


def echo_and_stay(argument: bytes, report: Report) -> None:
    report(argument)
    while True:
        signal.pause()


class Resurrected:
    """Says when Python frees it."""

    def __del__(self) -> None:
        os.write(1, b"freed\n")


def leave_much_behind(argument: bytes, report: Report) -> None:
    """Return with work left to the end of the process."""
    leave_much_behind.kept = Resurrected()  # type: ignore[attr-defined]
    atexit.register(sys.stdout.write, "exit handler\n")

    def outlive() -> None:
        threading.main_thread().join()
        sys.stdout.write("thread\n")

    threading.Thread(target=outlive).start()
    ctypes.CDLL(None).printf(b"C library\n")
    sys.stdout.write("no newline")


def stay_silent(argument: bytes, report: Report) -> None:
    while True:
        signal.pause()


def ignore_sigterm(argument: bytes, report: Report) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    echo_and_stay(argument, report)


def exit_with(argument: bytes, report: Report) -> None:
    sys.exit(int(argument))


def fail(argument: bytes, report: Report) -> None:
    raise LookupError("nothing of the kind")


def report_and_die(argument: bytes, report: Report) -> None:
    report(argument)
    os.kill(os.getpid(), signal.SIGKILL)


def print_bytes(argument: bytes, report: Report) -> None:
    sys.stdout.buffer.write(argument)
    sys.stdout.flush()


def print_between(argument: bytes, report: Report) -> None:
    """Print a line, of which `print` writes the end by itself, while another thread writes one."""
    sys.stdout.write("a whole")
    os.write(1, b"another\n")
    sys.stdout.write(" line")
    sys.stdout.write("\n")


def flood(argument: bytes, report: Report) -> None:
    line = b"x" * 1023 + b"\n"
    for _ in range(int(argument) * 1024):
        os.write(1, line)


FAMILY = """
import os, subprocess, sys, time
how, report = sys.argv[1], int(sys.argv[2])
if how == "parent":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if how == "daemon" and os.fork():
    os._exit(0)
if how == "daemon":
    os.setsid()
os.write(report, b"%d " % os.getpid())
time.sleep(600)
"""


def start_families(argument: bytes, report: Report) -> None:
    """Start a subprocess, one in a session of its own, a daemon that forks twice, and one with a
    child; report all, and do as told.
    """
    reader, writer = os.pipe()
    for how in ("plain", "session", "daemon", "parent"):
        command = [sys.executable, "-c", FAMILY, how, str(writer)]
        process = subprocess.Popen(command, pass_fds=[writer], start_new_session=how == "session")
        if how == "daemon":
            process.wait()
    pids: list[bytes] = []
    while len(pids) < 4:
        pids += os.read(reader, 4096).split()
    parent = process.pid
    found: list[int] = []
    while not found:
        found = children_of(parent)
    report(b" ".join([*pids, b"%d" % found[0]]))
    if argument == b"exit":
        os._exit(0)
    stay_silent(argument, report)


def stay_with_grandchild(argument: bytes, report: Report) -> None:
    """Start a grandchild in a session of its own, report its pid and stay."""
    grandchild = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    report(str(grandchild.pid).encode())
    stay_silent(argument, report)


def describe(argument: bytes, report: Report) -> None:
    """Report what a process inherits."""
    facts = {
        "stdin": os.readlink("/proc/self/fd/0"),
        "descriptors": {name: _target(name) for name in os.listdir("/proc/self/fd")},
        "leads_session": os.getsid(0) == os.getpid(),
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "sigchld": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
        "blocked": [int(signum) for signum in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "threads": len(os.listdir("/proc/self/task")),
        "random": random.random(),
        "argv": sys.argv,
        "cwd": os.getcwd(),
        "path": sys.path,
        "collects_garbage": gc.isenabled(),
        "preloaded": "colorsys" in sys.modules,
    }
    report(json.dumps(facts).encode())


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return "closed"
