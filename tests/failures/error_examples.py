"""The examples of actors/errors.md: run as they stand, and compared with what they show."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import trio

import actors
from actors import errors
from actors.errors import UnderstudyError
from examples import errors as prelude
from runtime import open_node
from runtime.command_line.explain import EXAMPLE, sections
from runtime.environment import first_leaf
from runtime.links.encryption import Tls
from runtime.membership.expulsion_service import expulsions_of
from runtime.node import Node, internals_of
from runtime.testing import Faults, Platform
from tests.authority import Authority, node_uri

SECRET = b"a secret of at least 16 bytes"
SHOWN = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANSWER = re.compile(r"^```console\n(?:\$ .*\n)+(\{.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = sections()
EXAMPLES = {
    name: found[1] for name, text in SECTIONS.items() if (found := EXAMPLE.search(text)) is not None
}


def shown(name: str) -> str:
    """What the section of an error shows as raised or answered, on one line."""
    found = SHOWN.search(SECTIONS[name]) or ANSWER.search(SECTIONS[name])
    assert found is not None, f"the section of {name} shows no output"
    return " ".join(found[1].split())


def said(error: object) -> str:
    """The end of the traceback of an error, on one line; of another object its text."""
    if not isinstance(error, BaseException):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())


def is_shown(name: str, text: str) -> bool:
    """True if the section shows this text. `...` stands for anything."""
    return _matches(shown(name), text)


def _matches(pattern: str, text: str) -> bool:
    parts = map(re.escape, pattern.split("..."))
    return re.fullmatch(".*?".join(parts), text, re.DOTALL) is not None


def check_shown(name: str, text: str) -> None:
    """Raises AssertionError with both texts, if the section shows another."""
    assert is_shown(name, text), f"{text!r} is not what actors/errors.md shows: {shown(name)!r}"


@attrs.frozen
class Operator:
    """What an operator does, or what happens to a node."""

    node: Node

    async def expel(self, name: str) -> None:
        """Expel a node, as `understudy expel` does."""
        await expulsions_of(
            internals_of(self.node).endpoint, self.node.name, self.node.incarnation
        ).expel(name, False)

    async def end_lease(self, other: Node) -> None:
        """As if a node had not renewed its lease."""
        await internals_of(self.node).store.revoke(internals_of(other).registration.record.lease)

    async def give_name_away(self, handle: Any) -> None:
        """As if the actor's lease had ended while its node was only slow."""
        await internals_of(self.node).names.release(handle.address.name, handle.address.epoch)


def certificates(directory: Path) -> Any:
    """What makes a certificate for a node of a name, of the cluster's authority."""
    authority = functools.cache(lambda: Authority(directory / "ca"))

    def certificate(name: str) -> Tls:
        return authority().tls(node_uri(name), stem=name)

    return certificate


async def run(name: str, node: Node, directory: Path, more: Mapping[str, object]) -> object:
    """Run the example of an error, and return what it raises, or prints in place of that."""
    names: dict[str, Any] = {**vars(actors), **vars(prelude), "sys": sys, "trio": trio}
    names |= vars(errors) | {"contextlib": contextlib}
    names |= {"node": node, "directory": directory, "Faults": Faults, "Platform": Platform}
    names["__name__"] = "shop"
    names["open_node"] = functools.partial(open_node, secret=SECRET)
    names["certificate"] = certificates(directory)
    operator = Operator(node)
    for what in ("expel", "end_lease", "give_name_away"):
        names[what] = getattr(operator, what)
    names |= more
    exec(f"async def example():\n{textwrap.indent(EXAMPLES[name], '    ')}", names)
    printed: list[object] = []
    names["print"] = printed.append
    try:
        await names["example"]()
    except (UnderstudyError, ExceptionGroup) as error:
        return first_leaf(error)
    if printed:
        return printed[0]
    raise AssertionError(f"the example of {name} raises nothing")


def check_answer(name: str, body: dict[str, object]) -> None:
    """Raises AssertionError unless the section of an error shows this body of an answer."""
    found = ANSWER.search(SECTIONS[name])
    assert found is not None, f"the section of {name} shows no answer"
    expected = json.loads(found[1])
    assert expected.keys() == body.keys()
    assert [key for key in body if not _matches(str(expected[key]), str(body[key]))] == [], body
