"""`runtime.aio` under the name of the project, as in `from understudy.aio import`."""

import sys
from typing import TYPE_CHECKING

import runtime.aio

if TYPE_CHECKING:
    from runtime.aio import *  # noqa: F403

# One module under two names: what it keeps, and its classes, are there once.
sys.modules[__name__] = runtime.aio
