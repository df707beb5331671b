"""Calls between live nodes: one set of promises, held on the caller's own node and on another."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from actors import Actor, RemoteError, RetryPolicy, message, method
from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    BadArgumentsError,
    CallTimeoutError,
    DeadlineExceededError,
    EncodeError,
    MailboxFullError,
    MethodNotFoundError,
    NotExecutedError,
    OutcomeUnknownError,
    ReplyEncodeError,
    SelfCallError,
    StoreUnavailableError,
)
from runtime.node import internals_of
from runtime.store.embedded_store import EmbeddedStore
from tests.live_pair import LONG_LEASE, Pair
from tests.waiting import until


@message
class OutOfStockError(Exception):
    """Registered: keeps its type on the way."""


class PrivateError(Exception):
    """Not registered: arrives as a RemoteError only."""


@message
@attrs.frozen
class Order:
    item: str
    count: int = 1


class Diary(Actor):
    """Writes down what happens to it; `seen` waits until something has."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.written = trio.Event()
        self.gate = trio.Event()

    def write(self, line: str) -> None:
        self.lines.append(line)
        self.written.set()
        self.written = trio.Event()

    @method(concurrent=True)
    async def seen(self, line: str) -> None:
        while line not in self.lines:
            await self.written.wait()

    @method(concurrent=True)
    async def read(self) -> list[str]:
        return self.lines

    @method(concurrent=True)
    async def open_gate(self) -> None:
        self.gate.set()


class Crashing(Actor):
    """Ends in the middle of its method."""

    @method
    async def crash(self) -> None:
        self.nursery.start_soon(self.fail)
        await trio.sleep_forever()

    async def fail(self) -> None:
        raise RuntimeError("boom")


class Worker(Diary):
    """What the tests of calls call."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.failures = 0
        self.kept: Any = None
        self.released = threading.Event()

    @method
    async def echo(self, value: object) -> object:
        return value

    @method
    async def add(self, first: int, second: int = 1) -> int:
        return first + second

    @method
    async def fail(self, kind: str) -> None:
        if kind == "key":
            raise KeyError("no such key")
        if kind == "system":
            raise FileNotFoundError(2, "not there", "name.txt")
        if kind == "unicode":
            b"\xff".decode()
        if kind == "registered":
            raise OutOfStockError("bolts", 3)
        if kind == "unsendable":
            raise ValueError(threading.Lock())
        if kind == "group":
            raise ExceptionGroup("two at once", [ValueError("one"), TypeError("two")])
        raise PrivateError("secretive", 7)

    @method
    async def wait(self) -> None:
        self.write("waiting")
        self.write(str(trio.current_effective_deadline()))
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.write("cancelled")
            raise

    @method
    async def deadline(self) -> float:
        return trio.current_effective_deadline()

    @method
    async def wait_at_gate(self, line: str = "passed") -> str:
        self.write("waiting")
        await self.gate.wait()
        self.write(line)
        return line

    @method
    async def finish_what_it_began(self) -> None:
        with trio.CancelScope(shield=True):
            self.write("began")
            await self.gate.wait()
            self.write("finished")
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self.write("cancelled")
            raise

    @method
    def block(self) -> str:
        self.released.wait(5)
        return threading.current_thread().name

    @method
    def thread_name(self) -> str:
        return threading.current_thread().name

    @method(concurrent=True)
    async def release(self) -> None:
        self.released.set()

    @method
    async def enter(self, number: int) -> int:
        self.inside += 1
        most = self.inside
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        self.inside -= 1
        self.write(str(number))
        return most

    @method(concurrent=True)
    async def meet(self, count: int) -> int:
        self.inside += 1
        self.write(f"{self.inside} are here")
        await self.seen(f"{count} are here")
        return self.inside

    @method
    async def keep(self, value: object) -> None:
        self.kept = value

    @method
    async def kept_value(self) -> object:
        return self.kept

    @method
    async def give_and_change(self) -> list[int]:
        self.kept = [1]
        return self.kept

    @method
    async def give_buffer(self, size: int) -> object:
        self.kept = bytearray(b"a" * size)
        return self.kept

    @method
    async def overwrite_buffer(self) -> None:
        self.kept[:] = b"b" * len(self.kept)

    @method
    async def unsendable(self) -> object:
        return threading.Lock()

    @method(idempotent=True)
    async def fail_times(self, times: int) -> int:
        self.failures += 1
        if self.failures <= times:
            raise OutOfStockError("not yet")
        return self.failures

    @method
    async def note(self, line: str) -> None:
        self.write(line)

    @method
    async def call_self(self) -> None:
        await self.handle.echo(1)

    @method
    async def call_self_properly(self) -> int:
        return await self.add(1, 2)

    @method
    async def crash(self) -> None:
        async def explode() -> None:
            raise RuntimeError("boom")

        self.nursery.start_soon(explode)
        await trio.sleep_forever()


class Relay(Diary):
    """Calls others on behalf of its callers."""

    @method
    async def ask(self, worker: Worker, value: object) -> object:
        return await worker.echo(value)

    @method
    async def make_wait(self, worker: Worker) -> None:
        try:
            await worker.wait()
        except trio.Cancelled:
            self.write("cancelled")
            raise

    @method
    async def deadline_of(self, worker: Worker) -> float:
        return await worker.deadline()

    @method
    async def fetch(self, reference: object) -> object:
        return await reference.fetch()  # type: ignore[attr-defined]

    @method
    async def fail_through(self, worker: Worker) -> None:
        await worker.fail("registered")

    @method
    async def not_found_inside(self) -> None:
        await self.node.lookup("nobody of that name")


@pytest.fixture
async def worker(pair: Pair, where: str) -> Worker:
    return await pair.here.options(name="worker", on=where).spawn(Worker)


async def test_a_call_returns_the_methods_value(worker: Worker) -> None:
    with trio.fail_after(60):
        assert await worker.add(2, 3) == 5
        assert await worker.add(2) == 3
        assert await worker.add(first=2, second=40) == 42


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**70),
        1.5,
        "ä\0",
        b"raw",
        bytes(200_000),
        [1, [2]],
        (1, (2, "x")),
        {"a": {"b": 1}},
        {1, 2},
        Order("nut", 3),
        [Order("x")],
    ],
    ids=lambda value: type(value).__name__,
)
async def test_values_come_back_equal_and_of_their_own_type(worker: Worker, value: object) -> None:
    with trio.fail_after(60):
        back = await worker.echo(value)
    assert back == value
    assert type(back) is type(value)


async def test_a_builtin_exception_keeps_its_type_and_brings_the_remote_traceback(
    worker: Worker,
) -> None:
    with trio.fail_after(60), pytest.raises(KeyError) as caught:
        await worker.fail("key")
    error = caught.value
    assert isinstance(error, RemoteError)
    assert error.args == ("no such key",)
    assert error.remote_type == "builtins:KeyError"
    assert 'raise KeyError("no such key")' in error.remote_traceback
    assert str(error) == "'no such key'"
    assert any("test_calls.py" in note for note in error.__notes__)
    assert (error.actor, error.method, error.outcome, error.attempts) == (
        "worker",
        "fail",
        "raised",
        1,
    )


async def test_an_operating_system_error_keeps_what_it_carries(worker: Worker) -> None:
    with trio.fail_after(60), pytest.raises(FileNotFoundError) as caught:
        await worker.fail("system")
    assert isinstance(caught.value, RemoteError)
    assert (caught.value.errno, caught.value.strerror, caught.value.filename) == (
        2,
        "not there",
        "name.txt",
    )


async def test_a_builtin_exception_with_a_constructor_of_its_own_arrives(worker: Worker) -> None:
    with trio.fail_after(60), pytest.raises(UnicodeDecodeError) as caught:
        await worker.fail("unicode")
    assert isinstance(caught.value, RemoteError)
    assert "invalid start byte" in str(caught.value)


async def test_a_registered_exception_keeps_its_type_and_arguments(worker: Worker) -> None:
    with trio.fail_after(60), pytest.raises(OutOfStockError) as caught:
        await worker.fail("registered")
    assert isinstance(caught.value, RemoteError)
    assert caught.value.args == ("bolts", 3)


async def test_an_unregistered_exception_arrives_as_a_remote_error_only(worker: Worker) -> None:
    with trio.fail_after(60), pytest.raises(RemoteError) as caught:
        await worker.fail("private")
    assert not isinstance(caught.value, PrivateError)
    assert caught.value.remote_type.endswith(":PrivateError")
    assert "secretive" in str(caught.value)
    assert "secretive" in caught.value.remote_traceback


async def test_an_exception_whose_arguments_cannot_be_sent_still_arrives(worker: Worker) -> None:
    with trio.fail_after(60), pytest.raises(ValueError, match="lock") as caught:
        await worker.fail("unsendable")
    assert isinstance(caught.value, RemoteError)


async def test_an_exception_group_arrives_with_all_tracebacks(worker: Worker) -> None:
    with trio.fail_after(60), pytest.RaisesGroup(ValueError, TypeError) as caught:
        await worker.fail("group")
    assert isinstance(caught.value, RemoteError)
    assert "ValueError: one" in caught.value.remote_traceback
    assert "TypeError: two" in caught.value.remote_traceback


async def test_an_actor_whose_method_raised_goes_on(worker: Worker) -> None:
    with trio.fail_after(60):
        for kind in ("key", "private", "group"):
            with pytest.raises(RemoteError):
                await worker.fail(kind)
        assert await worker.add(1) == 2


async def test_an_error_raised_two_calls_away_keeps_its_type(pair: Pair, worker: Worker) -> None:
    relay = await pair.there.spawn(Relay)
    with trio.fail_after(60), pytest.raises(OutOfStockError) as caught:
        await relay.fail_through(worker)
    assert isinstance(caught.value, RemoteError)


async def test_a_refusal_that_a_method_met_is_not_taken_for_a_refusal_of_the_call(
    pair: Pair, where: str
) -> None:
    relay = await pair.here.options(on=where).spawn(Relay)
    with trio.fail_after(60), pytest.raises(RemoteError) as caught:
        await relay.not_found_inside()
    assert not isinstance(caught.value, ActorNotFoundError)
    assert caught.value.remote_type.endswith("ActorNotFoundError")


async def test_the_method_sees_the_callers_deadline_and_is_cancelled_at_it(worker: Worker) -> None:
    with trio.fail_after(60):
        with trio.move_on_after(0.2) as scope:
            deadline = trio.current_effective_deadline()
            await worker.wait()
        assert scope.cancelled_caught
        await worker.seen("cancelled")
        seen = float((await worker.read())[1])
    assert deadline <= seen < deadline + 1


async def test_a_callers_own_deadline_ends_the_call_as_trio_does_and_never_with_an_error_of_ours(
    worker: Worker,
) -> None:
    for _ in range(20):
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.005):
            await worker.wait()
        # The last one has gone from the mailbox: behind others a call with so little time may be
        # turned away.
        await worker.echo(1)


@pytest.mark.parametrize("retry", [None, RetryPolicy(), RetryPolicy(repeat_unknown=True)])
async def test_a_callers_own_deadline_ends_the_call_as_trio_does_where_the_method_noticed_it_first(
    pair: Pair, worker: Worker, retry: RetryPolicy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = internals_of(pair.here).endpoint.caller
    post = caller.post

    def post_with_less_time(call: Any, route: Any, request: Any) -> None:
        """As if the clock of the other node ran fast, or this loop stood still for a while."""
        deadline, request.deadline = request.deadline, request.deadline - 0.1
        post(call, route, request)
        request.deadline = deadline

    monkeypatch.setattr(caller, "post", post_with_less_time)
    with trio.fail_after(60):
        with trio.move_on_after(0.3) as scope:
            await worker.options(retry=retry).wait()
        assert scope.cancelled_caught
        await worker.seen("cancelled")


async def test_a_call_whose_actor_cannot_be_looked_up_while_the_store_is_away_did_not_run(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await pair.here.options(name="sought", on="there").spawn(Worker)
    address = worker.address
    # As a handle from before the actor has moved.
    lost = internals_of(pair.here).endpoint.make_handle(
        attrs.evolve(address, incarnation=1), Worker
    )

    async def away(*arguments: object) -> None:
        await trio.lowlevel.checkpoint()
        raise StoreUnavailableError("away, by the test")

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedStore, "transaction", away)
        with pytest.raises(
            NotExecutedError,
            match="sought could not be looked up, so it may still be running: away",
        ):
            await lost.deadline()
    assert await lost.deadline() == float("inf")


async def test_without_a_deadline_the_method_has_none(worker: Worker) -> None:
    assert await worker.deadline() == float("inf")


async def test_a_deadline_reaches_methods_two_calls_away(pair: Pair, worker: Worker) -> None:
    relay = await pair.there.spawn(Relay)
    with trio.fail_after(60):
        deadline = trio.current_effective_deadline()
        assert deadline <= await relay.deadline_of(worker) < deadline + 1


async def test_the_deadline_of_one_call_does_not_stay_for_the_next(worker: Worker) -> None:
    with trio.fail_after(60):
        await worker.echo(1)
    assert await worker.deadline() == float("inf")


async def test_cancelling_the_caller_cancels_the_method(worker: Worker) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.wait)
            await worker.seen("waiting")
            nursery.cancel_scope.cancel()
        await worker.seen("cancelled")
        assert await worker.add(1) == 2


async def test_cancellation_reaches_methods_two_calls_away(pair: Pair, worker: Worker) -> None:
    relay = await pair.there.spawn(Relay)
    with trio.fail_after(60):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(relay.make_wait, worker)
                await worker.seen("waiting")
                scope.cancel()
        await worker.seen("cancelled")
        await relay.seen("cancelled")


async def test_a_call_cancelled_while_it_waits_for_its_turn_never_runs(worker: Worker) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.wait_at_gate)
            await worker.seen("waiting")
            with trio.CancelScope() as scope:
                scope.cancel()
                await worker.note("must not happen")
            with trio.move_on_after(0.01):
                await worker.note("must not happen either")
            await worker.open_gate()
        await worker.note("last")
        assert [line for line in await worker.read() if "must" in line] == []


async def test_a_shielded_section_of_a_method_is_finished_after_its_caller_has_gone(
    worker: Worker,
) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.finish_what_it_began)
            await worker.seen("began")
            nursery.cancel_scope.cancel()
        # The caller is free at once; the method is not.
        await worker.open_gate()
        await worker.seen("cancelled")
        assert await worker.read() == ["began", "finished", "cancelled"]


async def test_a_plain_method_runs_in_a_thread_and_the_node_answers_others_meanwhile(
    pair: Pair, where: str, worker: Worker
) -> None:
    other = await pair.here.options(on=where).spawn(Worker)
    answers: list[str] = []

    async def block() -> None:
        answers.append(await worker.block())

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(block)
            for number in range(50):
                assert await other.echo(number) == number
            assert answers == []
            await worker.release()
    assert answers != [threading.current_thread().name]


async def test_a_plain_method_takes_its_turn(worker: Worker) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.wait_at_gate)
            await worker.seen("waiting")
            nursery.start_soon(worker.thread_name)
            nursery.start_soon(worker.note, "after")
            assert "after" not in await worker.read()
            await worker.open_gate()


async def test_one_message_runs_at_a_time_and_all_callers_are_answered(worker: Worker) -> None:
    seen: list[int] = []

    async def call(number: int) -> None:
        seen.append(await worker.enter(number))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(call, number)
    assert seen == [1] * 200


async def test_concurrent_methods_run_beside_each_other_and_beside_the_one_whose_turn_it_is(
    worker: Worker,
) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.wait_at_gate)
            await worker.seen("waiting")
            async with trio.open_nursery() as inner:
                for _ in range(20):
                    inner.start_soon(worker.meet, 20)
            await worker.open_gate()


async def test_calls_of_one_node_start_in_the_order_in_which_they_were_made(worker: Worker) -> None:
    with trio.fail_after(60):
        for number in range(300):
            if number % 3:
                await worker.note.send(str(number))
            else:
                await worker.note(str(number))
        await worker.note("end")
        assert await worker.read() == [*map(str, range(300)), "end"]


@LONG_LEASE
async def test_many_callers_on_both_nodes_lose_and_double_nothing(
    pair: Pair, worker: Worker
) -> None:
    elsewhere = await pair.there.lookup("worker", Worker)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(500):
                nursery.start_soon((worker if number % 2 else elsewhere).note, str(number))
        assert Counter(await worker.read()) == Counter(map(str, range(500)))


async def test_a_handle_inside_a_message_can_be_called_where_it_arrives(
    pair: Pair, worker: Worker
) -> None:
    relay = await pair.there.spawn(Relay)
    with trio.fail_after(60):
        assert await relay.ask(worker, "hello") == "hello"
        back = await relay.ask(worker, {"nested": [relay, worker]})
        assert isinstance(back, dict)
        assert back["nested"] == [relay, worker]
        assert await back["nested"][1].add(1) == 2


async def test_a_timeout_option_ends_the_call_with_a_named_error_and_cancels_the_method(
    worker: Worker,
) -> None:
    with trio.fail_after(60):
        with pytest.raises(CallTimeoutError) as caught:
            await worker.wait.options(timeout=0.3)()
        assert isinstance(caught.value, TimeoutError)
        assert (caught.value.actor, caught.value.method, caught.value.outcome) == (
            "worker",
            "wait",
            "unknown",
        )
        await worker.seen("cancelled")
        assert await worker.options(timeout=4).add(1) == 2


async def test_the_earlier_of_timeout_and_scope_ends_the_call(worker: Worker) -> None:
    with trio.fail_after(60), pytest.raises(trio.TooSlowError), trio.fail_after(0.02):
        await worker.wait.options(timeout=4)()


async def test_a_method_that_awaits_its_own_actor_is_refused_instead_of_hanging(
    worker: Worker,
) -> None:
    with trio.fail_after(60):
        with pytest.raises(RemoteError) as caught:
            await worker.call_self()
        assert caught.value.remote_type.endswith(SelfCallError.__name__)
        assert "self.echo" in str(caught.value)
        assert await worker.call_self_properly() == 3


async def test_an_argument_changed_after_the_call_does_not_change_at_the_actor(
    worker: Worker,
) -> None:
    value: list[object] = [1, {"a": [2]}, bytearray(100_000)]
    with trio.fail_after(60):
        await worker.keep(value[:2])
        value[0] = 99
        value[1]["a"].append(3)  # type: ignore[index]
        assert await worker.kept_value() == [1, {"a": [2]}]


async def test_a_buffer_changed_while_the_call_waits_does_not_change_at_the_actor(
    worker: Worker,
) -> None:
    buffer = bytearray(b"a" * 100_000)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.wait_at_gate)
            await worker.seen("waiting")
            await worker.keep.send(buffer)
            buffer[:] = b"b" * len(buffer)
            await worker.open_gate()
        kept = await worker.kept_value()
    assert bytes(kept) == b"a" * 100_000  # type: ignore[call-overload]


async def test_a_result_changed_by_the_caller_does_not_change_at_the_actor(worker: Worker) -> None:
    with trio.fail_after(60):
        given = await worker.give_and_change()
        given.append(2)
        assert await worker.kept_value() == [1]


async def test_a_buffer_that_the_actor_changes_after_returning_it_arrives_as_it_was(
    worker: Worker,
) -> None:
    size = 8 * 1024 * 1024  # more than a socket takes at once
    answers: list[bytes] = []

    async def ask() -> None:
        answers.append(bytes(await worker.give_buffer(size)))  # type: ignore[call-overload]

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await worker.read()
            nursery.start_soon(worker.overwrite_buffer)
        assert answers == [b"a" * size]


async def test_what_cannot_be_sent_is_refused_at_the_caller_with_the_path_to_it(
    worker: Worker,
) -> None:
    with trio.fail_after(60):
        with pytest.raises(EncodeError) as caught:
            await worker.echo({"a": [1, threading.Lock()]})
        assert caught.value.path == "value['a'][1]"
        with pytest.raises(EncodeError) as named:
            await worker.echo(value=threading.Lock())
        assert named.value.path == "value"
        assert await worker.add(1) == 2


async def test_a_result_that_cannot_be_sent_is_named(worker: Worker) -> None:
    with trio.fail_after(60):
        with pytest.raises(ReplyEncodeError, match=r"worker\.unsendable ran"):
            await worker.unsendable()
        assert await worker.add(1) == 2


async def test_arguments_that_do_not_fit_are_refused_unexecuted(worker: Worker) -> None:
    with trio.fail_after(60):
        with pytest.raises(BadArgumentsError, match="add"):
            await worker.add("too", "many", "arguments")  # type: ignore[call-arg, arg-type]
        with pytest.raises(BadArgumentsError):
            await worker.thread_name(1)  # type: ignore[call-arg]
        # Before anything is sent, and with the name of the parameter.
        with pytest.raises(BadArgumentsError, match="unexpected keyword argument 'secnod'"):
            worker.add(1, secnod=1)  # type: ignore[call-arg, unused-coroutine]
        with pytest.raises(BadArgumentsError, match="missing a required argument: 'first'"):
            worker.add.send()  # type: ignore[call-arg, unused-coroutine]
        assert await worker.add(1) == 2


async def test_a_method_that_is_not_there_is_named_with_those_that_are(
    pair: Pair, worker: Worker
) -> None:
    with pytest.raises(AttributeError, match="did you mean 'echo'"):
        worker.ecko  # type: ignore[attr-defined]  # noqa: B018
    untyped = attrs.evolve(worker.address, class_path="")
    anything = internals_of(pair.here).endpoint.make_handle(untyped)
    with trio.fail_after(60), pytest.raises(MethodNotFoundError, match=r"it offers:.*echo"):
        await anything.write("not marked")


async def test_a_one_way_call_is_made_and_its_error_logged_where_the_actor_runs(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    with trio.fail_after(60), caplog.at_level(logging.WARNING, "understudy"):
        await worker.note.send("one way")
        await worker.seen("one way")
        await worker.fail.send("key")
        assert await worker.add(1) == 2
    assert "worker.fail raised in a one-way call" in caplog.text


async def test_the_log_says_of_a_one_way_call_whether_it_may_have_run(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with trio.fail_after(60), caplog.at_level(logging.WARNING, "understudy"):
        crashing = await pair.there.options(name="crashing").spawn(Crashing)
        here = await pair.here.lookup("crashing", Crashing)
        # The first one runs when the actor ends, and the second one waits.
        await here.crash.send()
        await here.crash.send()
        await pair.there.wait_ended(crashing)
        await until(
            lambda: sorted(
                record.getMessage().partition(":")[0]
                for record in caplog.records
                if record.name == "understudy.calls"
            ),
            "both are logged",
            lambda lines: lines == ["a one-way call may have run", "a one-way call was not run"],
        )


async def test_an_idempotent_call_is_repeated_as_its_policy_says(worker: Worker) -> None:
    policy = RetryPolicy(max_retries=3, initial_delay=0.001, retry_on=(OutOfStockError,))
    with trio.fail_after(60):
        assert await worker.fail_times.options(retry=policy)(2) == 3


async def test_a_call_is_given_up_after_the_retries_that_its_policy_allows(worker: Worker) -> None:
    policy = RetryPolicy(max_retries=2, initial_delay=0.001, retry_on=(OutOfStockError,))
    with trio.fail_after(60):
        with pytest.raises(OutOfStockError) as caught:
            await worker.fail_times.options(retry=policy)(10)
        assert isinstance(caught.value, RemoteError)
        assert caught.value.attempts == 3
        assert await worker.fail_times(3) == 4


async def test_a_repeat_of_a_call_that_still_runs_is_attached_to_that_run(
    pair: Pair, where: str
) -> None:
    slow = await pair.here.options(on=where).spawn(Slow)
    policy = RetryPolicy(
        max_retries=1_000, initial_delay=0.001, max_delay=0.001, attempt_timeout=0.01
    )
    answers: list[int] = []

    async def read() -> None:
        answers.append(await slow.read.options(retry=policy)())

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            # Each attempt given up as too slow costs a token: several were made.
            budget = internals_of(pair.here).caller.budget(slow.name)
            await until(lambda: budget.tokens <= 6, "several attempts were made", every=0)
            await slow.open_gate()
        assert answers == [1]


async def test_a_call_that_may_have_run_is_not_made_again_unless_it_is_idempotent(
    pair: Pair, where: str
) -> None:
    slow = await pair.here.options(on=where).spawn(Slow)
    policy = RetryPolicy(max_retries=3, initial_delay=0.001, attempt_timeout=0.3)
    with trio.fail_after(60):
        with pytest.raises(CallTimeoutError, match=r"attempt_timeout of 0\.3 s") as caught:
            await slow.write.options(retry=policy)()
        assert caught.value.attempts == 1
        assert await slow.count() == 1


class Slow(Actor):
    """Counts the runs of its methods, which wait until the gate is opened."""

    def __init__(self) -> None:
        self.runs = 0
        self.gate = trio.Event()

    @method(idempotent=True)
    async def read(self) -> int:
        self.runs += 1
        await self.gate.wait()
        return self.runs

    @method
    async def write(self) -> None:
        self.runs += 1
        await self.gate.wait()

    @method(concurrent=True)
    async def open_gate(self) -> None:
        self.gate.set()

    @method(concurrent=True)
    async def count(self) -> int:
        return self.runs


@message
@attrs.frozen
class Vanished:
    """Can be sent, and nobody can find its class again."""


VANISHED = [Vanished]
del Vanished


class Haunted(Actor):
    """Returns what nobody can read."""

    @method
    async def ghost(self) -> object:
        return VANISHED[0]()

    @method
    async def alive(self) -> bool:
        return True


async def test_a_result_whose_class_cannot_be_found_ends_its_call_and_no_more(
    pair: Pair, where: str
) -> None:
    haunted = await pair.here.options(on=where).spawn(Haunted)
    with trio.fail_after(60):
        with pytest.raises(
            OutcomeUnknownError, match="Vanished is not known to the process that was to read it"
        ):
            await haunted.ghost()
        assert await haunted.alive()


async def test_calls_beyond_the_mailboxs_limit_are_refused_at_once(pair: Pair, where: str) -> None:
    worker = await pair.here.options(on=where, mailbox_limit=3).spawn(Worker)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.wait_at_gate)
            await worker.seen("waiting")
            for number in range(3):
                await worker.note.send(str(number))
            with pytest.raises(MailboxFullError, match="3 calls waiting"):
                await worker.note("one too many")
            await worker.open_gate()
        await worker.note("room again")
        assert await worker.read() == ["waiting", "passed", "0", "1", "2", "room again"]


async def test_calls_that_were_given_up_take_no_room_in_the_mailbox(pair: Pair, where: str) -> None:
    worker = await pair.here.options(on=where, mailbox_limit=3).spawn(Worker)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.wait_at_gate)
            await worker.seen("waiting")
            async with trio.open_nursery() as impatient:
                for _ in range(3):
                    impatient.start_soon(worker.note, "given up")
                await worker.read()
                impatient.cancel_scope.cancel()
            await worker.note.send("in time")
            await worker.open_gate()
        await worker.seen("in time")
        assert "given up" not in await worker.read()


async def test_a_call_whose_deadline_passes_in_the_mailbox_does_not_run(worker: Worker) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.wait_at_gate)
            await worker.seen("waiting")
            with pytest.raises((DeadlineExceededError, CallTimeoutError)):
                await worker.note.options(timeout=0.02)("too late")
            await worker.open_gate()
        await worker.note("end")
        assert "too late" not in await worker.read()


async def test_a_crash_ends_the_running_call_unknown_and_queued_ones_unexecuted(
    worker: Worker,
) -> None:
    outcomes: list[str] = []

    async def call(function: partial[object]) -> None:
        try:
            await function()  # type: ignore[misc]
        except (ActorDiedError, ActorNotFoundError) as error:
            outcomes.append(error.outcome)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, partial(worker.wait_at_gate))  # type: ignore[arg-type]
            await worker.seen("waiting")
            # A call and its answer between them: trio starts the tasks of one pass in any order.
            nursery.start_soon(call, partial(worker.crash))  # type: ignore[arg-type]
            await worker.read()
            nursery.start_soon(call, partial(worker.note, "behind"))  # type: ignore[arg-type]
            await worker.read()
            await worker.open_gate()
    assert sorted(outcomes) == ["not executed", "unknown"]


async def test_options_of_a_handle_hold_for_its_calls_and_travel_with_nothing(
    worker: Worker,
) -> None:
    impatient = worker.options(timeout=0.3)
    with trio.fail_after(60):
        with pytest.raises(CallTimeoutError):
            await impatient.wait()
        assert impatient == worker
        # The handle that it was made from has no time-out.
        with trio.move_on_after(0.4) as longer:
            await worker.wait()
        assert longer.cancelled_caught
