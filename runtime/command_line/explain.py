"""`understudy explain`: what an error means, from the pages of this version, without a network.

The text is actors/errors.md. It is read only here; the site makes a page for each error of it.
"""

from __future__ import annotations

import difflib
import json
import re
import textwrap
from importlib import import_module
from importlib.resources import files

import click

from actors import errors
from actors.errors import UnderstudyError

PAGES = "failures/errors"
"""Where the pages of the errors stand in the site."""

ELSEWHERE = {
    **dict.fromkeys(
        (
            "RendezvousError",
            "RendezvousTimeoutError",
            "RendezvousClosedError",
            "RendezvousFinishedError",
            "RendezvousGracefulExitError",
            "RendezvousMismatchError",
            "RendezvousConnectionError",
            "RendezvousStateError",
            "RoundOverError",
            "StoreTimeoutError",
        ),
        "runtime.rendezvous.parameters",
    ),
    **dict.fromkeys(
        ("ForkServerStartError", "ForkServerDiedError", "ProcessError"), "runtime.processes"
    ),
    "SimulationError": "runtime.simulation",
    "VirtualClusterError": "runtime.testing",
}
"""The modules of the explained errors that are not in `actors.errors`."""

GROUP = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^### (\w+)\n\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^```python\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```\w+\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)*([^)#]+)[^)]*\)")
WIDTH = 79
COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)


@click.command(epilog="Example:  understudy explain ActorNotFoundError        understudy explain")
@click.argument("error", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the text as JSON.")
def explain(error: str | None, as_json: bool) -> None:
    """Explain an ERROR by the name of its class: its cause, what is certain about your call, and
    what to do. Without ERROR: list all errors.
    """
    texts = sections()
    if error is None:
        chosen = texts
    else:
        # With or without its module, as tracebacks and logs show it; in any case.
        names = {name.lower(): name for name in texts}
        wanted = error.rpartition(".")[2].rstrip(":")
        if wanted.lower() not in names:
            near = difflib.get_close_matches(wanted.lower(), names, n=1)
            hint = f"did you mean {names[near[0]]}?" if near else "`understudy explain` lists them"
            raise click.BadParameter(f"no error of Understudy is called {wanted!r}; {hint}")
        chosen = {names[wanted.lower()]: texts[names[wanted.lower()]]}
    if as_json:
        facts = [
            {
                "error": name,
                "derives_from": _bases(name),
                "text": plain(text),
                "page": page_of(name),
            }
            for name, text in chosen.items()
        ]
        click.echo(json.dumps(facts if error is None else facts[0], indent=2))
    elif error is None:
        width = max(map(len, chosen))
        for name, text in chosen.items():
            click.echo(f"{name:{width}}  {first_sentence(plain(text))}")
    else:
        for name, text in chosen.items():
            bases = _bases(name)
            kind = f"a subclass of {' and '.join(bases)}" if bases else "an answer over HTTP"
            click.echo(f"{name}, {kind}\n\n{plain(text)}\n\nIn the documentation: {page_of(name)}")


def sections() -> dict[str, str]:
    """The Markdown below the heading of each class, in the order of the file."""
    text = (files("actors") / "errors.md").read_text(encoding="utf-8")
    return {name: body.strip() for name, body in SECTION.findall(text)}


def groups() -> dict[str, list[str]]:
    """The names below each heading of the file, by what is certain."""
    text = (files("actors") / "errors.md").read_text(encoding="utf-8")
    return {
        heading: [name for name, _ in SECTION.findall(body)]
        for heading, body in GROUP.findall(text)
    }


def page_of(name: str) -> str:
    """The address of an error's page within the site."""
    return f"{PAGES}/{name}.html"


def first_sentence(text: str) -> str:
    """What a section begins with, on one line."""
    return " ".join(re.split(r"(?<=\.)\s", text, maxsplit=1)[0].split())


def plain(text: str) -> str:
    """A section as people read it in a terminal: examples and what they print are indented, lines
    fit, and a link is its text with the page.
    """
    parts = []
    for number, part in enumerate(BLOCK.split(COMMENT.sub("", text))):
        if number % 2:
            parts.append(textwrap.indent(part.rstrip(), "    "))
        else:
            parts += map(_filled, part.strip().split("\n\n")) if part.strip() else []
    return "\n\n".join(parts)


def _filled(paragraph: str) -> str:
    """A paragraph, or the items of a list, in lines that fit a terminal."""
    lines = []
    for item in re.split(r"\n(?=- )", LINK.sub(r"\1: \2", paragraph)):
        lines += textwrap.wrap(
            " ".join(item.split()),
            WIDTH,
            subsequent_indent="  " if item.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _bases(name: str) -> list[str]:
    """The names of its base classes; none of what is no class, but an error of an HTTP server."""
    cls = class_of(name)
    return [] if cls is None else [base.__name__ for base in cls.__bases__]


def module_of(name: str) -> str:
    """The module that users import an error's class from."""
    return ELSEWHERE.get(name, errors.__name__)


def class_of(name: str) -> type[UnderstudyError] | None:
    """The class of an error; None for an error of an HTTP server, which has none."""
    found = getattr(import_module(module_of(name)), name, None)
    assert found is None or issubclass(found, UnderstudyError)
    return found
