"""The news fragments can be collected: towncrier can tell their names apart once they have numbers,
and refuses them all otherwise.
"""

from __future__ import annotations

import re
import tomllib

from tests.house import ROOT
from tests.loading import load_file

TYPES = [
    each["directory"]
    for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
]
NAME = re.compile(rf"(\d+|\+[\w-]+)\.({'|'.join(TYPES)})(?:\.([\w-]+))?\.md")
FRAGMENTS = [path for path in (ROOT / "newsfragments").iterdir() if path.name != "README.md"]


def numbered(names: list[str]) -> list[str]:
    """The names after ops/number_fragments.py."""
    module = load_file("number_fragments", ROOT / "ops" / "number_fragments.py")
    new: dict[str, str] = module.renamed(names)
    return [new.get(name, name) for name in names]


def test_each_fragment_says_something_under_a_name_of_a_known_kind() -> None:
    for path in FRAGMENTS:
        assert NAME.fullmatch(path.name), f"{path.name}: its type is none of {TYPES}"
        assert path.read_text().strip(), f"{path.name} is empty"


def test_with_numbers_no_two_fragments_are_the_same_to_towncrier() -> None:
    keys = []
    for name in numbered([path.name for path in FRAGMENTS]):
        parsed = NAME.fullmatch(name)
        assert parsed is not None
        issue, kind, counter = parsed.groups()
        keys.append((issue, kind, int(counter or 0)))
    assert len(set(keys)) == len(keys)


def test_words_get_numbers_that_are_free_and_the_rest_stays() -> None:
    names = ["3.misc.1.md", "3.misc.md", "3.misc.b.md", "3.misc.a.md", "+x.doc.md", "README.md"]
    assert numbered(names) == [
        "3.misc.1.md",
        "3.misc.md",
        "3.misc.3.md",
        "3.misc.2.md",
        "+x.doc.md",
        "README.md",
    ]
