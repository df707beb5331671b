"""`--import MODULE`: modules of the application for commands that have no program of its own around
them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import click

from runtime.user_errors import guarded, summary_of

F = TypeVar("F", bound=Callable[..., Any])


def import_option(command: F) -> F:
    """The option `--import`, given to the command as `modules`."""
    return click.option(
        "--import",
        "modules",
        multiple=True,
        metavar="MODULE",
        help="Import this module first, for example one whose @message classes arrive in "
        "arguments, results or errors; may be repeated.",
    )(command)


def import_from_here() -> None:
    """Let modules be found in the current directory, as `python -m` does."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def import_modules(modules: tuple[str, ...], option: str = "--import") -> list[ModuleType]:
    """Import them. Raises ClickException, in one line that names the option, for one that cannot
    be, whatever it raises.
    """
    import_from_here()
    for module in modules:
        failure = guarded(partial(_failure_of, module), lambda error: summary_of(error))
        if failure:
            raise click.ClickException(f"{option} {module}: {' '.join(failure.split())}")
    return [sys.modules[module] for module in modules]


def _failure_of(module: str) -> str:
    if not all(part.isidentifier() for part in module.split(".")):
        return "this is not the name of a module; it is package.module, without .py"
    importlib.import_module(module)
    return ""
