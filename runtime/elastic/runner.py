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


_PR_SET_PDEATHSIG = 1


_SIGKILL = 9

P = ParamSpec("P")

R = TypeVar("R")


def write_error(error: BaseException, path: str, skip: str = "") -> None:
    """Write an exception to an error file in torchelastic's format, atomically. Frames of the file
    `skip` are left out.

    Errors of the disk are ignored: they cost the file and must not hide the exception.
    """
    trace = error.__traceback__ if not skip else without_frames_of(skip, error.__traceback__)
    said = text = type(error).__name__
    try:
        said = f"{said}: {error}"
        text = "".join(traceback.format_exception(type(error), error, trace))
    except Exception:
        # Code of the user's has raised: the exception's own, or a loader that is asked for the
        # source of a frame. The file says what is known.
        text = said
    message = {"message": {"message": said, "extraInfo": {"py_callstack": text}}}
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(message, file)
        os.replace(temporary, path)
    except OSError:
        pass


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
        if error_file and isinstance(error.code, str) and os.getpid() == own_pid:
            write_error(error, error_file, __file__)
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: ASYNC103
        # The last that is known of this process; no trio runs here.
        if error_file and os.getpid() == own_pid:
            write_error(error, error_file, __file__)
        # Like Python itself, with the user's own hook if there is one, but without our frames.
        error = error.with_traceback(without_frames_of(__file__, error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
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
