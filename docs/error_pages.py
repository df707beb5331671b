"""A page for each error, and their index, made from actors/errors.md when the site is built.

`understudy explain` prints the same text, so the two cannot differ. The pages are sources of the
site like those that people write; `docs/failures/errors/` is not under version control.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from runtime.command_line.explain import (
    COMMENT,
    PAGES,
    class_of,
    first_sentence,
    groups,
    module_of,
    sections,
)


def pages() -> dict[str, str]:
    """The Markdown of each page, by the name of its error."""
    return {name: page(name, text) for name, text in sections().items()}


def page(name: str, text: str) -> str:
    """The page of one error."""
    # From actors/errors.md to docs/failures/errors/NAME.md.
    text = COMMENT.sub("", text).replace("](../docs/", "](../../")
    text = re.sub(r"^```python$", "For example:\n\n```python", text, count=1, flags=re.MULTILINE)
    parts = [f"# {name}", kind(name), text, f"`understudy explain {name}` prints this page."]
    return "\n\n".join(part for part in parts if part) + "\n"


def kind(name: str) -> str:
    """Where an error stands among the others."""
    cls = class_of(name)
    if cls is None:
        return "An answer over HTTP, and no class: `error` in its body has this name."
    above = [linked(base.__name__) for base in cls.__bases__]
    below = [linked(one.__name__) for one in cls.__subclasses__() if one.__name__ in sections()]
    said = f"`{module_of(name)}.{name}`, a subclass of {' and '.join(above)}."
    return f"{said} Its subclasses: {', '.join(below)}." if below else said


def linked(name: str) -> str:
    """The name of a class, as a link where it has a page."""
    return f"[{name}]({name}.md)" if name in sections() else f"`{name}`"


def index() -> str:
    """All errors by what is certain, with a line each."""
    parts = []
    for heading, names in groups().items():
        rows = [
            f"| [{name}](errors/{name}.md) | {first_sentence(sections()[name])} |" for name in names
        ]
        parts.append("\n".join([f"## {heading}\n", "| error | what it says |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def write(folder: Path) -> None:
    """Write all pages into a folder. Files that need no change keep their times."""
    folder.mkdir(exist_ok=True)
    wanted = {folder / f"{name}.md": text for name, text in pages().items()}
    for path in set(folder.glob("*.md")) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


INDEX = "failures/errors"
"""The page that has the index, in place of an empty block `{errors}`."""


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx: write the pages before it looks for its sources, then the index."""

    def made(app: Any) -> None:
        write(Path(app.srcdir) / PAGES)

    def replace(app: Any, name: str, source: list[str]) -> None:
        if name == INDEX:
            source[0] = expanded(source[0])

    def outdated(app: Any, env: Any, *changed: set[str]) -> list[str]:
        return [INDEX]

    app.connect("builder-inited", made)
    app.connect("source-read", replace)
    app.connect("env-get-outdated", outdated)
    return {"parallel_read_safe": True}


def expanded(text: str) -> str:
    """The page with the index, with its block replaced."""
    before, _, after = text.partition("```{errors}\n```\n")
    return f"{before}{index()}\n{after}"
