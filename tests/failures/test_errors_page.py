"""docs/failures/errors.md has an entry for each public error, and for nothing else."""

from __future__ import annotations

import re

from actors import errors
from tests.house import ROOT

PAGE = ROOT / "docs" / "failures" / "errors.md"


def test_each_error_class_has_its_entry_and_each_entry_its_class() -> None:
    text = PAGE.read_text()
    entries = [
        name
        for row in re.findall(r"^\|(.*?)\|", text.partition("\n## ")[0], re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert sorted(entries) == sorted(classes)
