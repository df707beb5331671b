"""The first code that runs in a worker's process. It makes sure that the process ends with the
agent, then becomes the user's script or command.

It is a program of its own, started by its path in an interpreter that may not find this package, so
it imports only a few modules of the standard library. An exception of the script is written to the
error file before Python handles it as usual.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
import types
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from types import TracebackType
from typing import ParamSpec, TypeVar

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


MOST_TEXT = 32_000
"""Characters of an exception's text, and of its traceback, that are written: their ends. As JSON,
the agent reads at most 1 MiB of an error file, and one character may take twelve bytes.
"""

_PR_SET_PDEATHSIG = 1


_SIGKILL = 9

P = ParamSpec("P")

R = TypeVar("R")


def write_error(error: BaseException, path: str, skip: str = "") -> None:
    """Write an exception to an error file in torchelastic's format, atomically. Frames of the file
    `skip` are left out.

    Errors of the disk are ignored: they cost the file and must not hide the exception. Nothing that
    the exception's own code raises comes out of this.
    """
    trace = _traceback_of(error)
    if skip:
        trace = without_frames_of(skip, trace)
    name = _text(lambda: type(error).__name__, "an exception")
    said = _text(lambda: f"{name}: {error}", name)
    text = _text(lambda: "".join(traceback.format_exception(type(error), error, trace)), said)
    message = {"message": {"message": said, "extraInfo": {"py_callstack": text}}}
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(message, file)
        os.replace(temporary, path)
    except OSError:
        pass


def _text(write: Callable[[], str], otherwise: str) -> str:
    """Return the end of the text that `write` returns, or `otherwise` if it raises."""
    try:
        # A plain string, also where user code returns one of a class of its own.
        text = str.__str__(write())
    except BaseException:  # noqa: ASYNC103
        # Code of the user's has raised: the exception's own, or a loader that is asked for the
        # source of a frame. Whatever it is (SystemExit, KeyboardInterrupt), the process ends by the
        # exception that is described. An interrupt that comes in this moment is lost: there is
        # nothing left that it could end.
        return otherwise  # noqa: ASYNC104
    if len(text) <= MOST_TEXT:
        return text
    return f"[... {len(text) - MOST_TEXT} characters before]\n{text[-MOST_TEXT:]}"


def _traceback_of(error: BaseException) -> TracebackType | None:
    """The traceback of an exception, without asking its class, which may raise."""
    found: TracebackType | None = vars(BaseException)["__traceback__"].__get__(error)
    return found


def without_frames_of(path: str, trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the leading frames of the file `path` and of the import machinery
    that it uses to run a script.
    """
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != path and not file.startswith(("<frozen importlib", "<frozen runpy")):
            return trace
        trace = trace.tb_next
    return None


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends. Exits if the parent has ended."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(
        ctypes.c_int(_PR_SET_PDEATHSIG), *(ctypes.c_ulong(value) for value in (_SIGKILL, 0, 0, 0))
    )
    # The parent may have ended before the call, and then the kernel sends no signal.
    if os.getppid() != parent:
        os._exit(1)


class _UserScript(SourceFileLoader):
    """Compiles the script without reading or writing a cache, as Python does with a script."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _run_script(path: str) -> None:
    """Run a file as Python does: in the module `__main__` itself, so that what it defines can be
    pickled, and its threads go on after this function.
    """
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        import runpy

        runpy.run_path(path, run_name="__main__")
        return
    path = os.path.abspath(path)
    main = sys.modules["__main__"]
    for name in set(vars(main)) - {
        "__name__",
        "__builtins__",
        "__doc__",
        "__package__",
        "__spec__",
    }:
        delattr(main, name)
    main.__doc__ = None
    main.__file__ = path
    main.__loader__ = loader = _UserScript("__main__", path)
    loader.exec_module(main)


def _run_module(name: str) -> None:
    import runpy

    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _show(error: BaseException) -> None:
    """Print an exception as Python itself does at the end of a process, with the user's own hook if
    there is one, but without our frames.
    """
    trace = without_frames_of(__file__, _traceback_of(error))
    error = BaseException.with_traceback(error, trace)
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit:
        # For Python, a hook may say how the process ends.
        raise
    except BaseException as failure:  # noqa: ASYNC103
        sys.stderr.write("Error in sys.excepthook:\n")
        of_hook = without_frames_of(__file__, _traceback_of(failure))
        sys.__excepthook__(type(failure), failure, of_hook)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)


def main(arguments: list[str]) -> None:
    """Run a worker. Arguments: `script`, `module` or `command`, the pid of the agent, then what to
    run and its arguments.
    """
    mode, parent, *command = arguments
    _die_with_parent(int(parent))
    if mode == "command":
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.stderr.write(f"error: cannot run {command[0]!r}: {error.strerror}\n")
            sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
    own_pid = os.getpid()
    error_file = os.environ.get(ERROR_FILE, "")
    sys.argv = command
    try:
        (_run_script if mode == "script" else _run_module)(command[0])
    except SystemExit as error:
        # By the class of the interpreter: a class of the user's may raise where it is asked.
        code: object = vars(SystemExit)["code"].__get__(error)
        if error_file and issubclass(type(code), str) and os.getpid() == own_pid:
            write_error(error, error_file, __file__)
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: ASYNC103
        # The last that is known of this process; no trio runs here.
        if error_file and os.getpid() == own_pid:
            write_error(error, error_file, __file__)
        _show(error)
        sys.exit(1)  # noqa: ASYNC104


# `record`: an exception of the decorated function is written to the worker's error file, which the
# agent reads for its report.


def record(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate the main function of a worker: what it raises is written to the error file
    (TORCHELASTIC_ERROR_FILE) and raised again.

    Scripts and modules that `understudy run` starts do not need it: their exceptions are written
    anyway. Use it if your code catches the exceptions further up, in processes that were started
    with `--no-python`, and under torchrun. Without an error file it changes nothing.
    """

    @functools.wraps(function)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except SystemExit:
            raise
        except Exception as error:
            if path := os.environ.get(ERROR_FILE):
                write_error(error, path, __file__)
            raise

    return recorded


if __name__ == "__main__":
    # The script replaces the module `__main__`, so the code of this file continues in another
    # module.
    _own = spec_from_file_location("understudy_runner", __file__)
    assert _own is not None
    assert _own.loader is not None
    _module = module_from_spec(_own)
    _own.loader.exec_module(_module)
    _module.main(sys.argv[1:])
