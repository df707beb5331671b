"""How much memory a process has."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.processes import process_memory
from runtime.processes.process_memory import memory_mib


def test_what_a_process_takes_is_seen() -> None:
    before = memory_mib()
    assert before is not None
    assert before > 0
    kept = b"x" * (64 * process_memory.MIB)
    after = memory_mib()
    assert after is not None
    assert after - before > 32, len(kept)


@pytest.mark.parametrize("text", [None, "", "12", "12 many"])
def test_where_the_kernel_does_not_say_it_is_unknown(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "statm"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(process_memory, "STATM", place)
    assert memory_mib() is None
