"""Arguments of the programs that the Makefile runs: whole numbers with names and defaults."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def call_with_arguments(main: Callable[..., T], words: Sequence[str] | None = None) -> T:
    """Call `main` with the whole numbers on the command line, of which each has a default.

    The names of its parameters are those of the arguments, the first paragraph of its docstring is
    the help text. Words that are not numbers, and numbers below 0, end the program with status 2
    and one line. `words` replaces the command line.
    """
    text = inspect.getdoc(main) or ""
    parser = argparse.ArgumentParser(description=text.partition("\n\n")[0])
    parameters = inspect.signature(main).parameters.values()
    for each in parameters:
        parser.add_argument(
            each.name.upper(),
            type=_whole_number,
            nargs="?",
            default=each.default,
            help=f"default: {each.default}",
        )
    chosen = vars(parser.parse_args(words))
    return main(*(chosen[each.name.upper()] for each in parameters))


def _whole_number(word: str) -> int:
    if not (word.isascii() and word.isdigit()):
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number")
    return int(word)
