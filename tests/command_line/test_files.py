"""Files that commands write, and answers of nodes that are too large or broken."""

from __future__ import annotations

import errno
import json
import zlib
from pathlib import Path

import pytest

from actors.errors import NotExecutedError
from runtime.command_line.files import unpacked, written_whole
from runtime.command_line.system_errors import text_of_file


def write(path: Path, text: str, *, fail: bool = False) -> None:
    with written_whole(path) as file:
        file.write(text)
        if fail:
            raise KeyError("the measurement failed")


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(KeyError):
        write(path, "half", fail=True)
    assert list(tmp_path.iterdir()) == []
    write(path, "first")
    with pytest.raises(KeyError):
        write(path, "half", fail=True)
    assert [one.read_text() for one in tmp_path.iterdir()] == ["first"]
    link = tmp_path / "link.json"
    link.symlink_to(path)
    write(link, "second")
    assert (path.read_text(), link.is_symlink()) == ("second", True)
    write(Path("/dev/null"), "third")
    with pytest.raises(OSError, match="No such file or directory") as caught:
        write(tmp_path / "no" / "place", "x")
    assert caught.value.filename == str(tmp_path / "no" / "place")


def test_an_error_of_the_disk_names_the_file_and_one_of_a_network_does_not(tmp_path: Path) -> None:
    full = Path("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write(full, "x")
    assert caught.value.filename == str(full)
    assert text_of_file(caught.value, "it") == (
        "it: No space left on device; make room there, or choose another place"
    )
    for path in (full, tmp_path / "run.json"):
        with pytest.raises(ConnectionResetError) as reset, written_whole(path):
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        assert reset.value.filename is None


def test_an_answer_that_is_cut_or_broken_is_a_sentence() -> None:
    packed = zlib.compress(json.dumps({"events": [1, 2]}).encode())
    assert unpacked(packed, "w1", 1 << 20) == {"events": [1, 2]}
    for wrong, most, words in (
        (zlib.compress(b"[" + b"1," * (1 << 20)), 1 << 20, "node w1 is larger than 1 MiB"),
        (packed[:-8], 1 << 20, "node w1 cannot be read"),
        (b"no zlib", 1 << 20, "node w1 cannot be read"),
        (zlib.compress(b"[" * 100_000), 1 << 20, "node w1 cannot be read"),
    ):
        with pytest.raises(NotExecutedError, match=words):
            unpacked(wrong, "w1", most)
