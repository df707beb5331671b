"""Arguments and output in a locale whose encoding is not UTF-8."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from runtime.command_line.locales import readable, unreadable, write_all
from tests.command_line.shell import FIRST, UNDERSTUDY, Shell, check_mistake

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
NAMES = (
    ["call", "a", "add", "\u00e9"],
    ["call", "a", "add", "-k", "b=\u00e9"],
    ["inspect", "\u00e9"],
    ["shell", "-c", "'\u00e9'"],
    ["list", "actors", "--filter", "name=\u00e9"],
    ["node", "--join", "\u00e9:1"],
    ["run", "--rdzv-id", "\u00e9", "--rdzv-endpoint", "127.0.0.1:1", "--no-python", "true"],
)
"""Commands with names and texts that no locale of ASCII can read."""


def run(shell: Shell, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in that locale, in an interpreter that begins in it."""
    return subprocess.run(
        [*UNDERSTUDY, *words],
        cwd=shell.place,
        env={**shell.environment, **ASCII},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.cluster
@pytest.mark.parametrize("words", NAMES)
def test_a_text_that_the_locale_cannot_read_is_refused_with_what_to_set(
    shell: Shell, words: list[str]
) -> None:
    done = run(shell, *words)
    check_mistake(done, "is no text in ascii", "set LC_ALL=C.UTF-8", status=2)
    assert "udc" not in done.stderr


@pytest.mark.cluster
def test_errors_and_output_of_such_a_locale_have_no_lone_surrogates(shell: Shell) -> None:
    simulate = ["simulate", "--minutes", "0.001", "--nodes", "1", "--html", "\u00e9/a/b"]
    for words, status in ((["bogus\u00e9"], 2), (simulate, 1)):
        done = run(shell, *words)
        check_mistake(done, status=status)
        # click writes UTF-8 to a stream of ASCII, unless it is named.
        assert "\\xe9" in done.stderr or "\u00e9" in done.stderr
        assert "udc" not in done.stderr
    where = ("--address", shell.start_node(*FIRST)[1]["address"])
    shown = run(shell, "shell", "-c", "chr(233)", *where)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "'\\xe9'\n", "")


def test_what_is_text_is_left_alone() -> None:
    assert unreadable("b\u00fccher") == ""
    assert readable("b\u00fccher \\n") == "b\u00fccher \\n"
    assert "'\u00e9\\xff' is no text" in unreadable("\udcc3\udca9\udcff")
    assert "is no text" in unreadable("\ud800")


def test_a_stream_of_ascii_writes_all_and_names_of_files_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w", encoding="ascii") as stream:
        write_all(stream)
        stream.write("\u00e9 \udcc3\udca9 \ud800")
    assert path.read_bytes() == b"\\xe9 \xc3\xa9 \\ud800"
    write_all(io.StringIO())
