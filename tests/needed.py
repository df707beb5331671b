"""Skips a module of tests, with its reason, where packages are missing."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def skip_module_without(*names: str, reason: str) -> None:
    """At the top of a module that uses these only in processes of their own. pytest.importorskip
    would import them into each process of `make test`, a second of processor time for a web
    framework and a notebook's kernel. `{0}` in the reason is the name of the one that is missing.
    """
    for name in names:
        if find_spec(name) is None:
            pytest.skip(reason.format(name), allow_module_level=True)
