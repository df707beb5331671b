"""Python processes that need not import the product: `Popen` and `run` are those of `subprocess`,
but fork a process that has imported it already.

Hundreds of tests start `python -m runtime.command_line ...` or a script, and most of the processor
time of such a test was the start of Python and the same imports again. Here one process for each
test process has done them, and a start takes milliseconds. What a test sees is the same: a process
with its own arguments, directory, environment, descriptors and exit status, a child of the test's
own process, to be waited for, killed and stopped. What it cannot show is the start itself, and a
module that another one forgot to import: the tutorial, the examples and the tests of the house
start a real Python.

A start that this cannot imitate, such as one with options of Python or of its own session, is a
real one.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import linecache
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, AnyStr, NamedTuple, TextIO

import trio

ROOT = Path(__file__).resolve().parents[1]
PR_SET_CHILD_SUBREAPER = 36
LARGEST_REQUEST = 1 << 20
STREAMS = [0, 1, 2]
MOST_DESCRIPTORS = 16
OUT_OF_THE_WAY = 500
READ_AT_START = ("PYTHON", "LANG", "LC_")
"""How variables begin that Python reads when it starts, so that a fork cannot have others."""
PATH = "PYTHONPATH"
UNBUFFERED = bool(os.environ.get("PYTHONUNBUFFERED"))


class Request(NamedTuple):
    """What a new process is to run: `kind` is "-m", "-c" or "script", `what` its module, text or
    path. `kept`: the numbers of descriptors that it has besides its streams. `session`: whether it
    begins one.
    """

    kind: str
    what: str
    arguments: list[str]
    safe_path: bool
    place: str
    environment: dict[str, str]
    kept: list[int]
    session: bool


def request_of(
    words: list[str], place: str, environment: dict[str, str], kept: list[int], session: bool
) -> Request | None:
    """What these words run, None if they start something that cannot be forked."""
    if not words or words[0] != sys.executable:
        return None
    rest = words[1:]
    safe_path = rest[:1] == ["-P"]
    rest = rest[safe_path:]
    if len(rest) > 1 and rest[0] in ("-m", "-c"):
        return Request(rest[0], rest[1], rest[2:], safe_path, place, environment, kept, session)
    if rest and not rest[0].startswith("-"):
        return Request("script", rest[0], rest[1:], safe_path, place, environment, kept, session)
    return None


# The process that is forked.


def serve(connection: socket.socket) -> None:
    """Fork for each request, until the test process has ended; returns only then, since each fork
    runs what it was forked for, and ends.
    """
    # Of the terminal: it is meant for the tests and for what they start.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from runtime.command_line.main import COMMANDS, MODULES

    for name in COMMANDS:
        importlib.import_module(f"runtime.command_line.{MODULES.get(name, name)}")
    for name in ("runtime.cluster_processes", "runtime.node.opening", "runtime.pools.pool"):
        importlib.import_module(name)
    gc.freeze()
    usual_path = [each for each in sys.path if each not in _paths(os.environ)]
    while True:
        message, control, _, _ = connection.recvmsg(
            LARGEST_REQUEST, socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
        )
        if not message:
            return
        descriptors = array.array("i")
        for _, _, data in control:
            descriptors.frombytes(data)
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            # Only for a moment: an orphan becomes a child of the test process, which waits for it
            # as for any other.
            between = os.getpid()
            if (child := os.fork()) != 0:
                os.write(writer, str(child).encode())
                os._exit(0)
            connection.close()
            os.close(reader)
            os.close(writer)
            while os.getppid() == between:
                time.sleep(0.0005)
            become(Request(*json.loads(message)), descriptors, usual_path)
            return
        os.close(writer)
        for each in descriptors:
            os.close(each)
        os.waitpid(between, 0)
        connection.send(os.read(reader, 32))
        os.close(reader)


def _paths(environment: os._Environ[str] | dict[str, str]) -> list[str]:
    return [each for each in environment.get(PATH, "").split(os.pathsep) if each]


def _open_streams() -> None:
    system: Any = sys
    for number, (name, mode) in enumerate((("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))):
        usual: TextIO = getattr(sys, name)
        at_once = name == "stderr" or (name == "stdout" and (UNBUFFERED or os.isatty(number)))
        opened = io.TextIOWrapper(
            open(number, mode, closefd=False),  # noqa: SIM115
            encoding=usual.encoding,
            errors=usual.errors,
            line_buffering=at_once,
        )
        setattr(system, name, opened)
        setattr(system, f"__{name}__", opened)


def become(request: Request, descriptors: array.array[int], usual_path: list[str]) -> None:
    """Turn this fork into the process that was asked for, and run it to its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.session:
        os.setsid()
    # The number that one of them is to have may be the one that another has now.
    away = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for number, descriptor in zip([*STREAMS, *request.kept], away, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    _open_streams()
    os.chdir(request.place)
    os.environ.clear()
    os.environ.update(request.environment)
    kind, what, words = request.kind, request.what, request.arguments
    first = {"-m": os.getcwd(), "-c": "", "script": os.path.dirname(os.path.abspath(what))}[kind]
    sys.path[:] = [*([] if request.safe_path else [first]), *_paths(os.environ), *usual_path]
    importlib.invalidate_caches()
    sys.argv = [what if kind == "script" else kind, *words]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    # As Python itself does it: the module stays until the process ends.
    main = sys.modules["__main__"] = ModuleType("__main__")
    text, place = what.encode(), "<string>"
    if kind == "script":
        text, place = Path(what).read_bytes(), os.path.abspath(what)
        main.__file__ = place
    elif sys.version_info >= (3, 13):
        # Since 3.13 tracebacks show the lines of the text.
        source = [f"{line}\n" for line in what.splitlines()]
        linecache.cache[place] = (len(what), None, source, place)
    try:
        exec(compile(text, place, "exec"), vars(main))
    except Exception as error:
        # Without the lines of this file, which no real process would show.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


# The test process.


class Forker:
    """The process that is forked, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._connection: socket.socket | None = None
        self._environment: dict[str, str] = {}

    def can(self, environment: dict[str, str]) -> bool:
        """Whether a fork can have this environment."""
        ours = self._environment or dict(os.environ)
        return all(
            ours.get(name) == environment.get(name)
            for name in {*ours, *environment}
            if name.startswith(READ_AT_START) and name != PATH
        )

    def fork(self, request: Request, descriptors: list[int]) -> int:
        """Start the process, as a child of this one, and return its number."""
        with self._lock:
            connection = self._started()
            libc = ctypes.CDLL(None)
            # For no longer than needed: orphans of other tests must not end up here.
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
                answer = connection.recv(32)
            finally:
                libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the process that is forked for tests has ended"
        return int(answer)

    def _started(self) -> socket.socket:
        # A fork of the test process itself shares the socket, but none of the children.
        if self._connection is None or self._owner != os.getpid():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(Path(__file__)), str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    cwd=ROOT,
                    env={**os.environ, PATH: str(ROOT)},
                    stdin=subprocess.DEVNULL,
                )
            self._owner, self._connection, self._environment = os.getpid(), ours, dict(os.environ)
            atexit.register(self._close, ours, self._process)
        return self._connection

    def _close(self, connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
        connection.close()
        if self._owner == os.getpid():
            process.wait()


forker = Forker()

ARGUMENTS, DIRECTORY, ENVIRONMENT, CHILD_ENDS = 0, 5, 6, (10, 13, 15)
"""Where they stand among what `subprocess.Popen` hands to its own `_execute_child`, in Python 3.11
to 3.13.
"""
EVERY_END = slice(10, 16)
IMITATED = {
    *("cwd", "env", "pass_fds", "start_new_session", "stderr", "stdin", "stdout", "text"),
}


class ForkedPopen(subprocess.Popen[AnyStr]):
    """`subprocess.Popen` of a Python that has been started already."""

    def __init__(self, args: list[str], **options: Any) -> None:
        self._request: Request | None = None
        if {*options} <= IMITATED:
            environment = {**(options.get("env") or os.environ)}
            if forker.can(environment):
                self._request = request_of(
                    [str(word) for word in args],
                    str(options.get("cwd") or os.getcwd()),
                    environment,
                    [*options.get("pass_fds", ())],
                    options.get("start_new_session", False),
                )
        super().__init__(args, **options)

    def _execute_child(self, *arguments: Any) -> None:
        if self._request is not None:
            self._fork(self._request, arguments)
            return
        parent: Any = super()
        parent._execute_child(*arguments)

    def _fork(self, request: Request, arguments: tuple[Any, ...]) -> None:
        ends: list[int] = [arguments[index] for index in CHILD_ENDS]
        streams: list[int] = [number if end == -1 else end for number, end in enumerate(ends)]
        self.pid = forker.fork(request, [*streams, *request.kept])
        self._child_created = True
        unsafe: Any = self
        unsafe._close_pipe_fds(*arguments[EVERY_END])


class Popen(ForkedPopen[str]):
    """One of text."""

    def __init__(self, args: list[str], **options: Any) -> None:
        super().__init__(args, **{**options, "text": True})


class ForkingSubprocess(ModuleType):
    """The module `subprocess`, for those whose processes are to be forked."""

    Popen = ForkedPopen

    def __getattr__(self, name: str) -> object:
        return getattr(subprocess, name)


def run(
    args: list[str],
    *,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    text: bool = True,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of a Python that has been started already; of text."""
    assert text
    if capture_output:
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with Popen(args, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


async def run_process(
    args: list[str], *, check: bool = True, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """`trio.run_process` of a Python that has been started already; of text, with what it prints.
    A cancelled task waits until the process has ended.
    """
    started = partial(run, args, capture_output=True, check=check, timeout=timeout, **options)
    return await trio.to_thread.run_sync(started)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
