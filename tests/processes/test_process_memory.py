"""How much memory a process has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.processes import process_memory
from runtime.processes.process_memory import memory_mib

TAKES = """
from runtime.processes.process_memory import MIB, memory_mib

before = memory_mib()
assert before
kept = b"x" * (64 * MIB)
assert memory_mib() - before > 32, (before, memory_mib())
"""


def test_what_a_process_takes_is_seen() -> None:
    # In a process of its own: in this one the allocator may have as much left from earlier tests.
    subprocess.run([sys.executable, "-c", TAKES], check=True)


@pytest.mark.parametrize("text", [None, "", "12", "12 many"])
def test_where_the_kernel_does_not_say_it_is_unknown(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "statm"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(process_memory, "STATM", place)
    assert memory_mib() is None
