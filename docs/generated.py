"""Tables of the reference, made from the code when the site is built: options, commands, metrics,
formats.

A page has `{generated}` blocks: the first word says what, the rest of which:

    ```{generated} options runtime.open_node
    ```

`MAKERS` turns such a line into Markdown, without Sphinx, so that tests and llms.txt can do so too.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from runtime.command_line.main import COMMANDS, main
from runtime.metrics.definitions import DEFINITIONS
from runtime.store import file
from runtime.wire import tags as wire_tags
from runtime.wire.frames import LIMITS, UNPROVEN, Kind
from runtime.wire.handshake import VERSIONS

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
    """All metrics of a node, a table for each group."""
    parts = []
    for group, those in itertools.groupby(DEFINITIONS, lambda each: each.group):
        rows = [
            (f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.text)
            for one in those
        ]
        parts += [
            f"## {group.capitalize()}",
            table(("metric", "kind", "labels", "what it says"), rows),
        ]
    return "\n\n".join(parts)


FRAMES = {
    "CALL": "ask for a call",
    "REPLY": "its value",
    "ERROR": "the error with which it ended",
    "CANCEL": "take a call back",
    "SEND": "a call one way, without an answer",
    "FORGET": "calls that have ended, so that what was recorded of them may go",
    "ITEM": "one item of a stream",
    "CREDIT": "room for more items of a stream",
    "BEGIN": "a large frame follows in parts",
    "PART": "one part of it",
    "ABANDON": "its rest will not come",
    "EMPTY": "stands where a frame was taken back",
    "ARENA": "shared memory of the sender, for processes of one host",
    "LOAN": "segments that lie in shared memory",
    "RETURNED": "a loan that is used no more",
    "PING": "is the peer there?",
    "PONG": "yes",
    "ACK": "the number up to which frames have arrived",
    "GOODBYE": "the sender leaves, or the link ends",
    "HELLO": "versions, cluster, name and incarnation of the dialling side",
    "CHALLENGE": "the same of the accepting side, and what is to be proven",
    "PROOF": "the proof of the dialling side",
    "WELCOME": "the proof of the accepting side",
    "REFUSED": "why the connection is closed",
    "RESUME": "from which number on frames are sent again",
}
TAGS = {
    "ARGUMENTS": "arguments of a call, with names",
    "SPILLED": "a value beside the message",
    "SEGMENT": "the number of a segment: bytes that stand after the control part",
    "ARRAY": "a numpy array: type, shape, segment",
    "SCALAR": "a numpy scalar",
    "MESSAGE": "an object of a class with `@message`: import path, fields",
    "ENUM": "a member of an enum: import path, name",
    "TUPLE": "a tuple",
    "PAIRS": "a dictionary with keys that CBOR does not have",
    "SET": "a set",
    "FROZENSET": "a frozenset",
    "DATETIME": "a datetime",
    "DATE": "a date",
    "TIME": "a time",
    "TIMEDELTA": "a timedelta",
    "DECIMAL": "a Decimal",
    "IDENTIFIER": "a UUID",
}
KEYS = {
    "runtime.membership.cluster_record.CLUSTER_KEY": ("", "the name of the cluster"),
    "runtime.membership.members.PREFIX": ("NODE", "the record of a node, as long as its lease"),
    "runtime.membership.members.PREFIX+runtime.membership.expulsions.MARK": (
        "NODE",
        "a node that is shut out",
    ),
    "runtime.membership.restart_intents.NAMES": (
        "NAME",
        "where the actor of a name is, and its epoch",
    ),
    "runtime.membership.restart_intents.SUPERVISED": ("NAME", "who restarts the actor of a name"),
    "runtime.membership.restart_intents.CHILDREN": (
        "SUPERVISOR/ID",
        "a child that was added at run time",
    ),
    "runtime.membership.restart_intents.STATIC": ("SUPERVISOR", "the children that it began with"),
    "runtime.membership.restart_intents.CANDIDATES": (
        "NAME/NODE",
        "a node that would run a singleton",
    ),
    "runtime.membership.restart_intents.LAST_ENDS": (
        "NAME",
        "how a child ended that is not restarted",
    ),
    "runtime.membership.saved_states.STATES": ("NAME", "the state that an actor has saved"),
    "runtime.membership.saved_states.PARTS": ("NAME/...", "the parts of a large state"),
    "runtime.membership.saved_states.LISTS": ("NAME", "which of these parts there are"),
    "runtime.membership.saved_states.FENCES": ("NAME/EPOCH", "an epoch that may save no more"),
    "runtime.membership.saved_states.APPLIED": (
        "NAME/...",
        "calls whose effect a state has, with answers",
    ),
    "runtime.membership.journals.HEADS": ("JOURNAL", "the journal of a map"),
    "runtime.membership.journals.PARTS": ("JOURNAL/...", "the items that are done"),
    "runtime.membership.journals.DRIVERS": ("JOURNAL", "the program that drives the map"),
    "runtime.membership.journals.TIMES": ("JOURNAL", "when it was last used"),
    "runtime.groups.memberships.PREFIX": ("GROUP/...", "a member of a group"),
    "runtime.logs.archive.ABOUT": ("NODE", "a node whose last log lines are kept"),
    "runtime.logs.archive.LINES": ("NODE/SLOT", "these lines"),
    "runtime.logs.archive.ENDED": ("NODE", "how its last actors ended"),
    "runtime.rendezvous.overview.PREFIX": (
        "JOB/...",
        "the rounds of an elastic job, and its store",
    ),
}


def frames(_: str) -> str:
    """All kinds of frames. A kind without a text here is an error."""
    rows = [
        (f"{kind.value}", f"`{kind.name}`", "yes" if kind < 32 else "", FRAMES[kind.name])
        for kind in Kind
    ]
    return table(("number", "kind", "numbered and sent again", "what it carries"), rows)


def tags(_: str) -> str:
    """The CBOR tags of the codec."""
    rows = [
        (f"{getattr(wire_tags, name):_}".replace("_", ","), text) for name, text in TAGS.items()
    ]
    return table(("tag", "what it marks"), rows)


def limits(_: str) -> str:
    """The bounds of frames, before and after the proof."""
    rows = [
        (name, *(f"{getattr(one, name):,}" for one in (UNPROVEN, LIMITS)))
        for name in ("control", "frame", "segments")
    ]
    return table(("at most", "before the proof", "after it"), rows)


def prefix(paths: str) -> str:
    """What keys begin with, from the constants of the code."""
    return "".join(imported(path) for path in paths.split("+"))


def keys(_: str) -> str:
    """The keys in the store of a cluster."""
    rows = [(f"`{prefix(paths)}{rest}`", text) for paths, (rest, text) in KEYS.items()]
    return table(("key", "what it has"), rows)


def versions(_: str) -> str:
    """The versions of the protocol that this one speaks."""
    least, most = VERSIONS
    spoken = f"version {most}" if least == most else f"the versions {least} to {most}"
    return f"This version speaks {spoken} of the protocol."


def tables_of_the_file(_: str) -> str:
    """The tables of the store in a file."""
    return f"```sql\n{file.TABLES.strip()}\n```"


MAKERS: dict[str, Callable[[str], str]] = {
    "options": options,
    "commands": commands,
    "metrics": metrics,
    "frames": frames,
    "tags": tags,
    "limits": limits,
    "keys": keys,
    "versions": versions,
    "tables-of-the-file": tables_of_the_file,
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
