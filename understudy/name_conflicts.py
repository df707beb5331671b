"""Files that hide the packages of this distribution: an `actors.py` beside a script is found before
the package `actors`.

Without this check the first import of a name fails with a message about the user's own file.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PACKAGES = ("actors", "runtime")


def hiding_file(name: str, home: Path) -> Path | None:
    """The file that `import name` would run, or has run, unless it is below the directory `home`.

    A module without a file, and a name that is not found at all, hide nothing.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        origin = getattr(loaded, "__file__", None)
    else:
        spec = find_spec(name)
        origin = spec.origin if spec is not None else None
    if origin is None:
        return None
    file = Path(origin).resolve()
    return None if home in file.parents else Path(origin)


def refuse_hiding_files(facade: ModuleType) -> None:
    """Raise ImportError if a file that was not installed with the package `facade` hides one of the
    packages that it needs.
    """
    assert facade.__file__ is not None, "a package that is installed has a file"
    installed = Path(facade.__file__).resolve().parent.parent
    for name in PACKAGES:
        file = hiding_file(name, installed / name)
        if file is not None:
            found = file.parent if file.name == "__init__.py" else file
            raise ImportError(
                f"{found} hides the package {name!r} of Understudy, because Python looks there "
                f"first. Rename it, for example to my_{found.name}, and adapt its imports.",
                name=name,
                path=str(file),
            )
