"""Follow the tutorial as its reader does: in a fresh virtual environment outside the checkout,
which has what the first page of the tutorial installs, and nothing else.

`python -m tests.tutorial.fresh` builds a wheel of this checkout, installs it, and types the
commands of all chapters. It needs a package index.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tutorial.reader import PAGES, ROOT, TutorialError, follow, programs_in

INSTALL = re.compile(r"^pip install (.+)$", re.MULTILINE)


def built(directory: Path) -> Path:
    """A wheel of this checkout."""
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", directory, ROOT])
    [wheel] = directory.glob("understudy_actors-*.whl")
    return wheel


def installed(directory: Path, wheel: Path) -> Path:
    """A virtual environment with what the tutorial installs: the wheel in the place of the reader's
    checkout. Returns the directory of its commands.
    """
    _run([sys.executable, "-m", "venv", directory / ".venv"])
    commands = directory / ".venv" / "bin"
    found = INSTALL.search((ROOT / "docs" / "tutorial" / "index.md").read_text())
    assert found is not None
    asked = [re.sub(r"^\.\./understudy\b", str(wheel), word) for word in shlex.split(found[1])]
    assert any(str(wheel) in word for word in asked), f"the page installs another package: {asked}"
    _run([commands / "python", "-m", "pip", "install", "--quiet", *asked])
    return commands


def environment(commands: Path, directory: Path) -> dict[str, str]:
    """That of a new user of this machine: nothing of this checkout is on a path."""
    return {
        "PATH": f"{commands}{os.pathsep}{os.defpath}",
        "HOME": str(directory),
        "LANG": "C.UTF-8",
    }


def chapter(page: Path, directory: Path, commands: Path) -> None:
    """Follow one page in a new directory. Raises TutorialError where something else comes."""
    directory.mkdir()
    follow(page, programs_in(directory), environment(commands, directory))


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(
        command,
        cwd=tempfile.gettempdir(),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TutorialError(f"$ {shlex.join(map(str, command))}\n{done.stdout}")


def main() -> int:
    """Follow all chapters, one after the other; returns the status for `sys.exit`."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        try:
            commands = installed(directory, built(directory))
            for page in PAGES:
                chapter(page, directory / page.stem, commands)
                print(f"{page.name}: as the page says", flush=True)
        except TutorialError as error:
            print(f"not as the tutorial says:\n{error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
