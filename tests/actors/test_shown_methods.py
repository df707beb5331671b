"""What a prompt shows of a method of a handle: the signature without the actor, the docstring, the
name; at each door.
"""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import AsyncIterator
from typing import Any

import pytest

import runtime.blocking
from actors import Actor, method
from actors.method import BoundMethod, BoundStream
from runtime.testing import VirtualCluster


class Printer(Actor):
    @method
    async def print(self, text: str, copies: int = 1) -> int:
        """Print so many copies."""
        return copies

    @method
    def bare(self, *texts: str) -> None:
        pass

    @method
    async def pages(self, first: int) -> AsyncIterator[str]:
        """The pages from there on."""
        yield str(first)


def check(printer: Any) -> None:
    shown = {
        "print": ("(text: str, copies: int = 1) -> int", "Print so many copies."),
        "bare": ("(*texts: str) -> None", None),
        "pages": ("(first: int) -> AsyncIterator[str]", "The pages from there on."),
    }
    for name, (signature, documentation) in shown.items():
        bound = getattr(printer, name)
        # Annotations are texts here, and signatures show them as such.
        assert str(inspect.signature(bound)).replace("'", "") == signature
        assert bound.__doc__ == documentation
        assert bound.__name__ == name
        page = pydoc.plain(pydoc.render_doc(bound))
        assert f"{name}(" in page
        assert "self" not in page
        assert (documentation or name) in page
    assert {"print", "bare", "pages"} <= set(dir(printer))
    assert "self" in str(inspect.signature(Printer.print))
    assert "print(self" in pydoc.plain(pydoc.render_doc(Printer))


async def test_of_trio(cluster: VirtualCluster) -> None:
    printer: Any = await cluster.node.options(name="printer").spawn(Printer)
    check(printer)
    # The classes have their own.
    assert str(BoundMethod.__doc__).startswith("A method of one actor")
    assert str(BoundStream.__doc__).startswith("A generator method of one actor")
    assert BoundMethod.__name__ == "BoundMethod"
    with pytest.raises(AttributeError):
        printer.print.__doc__ = "another"
    unknown: Any = await cluster.node.lookup("printer")
    assert unknown.print.__name__ == "print"


async def test_of_an_actor_whose_class_is_not_known(cluster: VirtualCluster) -> None:
    printer: Any = await cluster.node.options(name="printer").spawn(Printer)
    unknown: Any = type(printer)(printer._caller, printer.address, None)
    assert unknown.print.__name__ == "print"
    assert unknown.print.__doc__ is None
    assert "args" in str(inspect.signature(unknown.print))
    assert await unknown.print("text", copies=2) == 2


@pytest.mark.cluster
def test_of_blocking_programs() -> None:
    with runtime.blocking.open_local_cluster(0) as cluster:
        printer: Any = cluster.spawn(Printer)
        check(printer)
        for name in ("send", "remote", "future", "delay"):
            with pytest.raises(AttributeError, match=r"is a stream: for item in handle\.method"):
                getattr(printer.pages, name)
        assert list(printer.pages(3)) == ["3"]
