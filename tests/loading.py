"""Loads a file of Python that is on no path: programs of the documentation, and its tools."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest


def load_file(name: str, path: Path, patch: pytest.MonkeyPatch | None = None) -> ModuleType:
    """Run the file as the module `name`, and return that. The module is found under its name from
    then on, as classes of actors must be; with `patch` only until the end of the test.
    """
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    if patch is None:
        sys.modules[name] = module
    else:
        patch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module
