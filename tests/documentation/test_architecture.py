"""The walks of docs/design/architecture.md are those of real calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from actors import Actor, Reference, method
from actors.method import BoundMethod
from runtime.links.link import Link
from runtime.references.manager import ReferenceManager
from runtime.references.table import state_of
from tests.house import ROOT
from tests.live_pair import Pair


class Keeper(Actor):
    """Takes anything."""

    @method
    async def keep(self, value: object) -> None:
        """Take a value."""


@contextmanager
def walked(
    carries: Callable[[Any], bool], first: Callable[..., Any], last: Callable[..., Any]
) -> Iterator[list[str]]:
    """The files of the product with a function that gets what is looked for as an argument, in the
    order of their calls: from one of `first` on to the next one of `last`.
    """
    files: list[str] = []
    state = "before"

    def on_call(frame: FrameType, event: str, _: object) -> None:
        nonlocal state
        if event != "call" or state == "after":
            return
        if state == "before" and frame.f_code is not first.__code__:
            return
        state = "after" if frame.f_code is last.__code__ else "between"
        path = Path(frame.f_code.co_filename)
        if ROOT in path.parents and any(map(carries, frame.f_locals.values())):
            files.append(path.relative_to(ROOT).as_posix())

    sys.setprofile(on_call)
    try:
        yield files
    finally:
        sys.setprofile(None)
    assert state == "after"
    # Once each.
    files[:] = dict.fromkeys(files)


async def test_the_arguments_of_a_call_pass_five_files_to_the_link(pair: Pair) -> None:
    keeper = await pair.here.options(on="there").spawn(Keeper)
    # Finds the way, which the next call has.
    await keeper.keep(0)
    mark = b"the argument"

    def carries(value: Any) -> bool:
        """The argument itself, encoded, or within other arguments."""
        if isinstance(value, bytes | bytearray | memoryview):
            return mark in bytes(value)
        return isinstance(value, tuple | list) and any(map(carries, value))

    with walked(carries, BoundMethod.__call__, Link.post) as files:
        await keeper.keep(mark)
    assert files == [
        "actors/method.py",
        "runtime/calls/call_sender.py",
        "runtime/wire/codec.py",
        "runtime/calls/protocol.py",
        "runtime/links/link.py",
    ]


async def test_an_arriving_reference_passes_three_files_behind_the_codec(pair: Pair) -> None:
    keeper = await pair.here.options(on="there").spawn(Keeper)
    reference = await pair.here.put("a value")
    identity = state_of(reference).identity

    def carries(value: Any) -> bool:
        """The identity, as in a message or decoded, or the state that has it."""
        if isinstance(value, tuple | list):
            return (*value[:3],) == identity or any(map(carries, value))
        return getattr(value, "identity", None) == identity

    with walked(carries, ReferenceManager.read, Reference.__init__) as files:
        await keeper.keep(reference)
    # The claim, which is for the owner, is queued meanwhile.
    files.remove("runtime/references/protocol.py")
    assert files == [
        "runtime/references/manager.py",
        "runtime/references/table.py",
        "actors/reference.py",
    ]
