"""`runtime.simulation` under the name of the project, as in `from understudy.simulation import`."""

import sys
from typing import TYPE_CHECKING

import runtime.simulation

if TYPE_CHECKING:
    from runtime.simulation import *  # noqa: F403

# One module under two names: what it keeps, and its classes, are there once.
sys.modules[__name__] = runtime.simulation
