"""The how-to pages with one program each: the program prints what its page says."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import trio

from tests.house import ROOT

PROGRAM = re.compile(r"\{literalinclude\} \.\./\.\./examples/how_to/(\w+)\.py")
PRINTED = re.compile(r"^It prints:\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = {
    found[1]: page
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md"))
    if (found := PROGRAM.search(page.read_text()))
}
ALONE = {"cpu_bound", "exactly_once"}
"""Programs that need a process of their own: for its processes, and for its log."""


def printed(page: Path) -> str:
    found = PRINTED.search(page.read_text())
    assert found is not None, f"{page.name} does not say what its program prints"
    return found[1]


def test_each_program_has_its_page() -> None:
    assert sorted(PAGES) == sorted(path.stem for path in (ROOT / "examples/how_to").glob("*.py"))


@pytest.mark.parametrize("name", sorted(set(PAGES) - ALONE))
def test_a_program_prints_what_its_page_says(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_from_file_location(f"how_to_{name}", ROOT / "examples/how_to" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Actors are found by the module of their class.
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    trio.run(module.main)
    assert capsys.readouterr().out == printed(PAGES[name])


@pytest.mark.cluster
@pytest.mark.parametrize("name", sorted(ALONE))
def test_a_program_of_its_own_prints_what_its_page_says(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples/how_to" / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed(PAGES[name])
