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
from runtime.calls.deadlines import wake
from runtime.calls.dispatch import Dispatch
from runtime.calls.protocol import CallRequest
from runtime.calls.reply_handler import ReplyHandler
from runtime.hosting.cell import Invocation
from runtime.links.link import Link
from runtime.references.manager import ReferenceManager
from runtime.references.table import state_of
from runtime.wire.frames import Frame
from tests.house import ROOT
from tests.live_pair import Pair


class Keeper(Actor):
    """Takes anything."""

    @method
    async def keep(self, value: object) -> None:
        """Take a value."""


class Echo(Actor):
    """Answers with what it gets."""

    @method
    async def echo(self, value: bytes) -> bytes:
        """Return the value."""
        return arrived(value)


def arrived(value: bytes) -> bytes:
    """The last stop of a call on its way to the method."""
    return value


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
        "runtime/links/outbound.py",
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
    assert files == [
        "runtime/references/manager.py",
        "runtime/references/table.py",
        "actors/reference.py",
    ]


async def test_a_frame_passes_eight_files_behind_the_link_and_five_back_to_it(
    pair: Pair,
) -> None:
    keeper = await pair.here.options(on="there").spawn(Echo)
    await keeper.echo(b"")
    mark = b"the argument"

    def carries(value: Any) -> bool:
        """The argument or the answer: encoded, decoded, or within what holds it."""
        if isinstance(value, bytes | bytearray | memoryview):
            return mark in bytes(value)
        if isinstance(value, Frame):
            return mark in bytes(value.control)
        if isinstance(value, Invocation | CallRequest):
            return any(map(carries, getattr(value, "args", ())))
        return isinstance(value, tuple | list) and any(map(carries, value))

    with walked(carries, Link.on_frames, arrived) as there:
        await keeper.echo(mark)
    assert [file for file in there if not file.startswith("tests/")] == [
        "runtime/links/link.py",
        "runtime/calls/dispatch.py",
        "runtime/wire/codec.py",
        "runtime/calls/protocol.py",
        "runtime/calls/incoming_calls.py",
        "runtime/hosting/cell.py",
        "runtime/hosting/host.py",
        "runtime/hosting/workers.py",
        "actors/method.py",
    ]
    with walked(carries, Dispatch.value, Link.post) as back:
        await keeper.echo(mark)
    assert back == [
        "runtime/calls/dispatch.py",
        "runtime/calls/replies.py",
        "runtime/wire/codec.py",
        "runtime/calls/protocol.py",
        "runtime/links/outbound.py",
    ]
    with walked(carries, ReplyHandler.on_reply, wake) as home:
        await keeper.echo(mark)
    assert home == [
        "runtime/calls/reply_handler.py",
        "runtime/wire/codec.py",
    ]
