"""The how-to pages with one program each: the program prints what its page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import trio

from runtime.command_line.main import EXPELLED_STATUS, main
from tests.house import ROOT
from tests.loading import load_file
from tests.tutorial.pages import FIRST, Command

PROGRAM = re.compile(r"\{literalinclude\} \.\./\.\./examples/how_to/(\w+)\.py")
PRINTED = re.compile(r"[iI]t prints[^\n]*:\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = {
    found[1]: page
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md"))
    if (found := PROGRAM.search(page.read_text()))
}
ALONE = {
    "always_there",
    "cpu_bound",
    "exactly_once",
    "gpu",
    "graceful_stop",
    "leak",
    "logs",
    "script",
    "stuck",
    "tls",
}
"""Programs that need a process of their own: for those that they start, for logs, for signals."""
WARNED = {"always_there"}
"""Those that kill a node."""


def check(output: str, page: Path) -> None:
    """Compare it with the page, where `...` stands for any text of a line, and alone on a line for
    any lines.
    """
    found = PRINTED.search(page.read_text())
    assert found is not None, f"{page.name} does not say what its program prints"
    assert Command(FIRST, "", found[1]).pattern().fullmatch(output), output


def test_each_program_has_its_page() -> None:
    assert sorted(PAGES) == sorted(path.stem for path in (ROOT / "examples/how_to").glob("*.py"))


@pytest.mark.parametrize("name", sorted(set(PAGES) - ALONE))
def test_a_program_prints_what_its_page_says(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load_file(f"how_to_{name}", ROOT / "examples/how_to" / f"{name}.py", monkeypatch)
    trio.run(module.main)
    check(capsys.readouterr().out, PAGES[name])


@pytest.mark.cluster
@pytest.mark.parametrize(
    "name",
    # It starts a command for each certificate, and takes seconds.
    [pytest.param(name, marks=pytest.mark.long if name == "tls" else ()) for name in sorted(ALONE)],
)
def test_a_program_of_its_own_prints_what_its_page_says(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples/how_to" / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    # A node that is killed is a warning of the others.
    lost = "Traceback" not in done.stderr and "node died" in done.stderr
    assert (done.returncode, lost or done.stderr) == (0, name in WARNED or "")
    check(done.stdout, PAGES[name])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_of_the_page_on_systemd_is_valid() -> None:
    unit = ROOT / "ops" / "understudy-node.service"
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_starts_a_command_that_there_is_and_leaves_an_expelled_node_alone() -> None:
    text = (ROOT / "ops" / "understudy-node.service").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    env, program, command, *words = settings["ExecStart"].split()
    assert (env, program) == ("/usr/bin/env", "understudy")
    found = main.get_command(click.Context(main), command)
    assert found is not None
    assert found.make_context(command, words).params["listen"] == "0.0.0.0:7400"
    assert settings["RestartPreventExitStatus"].split() == ["2", str(EXPELLED_STATUS)]
    assert settings["StartLimitIntervalSec"] == "0"


def test_the_options_in_the_container_file_are_those_of_the_command() -> None:
    text = (ROOT / "ops" / "Dockerfile").read_text()
    program, command, *words = json.loads(text.rpartition("ENTRYPOINT ")[2])
    assert program == "understudy"
    found = main.get_command(click.Context(main), command)
    assert found is not None
    context = found.make_context(command, words)
    assert context.params["listen"] == "0.0.0.0:7400"
    assert context.params["metrics"] == "0.0.0.0:9464"
