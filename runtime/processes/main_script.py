"""The user's main script in another process: described here, and run once there, as the spawn
method of multiprocessing does.

The parent describes its `__main__`. The warm process runs it once under the name `MAIN_ALIAS`, so
that its classes exist there and `if __name__ == "__main__":` is false. Both processes have the
module under both names, so that import paths and pickles from one side are found on the other.
`actors.messages.import_path` writes `__main__` for either name.

A script that begins its work when it is imported would begin it again in each process. So what is
not run there: the `__main__.py` of a package, directory or archive that has no guard, which is
common for these, and one that defines nothing, or such a file without `.py`, as the commands are
that pip installs. A program from `-c`, from standard input, or at a prompt has no file that could
be run.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import os
import pkgutil
import sys
import threading
import traceback
import types
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any, cast

import attrs

from actors.errors import UnderstudyError
from actors.messages import MAIN_ALIAS

_IN_PROGRESS = "__understudy_importing__"

_TOOL = "__understudy_tool__"
"""Where the module of a script keeps that of the tool which runs it."""

_OF_ARCHIVE = "__main__"
"""The name in the spec of the `__main__.py` of a directory or an archive that Python runs."""


@attrs.frozen
class MainModule:
    """A main script that another process can run: its absolute `path`, within an archive perhaps,
    and its module `name` if Python has found it by one: by `python -m name`, or `__main__` for
    that of the directory or archive around `path`.
    """

    name: str | None
    path: str

    def load(self) -> tuple[types.CodeType, ModuleSpec | None]:
        """Return its code, and the spec that Python has found it by, from whose parent relative
        imports start. Raises ImportError, OSError and SyntaxError.
        """
        if self.name is None:
            return _MainScript(MAIN_ALIAS, self.path).get_code(MAIN_ALIAS), None
        if self.name == _OF_ARCHIVE:
            importer = pkgutil.get_importer(os.path.dirname(self.path))
            spec = importer.find_spec(self.name, None) if importer is not None else None
        else:
            spec = importlib.util.find_spec(self.name)
        # Any: that of archives has the methods, and not the type.
        loader: Any = spec.loader if spec is not None else None
        code = loader.get_code(self.name) if hasattr(loader, "get_code") else None
        if code is None:
            raise ImportError(f"there is no code of {self.path}", name=self.name, path=self.path)
        return code, spec


class _MainScript(SourceFileLoader):
    """Compiles the script without reading or writing a cache: Python itself leaves no `__pycache__`
    beside a script that it runs.
    """

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        data = self.get_data(path)
        # Python runs a file of byte code as it does one of source.
        code = pkgutil.read_code(cast("Any", io.BytesIO(data)))
        return code if code is not None else self.source_to_code(data, path)


class _Loaded(InspectLoader):
    """Runs code that was loaded under another name."""

    def __init__(self, code: types.CodeType) -> None:
        self._code = code

    def get_code(self, fullname: str) -> types.CodeType:
        return self._code

    def get_source(self, fullname: str) -> str | None:
        return None


def describe_main() -> MainModule | None:
    """Return this process's main script; None if there is none that may be run in another process,
    see the text of this module.
    """
    main = running_main()
    spec: ModuleSpec | None = getattr(main, "__spec__", None)
    # `python -m cProfile` of Python 3.12 and later gives the script that it runs such a spec.
    if spec is None or (spec.name == _OF_ARCHIVE and spec.loader is None):
        return _described_script(main)
    path = spec.origin
    if not isinstance(path, str):
        return None
    source = _source(spec)
    if source is None or (
        spec.name.rpartition(".")[2] == "__main__"
        and not (_defines_something(main) and _is_guarded(source))
    ):
        return None
    return MainModule(spec.name, os.path.abspath(path))


def _described_script(main: types.ModuleType | None) -> MainModule | None:
    path = getattr(main, "__file__", None)
    if main is None or not isinstance(path, str) or not os.path.isfile(path):
        return None
    # Others may be the commands that pip installs, which import much and define nothing.
    if not path.endswith(".py") and not _defines_something(main):
        return None
    return MainModule(None, os.path.abspath(path))


def _defines_something(main: types.ModuleType | None) -> bool:
    """True if other processes could ask for a class or a function of the module."""
    return any(
        isinstance(value, type | types.FunctionType)
        and value.__module__ in ("__main__", MAIN_ALIAS)
        for value in tuple(getattr(main, "__dict__", {}).values())
    )


def _source(spec: ModuleSpec) -> str | None:
    """Return the source of the module; None if there is none to read."""
    loader: Any = spec.loader
    try:
        found = loader.get_source(spec.name) if hasattr(loader, "get_source") else None
    except (ImportError, OSError, SyntaxError, UnicodeError):
        return None
    return found if isinstance(found, str) else None


def _is_guarded(source: str) -> bool:
    """True if a part of the module at its top level depends on `__name__`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return any(
        isinstance(part, ast.Name) and part.id == "__name__"
        for statement in tree.body
        if isinstance(statement, ast.If)
        for part in ast.walk(statement.test)
    )


def running_main() -> types.ModuleType | None:
    """Return the module of the main script.

    `python -m trace`, and `python -m cProfile` before Python 3.12, stay `__main__` themselves, and
    run the script in a namespace of no module, where nothing finds its classes. Then it gets a
    module with what it has defined by now, which is `__main__` from now on.
    """
    main = sys.modules.get("__main__")
    if getattr(main, "__spec__", None) is None or hasattr(main, _TOOL):
        # Only what was run by `python -m` runs a script so; or the script has its module already.
        return main
    # A thread may ask, as that of the blocking door does, while the main one runs the script.
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found: dict[str, Any] | None = None
    while frame is not None:
        names = frame.f_globals
        if (
            frame.f_code.co_name == "<module>"
            and names.get("__name__") == "__main__"
            and isinstance(names.get("__file__"), str)
        ):
            # The outermost one that is not the tool itself.
            found = names if names is not getattr(main, "__dict__", None) else found
        frame = frame.f_back
    if found is None:
        return main
    script = types.ModuleType("__main__")
    vars(script).update(found)
    # Kept: the tool goes on in its own namespace when the script has ended.
    vars(script)[_TOOL] = main
    sys.modules["__main__"] = script
    return script


def share_main_alias() -> None:
    """Register this process's main module under `MAIN_ALIAS` too, because pickles and import paths
    made by children may use that name.
    """
    if (main := sys.modules.get("__main__")) is not None:
        sys.modules.setdefault(MAIN_ALIAS, main)


class UnguardedScriptError(UnderstudyError):
    """The main script starts processes when it is imported, because it lacks the `__main__`
    guard.
    """


def refuse_import_of_main() -> None:
    """Raise UnguardedScriptError if the warm process is running the main script, and that has
    called this code.
    """
    if getattr(sys.modules.get("__main__"), _IN_PROGRESS, False):
        raise UnguardedScriptError(
            "this script starts processes when it is imported, and each process that it starts "
            'imports it: put what it runs under `if __name__ == "__main__":`'
        )


def unguarded_line(error: BaseException, script: str) -> int:
    """Return the line of the script, at module level, that lacks the guard; 0 if the script failed
    for another reason.
    """
    causes = [error]
    while causes:
        cause = causes.pop()
        if isinstance(cause, UnguardedScriptError):
            lines = (
                line or 0
                for frame, line in traceback.walk_tb(error.__traceback__)
                if frame.f_code.co_filename == script
            )
            return next(lines, 0)
        if isinstance(cause, BaseExceptionGroup):
            causes.extend(cause.exceptions)
    return 0


def run_main(main: MainModule) -> None:
    """Run the script in this process and register its module. Raises what the script raises."""
    module = types.ModuleType(MAIN_ALIAS)
    code, spec = main.load()
    module.__file__ = main.path
    module.__spec__ = spec
    module.__loader__ = spec.loader if spec is not None else _MainScript(MAIN_ALIAS, main.path)
    module.__package__ = spec.parent if spec is not None else None
    setattr(module, _IN_PROGRESS, True)
    sys.modules[MAIN_ALIAS] = sys.modules["__main__"] = module
    _Loaded(code).exec_module(module)
    delattr(module, _IN_PROGRESS)
