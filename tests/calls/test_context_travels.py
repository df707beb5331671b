"""The call context goes wherever a call goes: to the other node and on from there, by every kind of
call, through processes, threads, event loops, doors and HTTP; and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from actors import CallContext, RetryPolicy, call_context
from runtime import aio, blocking
from runtime.testing import Faults, Platform
from tests.actors.test_call_context import MALFORMED, PARENT
from tests.calls.context_actors import AsyncioTeller, Teller
from tests.gateway.conftest import gateway
from tests.live_pair import Pair, open_pair
from tests.waiting import until

CONTEXT = CallContext.of({"tenant": "acme"}, traceparent=PARENT, tracestate="x=1", baggage="k=v")


@contextmanager
def within(context: CallContext) -> Iterator[str]:
    """A block in that context; gives its text."""
    token = call_context.set(context)
    try:
        yield context.text
    finally:
        call_context.reset(token)


async def teller(pair: Pair, where: str, **options: Any) -> Teller:
    """An actor that was started outside of any context."""
    with within(CallContext()):
        return await pair.here.options(on=where, **options).spawn(Teller)


async def test_with_calls_of_every_kind(pair: Pair, where: str) -> None:
    one = await teller(pair, where)
    with call_context.having(tenant="acme"):
        text = call_context.get().text
        assert await one.tell() == text
        assert await one.tell_later() == text
        assert await one.tell_in_thread() == text
        assert await one.tell_beside() == text
        assert [item async for item in one.items()] == [text, text]
        assert await (await one.tell.remote()).fetch() == text
        policy = RetryPolicy(max_retries=5, initial_delay=0.001, retry_on=(LookupError,))
        assert await one.fail_twice.options(retry=policy)() == text
        assert await (await one.fail_twice.options(retry=policy).remote()).fetch() == text
        await one.note.send()
        await one.work_on()
        await until(one.notes, "both have noted", lambda notes: notes == [text, text])
    assert await one.tell() == ""
    assert [item async for item in one.items()] == ["", ""]
    assert await (await one.tell.remote()).fetch() == ""


async def test_from_call_to_call(pair: Pair) -> None:
    there, here = await teller(pair, "there"), await teller(pair, "here")
    further = await teller(pair, "there")
    with call_context.having(tenant="acme"):
        assert await there.relay([here, further]) == call_context.get().text  # type: ignore[list-item]
    assert await there.relay([here, further]) == ""  # type: ignore[list-item]


async def test_a_call_sees_nothing_of_what_others_leave_behind(pair: Pair, where: str) -> None:
    one = await teller(pair, where)
    await one.leave_behind()
    assert await one.tell() == await one.tell_in_thread() == await one.tell_later() == ""
    with call_context.having(tenant="acme"):
        await one.leave_behind()
        assert await one.tell() == call_context.get().text
    assert await one.tell() == ""


async def test_each_call_of_many_at_once_has_its_own(pair: Pair, where: str) -> None:
    one = await teller(pair, where)
    seen: dict[int, str] = {}

    async def ask(number: int) -> None:
        with call_context.having(number=str(number)):
            seen[number] = await (one.tell_beside if number % 2 else one.tell_later)()

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(ask, number)
    assert seen == {number: CallContext.of({"number": str(number)}).text for number in range(50)}


async def test_with_starts_notices_and_groups(pair: Pair, where: str) -> None:
    with call_context.having(tenant="acme"):
        text = call_context.get().text
        started = await pair.here.options(on=where).spawn(Teller)
        assert await started.tell_of_start() == (text, text)
        watched = await pair.here.options(on="there", name="watched").spawn(Teller)
        await started.observe(watched)  # type: ignore[arg-type]
    assert await started.tell() == ""
    await pair.here.stop(watched)
    await until(started.notes, "the notice", lambda notes: notes == [f"watched ended: {text}"])


async def test_through_isolated_processes(pair: Pair, where: str) -> None:
    with within(CONTEXT) as context:
        isolated = await pair.here.options(on=where, isolation="process").spawn(Teller)
        assert await isolated.tell_of_start() == (context, context)
        assert await isolated.tell() == await isolated.tell_in_thread() == context
        assert [item async for item in isolated.items()] == [context, context]
        # Out of the process again, and into another.
        plain = await teller(pair, "there")
        other = await teller(pair, "here", isolation="process")
        path: list[Any] = [plain, other, plain]
        with call_context.having(more="value"):
            assert await isolated.relay(path[:2]) == call_context.get().text
        assert await plain.spawn_one("process") == (context, context)
        watched = await teller(pair, "here", name="watched")
        await isolated.observe(watched)  # type: ignore[arg-type]
        with call_context.having(another="context"):
            await pair.here.stop(watched)
        expected = f"watched ended: {context}"
        await until(isolated.notes, "the notice", lambda notes: notes == [expected])
    assert await isolated.tell() == ""


async def test_through_actors_under_asyncio(pair: Pair, where: str) -> None:
    under = await pair.here.options(on=where).spawn(AsyncioTeller)
    with within(CONTEXT) as context:
        assert await under.tell() == context
        assert await under.ask(await teller(pair, "there")) == context
    assert await under.tell() == ""


async def test_with_each_attempt() -> None:
    faults = Faults()
    lost = faults.add("in-flight", times=2, method="tell")
    async with open_pair(Platform(faults=faults), Platform()) as pair:
        one = await teller(pair, "there")
        policy = RetryPolicy(max_retries=5, initial_delay=0.001, repeat_unknown=True)
        with within(CONTEXT) as context:
            assert await one.tell.options(retry=policy)() == context
    assert lost.struck == 2


@pytest.mark.cluster
def test_through_doors_and_real_processes() -> None:
    with blocking.open_local_cluster(2) as cluster, call_context.having(door="blocking"):
        text = call_context.get().text
        first = cluster.options(on="worker-1", name="first").spawn(Teller)
        second = cluster.options(on="worker-2", isolation="process").spawn(Teller)
        assert first.tell() == first.tell_in_thread() == text
        assert first.tell.remote().fetch() == text
        assert list(first.items()) == [text, text]
        assert first.relay([second]) == text  # type: ignore[list-item]
        assert cluster.run(told_in_worker) == text

        async def under_asyncio() -> None:
            async with aio.connect(cluster.address) as there:
                with call_context.having(door="asyncio"):
                    text = call_context.get().text
                    handle = await there.lookup("first", Teller)
                    assert await handle.tell() == text
                    assert [item async for item in handle.items()] == [text, text]

        asyncio.run(under_asyncio())


def told_in_worker() -> str:
    """A function for a worker process."""
    return call_context.get().text


@pytest.mark.parametrize("keyed", [False, True])
async def test_from_http(pair: Pair, where: str, keyed: bool) -> None:
    await teller(pair, where, name="teller")
    with call_context.having(not_for="others"):
        async with gateway(pair.here, allow=("teller.*",)) as http:
            headers = {"Idempotency-Key": "k1"} if keyed else {}
            answer = await http.ask(
                "POST",
                "/v1/actors/teller/tell",
                b"",
                headers={**headers, "traceparent": PARENT, "tracestate": "x=1", "baggage": "k=v"},
            )
            assert answer.json == f"{PARENT}\nx=1\nk=v"
            for malformed in MALFORMED:
                if "\n" in malformed or not malformed.isascii() or len(malformed) > 5000:
                    continue
                answer = await http.ask(
                    "POST",
                    "/v1/actors/teller/tell",
                    b"",
                    headers={"traceparent": malformed, "baggage": "k=v"},
                )
                assert (answer.status, answer.json) == (200, "\n\nk=v")
            assert (await http.call("teller", "tell")).json == ""
