"""Each command line of ours on a page is one that the command takes: its options exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from runtime.command_line.main import main
from tests.house import ROOT

BLOCK = re.compile(r"^```(?:text|sh|console|\{code-block\} console)?\n(.*?)^```$", re.M | re.S)
LINE = re.compile(r"^(?:\$ )?(understudy .*)$", re.MULTILINE)
CODE = re.compile(r"`(understudy [^`\n]+)`")
PAGES = [ROOT / "README.md", ROOT / "actors" / "errors.md", *sorted(ROOT.glob("docs/*/*.md"))]


def lines(page: Path) -> list[str]:
    """The command lines in blocks and in the text, without what a shell makes of the rest."""
    text = page.read_text()
    found = [one for block in BLOCK.findall(text) for one in LINE.findall(block)]
    found += CODE.findall(BLOCK.sub("", text))
    return [re.split(r"\s+#|\s*[|<>&]| {3,}", one)[0].rstrip("\\ ") for one in found]


def parse(words: list[str]) -> None:
    """Raises click.UsageError for a command or an option that does not exist."""
    command: click.Command = main
    context = click.Context(main, info_name=words.pop(0))
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        inner = command.get_command(context, name)
        if inner is None:
            raise click.UsageError(f"{name} is no command")
        context = click.Context(inner, info_name=name, parent=context, **inner.context_settings)
        command = inner
    command.make_parser(context).parse_args(args=words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    wrong = []
    for line in lines(page):
        try:
            parse(shlex.split(line))
        except (click.UsageError, ValueError) as error:
            # An example may end where its value would stand: `understudy node --name`.
            if "requires an argument" not in str(error):
                wrong.append(f"{line}: {error}")
    assert wrong == []


def test_commands_are_found_and_mistakes_in_them_too() -> None:
    assert sum(len(lines(page)) for page in PAGES) > 100
    parse(["understudy", "secret", "status", "--json"])
    for words in (["understudy", "nothing"], ["understudy", "status", "--nothing"]):
        with pytest.raises(click.UsageError):
            parse(words)
