"""`actors.errors` under the name of the project, as in `from understudy.errors import`."""

import sys
from typing import TYPE_CHECKING

import actors.errors

if TYPE_CHECKING:
    from actors.errors import *  # noqa: F403

# One module under two names: what it keeps, and its classes, are there once.
sys.modules[__name__] = actors.errors
