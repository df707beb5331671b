"""Files of a user's that hide a package which this one needs: a `trio.py` beside a script is found
before the package trio, and so is the script itself, if that is called `trio.py`.

Without this check the first import fails with an error about a name that the user's own file does
not have, or nothing fails before the first call. It runs when this module is imported.
"""

from __future__ import annotations

import sys
from typing import Any, Final

PACKAGES: Final = ("attr", "attrs", "cbor2", "outcome", "sortedcontainers", "trio")
"""Each of them is a directory: what is found as one file is something else."""


def refuse_hiding_files() -> None:
    """Raise ImportError if a file hides one of the packages."""
    for name in PACKAGES:
        if file := hiding_file(name):
            raise ImportError(
                f"{file} hides the package {name!r}, which Understudy needs, because Python looks "
                "there first. Rename it, and remove the byte code that Python has left of it",
                name=name,
                path=file,
            )


def hiding_file(name: str) -> str:
    """The file that `import name` would run, or has run, if that is no package; "" if it is one, or
    is not found at all.
    """
    loaded: Any = sys.modules.get(name)
    found: Any = getattr(loaded, "__spec__", None)
    if loaded is None:
        # As Python looks for it, without running anything.
        # Finders of before Python 3.4 have another method, and Python passes them over.
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        specs = (find(name, None) for find in finders if find is not None)
        found = next((spec for spec in specs if spec is not None), None)
    if found is None or found.submodule_search_locations is not None or not found.has_location:
        return ""
    return str(found.origin)


refuse_hiding_files()
