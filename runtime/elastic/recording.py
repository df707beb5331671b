"""`record`: what a function raises goes into the worker's error file, from where the agent takes it into its report."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from runtime.elastic.runner import ERROR_FILE, write_error

P = ParamSpec("P")
R = TypeVar("R")


def record(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate the main function of a worker: what it raises is written to the error file (TORCHELASTIC_ERROR_FILE) and raised again.

    Scripts and modules that `understudy run` starts need none, for it sees their exceptions anyway. It is of use where they are caught
    further up, in processes that were started with `--no-python`, and under torchrun. Without an error file it changes nothing.
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
