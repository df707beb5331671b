"""The reference is made from the code: what its blocks say, and which variables its page lists."""

from __future__ import annotations

import ast
import re

import click
import pytest

from runtime.command_line.main import COMMANDS, main
from runtime.links.encryption import FILE_VARIABLES, TLS_VARIABLE
from runtime.metrics.definitions import DEFINITIONS
from tests.house import ROOT
from tests.loading import load_file

DOCS = ROOT / "docs"


# On the path only of Sphinx.
GENERATED = load_file("generated", DOCS / "generated.py")


def page(name: str) -> str:
    """A page of the reference with its blocks replaced."""
    text: str = GENERATED.expanded((DOCS / "reference" / name).read_text())
    assert "{generated}" not in text
    return text


def options_of(command: click.Command) -> set[str]:
    """Every option of a command and of the commands below it, but for --help."""
    found = {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
    }
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found |= options_of(inner)
    return found


def test_the_page_of_commands_has_every_command_with_its_options() -> None:
    sections = page("commands.md").split("\n## understudy ")[1:]
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        text = "\n".join(one for one in sections if re.match(rf"{name}\b", one))
        assert [option for option in options_of(command) if f"{option}" not in text] == []


def test_the_help_says_of_each_command_what_its_own_help_begins_with() -> None:
    context = click.Context(main)
    for name, text in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert text == command.get_short_help_str(limit=1000)


def test_the_page_of_metrics_has_every_metric() -> None:
    text = page("metrics.md")
    assert [each.name for each in DEFINITIONS if f"| `{each.name}` |" not in text] == []


def test_the_page_of_options_says_defaults() -> None:
    text = page("options.md")
    for row in (
        r"\| `blocked_limit` \| seconds .+ Default: `30.0`\. \|",
        r"\| `mailbox_limit` \| calls .+ Default: `10000`\. \|",
        r"\| `max_retries` \| attempts .+ Default: `3`\. \|",
    ):
        assert re.search(row, text)


def test_a_function_whose_docstring_lists_no_options_is_refused() -> None:
    with pytest.raises(ValueError, match="lists no options"):
        GENERATED.options("runtime.draw_tree")


def test_the_page_of_variables_has_those_that_the_code_reads() -> None:
    read = {f"{TLS_VARIABLE}_{file}" for file in FILE_VARIABLES}
    for folder in ("actors", "runtime", "understudy"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if "UNDERSTUDY_" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    read |= {node.value} & {*re.findall(r"\AUNDERSTUDY_[A-Z_]+\Z", node.value)}
    listed = re.findall(r"^\| `(UNDERSTUDY_\w+)` \|", page("environment.md"), re.MULTILINE)
    assert sorted(listed) == sorted(read)
