"""Commands that install this project name its distribution, `understudy-actors`: the package
`understudy` on PyPI is another project's.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLACES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(file for file in (ROOT / "ops").iterdir() if file.is_file()),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(
        file
        for package in ("actors", "runtime", "understudy", "examples")
        for file in (ROOT / package).rglob("*.py")
    ),
]
# A path ends in `/understudy`; `pip uninstall understudy` is what the doctor says.
FOREIGN = re.compile(
    r"""pip\s+install[^\n`]*[ '"]understudy(?![\w./-])  # as it is, or with extras
    |(?<![\w./-])understudy\[(?=[a-z]+\])""",  # a requirement in prose, or on a line of its own
    re.VERBOSE,
)
EXTRA = re.compile(r"understudy-actors\[([a-z,]+)\]")


def test_no_page_and_no_message_installs_the_other_project() -> None:
    extras = set(PROJECT["optional-dependencies"])
    for place in PLACES:
        text = place.read_text()
        assert FOREIGN.findall(text) == [], place
        assert {each for one in EXTRA.findall(text) for each in one.split(",")} <= extras, place


def test_the_distribution_does_not_have_the_name_of_the_other_project() -> None:
    assert PROJECT["name"] == "understudy-actors"
    assert "understudy" in PROJECT["scripts"]


@pytest.mark.parametrize(
    "line",
    [
        "pip install understudy",
        "$ pip install pytest 'understudy'",
        "pip install understudy torch",
        "pip install 'understudy[metrics]'",
        "it needs an extra: pip install \"\n    \"'understudy[etcd]'",
        "an etcd v3, and `understudy[etcd]`",
    ],
)
def test_a_line_that_does_is_found(line: str) -> None:
    assert FOREIGN.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install .",
        "pip install 'understudy-actors[metrics]'",
        "pip install pytest '../understudy[metrics]'",
        "/opt/understudy/bin/pip install .",
    ],
)
def test_other_lines_are_not(line: str) -> None:
    assert not FOREIGN.search(line)
