"""Nothing that user code raises ends more than its call, or its actor: every kind of exception, in
every place.
"""

from __future__ import annotations

import gc
import itertools
import logging
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
import trio

from actors.errors import ActorDiedError, ActorStartError, CallError, RemoteError
from runtime.node import internals_of
from tests import forked_python
from tests.live_pair import Pair
from tests.node.hostile_errors import (
    ALL,
    KINDS,
    Bystander,
    HarmfulClass,
    HarmfulEnd,
    Raiser,
)

IN_METHODS = ["fail", "fail_beside", "fail_in_thread", "fail_in_nursery"]
BY_OTHERS = ["fail_in_thread", "fail_in_nursery"]
"""Where trio looks at the exception before it reaches the runtime, and what its attributes raise
then (SystemExit) comes out instead.
"""

IN_STREAMS = ["fail_at_once", "fail_later", "fail_in_closing"]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    # Tracebacks of thousands of deliberate errors; that they can be written is tested once, below.
    caplog.set_level(logging.CRITICAL, "understudy")


@pytest.fixture(autouse=True)
def _reported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a `__del__` raises goes nowhere but to where Python reports such things, and nothing
    else is reported there.

    pytest's own report must not see it. The collector may call a `__del__` in any moment, so also
    while an exception is handled whose `__class__` raises. pytest then looks at both, as the one
    has the other for its context, and what that raises ends the whole session.
    """
    others: list[str] = []

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.object is not HarmfulEnd.__del__:
            others.append(f"{unraisable.err_msg}: {unraisable.exc_type.__qualname__}")

    monkeypatch.setattr(sys, "unraisablehook", report)
    yield
    # While they come here: those in cycles would otherwise be collected in a later test.
    gc.collect()
    assert others == []


def test_what_a_del_raises_while_another_error_is_handled_ends_no_test() -> None:
    cycle = HarmfulEnd()
    cycle.itself = cycle  # type: ignore[attr-defined]
    del cycle
    with suppress(HarmfulClass):
        try:
            raise HarmfulClass
        finally:
            gc.collect()


@pytest.fixture
async def bystanders(pair: Pair, where: str) -> AsyncIterator[list[Bystander]]:
    """One on each node, asked again after everything: neither node has lost anything."""
    asked = [await pair.here.options(on=name).spawn(Bystander) for name in ("here", "there")]
    yield asked
    with trio.fail_after(60):
        for bystander in asked:
            assert await bystander.ping() == "pong"
        assert [member.name for member in pair.here.members()] == ["here", "there"]


@pytest.mark.parametrize("name", IN_METHODS)
async def test_a_method_that_raises_ends_its_call_and_nothing_else(
    pair: Pair, where: str, bystanders: list[Bystander], name: str
) -> None:
    for kind in ALL:
        if name == "fail_in_thread" and kind not in KINDS:
            continue
        if name == "fail_in_nursery" and kind == "kept Cancelled":
            # trio takes it for the end of that nursery's own cancellation.
            continue
        with trio.fail_after(60):
            raiser = await pair.here.options(on=where).spawn(Raiser)
            with pytest.raises(RemoteError):
                await getattr(raiser, name)(kind)
            assert await bystanders[0].ping() == await bystanders[1].ping() == "pong", kind
            if name not in BY_OTHERS:
                assert await raiser.ping() == "pong", kind


@pytest.mark.parametrize("name", IN_STREAMS)
async def test_a_stream_that_raises_ends_itself_and_nothing_else(
    pair: Pair, where: str, bystanders: list[Bystander], name: str
) -> None:
    raiser = await pair.here.options(on=where).spawn(Raiser)
    for kind in ALL:
        with trio.fail_after(60):
            stream = getattr(raiser, name)(kind)
            if name == "fail_in_closing":
                assert await anext(stream) == 1
                await stream.aclose()
            else:
                with pytest.raises(CallError):
                    async for _ in stream:
                        pass
            assert (
                await bystanders[0].ping()
                == await bystanders[1].ping()
                == await raiser.ping()
                == "pong"
            ), kind


async def test_what_is_raised_behind_a_reference_ends_its_call_and_nothing_else(
    pair: Pair, where: str, bystanders: list[Bystander]
) -> None:
    raiser = await pair.here.options(on=where).spawn(Raiser)
    for kind in ALL:
        with trio.fail_after(60):
            reference = await raiser.fail.remote(kind)
            with pytest.raises(RemoteError):
                await reference.fetch()
            assert await raiser.ping() == "pong", kind


async def test_what_is_raised_in_a_one_way_call_is_only_logged(
    pair: Pair, where: str, bystanders: list[Bystander]
) -> None:
    raiser = await pair.here.options(on=where).spawn(Raiser)
    for kind in ALL:
        with trio.fail_after(60):
            await raiser.fail.send(kind)
            assert await raiser.ping() == "pong", kind


async def test_what_is_raised_two_calls_away_ends_these_calls_and_nothing_else(
    pair: Pair, where: str, bystanders: list[Bystander]
) -> None:
    raiser = await pair.here.options(on=where).spawn(Raiser)
    relay = await pair.here.options(on="there").spawn(Raiser)
    for kind in ALL:
        with trio.fail_after(60):
            with pytest.raises(RemoteError):
                await relay.fail_through(raiser, kind)
            assert await relay.ping() == "pong", kind


@pytest.mark.parametrize("place", ["__init__", "on_start"])
async def test_a_start_that_raises_ends_the_start_and_nothing_else(
    pair: Pair, where: str, bystanders: list[Bystander], place: str
) -> None:
    for kind in ALL:
        if place == "__init__" and kind not in KINDS:
            continue
        with trio.fail_after(60):
            with pytest.raises(ActorStartError) as caught:
                await pair.here.options(on=where, name="raiser").spawn(Raiser, place, kind)
            assert not isinstance(caught.value, RemoteError)
            assert await bystanders[0].ping() == await bystanders[1].ping() == "pong", kind


async def test_an_on_stop_that_raises_ends_its_actor_and_nothing_else(
    pair: Pair, where: str, bystanders: list[Bystander]
) -> None:
    for kind in ALL:
        with trio.fail_after(60):
            raiser = await pair.here.options(on=where, name="raiser").spawn(Raiser, "on_stop", kind)
            await pair.here.stop(raiser)
            assert await bystanders[0].ping() == await bystanders[1].ping() == "pong", kind


@pytest.mark.parametrize("after", [0, 0.001])
async def test_a_task_that_raises_ends_its_actor_and_nothing_else(
    pair: Pair, where: str, bystanders: list[Bystander], after: float
) -> None:
    for kind in ALL:
        with trio.fail_after(60):
            raiser = await pair.here.options(on=where, name="raiser").spawn(Raiser)
            await raiser.begin_task(kind, after)
            reason = await internals_of(pair.here).spawner.watch_address(raiser.address)
            assert reason.kind == "raised", (kind, reason)
            assert await bystanders[0].ping() == await bystanders[1].ping() == "pong", kind


async def test_a_hook_that_raises_ends_its_actor_and_nothing_else(
    pair: Pair, where: str, bystanders: list[Bystander]
) -> None:
    for kind in ALL:
        with trio.fail_after(60):
            watched = await pair.here.options(on=where).spawn(Bystander)
            raiser = await pair.here.options(on=where, name="raiser").spawn(
                Raiser, "on_ended", kind
            )
            await raiser.follow(watched)
            await pair.here.stop(watched)
            reason = await internals_of(pair.here).spawner.watch_address(raiser.address)
            assert reason.kind == "raised", (kind, reason)
            assert await bystanders[0].ping() == await bystanders[1].ping() == "pong", kind


async def test_a_method_that_exits_ends_its_actor_and_nothing_else(
    pair: Pair, where: str, bystanders: list[Bystander]
) -> None:
    with trio.fail_after(60):
        for name in IN_METHODS[:3]:
            raiser = await pair.here.options(on=where).spawn(Raiser)
            with pytest.raises((RemoteError, ActorDiedError)):
                await getattr(raiser, name)("SystemExit")
            assert (
                await internals_of(pair.here).spawner.watch_address(raiser.address)
            ).kind == "raised"
        with pytest.raises(ActorStartError, match="SystemExit"):
            await pair.here.options(on=where).spawn(Raiser, "on_start", "SystemExit")


@pytest.mark.cluster
@pytest.mark.parametrize("place", ["fail", "on_start"])
async def test_an_isolated_actor_that_raises_ends_its_call_or_itself_and_nothing_else(
    pair: Pair, place: str
) -> None:
    bystander = await pair.there.spawn(Bystander)
    node = pair.here.options(isolation="process", name="raiser")
    with trio.fail_after(60):
        if place == "fail":
            raiser = await node.spawn(Raiser)
            for kind in ALL:
                with pytest.raises(RemoteError):
                    await raiser.fail(kind)
            assert await raiser.ping() == "pong"
        else:
            for kind in (
                "KeyboardInterrupt",
                "Panic",
                "HarmfulClass",
                "kept Cancelled",
                "HarmfulText",
            ):
                with pytest.raises(ActorStartError):
                    await node.spawn(Raiser, place, kind)
        assert await bystander.ping() == "pong"


async def test_every_exception_can_be_logged(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "understudy")
    raiser = await pair.here.spawn(Raiser)
    # In turn, since ten lines of one method and one class of errors are written in a minute.
    methods = itertools.cycle([raiser.fail, raiser.fail_beside, raiser.fail_in_thread])
    for kind, fail in zip(ALL, methods, strict=False):
        caplog.clear()
        with trio.fail_after(60):
            await fail.send(kind)
            await raiser.ping()
        assert "raised in a one-way call" in caplog.text, kind


INTERRUPTED = """
import os, signal, sys, threading, time
import trio
from actors import Actor, method
from runtime import open_node

class Busy(Actor):
    @method
    async def wait(self):
        await trio.sleep_forever()

    @method
    async def compute(self):
        while True:
            pass

    @method
    async def swallow(self):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            await trio.sleep_forever()

    @method
    async def group(self):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            while True:
                pass

async def main():
    async with open_node("alone", secret="s") as node:
        busy = await node.spawn(Busy)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        await getattr(busy, sys.argv[1])()

try:
    trio.run(main)
except BaseException as error:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    print(type(error).__name__)
"""


@pytest.mark.cluster
@pytest.mark.parametrize("busy", ["wait", "compute", "swallow", "group"])
def test_an_interrupt_from_the_keyboard_ends_the_process_whatever_its_actors_do(busy: str) -> None:
    done = forked_python.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), busy],
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.split() == ["KeyboardInterrupt"], done.stderr
    assert done.returncode in (0, -signal.SIGINT)
    # The interrupt is no mistake of the actor that it met.
    assert "cannot go on" not in str(done.stderr)
