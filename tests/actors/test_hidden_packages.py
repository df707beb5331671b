"""A user's own file with the name of a package that this one needs: one error that names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.hidden_packages import PACKAGES, hiding_file

ROOT = Path(__file__).resolve().parents[2]

IMPORTS = (
    "import actors",
    "import runtime",
    "from actors import Actor",
    "from runtime import open_node",
    "from runtime.blocking import connect",
    "from understudy import open_node",
)


def run(place: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        # Behind the directory of the script, as what is installed is.
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stderr


def test_nothing_is_hidden_here() -> None:
    assert [hiding_file(name) for name in PACKAGES] == [""] * len(PACKAGES)
    assert hiding_file("no_such_module_anywhere") == ""
    # What has no file hides nothing.
    assert hiding_file("sys") == ""


@pytest.mark.parametrize("name", ["trio", "cbor2", "attr"])
def test_a_file_beside_the_script_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("frozen = loads = 1\n")
    program = "\n".join(
        f"try:\n    {line}\nexcept ImportError as error:\n    print(error, file=sys.stderr)"
        for line in IMPORTS
    )
    (tmp_path / "program.py").write_text(f"import sys\n{program}\n")
    told = run(tmp_path, "program.py").splitlines()
    text = f"{tmp_path / name}.py hides the package {name!r}"
    assert [line.startswith(text) for line in told] == [True] * len(IMPORTS), told


def test_a_script_that_is_called_like_a_package_is_named(tmp_path: Path) -> None:
    script = tmp_path / "trio.py"
    script.write_text("import trio\nfrom runtime import open_node\n")
    assert f"ImportError: {script} hides the package 'trio'" in run(tmp_path, "trio.py")
