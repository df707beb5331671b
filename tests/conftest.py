"""What every test may rely on: no settings from outside leak in, and hypothesis neither races a clock nor hides how to repeat a failure."""

from __future__ import annotations

import os

from hypothesis import settings

for name in [name for name in os.environ if name.startswith("UNDERSTUDY_")]:
    del os.environ[name]

settings.register_profile("understudy", deadline=None, print_blob=True)
settings.load_profile("understudy")
