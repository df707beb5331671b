"""Classes by their names: `module:qualified.name`.

What comes from a peer may name any module there is, and importing one runs it: `unittest.__main__`
ends its process. So a name that is decoded is looked up among the modules that this process has
imported, by its application's own doing, and nothing of a class, not even a `__getattr__`, is run
to find it. Imported is only what a spawn names, whose purpose it is to run code of the application
by its name (`import_class`).
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, cast

from actors.errors import DecodeError
from runtime.user_errors import guarded, summary_of

MOVED = {
    **{
        f"actors.children:{name}": f"actors.supervisor:{name}"
        for name in ("ChildCounts", "ChildSpec", "ChildStatus", "DeathReport", "SupervisorStatus")
    },
    "actors.node:Member": "actors.actor:Member",
    "actors.watching:Ended": "actors.actor:Ended",
}
"""Classes of ours that were in other modules earlier, by the names that stored values still
contain.
"""

# Read past the classes' own `__dict__` and `__getattr__`, which could be code of users.
_NAMESPACE_OF_MODULE = cast("Any", vars(ModuleType)["__dict__"])
_NAMESPACE_OF_CLASS = cast("Any", vars(type)["__dict__"])

_WITHOUT_FILE = ("__main__", "__console__")

_OF_MAIN = (
    "The processes of a local cluster know the classes of the main script, if it is a file with "
    'the guard `if __name__ == "__main__":`. No other process can import them, or those of `-c`, '
    "standard input, a prompt or a notebook; move them into a module"
)


def find_class(path: str) -> type:
    """Return the class of this name, in a module that is imported already. The caller checks
    whether it may be used. Raises DecodeError.
    """
    module_name, qualified = _split(MOVED.get(path, path))
    found: object = sys.modules.get(module_name)
    if not issubclass(type(found), ModuleType):
        raise DecodeError(
            f"{_unknown(path)}: it has not imported {module_name}, and what peers send imports "
            f"nothing. {_advice(module_name)}"
        )
    namespace = _NAMESPACE_OF_MODULE.__get__(found)
    for name in qualified.split("."):
        found = namespace.get(name)
        if not issubclass(type(found), type):
            raise DecodeError(
                f"{_unknown(path)}: its {module_name} has no class of that name. "
                + (
                    _advice(module_name)
                    if module_name in _WITHOUT_FILE
                    else "Run the same code on all nodes, and define the class at the top of the "
                    'module, not under `if __name__ == "__main__":`'
                )
            )
        namespace = _NAMESPACE_OF_CLASS.__get__(found)
    return cast("type", found)


def is_imported(path: str) -> bool:
    """Return True if the module of this class is completely imported. Another thread may be
    importing it.
    """
    module = sys.modules.get(path.partition(":")[0])
    return module is not None and not getattr(
        getattr(module, "__spec__", None), "_initializing", False
    )


def import_class(path: str) -> type:
    """Return the class of this name; imports its module if necessary. Raises DecodeError, also for
    whatever the module raises.
    """
    module_name, _ = _split(path)
    if not is_imported(path):
        failure = failure_of_import(module_name)
        if failure:
            # For the node's own Python, whose path and packages may differ from the caller's.
            advice = (
                _OF_MAIN
                if module_name in _WITHOUT_FILE
                else f"install the package of {module_name} there, or add its directory to "
                "PYTHONPATH, and run the same code on all nodes"
            )
            raise DecodeError(f"the import of {module_name} raised {failure}; {advice}")
    return find_class(path)


def failure_of_import(module_name: str) -> str:
    """Import the module; return what it raised, which may be anything, as text. "" if nothing."""
    return guarded(lambda: _imported(module_name), lambda error: summary_of(error) or "an error")


def _imported(module_name: str) -> str:
    """Import the module. Raises what the module raises, which may be anything."""
    importlib.import_module(module_name)
    return ""


def _split(path: str) -> tuple[str, str]:
    module_name, colon, qualified = path.partition(":")
    if "<locals>" in path:
        raise DecodeError(
            f"{path} is defined inside a function, where no other process finds it; move the "
            "class to the top of its module"
        )
    if not (module_name and colon and qualified) or module_name.startswith("."):
        raise DecodeError(f"{path!r} is not the import path of a class, module:Name")
    return module_name, qualified


def _unknown(path: str) -> str:
    # Not "here": the error is read where the call was made, and the import may have happened at the
    # actor's node.
    return f"{path} is not known to the process that was to read it"


def _advice(module_name: str) -> str:
    if module_name in _WITHOUT_FILE:
        return _OF_MAIN
    return (
        f"Import {module_name} in the program that opens its node (`understudy node --import "
        f"{module_name}`), or in the module of the "
        "actor's class; run the same code on all nodes"
    )
