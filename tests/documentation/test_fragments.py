"""The news fragments have names that towncrier can tell apart: else no release can be made."""

from __future__ import annotations

import re
import tomllib

from tests.house import ROOT

FOLDER = ROOT / "newsfragments"
TYPES = [
    each["directory"]
    for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
]
NAME = re.compile(rf"(\d+|\+[\w-]+)\.({'|'.join(TYPES)})(?:\.([\w-]+))?\.md")


def test_each_fragment_has_a_name_and_a_counter_of_its_own() -> None:
    seen: dict[tuple[str, str, int], str] = {}
    for path in sorted(FOLDER.iterdir()):
        if path.name == "README.md":
            continue
        parsed = NAME.fullmatch(path.name)
        assert parsed, f"{path.name}: name it NUMBER.TYPE.COUNTER.md, TYPE one of {TYPES}"
        issue, kind, counter = parsed.groups()
        # A counter that is no number is none, for towncrier.
        key = (issue, kind, int(counter) if counter and counter.isdigit() else 0)
        assert key not in seen, f"{path.name} and {seen[key]}: give one a number as its counter"
        seen[key] = path.name
        assert path.read_text().strip(), f"{path.name} is empty"
