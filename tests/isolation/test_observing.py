"""An isolated actor watches, is watched, and is linked like any other; and one that is not needed
does not start.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from actors import ChildSpec, Supervisor
from actors.errors import ActorNotFoundError, ActorNotNeededError, ActorStartError, UnderstudyError
from actors.options import Isolation
from runtime import open_local_cluster, open_node
from runtime.node import Node, internals_of
from tests.isolation.actors_used import Counter
from tests.isolation.conftest import SECRET
from tests.isolation.observers import Erring, Exiting, Hesitant, Needless, NeedlessOnce
from tests.waiting import until
from tests.watching.actors_used import Fragile, LinksAtStart, Partner, Survivor, Watched, Watcher

pytestmark = pytest.mark.cluster

ISOLATIONS: tuple[Isolation, ...] = ("none", "process")
PAIRS = [pair for pair in itertools.product(ISOLATIONS, repeat=2) if "process" in pair]


async def suffer(victim: Watched | Partner, how: str) -> None:
    """Let it end in this way."""
    with pytest.raises(UnderstudyError):  # noqa: PT012  which one is not the point
        await getattr(victim, how)()
        raise ActorNotFoundError("it ended after its method")


async def test_links_name_the_actor_of_each_process(node: Node) -> None:
    counter = await node.options(name="counter", isolation="process").spawn(Counter, 1)
    await counter.add(1)
    links = node.status()["links"]
    assert isinstance(links, list)
    assert "counter" in [link["actor"] for link in links]
    # A process that waits for an actor has none yet.
    assert {link["actor"] for link in links} <= {"counter", ""}


async def test_an_actor_that_is_not_needed_does_not_start_and_leaves_nothing(node: Node) -> None:
    options = node.options(name="needless", isolation="process")
    with trio.fail_after(60):
        for _ in range(3):
            with pytest.raises(ActorNotNeededError, match="nothing to do here"):
                await options.spawn(Needless)
        assert node.status()["actors"] == []
        with pytest.raises(ActorNotFoundError):
            await node.lookup("needless")
        # The name is free, and the node has processes for others.
        assert await (await options.spawn(Counter, 1)).add(1) == 2


async def test_a_child_that_is_not_needed_keeps_its_spec_without_an_actor(node: Node) -> None:
    idle, gone, later = (
        ChildSpec.of(id, cls).changed(isolation="process")
        for id, cls in (("idle", Needless), ("gone", Needless), ("later", NeedlessOnce))
    )
    with trio.fail_after(60):
        top = await node.options(name="tree").spawn(
            Supervisor,
            [
                idle,
                gone.changed(restart="temporary"),
                later.changed(name="later"),
                ChildSpec.of("a", Counter),
            ],
        )
        assert [(child.id, child.state) for child in await top.children()] == [
            ("idle", "stopped"),
            ("later", "stopped"),
            ("a", "running"),
        ]
        with pytest.raises(ActorNotNeededError, match="tree/idle"):
            await top.restart_child("idle")
        await top.restart_child("later")
        assert await (await node.lookup("later", Counter)).add(1) == 1


@pytest.mark.parametrize(
    ("watching", "watched", "how", "kind"),
    [
        (*pair, *end)
        for pair in PAIRS
        for end in (("end", "stopped"), ("crash", "raised"), ("kill_process", "signal"))
        if (pair[1], end[1]) != ("none", "signal")
    ],
)
async def test_one_notice_comes_for_each_watch_whatever_the_end(
    node: Node, watching: Isolation, watched: Isolation, how: str, kind: str
) -> None:
    with trio.fail_after(60):
        watcher = await node.options(isolation=watching).spawn(Watcher)
        victim = await node.options(name="victim", isolation=watched).spawn(Watched)
        _, epoch = await victim.where()
        numbers = [await watcher.look_at(victim) for _ in range(2)]
        assert numbers[0] != numbers[1]
        if how == "end":
            await victim.end()
        else:
            await suffer(victim, how)
        notices = await watcher.wait_told(2)
        assert sorted(notice.watch for notice in notices) == sorted(numbers)
        assert {
            (notice.name, notice.epoch, notice.node, notice.reason.kind) for notice in notices
        } == {("victim", epoch, "alone", kind)}
        assert "SIGKILL" in str(notices[0].reason) or kind != "signal"
        late = await watcher.look_at(victim)
        assert [notice.reason.kind for notice in await watcher.wait_told(3)] == [
            kind,
            kind,
            "no such actor",
        ]
        assert notices[0].restarts is False
        assert late not in numbers


async def test_the_notice_of_a_killed_supervised_actor_says_that_it_is_restarted(
    node: Node,
) -> None:
    with trio.fail_after(60):
        spec = ChildSpec.of("victim", Watched).changed(isolation="process")
        await node.options(name="tree").spawn(Supervisor, [spec])
        watcher = await node.options(isolation="process").spawn(Watcher)
        victim = await node.lookup("tree/victim", Watched)
        await watcher.look_at(victim)
        await suffer(victim, "kill_process")
        (notice,) = await watcher.wait_told(1)
        assert (notice.reason.kind, notice.restarts) == ("signal", True)


async def test_notices_come_over_nodes_and_for_nodes_that_leave() -> None:
    with trio.fail_after(60):
        async with open_node("here", secret=SECRET) as here:
            watcher = await here.options(isolation="process").spawn(Watcher)
            async with open_node("there", join=here.address, secret=SECRET) as there:
                await here.wait_for(2)
                far = await there.options(isolation="process").spawn(Watcher)
                near, killed = [
                    await here.options(isolation="process").spawn(Watched) for _ in range(2)
                ]
                staying = await there.options(isolation="process").spawn(Watched)
                await watcher.look_at(staying)
                await far.look_at_all([near, killed])
                await near.end()
                await suffer(killed, "kill_process")
                assert sorted(notice.reason.kind for notice in await far.wait_told(2)) == [
                    "signal",
                    "stopped",
                ]
            (notice,) = await watcher.wait_told(1)
            assert (notice.name, notice.node) == (staying.address.name, "there")


async def test_a_watch_that_is_cancelled_while_its_notice_waits_gives_none(node: Node) -> None:
    with trio.fail_after(60):
        watcher = await node.options(isolation="process").spawn(Watcher)
        victim = await node.spawn(Watched)
        number = await watcher.look_at(victim)
        assert await watcher.stop_and_look_away(victim, number) == 0
        other = await node.spawn(Watched)
        told = await watcher.look_at(other)
        dropped = await watcher.look_at(other)
        await watcher.look_away(dropped)
        await watcher.look_away(dropped)
        await node.stop(other)
        assert [notice.watch for notice in await watcher.wait_told(1)] == [told]
        await watcher.note("after")
        assert await watcher.told_in_order() == [f"ended {told}", "after"]


async def test_a_notice_under_delivery_is_delivered_and_later_ones_can_be_cancelled(
    node: Node,
) -> None:
    with trio.fail_after(60):
        watcher = await node.options(isolation="process").spawn(Hesitant)
        victims = [await node.spawn(Watched) for _ in range(4)]
        numbers = [await watcher.look_at(victim) for victim in victims]
        await node.stop(victims[0])
        await watcher.has_begun()
        for victim in victims[1:]:
            await node.stop(victim)
        await watcher.cancel_beside([numbers[0], numbers[2]])
        await watcher.let_go()
        notices = await watcher.wait_told(3)
        assert [notice.watch for notice in notices] == [numbers[0], numbers[1], numbers[3]]
        # The node has been told, and nothing is remembered for ever.
        await until(watcher.still_cancelled, "the node has been told", lambda left: not left)
        assert internals_of(node).watcher.loads() == dict.fromkeys(
            internals_of(node).watcher.loads(), 0
        )


async def test_notices_come_in_their_turn_and_in_order_with_calls(node: Node) -> None:
    with trio.fail_after(60):
        watcher = await node.options(isolation="process").spawn(Watcher)
        victim = await node.spawn(Watched)
        number = await watcher.look_at(victim)
        await watcher.stop_in_its_turn(victim)
        await watcher.note("after")
        assert await watcher.told_in_order() == [
            "method over",
            "before",
            f"ended {number}",
            "after",
        ]


@pytest.mark.parametrize(
    ("cls", "kind", "text"),
    [(Fragile, "raised", "cannot bear it"), (Exiting, "raised", "SystemExit: 7")],
)
async def test_an_exception_in_on_ended_ends_the_actor_and_what_waits_is_refused(
    node: Node, cls: type[Watcher], kind: str, text: str
) -> None:
    with trio.fail_after(60):
        watcher = await node.options(isolation="process").spawn(cls)
        victim = await node.spawn(Watched)
        await watcher.look_at(victim)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.stop, victim)
            notice = await node.wait_ended(watcher)
        assert notice.reason.kind == kind
        assert text in notice.reason.text
        assert "in on_ended" in notice.reason.traceback
        with pytest.raises(ActorNotFoundError):
            await watcher.note("late")


async def test_an_actor_that_hangs_in_on_ended_is_stopped_in_time(
    node: Node,
) -> None:
    with trio.fail_after(60):
        for how in ("stop", "kill"):
            spec = ChildSpec.of("hesitant", Hesitant).changed(
                isolation="process", shutdown=0.2, restart="temporary"
            )
            top = await node.options(name=how).spawn(Supervisor, [spec])
            watcher = await node.lookup(f"{how}/hesitant", Hesitant)
            victim = await node.spawn(Watched)
            await watcher.look_at(victim)
            await node.stop(victim)
            await watcher.has_begun()
            if how == "stop":
                await top.stop_child("hesitant")
            else:
                (row,) = [row for row in node.status()["actors"] if "pid" in row]  # type: ignore[attr-defined]
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.run_process, ["kill", "-9", str(row["pid"])])
                    assert (await node.wait_ended(watcher)).reason.kind == "signal"
            with pytest.raises(ActorNotFoundError):
                await node.lookup(f"{how}/hesitant")


async def test_nothing_is_left_of_the_watches_of_an_actor_whose_process_is_killed(
    node: Node,
) -> None:
    with trio.fail_after(60):
        watcher = await node.options(isolation="process").spawn(Survivor)
        victim = await node.spawn(Partner)
        await watcher.look_at_all([victim] * 5)  # type: ignore[list-item]
        assert internals_of(node).watcher.loads()["watches"] == 5
        (row,) = [row for row in node.status()["actors"] if "pid" in row]  # type: ignore[attr-defined]
        await trio.run_process(["kill", "-9", str(row["pid"])])
        await node.wait_ended(watcher)
        assert internals_of(node).watcher.loads() == dict.fromkeys(
            internals_of(node).watcher.loads(), 0
        )
        await node.stop(victim)


async def test_a_process_that_is_killed_at_any_moment_gives_one_notice_for_each_watch(
    node: Node,
) -> None:
    chance = random.Random(7)
    with trio.fail_after(40):
        watcher = await node.options(isolation="process").spawn(Watcher)
        told = 0
        for _ in range(30):
            victim = await node.options(isolation="process").spawn(Watched)
            rows: Any = node.status()["actors"]
            (pid,) = [row["pid"] for row in rows if row["name"] == victim.address.name]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watcher.look_at_all, [victim] * 3)
                for _ in range(chance.randrange(60)):
                    await trio.lowlevel.checkpoint()
                os.kill(pid, signal.SIGKILL)
            told += 3
            notices = await watcher.wait_told(told)
            assert {notice.name for notice in notices[-3:]} == {victim.address.name}
            assert {notice.reason.kind for notice in notices[-3:]} <= {"signal", "no such actor"}
        assert len(await watcher.told()) == told
        assert len({notice.watch for notice in notices}) == told
        assert internals_of(node).watcher.loads() == dict.fromkeys(
            internals_of(node).watcher.loads(), 0
        )


@pytest.mark.parametrize(("linking", "linked"), PAIRS)
@pytest.mark.parametrize("crashing", ["linking", "linked"])
async def test_a_link_ends_the_other_when_either_ends_abnormally(
    node: Node, linking: Isolation, linked: Isolation, crashing: str
) -> None:
    with trio.fail_after(60):
        one = await node.options(isolation=linking).spawn(Partner)
        other = await node.options(isolation=linked).spawn(Partner)
        await one.tie(other)
        victim, survivor = (one, other) if crashing == "linking" else (other, one)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(suffer, victim, "crash")
            reason = (await node.wait_ended(survivor)).reason
        assert reason.kind == "raised"
        assert "boom" in reason.text
        assert f"linked to {victim.address.name}" in reason.text


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_a_process_that_is_killed_ends_what_it_is_linked_to_as_a_signal(
    node: Node, isolation: Isolation
) -> None:
    with trio.fail_after(60):
        partner = await node.options(isolation=isolation).spawn(Partner)
        victim = await node.options(isolation="process").spawn(Watched)
        await partner.tie(victim)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(suffer, victim, "kill_process")
            assert (await node.wait_ended(partner)).reason.kind == "signal"


async def test_an_actor_that_handles_exits_gets_a_notice_and_a_normal_end_ends_no_linked_actor(
    node: Node,
) -> None:
    with trio.fail_after(60):
        survivor = await node.options(isolation="process").spawn(Survivor)
        partner = await node.options(isolation="process").spawn(Partner)
        crashing, stopped, untied = [await node.spawn(Partner) for _ in range(3)]
        for other in (crashing, stopped, untied):
            await survivor.tie(other)
        await partner.tie(stopped)
        await partner.tie(untied)
        await survivor.untie(untied)
        await untied.untie(partner)
        await suffer(crashing, "crash")
        await node.stop(stopped)
        notices = await survivor.wait_told(2)
        assert {(notice.name, notice.reason.kind) for notice in notices} == {
            (crashing.address.name, "raised"),
            (stopped.address.name, "stopped"),
        }
        await suffer(untied, "crash")
        await node.wait_ended(untied)
        assert await partner.ping() == "alone"
        assert len(await survivor.told()) == 2


async def test_a_link_in_on_start_to_one_that_has_ended_keeps_the_actor_from_starting(
    node: Node,
) -> None:
    with trio.fail_after(60):
        other = await node.options(isolation="process").spawn(Watched)
        await suffer(other, "kill_process")
        with pytest.raises(ActorStartError, match="linked to"):
            await node.options(isolation="process").spawn(LinksAtStart, other)
        assert node.status()["actors"] == []


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("watch", "TypeError"),
        ("link", "TypeError"),
        ("unlink", "TypeError"),
        ("wait_ended", "TypeError"),
        ("join", "ValueError"),
        ("group", "ValueError"),
        ("singleton", "ValueError"),
        ("needless", "ActorNotNeededError"),
        ("needless alone", "ActorNotNeededError"),
    ],
)
async def test_what_makes_no_sense_is_refused_as_elsewhere(
    node: Node, how: str, error: str
) -> None:
    answers = [
        await (await node.options(isolation=isolation).spawn(Erring)).err(how)
        for isolation in ISOLATIONS
    ]
    assert answers == [error, error]


async def test_an_isolated_actor_waits_for_the_end_of_another(node: Node, tmp_path: Path) -> None:
    with trio.fail_after(60):
        waiting = await node.options(isolation="process").spawn(Erring)
        for isolation, how, kind in (
            ("process", "kill_process", "signal"),
            ("none", "crash", "raised"),
        ):
            victim = await node.options(isolation=isolation).spawn(Watched)  # type: ignore[arg-type]
            kinds: list[str] = []

            async def wait(victim: Watched = victim, kinds: list[str] = kinds) -> None:
                kinds.append(await waiting.wait_for(victim))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await until(lambda: internals_of(node).watcher.loads()["watches"], "it waits")
                await suffer(victim, how)
            assert kinds == [kind]
            assert await waiting.wait_for(victim) == "no such actor"
        victim = await node.spawn(Watched)
        with trio.move_on_after(0.2):
            await waiting.wait_for(victim)
        await until(lambda: not internals_of(node).watcher.loads()["watches"], "nobody waits")


async def test_the_node_is_the_candidate_for_a_singleton_that_an_isolated_actor_asks_for() -> None:
    with trio.fail_after(40):
        async with open_node("here", secret=SECRET) as here:
            async with open_node("there", join=here.address, secret=SECRET) as there:
                await here.wait_for(2)
                first = await there.options(isolation="process").spawn(Erring)
                second = await here.options(isolation="process").spawn(Erring)
                one = await first.stand("only", 10)
                assert await one.add(1) == 11
                two = await second.stand("only", 20)
                assert await two.add(1) == 12
                assert two.address.node == "there"
                # The candidate is the node: the actor that asked may end.
                await here.stop(second)
            while True:
                try:
                    assert await (await here.lookup("only", Counter)).add(1) == 21
                    break
                except ActorNotFoundError:
                    await trio.sleep(0.02)


async def test_links_between_processes_of_two_nodes_end_both_also_by_the_death_of_a_node() -> None:
    with trio.fail_after(40):
        async with open_local_cluster(nodes=1) as cluster:
            node = cluster.node
            near = [await node.options(isolation="process").spawn(Partner) for _ in range(2)]
            survivor = await node.options(isolation="process").spawn(Survivor)
            far = [
                await node.options(on="worker-1", isolation="process").spawn(Partner)
                for _ in range(2)
            ]
            victim = await node.options(on="worker-1", isolation="process").spawn(Watched)
            await near[0].tie(victim)
            await far[0].tie(near[1])
            await survivor.tie(far[1])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(suffer, victim, "kill_process")
                assert (await node.wait_ended(near[0])).reason.kind == "signal"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(suffer, near[1], "crash")
                assert (await node.wait_ended(far[0])).reason.kind == "raised"
            cluster.process("worker-1").kill()
            (notice,) = await survivor.wait_told(1)
            assert (notice.name, notice.reason.kind) == (far[1].address.name, "node died")
