"""`runtime.blocking` under the name of the project, as in `from understudy.blocking import`."""

import sys
from typing import TYPE_CHECKING

import runtime.blocking

if TYPE_CHECKING:
    from runtime.blocking import *  # noqa: F403

# One module under two names: what it keeps, and its classes, are there once.
sys.modules[__name__] = runtime.blocking
