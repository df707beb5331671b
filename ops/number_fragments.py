"""Give each news fragment a number that towncrier can tell apart: `python ops/number_fragments.py`.

Fragments are called NUMBER.TYPE.WORD.md, so that two people who write at the same time do not
choose the same name. towncrier wants numbers in the place of the words: run this before it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "newsfragments"
NAME = re.compile(r"(\d+)\.([a-z]+)\.(.+)\.md")


def renamed(names: Iterable[str]) -> dict[str, str]:
    """New names for those fragments that have a word where towncrier wants a number."""
    given = set(names)
    found: dict[str, str] = {}
    for name in sorted(given):
        parts = NAME.fullmatch(name)
        if parts is None or parts[3].isdigit():
            continue
        for number in itertools.count(1):
            new = f"{parts[1]}.{parts[2]}.{number}.md"
            if new not in given:
                given.add(new)
                found[name] = new
                break
    return found


if __name__ == "__main__":
    for old, new in renamed(path.name for path in FOLDER.iterdir()).items():
        (FOLDER / old).rename(FOLDER / new)
