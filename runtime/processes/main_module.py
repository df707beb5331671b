"""The user's main script in another process, as multiprocessing's spawn method does it.

The parent describes its `__main__`; the warm process runs it once, under the name `__understudy_main__`, so that its classes exist there
and `if __name__ == "__main__":` does not run. Both processes have the module under both names, so that import paths and pickles made on
either side are found on the other; `actors.messages.import_path` says `__main__` for either.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from importlib.machinery import ModuleSpec, SourceFileLoader

import attrs

from actors.messages import MAIN_ALIAS

_IN_PROGRESS = "__understudy_importing__"


@attrs.frozen
class MainModule:
    """A main script to run again elsewhere: its absolute `path`, and its import `name` if it was run by `python -m name`."""

    name: str | None
    path: str


class _Script(SourceFileLoader):
    """Compiles afresh and caches nothing: Python leaves no `__pycache__` beside a script that it runs either."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def describe_main() -> MainModule | None:
    """This process's main script; None for `-c`, the interactive prompt, console scripts, and `python -m package`.

    The last runs a `__main__.py`, which commonly does its work without a guard.
    """
    main = sys.modules.get("__main__")
    spec: ModuleSpec | None = getattr(main, "__spec__", None)
    name = spec.name if spec is not None else None
    path = spec.origin if spec is not None else getattr(main, "__file__", None)
    if name is not None and name.rpartition(".")[2] == "__main__":
        return None
    if not isinstance(path, str) or not path.endswith(".py") or not os.path.isfile(path):
        return None
    return MainModule(name, os.path.abspath(path))


def share_main_alias() -> None:
    """Let this process find its own main module under `MAIN_ALIAS` too: what children pickle or write down may say so."""
    if (main := sys.modules.get("__main__")) is not None:
        sys.modules.setdefault(MAIN_ALIAS, main)


def main_is_being_imported() -> bool:
    """Whether this code runs because the warm process is running the main script: it lacks the `if __name__ == "__main__":` guard."""
    return bool(getattr(sys.modules.get("__main__"), _IN_PROGRESS, False))


def run_main(main: MainModule) -> None:
    """Run the script in this process and register it. Whatever the script raises comes out."""
    module = types.ModuleType(MAIN_ALIAS)
    module.__file__ = main.path
    module.__loader__ = loader = _Script(MAIN_ALIAS, main.path)
    if main.name is not None:
        # The real spec: relative imports start from its parent.
        module.__spec__ = importlib.util.find_spec(main.name)
        module.__package__ = main.name.rpartition(".")[0]
    else:
        module.__package__ = None
    setattr(module, _IN_PROGRESS, True)
    sys.modules[MAIN_ALIAS] = sys.modules["__main__"] = module
    loader.exec_module(module)
    delattr(module, _IN_PROGRESS)
