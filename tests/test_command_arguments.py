"""The numbers that the Makefile's programs take: wrong ones end with one line and status 2."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.command_arguments import call_with_arguments

PROGRAMS = (
    "tests.wire.fuzz",
    "tests.wire.proven",
    "tests.links.proxied_calls",
    "tests.benchmarks.deaths",
    "tests.cluster.pausing",
    "tests.actors.test_trees",
    "tests.peers.environments",
)


def main(calls: int = 1000, seed: int = 0) -> tuple[int, int]:
    """Say what was asked for.

    Not a part of the help text.
    """
    return calls, seed


@pytest.mark.parametrize(
    ("words", "arguments"), [([], (1000, 0)), (["5"], (5, 0)), (["5", "7"], (5, 7))]
)
def test_what_is_left_out_has_its_default(words: list[str], arguments: tuple[int, int]) -> None:
    assert call_with_arguments(main, words) == arguments


@pytest.mark.parametrize("words", [["many"], ["-5"], ["1.5"], ["٣"], [""], ["1", "2", "3"]])
def test_other_words_end_the_program_with_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call_with_arguments(main, words)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_the_help_names_each_argument_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call_with_arguments(main, ["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "Say what was asked for." in text
    assert "Not a part" not in text
    assert "CALLS" in text
    assert "default: 1000" in text


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_refuse_what_they_do_not_know(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", program, "--mistake"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
