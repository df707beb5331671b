"""Open calls: what nodes tell of them, and who waits for whom."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest
import trio

from actors import Actor, method
from runtime.calls.error_codec import CallPlace
from runtime.calls.pending_calls import PendingCall
from runtime.hosting.chains import Chain
from runtime.node import internals_of
from runtime.observation.inspection_service import inspection_of
from runtime.observation.open_calls import (
    MOST_AWAITED,
    MOST_CALLS,
    OpenCall,
    State,
    WaitGraph,
    describe_awaited,
    read_awaited,
    read_calls,
)
from tests.live_pair import Pair
from tests.waiting import until


def call(
    text: str, state: State = "running", caller: str = "", seconds: float | None = 1.0
) -> OpenCall:
    actor, name = text.split(".")
    of = None if not caller else (caller.split(".")[0], caller.split(".")[1])
    return OpenCall("node", actor, name, state, seconds, None, of, "")


def test_a_chain_is_followed_to_what_runs_at_its_end() -> None:
    graph = WaitGraph(
        [call("a.ask"), call("b.relay", caller="a.ask"), call("c.work", caller="b.relay")]
    )
    steps, cycle = graph.explain("a")
    assert [(s.running.text, s.waits_for and s.waits_for.text) for s in steps] == [
        ("a.ask", "b.relay"),
        ("b.relay", "c.work"),
        ("c.work", None),
    ]
    assert cycle == []
    assert list(graph.cycles()) == []


def test_a_call_in_a_mailbox_waits_for_what_its_actor_runs() -> None:
    graph = WaitGraph([call("a.ask"), call("b.get", "waiting", "a.ask"), call("b.slow")])
    steps, _ = graph.explain("a")
    assert [step.running.text for step in steps] == ["a.ask", "b.slow"]


def test_a_chain_may_begin_with_one_method_of_several_that_run() -> None:
    graph = WaitGraph(
        [
            *(call("a.ask", seconds=2.0), call("a.tell"), call("a.tell", seconds=3.0)),
            *(call("b.get", caller="a.ask"), call("a.late", "waiting")),
        ]
    )
    assert [step.running.text for step in graph.explain("a", "ask")[0]] == ["a.ask", "b.get"]
    assert [step.running.seconds for step in graph.explain("a", "tell")[0]] == [3.0]
    assert graph.explain("a", "late") == ([], [])
    assert [one.text for one in graph.waits("a", "late")] == ["a.late"]
    assert graph.waits("a", "ask") == []


def test_two_chains_that_block_each_other_are_one_cycle() -> None:
    graph = WaitGraph(
        [
            call("a.first"),
            call("b.second"),
            call("b.get", "waiting", "a.first"),
            call("a.get", "waiting", "b.second"),
            call("c.outside"),
            call("a.get", "waiting", "c.outside"),
        ]
    )
    assert graph.explain("a")[1] == ["a", "b"]
    assert graph.explain("c")[1] == ["a", "b"], "who waits for a cycle is not in it"
    assert list(graph.cycles()) == [["a", "b"]]


def test_an_actor_in_a_process_of_its_own_does_not_wait_for_itself() -> None:
    graph = WaitGraph([call("a.ask"), call("a.ask", caller="a.ask"), call("b.get", caller="a.ask")])
    steps, cycle = graph.explain("a")
    assert [step.running.text for step in steps] == ["a.ask", "b.get"]
    assert cycle == []


def test_what_only_the_caller_knows_of_is_followed_last_and_closes_no_cycle() -> None:
    known = [call("a.ask"), call("b.get", "waiting", "a.ask"), call("c.tell"), call("d.run")]
    sent = [call("x.get", "sent", "a.ask"), call("y.get", "sent", "c.tell")]
    # An isolated actor: what its node hands to its process is the same call.
    sent += [call("d.run", "sent", "d.run"), call("c.get", "sent", "y.get")]
    graph = WaitGraph([*known, call("y.get")], sent)
    assert [one.waits_for and one.waits_for.text for one in graph.explain("a")[0]] == ["b.get"]
    assert [one.waits_for and one.waits_for.text for one in graph.explain("c")[0]] == ["y.get"]
    assert [one.waits_for for one in graph.explain("d")[0]] == [None]
    assert list(graph.cycles()) == []


def test_an_actor_that_runs_nothing_has_nothing_to_explain() -> None:
    assert WaitGraph([call("b.get", "waiting")]).explain("b") == ([], [])


@pytest.mark.parametrize("told", [{}, {"calls": [{}]}, {"calls": [{"actor": 1}]}, {"calls": 3}])
def test_what_is_no_answer_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_calls("node", told)


@pytest.mark.parametrize("told", [{"awaited": [{}]}, {"awaited": [{"actor": 1}]}, {"awaited": 3}])
def test_calls_of_others_that_are_malformed_are_refused(told: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_awaited("node", told)


def test_nodes_of_earlier_versions_say_nothing_of_what_they_await() -> None:
    assert read_awaited("node", {"calls": [], "left_out": 0}) == []


class Waiter(Actor):
    def __init__(self) -> None:
        self.opened = trio.Event()
        self.begun = False

    @method
    async def call_other(self, other: str) -> None:
        self.begun = True
        await self.opened.wait()
        await (await self.node.lookup(other, Waiter)).get()

    @method
    async def wait_for(self, others: list[Waiter]) -> None:
        async with trio.open_nursery() as nursery:
            for other in others:
                nursery.start_soon(other.wait)

    @method
    async def get(self) -> int:
        return 1

    @method
    async def wait(self) -> None:
        await trio.sleep_forever()

    @method(concurrent=True)
    async def has_begun(self) -> bool:
        return self.begun

    @method(concurrent=True)
    async def open(self) -> None:
        self.opened.set()


async def asked(pair: Pair) -> list[OpenCall]:
    calls: list[OpenCall] = []
    for node in (pair.here, pair.there):
        told = await inspection_of(
            internals_of(pair.here).endpoint, node.name, node.incarnation
        ).calls()
        calls += read_calls(node.name, told)
    return calls


async def test_a_deadlock_of_two_actors_on_two_nodes_is_named(pair: Pair) -> None:
    a = await pair.here.options(name="a", on="here").spawn(Waiter)
    b = await pair.here.options(name="b", on="there").spawn(Waiter)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.call_other, "b")
        nursery.start_soon(b.call_other, "a")
        for one in (a, b):
            await until(one.has_begun, "the method runs")
        for one in (a, b):
            await one.open()

        async def is_found() -> bool:
            return list(WaitGraph(await asked(pair)).cycles()) == [["a", "b"]]

        await until(is_found, "the cycle is told")
        nursery.cancel_scope.cancel()


async def test_calls_are_reported_with_their_times_callers_and_deadlines(pair: Pair) -> None:
    actor = await pair.here.options(name="a", on="there").spawn(Waiter)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor.wait)

        async def runs() -> bool:
            return any(call.method == "wait" for call in await asked(pair))

        await until(runs, "the call runs")
        nursery.start_soon(actor.get.options(timeout=500.0))

        async def waits() -> bool:
            return any(call.method == "get" for call in await asked(pair))

        await until(waits, "the call waits")
        wait, get = sorted(await asked(pair), key=lambda call: call.state)
        assert (wait.text, wait.state, wait.left, wait.from_node) == (
            "a.wait",
            "running",
            None,
            "here",
        )
        assert (get.text, get.state, get.caller) == ("a.get", "waiting", None)
        assert get.left is not None
        assert 0 < get.left <= 500.0
        assert wait.seconds is not None
        assert get.seconds is not None
        assert wait.seconds >= get.seconds >= 0
        facts = await inspection_of(
            internals_of(pair.here).endpoint, "there", pair.there.incarnation
        ).actor("a")
        assert facts["oldest_seconds"] >= get.seconds
        assert facts["waiting"] == 1
        nursery.cancel_scope.cancel()


class Blocking(Actor):
    """Blocks in threads."""

    begun: ClassVar = threading.Event()
    gate: ClassVar = threading.Event()

    @method
    def block(self) -> None:
        self.begun.set()
        assert self.gate.wait(60)

    @method
    async def get(self) -> None:
        """Wait for its turn."""


async def test_a_cancelled_method_that_goes_on_in_its_thread_is_reported(pair: Pair) -> None:
    Blocking.begun.clear()
    Blocking.gate.clear()
    actor = await pair.here.options(name="a", on="there").spawn(Blocking)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(actor.block.options(timeout=1000.0))
            await until(Blocking.begun.is_set, "the method runs")
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(actor.get)
            with trio.fail_after(60):
                while [one.text for one in await asked(pair)] != ["a.block", "a.get"]:
                    pass
            block, _ = await asked(pair)
            # Its caller waits for it no more.
            assert (block.state, block.caller, block.left) == ("running", None, None)
            Blocking.gate.set()
    finally:
        Blocking.gate.set()


async def test_a_full_mailbox_is_reported_in_part(pair: Pair) -> None:
    actor = await pair.here.options(name="a", on="there").spawn(Waiter)
    async with trio.open_nursery() as nursery:
        for _ in range(MOST_CALLS + 50):
            nursery.start_soon(actor.wait)

        async def left_out() -> bool:
            service = inspection_of(
                internals_of(pair.here).endpoint, "there", pair.there.incarnation
            )
            return bool((await service.calls())["left_out"] == 50)

        await until(left_out, "50 are left out")
        nursery.cancel_scope.cancel()


async def test_calls_that_their_callers_have_given_up_are_distinguished(pair: Pair) -> None:
    actor = await pair.here.options(on="there", name="busy").spawn(Waiter)
    service = inspection_of(internals_of(pair.here).endpoint, "there", pair.there.incarnation)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor.wait)
        await until(lambda: service.actor("busy"), "it runs", lambda facts: facts["calls"])
        with trio.CancelScope() as early:
            nursery.start_soon(actor.wait)
            async with trio.open_nursery() as inner:
                inner.start_soon(actor.wait)
                await until(
                    lambda: service.actor("busy"), "two wait", lambda facts: facts["waiting"] == 2
                )
                early.cancel()
        facts = await until(
            lambda: service.actor("busy"), "one is given up", lambda facts: facts["given_up"] == 1
        )
        assert facts["oldest_seconds"] is not None
        assert [call["state"] for call in facts["calls"]] == ["running", "waiting"]
        nursery.cancel_scope.cancel()


async def test_a_node_tells_what_its_methods_await_elsewhere(pair: Pair) -> None:
    caller = await pair.here.options(name="caller", on="here").spawn(Waiter)
    here = await pair.here.options(name="near", on="here").spawn(Waiter)
    far = await pair.here.options(name="far", on="there").spawn(Waiter)
    service = inspection_of(internals_of(pair.here).endpoint, "here", pair.here.incarnation)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller.wait_for, [here, far, far])
        # Made by no method: nothing waits for it that `why` could be asked about.
        nursery.start_soon(far.wait)
        told = await until(
            service.calls,
            "both run, and the far actor is awaited",
            # The two lists are of different moments.
            lambda told: (
                bool(told["awaited"])
                and [one["state"] for one in told["calls"]] == ["running", "running"]
            ),
        )
        (found,) = read_awaited("here", told)
        assert (found.text, found.node, found.state) == ("far.wait", "there", "sent")
        assert (found.caller, found.from_node) == (("caller", "wait_for"), "here")
        assert (found.seconds, found.left) == (None, None)
        # So the chain is known although the other node has said nothing.
        (step,), _ = WaitGraph(
            [one for one in read_calls("here", told) if one.actor == "caller"], [found]
        ).explain("caller")
        assert step.waits_for == found
        nursery.cancel_scope.cancel()


async def test_few_of_many_awaited_calls_are_told() -> None:
    task = trio.lowlevel.current_task()
    place = [CallPlace("far", f"m{number}", "there", 1) for number in range(3 * MOST_AWAITED)]
    calls = [PendingCall(number, one, task) for number, one in enumerate(place)]
    chain = Chain("caller\task\t7")
    told = await describe_awaited(calls, lambda task: chain, trio.current_time)
    assert len(told) == MOST_AWAITED
    unread = [PendingCall[trio.lowlevel.Task](1, place[0], None)]
    system = [PendingCall(1, CallPlace("@node", "status", "there", 1), task)]
    assert await describe_awaited([*unread, *system], lambda task: chain, trio.current_time) == []
    assert await describe_awaited(calls, lambda task: None, trio.current_time) == []
