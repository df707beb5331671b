"""What is released: the same files from the same commit, and an install that needs no compiler."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
CORE = ("trio", "attrs", "cbor2", "click")

PROGRAM = """
import trio
import understudy
from understudy import Actor, method, open_node

class Echo(Actor):
    @method
    async def echo(self, value: str) -> str:
        return value

async def main() -> None:
    async with open_node("alone") as node:
        echo = await node.spawn(Echo)
        print(await echo.echo(understudy.__file__))

if __name__ == "__main__":
    trio.run(main)
"""


def run(words: Sequence[object], **more: str) -> str:
    """What a program prints that succeeds, without the settings of the one that runs the tests."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "MAKE", "MFLAGS", "VIRTUAL_ENV", "UNDERSTUDY_"))
    }
    done = subprocess.run(
        [str(word) for word in words],
        cwd=more.pop("cwd", str(ROOT)),
        env=environment | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the last commit, built in a clone of its own."""
    if not (ROOT / ".git").exists():
        pytest.skip("releases are built from a clone of the repository")
    clone = tmp_path_factory.mktemp("clone") / "understudy"
    run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone])
    (clone / "runtime" / "not_committed.py").write_text("raise SystemExit\n")
    told = run(["make", "release", f"PYTHON={sys.executable}"], cwd=str(clone))
    place = clone / "dist"
    for line in (place / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((place / name).read_bytes()).hexdigest() == digest
        # People compare what is printed.
        assert line in told
    assert {path.suffix for path in place.iterdir()} == {".whl", ".gz", ""}
    assert "what is not committed is left out" in told
    return place


@pytest.mark.timeout(900)
def test_a_release_is_built_twice_with_equal_hashes_from_what_is_committed(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = run([sys.executable, "-m", "zipfile", "-l", wheel])
    assert "runtime/py.typed" in names
    assert "not_committed" not in names
    (sources,) = dist.glob("*.tar.gz")
    assert "SECURITY.md" in run(["tar", "-tzf", sources])


@pytest.mark.timeout(900)
def test_a_plain_install_of_the_wheel_needs_no_compiler_and_runs(
    dist: Path, tmp_path: Path
) -> None:
    (wheel,) = dist.glob("*.whl")
    run([sys.executable, "-m", "venv", tmp_path / "fresh"])
    python = tmp_path / "fresh" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--no-cache-dir", "--only-binary", ":all:"]
    run([*install, wheel], CC="/bin/false", CXX="/bin/false", cwd=str(tmp_path))
    listed = json.loads(run([python, "-m", "pip", "list", "--format", "json"]))
    names = {each["name"].lower() for each in listed}
    assert names >= {"understudy-actors", *CORE}
    # What trio needs, and pip itself; anything else has come in unseen.
    assert names <= {
        "understudy-actors", *CORE, "sortedcontainers", "idna", "outcome", "sniffio", "pip",
        "setuptools",
    }  # fmt: skip
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    home = str(tmp_path)
    assert str(tmp_path / "fresh") in run([python, program], cwd=home, HOME=home)
    command = tmp_path / "fresh" / "bin" / "understudy"
    assert re.search(r"\d+\.\d+", run([command, "--version"], cwd=home, HOME=home))


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("package", CORE)
def test_every_dependency_of_the_core_is_there_without_a_compiler(
    package: str, version: str, tmp_path: Path
) -> None:
    run(
        [
            sys.executable, "-m", "pip", "install", "--dry-run", "--only-binary", ":all:",
            "--python-version", version, "--target", tmp_path, package,
        ]
    )  # fmt: skip
