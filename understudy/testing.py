"""`runtime.testing` under the name of the project, as in `from understudy.testing import`."""

import sys
from typing import TYPE_CHECKING

import runtime.testing

if TYPE_CHECKING:
    from runtime.testing import *  # noqa: F403

# One module under two names: what it keeps, and its classes, are there once.
sys.modules[__name__] = runtime.testing
