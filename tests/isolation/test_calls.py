"""An isolated actor is called like any other."""

from __future__ import annotations

import os
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.errors import (
    ActorNotFoundError,
    ActorStartError,
    BadArgumentsError,
    CallTimeoutError,
    MailboxFullError,
    RemoteError,
    ReplyEncodeError,
    SelfCallError,
)
from actors.options import Isolation, SpawnOptions
from runtime import open_node
from runtime.node import Node, internals_of
from tests.isolation.actors_used import (
    Counter,
    FailsToStart,
    Guest,
    Overseer,
    Refusal,
    Token,
    Waiter,
)
from tests.isolation.conftest import SECRET, is_running
from tests.waiting import until

pytestmark = pytest.mark.cluster


async def until_exists(path: Path) -> None:
    """Wait for a mark that another process leaves."""
    await until(path.exists, f"{path} is there")


async def test_calls_run_in_a_process_of_their_own_and_keep_its_state(node: Node) -> None:
    counter = await node.options(name="counter", isolation="process").spawn(Counter, 5)
    assert await counter.add(1) == 6
    assert await counter.add(2) == 8
    pid = await counter.pid()
    assert pid != os.getpid()
    assert await counter.pid_of_thread() == (pid, False)
    (row,) = [row for row in node.status()["actors"] if row["name"] == "counter"]  # type: ignore[attr-defined]
    assert row["pid"] == pid
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "counter"  # noqa: ASYNC240
    await (await node.spawn(Counter)).add(1)
    assert [row.get("pid") for row in node.status()["actors"]] == [pid, None]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "value",
    [
        *(None, "text", b"\0" * 3_000_000, {"a": [1, (2, 3)]}, 2**100),
        [Path("/etc"), deque([1j], 2), Token("converted")],
    ],
)
async def test_values_of_every_size_come_and_go(node: Node, value: object) -> None:
    counter = await node.options(isolation="process").spawn(Counter)
    assert await counter.echo(value) == value


@pytest.mark.parametrize("kind", ["message", "unsent", "builtin", "memory"])
async def test_what_a_method_raises_is_what_its_caller_would_see_without_isolation(
    kind: str,
) -> None:
    seen: list[object] = []
    async with (
        open_node("here", secret=SECRET) as here,
        open_node("there", join=here.address, secret=SECRET) as there,
    ):
        await here.wait_for(2)
        for node in (here, there):
            isolations: tuple[Isolation, ...] = ("none", "process")
            for isolation in isolations:
                counter = await here.options(
                    isolation=isolation, name=f"c-{isolation}-{node.name}"
                ).spawn(Counter)
                handle = await node.lookup(counter.name, Counter)
                with pytest.raises(RemoteError) as caught:
                    await handle.refuse(kind)
                error = caught.value
                seen.append(
                    (
                        type(error).__mro__[1:],
                        error.args,
                        error.remote_type,
                        error.method,
                        error.node,
                        vars(error).get("amount"),
                    )
                )
                assert error.actor == counter.name
                assert "in refuse" in error.remote_traceback
                assert "actor_proxy" not in error.remote_traceback
                assert error.remote_traceback.count("Traceback") == 1
    assert seen[0] == seen[1] == seen[2] == seen[3]


async def test_refusals_are_those_of_the_runtime(node: Node) -> None:
    counter: Any = await node.options(isolation="process", mailbox_limit=2).spawn(Counter)
    with pytest.raises(BadArgumentsError, match="amount"):
        await counter.add()
    with pytest.raises(ReplyEncodeError, match="object"):
        await counter.unsendable()
    with pytest.raises(AttributeError):
        await counter.nothing()


async def test_the_mailbox_stays_with_the_node(node: Node, tmp_path: Path) -> None:
    waiter = await node.options(isolation="process", mailbox_limit=1).spawn(Waiter, str(tmp_path))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.wait, "first")
            await until_exists(tmp_path / "first")
            nursery.start_soon(waiter.wait, "second")
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(MailboxFullError):
                await waiter.wait("third")
            nursery.cancel_scope.cancel()
    assert not (tmp_path / "third").exists()


async def test_a_call_that_is_cancelled_or_late_is_stopped_in_the_process(
    node: Node, tmp_path: Path
) -> None:
    waiter = await node.options(isolation="process").spawn(Waiter, str(tmp_path))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.wait, "cancelled")
            nursery.start_soon(waiter.wait_beside, "beside")
            await until_exists(tmp_path / "cancelled")
            await until_exists(tmp_path / "beside")
            nursery.cancel_scope.cancel()
        await until_exists(tmp_path / "cancelled-ended")
        await until_exists(tmp_path / "beside-ended")
        with pytest.raises(CallTimeoutError):
            await waiter.wait.options(timeout=0.5)("late")
        await until_exists(tmp_path / "late-ended")


async def test_streams_come_item_by_item_and_raise_what_they_raise(
    node: Node, tmp_path: Path
) -> None:
    counter = await node.options(isolation="process").spawn(Counter)
    waiter = await node.options(isolation="process").spawn(Waiter, str(tmp_path))
    with trio.fail_after(60):
        assert [number async for number in counter.count_to(500)] == list(range(500))
        got: list[int] = []
        with pytest.raises(Refusal) as caught:  # noqa: PT012  some items come before
            async for number in counter.count_to(13):
                got.append(number)
        assert isinstance(caught.value, RemoteError)
        assert got == list(range(13))
        async with waiter.items("closed") as items:
            async for _ in items:
                break
        await until_exists(tmp_path / "closed")


async def test_an_actor_is_asked_to_stop_in_its_process(node: Node, tmp_path: Path) -> None:
    waiter = await node.options(name="waiter", isolation="process").spawn(Waiter, str(tmp_path))
    (pid,) = [row["pid"] for row in node.status()["actors"]]  # type: ignore[attr-defined]
    with trio.fail_after(60):
        await node.stop(waiter, reason="enough")
    assert (tmp_path / "stopped").read_text() == "stopped: enough"
    assert not is_running(pid)


@pytest.mark.parametrize(
    ("how", "text", "trace"),
    [
        ("constructor", "Refusal", "in __init__"),
        ("on_start", "KeyError: 'in on_start'", "in on_start"),
        ("exit", "exited with code 5", ""),
    ],
)
async def test_an_actor_that_does_not_start_says_why(
    node: Node, how: str, text: str, trace: str
) -> None:
    for _ in range(2):
        with trio.fail_after(60), pytest.raises(ActorStartError, match=text) as caught:
            await node.options(name="never", isolation="process").spawn(FailsToStart, how)
        assert trace in caught.value.remote_traceback
        assert "never" in str(caught.value)
    assert node.status()["actors"] == []


async def test_an_actor_that_hangs_while_it_starts_is_ended_with_its_spawn(
    node: Node, tmp_path: Path
) -> None:
    mark = tmp_path / "pid"
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                node.options(isolation="process").spawn, FailsToStart, "hang", str(mark)
            )
            await until_exists(mark)
            # Written a moment after it is there.
            await until(mark.read_text, "the process has written its number")
            nursery.cancel_scope.cancel()
        pid = int(mark.read_text())
        await until(lambda: not is_running(pid), f"process {pid} has ended")
    assert node.status()["actors"] == []


async def test_an_isolated_actor_knows_its_node_and_what_it_is_called(node: Node) -> None:
    guest = await node.options(name="guest", isolation="process").spawn(Guest)
    name, host, incarnation, epoch, address, pid = await guest.itself()
    assert (name, host, incarnation, address) == ("guest", "alone", node.incarnation, "alone")
    assert epoch == guest.epoch
    assert pid != os.getpid()
    assert await guest.members() == ["alone"]


async def test_a_cancelled_spawn_of_an_isolated_actor_leaves_no_actor(node: Node) -> None:
    guest = await node.options(name="guest", isolation="process").spawn(Guest)
    with trio.fail_after(60):
        started = await guest.spawn_hastily([f"hasty-{number}" for number in range(4)])
    left = [address.name for address in await internals_of(node).names.all()]
    assert left == ["guest", *started]


async def test_state_is_saved_under_the_name_and_found_by_the_next_process(node: Node) -> None:
    options = node.options(name="guest", isolation="process")
    guest = await options.spawn(Guest)
    await guest.remember({"count": 3})
    with trio.fail_after(60):
        await node.stop(guest)
        assert await (await options.spawn(Guest)).remembered() == {"count": 3}


async def test_handles_lead_out_of_the_process_and_back(node: Node) -> None:
    guest = await node.options(isolation="process").spawn(Guest)
    plain = await node.options(name="plain").spawn(Counter, 1)
    isolated = await node.options(name="isolated", isolation="process").spawn(Counter, 2)
    with trio.fail_after(60):
        assert await guest.raise_by(plain, 1) == 2
        assert await guest.raise_by(isolated, 1) == 3
        assert await guest.raise_by_name("isolated", 1) == 4
        assert await guest.read_all(isolated, 40) == list(range(40))
        assert await plain.add(0) == 2


@pytest.mark.parametrize("isolated", [False, True])
async def test_an_isolated_actor_starts_and_stops_others(node: Node, isolated: bool) -> None:
    guest = await node.options(isolation="process").spawn(Guest)
    with trio.fail_after(60):
        other = await guest.found_another("other", isolated)
        assert await other.add(1) == 11
        assert await (await guest.found_another("other", isolated)).add(1) == 12
        assert await guest.spawn_twice("twice") == "NameTakenError"
        await guest.end(other)
        with pytest.raises(ActorNotFoundError):
            await other.add(1)


async def test_an_isolated_actor_may_stop_itself_and_may_not_wait_for_itself(node: Node) -> None:
    guest = await node.options(name="guest", isolation="process").spawn(Guest)
    with trio.fail_after(60):
        with pytest.raises(RemoteError) as caught:
            await guest.ask_itself()
        assert SelfCallError.__name__ in caught.value.remote_traceback, traceback.format_exception(
            caught.value
        )
        address = guest.address
        assert await guest.finish() == "the last word"
        reason = await internals_of(node).spawner.watch_address(address)
        assert (reason.kind, reason.text) == ("stopped", "finished")


async def test_members_that_come_and_go_are_seen_and_their_actors_are_called_from_the_process() -> (
    None
):
    async with open_node("here", secret=SECRET) as here:
        guest = await here.options(isolation="process").spawn(Guest)
        with trio.fail_after(60):
            async with open_node("there", join=here.address, secret=SECRET) as there:
                elsewhere = await there.options(name="elsewhere", isolation="process").spawn(
                    Counter, 7
                )
                await until(
                    guest.members, "both are members", lambda names: names == ["here", "there"]
                )
                assert await guest.raise_by(elsewhere, 1) == 8
                assert await guest.raise_by_name("elsewhere", 1) == 9
            await until(guest.members, "one is left", lambda names: names == ["here"])


async def test_a_lookup_in_the_process_that_finds_nothing_names_the_nearest_name(
    node: Node,
) -> None:
    with trio.fail_after(60):
        guest = await node.options(isolation="process").spawn(Guest)
        await node.options(name="counter").spawn(Counter)
        with pytest.raises(RemoteError, match=r"'countr'.*did you mean 'counter'\?"):
            await guest.raise_by_name("countr", 1)


async def test_a_supervisor_is_refused_a_process(node: Node) -> None:
    with trio.fail_after(60), pytest.raises(ActorStartError, match="its children instead"):
        await node.options(isolation="process").spawn(Overseer)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"isolation": "thread"}, ValueError),
        ({"memory_limit": 1}, ValueError),
        ({"isolation": "process", "memory_limit": 0}, ValueError),
        ({"isolation": "process", "memory_limit": 1.5}, TypeError),
        ({"isolation": "process", "memory_limit": True}, TypeError),
    ],
)
def test_options_that_make_no_sense_are_refused(
    changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"isolation|memory_limit"):
        SpawnOptions(**changes)
