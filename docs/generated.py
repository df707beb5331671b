"""Tables of the reference, made from the code when the site is built: options, commands, metrics.

A page has `{generated}` blocks: the first word says what, the rest of which:

    ```{generated} options runtime.open_node
    ```

`MAKERS` turns such a line into Markdown, without Sphinx, so that tests and llms.txt can do so too.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from runtime.command_line.main import COMMANDS, main
from runtime.metrics.definitions import DEFINITIONS

OPTION = re.compile(r"^- `(\w+)`: (.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


def imported(path: str) -> Any:
    """The object of a dotted path. What a package has under a name goes before a module of it."""
    first, *rest = path.split(".")
    found, place = importlib.import_module(first), first
    for name in rest:
        place = f"{place}.{name}"
        found = getattr(found, name, None) or importlib.import_module(place)
    return found


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table of Markdown. Line ends within a cell become spaces."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )


def shown(default: object) -> str:
    """A default value as a reader would write it."""
    if default is inspect.Parameter.empty or "NOTHING" in repr(default) or default is None:
        return ""
    if repr(default).startswith(("mappingproxy", "Factory", "<")):
        return ""
    if type(default) is int and default >= 1024 * 1024 and default % (1024 * 1024) == 0:
        return f"{default // (1024 * 1024)} MiB"
    return f"`{default!r}`"


def options(path: str) -> str:
    """The options that a function or a class of options takes: name, default, what it is."""
    of = imported(path)
    parameters = inspect.signature(of).parameters
    text = inspect.getdoc(of) or ""
    found = OPTION.findall(text)
    if not found:
        raise ValueError(f"{path} lists no options in its docstring")
    rows = []
    for name, meaning in found:
        parameter = parameters.get(name)
        default = shown(parameter.default) if parameter else ""
        rows.append((f"`{name}`", f"{meaning.strip()} Default: {default}." if default else meaning))
    return table(("option", "what it is"), rows)


def commands(_: str) -> str:
    """All commands of `understudy`, with arguments and options, from click."""
    context = click.Context(main, info_name="understudy")
    parts = []
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        parts.extend(_command(command, click.Context(command, info_name=name, parent=context)))
    return "\n\n".join(parts)


def _command(command: click.Command, context: click.Context) -> list[str]:
    parts = [f"## {context.command_path}", _paragraphs(command.help or "")]
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts.append(f"```text\n{usage}\n```")
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        # Arguments are in the line of usage.
        if record is None or "--help" in record[0] or isinstance(parameter, click.Argument):
            continue
        rows.append((f"`{record[0]}`", record[1]))
    if rows:
        parts.append(table(("option", "what it does"), rows))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            parts.extend(_command(inner, click.Context(inner, info_name=name, parent=context)))
    return parts


def _paragraphs(text: str) -> str:
    """A help text as Markdown: click marks paragraphs that keep their lines with a backspace."""
    parts = []
    for part in inspect.cleandoc(text).split("\n\n"):
        if part.startswith("\b"):
            parts.append("```text\n" + part.lstrip("\b\n") + "\n```")
        else:
            parts.append(" ".join(part.split()).replace("<", "\\<").replace("*", "\\*"))
    return "\n\n".join(parts)


def metrics(_: str) -> str:
    """All metrics of a node."""
    rows = [
        (f"`{each.name}`", each.kind, ", ".join(f"`{label}`" for label in each.labels), each.text)
        for each in DEFINITIONS
    ]
    return table(("metric", "kind", "labels", "what it says"), rows)


MAKERS: dict[str, Callable[[str], str]] = {
    "options": options,
    "commands": commands,
    "metrics": metrics,
}


def markdown(line: str) -> str:
    """What a block with this line is replaced by."""
    kind, _, rest = line.partition(" ")
    return MAKERS[kind](rest.strip())


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx: replace the blocks in the sources before they are read."""

    def replace(app: Any, name: str, source: list[str]) -> None:
        source[0] = expanded(source[0])

    def outdated(app: Any, env: Any, *changed: set[str]) -> list[str]:
        # What the blocks are made from may have changed although the page has not.
        return [
            name for name in env.found_docs if "{generated}" in Path(env.doc2path(name)).read_text()
        ]

    app.connect("source-read", replace)
    app.connect("env-get-outdated", outdated)
    return {"parallel_read_safe": True}


def expanded(text: str) -> str:
    """A page with its blocks replaced."""
    return re.sub(
        r"^```\{generated\} (.*)\n```$", lambda found: markdown(found[1]), text, flags=re.MULTILINE
    )
