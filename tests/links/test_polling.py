"""Polling in the reader's place: while a connection spins, a task that would park receives what it
waits for by itself. Over real sockets; whether the spin is on is set by the tests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

import attrs
import pytest
import trio
import trio.testing

from actors import Actor, method
from actors.errors import CallTimeoutError, OutcomeUnknownError, ProtocolError
from actors.options import CallOptions
from runtime import open_node
from runtime.environment import Process, SystemEnvironment
from runtime.links.encryption import TlsMode
from runtime.links.link import Link
from runtime.links.session import Session
from runtime.links.spin import SMALL_RECEIVE, Spin
from runtime.links.spinner import Spinner
from runtime.links.tls import TlsConnection
from runtime.links.transports import SocketConnection
from runtime.logs.service import logs_of
from runtime.node import Node, internals_of
from runtime.testing import Platform
from runtime.wire.frames import Buffer, Frame, Kind, encode_frame


class AlwaysOn(Spin):
    """A spin that is on, and lasts as long as the test says."""

    lasts = 1e9

    def __init__(self) -> None:
        super().__init__()
        self.seconds = self.lasts
        self.due = float("inf")

    def on_slept(self, now: float, waited: float, size: int) -> None:
        self.resting = 0

    on_hit = on_slept


@attrs.define
class Polled:
    """A connection that spins, its reader, and the socket at its other end."""

    connection: SocketConnection
    peer: socket.socket
    spinner: Spinner
    acted: list[bytes] = attrs.field(factory=list)
    """What tasks have received that polled."""
    read: list[object] = attrs.field(factory=list)
    """What the reader has received, or met."""

    async def reader(self) -> None:
        """Read until the end, as a link does."""
        try:
            while data := await self.connection.receive():
                self.read.append(data)
            self.read.append(b"")
        except (OSError, trio.ClosedResourceError) as error:
            self.read.append(error)

    async def poll(self, count: int = 1) -> None:
        """Poll until so many pieces have come in all."""
        await self.spinner.poll(lambda: len(self.acted) >= count)


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Polled]:
    monkeypatch.setattr("runtime.links.spinner.MOST_ROUNDS", 1 << 40)
    monkeypatch.setattr("runtime.links.spinner.Spin", AlwaysOn)
    ours, theirs = socket.socketpair()
    spinner = Spinner(lambda: 0.0)
    found = Polled(SocketConnection(ours, spinner), theirs, spinner)
    found.connection.act = found.acted.append
    yield found
    theirs.close()
    ours.close()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def test_the_task_that_polls_gets_what_arrives_and_the_reader_all_else(
    polled: Polled,
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polled.reader)
        await turns()
        for number in range(1, 4):
            nursery.start_soon(polled.poll, 1)
            await turns()
            polled.peer.send(b"polled")
            await turns()
            assert polled.acted == [b"polled"]
            polled.peer.send(b"read")
            await turns()
            assert polled.read == number * [b"read"]
            polled.acted.clear()
        polled.peer.close()
    assert polled.read[-1] == b""


async def test_the_rest_of_a_large_message_is_left_to_the_reader(polled: Polled) -> None:
    """Which receives it straight into its place: each part that is polled is copied once more."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polled.reader)
        await turns()
        nursery.start_soon(polled.poll, 10)
        await turns()
        polled.peer.send(bytes(SMALL_RECEIVE + 1))
        await turns()
        polled.peer.send(b"rest")
        await turns()
        polled.peer.close()
    assert list(map(len, polled.acted)) == [SMALL_RECEIVE + 1]
    assert polled.read == [b"rest", b""]


async def test_the_reader_parks_meanwhile_and_one_task_polls_at_a_time(polled: Polled) -> None:
    looks: list[trio.lowlevel.Task] = []
    look = polled.connection._receive

    def watched(size: int) -> bytes:
        looks.append(trio.lowlevel.current_task())
        return look(size)

    polled.connection._receive = watched
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polled.reader)
        await turns()
        nursery.start_soon(polled.poll)
        await turns()
        looks.clear()
        with trio.testing.assert_no_checkpoints():
            await polled.poll()
        await turns(100)
        assert len(set(looks)) == 1
        polled.peer.send(b"polled")
        await turns()
        looks.clear()
        await turns(100)
        assert len(set(looks)) == 1
        nursery.cancel_scope.cancel()
    assert polled.acted == [b"polled"]


async def test_cancelling_the_task_that_polls_loses_nothing(polled: Polled) -> None:
    for number in range(50):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(polled.reader)
            await turns()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:
                    inner.start_soon(polled.poll, number + 1)
                    await turns(number % 3)
                    polled.peer.send(b"%d" % number)
                    scope.cancel()
            await turns()
            nursery.cancel_scope.cancel()
        assert [*polled.acted, *polled.read] == [b"%d" % number]
        polled.acted.clear()
        polled.read.clear()


async def test_cancelling_the_reader_ends_the_polling_with_its_connection(polled: Polled) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polled.reader)
        await turns()
        async with trio.open_nursery() as others:
            others.start_soon(polled.poll)
            await turns()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await turns()
                polled.connection.close()
    assert polled.spinner.current is None
    assert not polled.connection._relieved


@pytest.mark.parametrize("how", ["ended", "reset", "closed here"])
async def test_the_end_of_a_connection_ends_the_polling_and_the_reader_meets_it(
    polled: Polled, how: str
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polled.reader)
        await turns()
        nursery.start_soon(polled.poll)
        await turns()
        if how == "closed here":
            polled.connection.close()
        else:
            if how == "reset":
                # What it has not read when it closes makes the kernel reset the connection.
                polled.connection.send_some([b"unread"])
            polled.peer.close()
    assert not polled.acted
    (met,) = polled.read
    assert met == b"" or isinstance(met, (OSError, trio.ClosedResourceError))


async def test_an_interrupt_between_receiving_and_acting_ends_the_connection(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was received and not acted upon comes again over the next connection only."""

    def interrupt(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    async with trio.open_nursery() as nursery:
        nursery.start_soon(polled.reader)
        await turns()
        monkeypatch.setattr(SocketConnection, "_note_found", interrupt)
        polled.peer.send(b"lost")
        with pytest.raises(KeyboardInterrupt):
            await polled.poll()
        with contextlib.suppress(BrokenPipeError):
            polled.peer.send(b"after it")
        polled.peer.close()
    assert not polled.acted
    (met,) = polled.read
    assert isinstance(met, (OSError, trio.ClosedResourceError))


async def test_polling_lasts_as_long_as_the_spin_and_then_the_reader_sleeps(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.links.spinner.MOST_ROUNDS", 10)
    missed: list[int] = []
    monkeypatch.setattr(AlwaysOn, "on_slept", lambda spin, now, waited, size: missed.append(size))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polled.reader)
        await turns()
        await polled.poll()
        await trio.testing.wait_all_tasks_blocked()
        assert polled.spinner.current is None
        polled.peer.send(b"late")
        await turns()
        assert polled.read == [b"late"]
        assert missed == [4]
        nursery.cancel_scope.cancel()
    assert not polled.acted


async def test_a_spin_that_stops_during_a_poll_is_not_polled_again(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader, which has no turn between two polls of a task, sleeps then."""

    def stop(spin: AlwaysOn, now: float, waited: float, size: int) -> None:
        spin.seconds = 0.0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(polled.reader)
        await turns()
        monkeypatch.setattr(AlwaysOn, "on_hit", stop)
        polled.peer.send(b"first")
        await polled.poll(1)
        assert polled.acted == [b"first"]
        # What was found is reported at the next wait. From then on nothing is received here.
        await polled.poll(2)
        polled.peer.send(b"second")
        await polled.poll(2)
        assert polled.acted == [b"first"]
        await trio.testing.wait_all_tasks_blocked()
        assert polled.spinner.current is None
        assert polled.read == [b"second"]
        nursery.cancel_scope.cancel()


async def test_what_was_found_is_acted_upon_before_the_machine_learns_of_it(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[tuple[int, int]] = []

    def report(spin: AlwaysOn, now: float, waited: float, size: int) -> None:
        reported.append((size, len(polled.acted)))

    monkeypatch.setattr(AlwaysOn, "on_hit", report)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polled.reader)
        await turns()
        for count in range(1, 4):
            polled.peer.send(count * b".")
            await polled.poll(count)
            # That of the last one is still to come.
            assert reported == [(size, size) for size in range(1, count)]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("why", ["nobody acts", "may not spin", "nothing spins"])
async def test_nothing_is_polled_that_must_not_be(polled: Polled, why: str) -> None:
    if why == "nobody acts":
        polled.connection.act = None
    async with trio.open_nursery() as nursery:
        if why != "nothing spins":
            nursery.start_soon(polled.reader)
            await turns()
        polled.spinner.may_spin = lambda: why != "may not spin"
        with trio.testing.assert_no_checkpoints():
            await polled.poll()
        nursery.cancel_scope.cancel()


# Calls between two nodes of one event loop, whose connections always spin.

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="of the reader")


class Passes(trio.abc.Instrument):
    """Counts the passes of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


class Server(Actor):
    def __init__(self) -> None:
        self.cancelled = 0
        self.counted = 0

    @method
    async def count(self) -> int:
        self.counted += 1
        return self.counted

    @method
    async def slow(self) -> int:
        self.counted += 1
        await trio.sleep(0.05)
        return self.counted

    @method(concurrent=True)
    async def wait(self) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.cancelled += 1
            raise

    @method
    async def stopped(self) -> int:
        return self.cancelled


class Ahead(Actor):
    """A service whose calls go ahead of all others, like the store's."""

    def __init__(self) -> None:
        self.numbers = 0

    @method(concurrent=True)
    async def number(self) -> int:
        self.numbers += 1
        return self.numbers


@attrs.define
class Scene:
    """A caller's node, an actor on another, and the caller's link to that."""

    here: Node
    server_node: Node
    server: Server
    link: Link
    there: Link
    """The other end of `link`."""


class Elsewhere(SystemEnvironment):
    """As on another machine, so that the nodes use TCP."""

    def process(self) -> Process:
        return Process("elsewhere", os.getpid(), "")


@pytest.fixture(params=["off", "require"], ids=["plain", "over TLS"])
async def scene(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Scene]:
    tls: TlsMode = request.param
    elsewhere = Platform(environment=Elsewhere())
    monkeypatch.setenv("UNDERSTUDY_SPIN", "on")
    monkeypatch.setattr("runtime.links.spinner.Spin", AlwaysOn)
    monkeypatch.setattr(AlwaysOn, "lasts", 1e-3)
    async with (
        open_node("here", listen="127.0.0.1:0", secret="polled", tls=tls) as here,
        open_node(
            "there",
            join=here.address,
            listen="127.0.0.1:0",
            secret="polled",
            tls=tls,
            platform=elsewhere,
        ) as there,
    ):
        server = await here.options(on="there").spawn(Server)
        await server.count()
        (link,) = (one for one in internals_of(here).links.values() if one.peer.name == "there")
        (back,) = (one for one in internals_of(there).links.values() if one.peer.name == "here")
        assert isinstance(link.connection, TlsConnection) is (tls == "require")
        yield Scene(here, there, server, link, back)


async def test_a_call_takes_half_the_passes_of_the_event_loop(scene: Scene) -> None:
    calls, fewest = 10, 1 << 40
    for _ in range(500):
        passes = Passes()
        trio.lowlevel.add_instrument(passes)
        for _ in range(calls):
            await scene.server.count()
        trio.lowlevel.remove_instrument(passes)
        fewest = min(fewest, passes.count)
        # More than two where the reader of one of the nodes wakes another task for each frame. So
        # it is, too, whenever the machine lets this process wait for longer than the spin lasts:
        # such samples are not counted.
        if fewest < 1.75 * calls:
            break
    assert fewest < 1.75 * calls


async def test_answers_reach_their_own_callers_whichever_task_polls(scene: Scene) -> None:
    answers: list[int] = []

    async def caller() -> None:
        for _ in range(100):
            answers.append(await scene.server.count())

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(caller)
    assert sorted(answers) == list(range(2, 502))


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> Scene:
    """The same, with a spin that does not end."""
    monkeypatch.setattr("runtime.links.spinner.MOST_ROUNDS", 1 << 40)
    for link in (scene.link, scene.there):
        assert link.socket is not None
        link.socket._spin.seconds = 1e9
    return scene


async def test_a_worker_that_polls_runs_what_goes_ahead_of_all(endless: Scene) -> None:
    # No other worker is woken for it, and no later call wakes one: there is none but this.
    host = internals_of(endless.server_node).endpoint.host
    host.add_system("ahead", Ahead(), ahead=True)
    caller = internals_of(endless.here).endpoint
    identity = internals_of(endless.server_node).endpoint.identity
    service = caller.system_handle(Ahead, "ahead", *identity, CallOptions(timeout=10.0))
    await endless.server.count()
    await turns(40)
    socket_there = endless.there.socket
    assert socket_there is not None
    assert socket_there._relieved, "a worker polls"
    assert await service.number() == 1
    await endless.server.count()
    assert await service.number() == 2


async def stopped(server: Server, count: int) -> None:
    """Wait until so many calls of `wait` were cancelled at the actor."""
    while await server.stopped() < count:  # noqa: ASYNC110  asked of the actor
        await trio.lowlevel.checkpoint()


async def test_a_cancelled_call_that_polls_is_withdrawn(endless: Scene) -> None:
    polled = count = 0
    with trio.fail_after(60):
        # A machine that pauses this process ends the spin, and then the call does not poll.
        while polled < 5:
            count += 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(endless.server.wait)
                await turns(40)
                assert endless.link.socket is not None
                polled += endless.link.socket._relieved
                nursery.cancel_scope.cancel()
            await stopped(endless.server, count)


async def test_a_call_that_polls_expires(endless: Scene) -> None:
    # Its deadline travels: what its actor's node says then is not heard here.
    endless.link._handlers = {**endless.link._handlers, Kind.ERROR: lambda link, frame: None}
    with trio.fail_after(10):
        with pytest.raises(CallTimeoutError):
            await endless.server.wait.options(timeout=0.02)()
        await stopped(endless.server, 1)


async def test_a_call_that_outlasts_the_spin_is_answered(scene: Scene) -> None:
    for number in range(2, 5):
        assert await scene.server.slow() == number


async def test_calls_survive_a_connection_that_breaks_while_they_poll(scene: Scene) -> None:
    for number in range(2, 12):
        async with trio.open_nursery() as nursery:

            async def slow(number: int = number) -> None:
                assert await scene.server.slow() == number

            nursery.start_soon(slow)
            await turns(number)
            scene.link.drop_connection()


async def test_a_breach_of_the_protocol_ends_the_link_and_not_the_task_that_polls(
    scene: Scene,
) -> None:
    def refuse(link: Link, frame: Frame) -> None:
        raise ProtocolError("as the test wants")

    for _ in range(20):
        await scene.server.count()
    scene.link._handlers = {**scene.link._handlers, Kind.REPLY: refuse}
    with pytest.raises(OutcomeUnknownError):
        await scene.server.count()


async def test_an_interrupt_in_the_task_that_polls_loses_no_frame(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if a signal had raised it, whose handler runs on top of whatever runs.
    monkeypatch.setattr(
        "runtime.links.link.is_interrupt", lambda error: isinstance(error, KeyboardInterrupt)
    )
    handle = scene.link._handlers[Kind.REPLY]
    interrupts = 0

    def interrupt(link: Link, frame: Frame) -> None:
        nonlocal interrupts
        handle(link, frame)
        if trio.lowlevel.current_task() is task and interrupts < 5:
            interrupts += 1
            raise KeyboardInterrupt

    task = trio.lowlevel.current_task()
    scene.link._handlers = {**scene.link._handlers, Kind.REPLY: interrupt}
    answered = interrupted = 0
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:

            async def others() -> None:
                nonlocal answered
                for _ in range(20):
                    await scene.server.count()
                    answered += 1

            for _ in range(5):
                nursery.start_soon(others)
            while interrupts < 5 or answered < 100:
                try:
                    await scene.server.count()
                except KeyboardInterrupt:
                    interrupted += 1
    assert (interrupts, interrupted, answered) == (5, 5, 100)


async def test_ctrl_c_meets_neither_what_is_polled_nor_what_is_posted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, met = trio.lowlevel.current_task(), set[tuple[str, bool]]()

    def note(what: str) -> None:
        if trio.lowlevel.current_task() is task:
            met.add((what, trio.lowlevel.currently_ki_protected()))

    handle, keep = scene.link._handlers[Kind.REPLY], Session.keep

    def handled(link: Link, frame: Frame) -> None:
        note("handled")
        handle(link, frame)

    def kept(session: Session, buffers: tuple[Buffer, ...]) -> int:
        note("posted")
        return keep(session, buffers)

    scene.link._handlers = {**scene.link._handlers, Kind.REPLY: handled}
    monkeypatch.setattr(Session, "keep", kept)
    for _ in range(50):
        await scene.server.count()
    scene.link.post(encode_frame(Kind.EMPTY, b""))
    assert met == {("handled", True), ("posted", True)}
    assert not trio.lowlevel.currently_ki_protected()


async def test_frames_are_handled_in_the_context_of_the_reader(scene: Scene) -> None:
    seen: set[str] = set()
    handle = scene.link._handlers[Kind.REPLY]

    def watched(link: Link, frame: Frame) -> None:
        seen.add(VARIABLE.get())
        handle(link, frame)

    scene.link._handlers = {**scene.link._handlers, Kind.REPLY: watched}
    VARIABLE.set("of the caller")
    for _ in range(50):
        await scene.server.count()
    assert seen == {"of the reader"}


class Caller(Actor):
    """Calls an actor of another node, and polls for the answers."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @method
    async def call(self, count: int) -> None:
        for _ in range(count):
            await self.server.count()
        logging.getLogger("users").warning("called")


async def test_what_handling_frames_logs_is_no_line_of_the_actor_that_polls(scene: Scene) -> None:
    caller = await scene.here.options(name="caller").spawn(Caller, scene.server)
    handle = scene.link._handlers[Kind.REPLY]
    node, polled = internals_of(scene.here), 0

    def tell(link: Link, frame: Frame) -> None:
        nonlocal polled
        running = node.endpoint.host.workers.running.get(trio.lowlevel.current_task())
        polled += running is not None and running.cell.address.name == "caller"
        logging.getLogger("users").warning("handled")
        handle(link, frame)

    scene.link._handlers = {**scene.link._handlers, Kind.REPLY: tell}
    await caller.call(50)
    assert polled > 10, "the task of the actor polls"
    answer = await logs_of(node.endpoint, scene.here.name, scene.here.incarnation).read()
    lines = [line for line in answer["lines"] if line["logger"] == "users"]
    assert len(lines) > 50
    assert {line["actor"] for line in lines if line["text"] == "handled"} == {""}
    assert [line["actor"] for line in lines if line["text"] == "called"] == ["caller"]
    answer = await logs_of(node.endpoint, "there", scene.server_node.incarnation).read()
    assert not [line for line in answer["lines"] if line["text"] == "handled"]
