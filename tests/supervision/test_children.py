"""Children of live nodes, row by row of OTP's semantics: how they start, stop, end, and are changed
while their supervisor runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from actors import (
    Actor,
    ChildCounts,
    ChildSpec,
    DynamicSupervisor,
    ExitReason,
    Handle,
    Ignore,
    RestartBackoff,
    Supervisor,
    UnderstudyError,
    method,
)
from actors.errors import (
    ActorNotFoundError,
    ActorNotNeededError,
    ActorStartError,
    ChildNotFoundError,
    ChildRunningError,
    NoPlacementError,
    NotExecutedError,
    SupervisorStoppingError,
    TooManyChildrenError,
)
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.node import Node
from runtime.testing import Platform
from runtime.timings import Timings
from tests.waiting import until

SECRET = "a secret for the tests of children"


class Notes(Actor):
    """What the others of a test tell, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @method
    async def write(self, line: str) -> None:
        self.lines.append(line)

    @method
    async def read(self) -> list[str]:
        return self.lines


class Child(Actor):
    """Tells of its start and its end; ends as it is asked to."""

    async def on_start(self) -> None:
        await self.tell("starts")

    async def on_stop(self, reason: ExitReason) -> None:
        if reason.kind not in ("shutdown", "node left"):
            # Otherwise the test is over, and nobody takes notes any more.
            await self.tell(f"stops: {reason.kind}")

    async def tell(self, what: str) -> None:
        notes = await self.node.lookup("notes", Notes)
        await notes.write(f"{self.name.rpartition('/')[2]} {what}")

    @method(concurrent=True)
    async def place(self) -> tuple[str, int]:
        return self.node.name, self.epoch

    @method
    async def fail(self) -> None:
        self.nursery.start_soon(self.explode)
        await trio.sleep_forever()

    @method
    async def end(self) -> None:
        await self.node.stop(self.handle)

    async def explode(self) -> None:
        raise RuntimeError("boom")


class NotNeeded(Child):
    async def on_start(self) -> None:
        raise Ignore("nothing to do here")


class Hanging(Child):
    """Never starts."""

    async def on_start(self) -> None:
        await trio.sleep_forever()


class Once(Child):
    """Starts once."""

    async def on_start(self) -> None:
        if await self.saved():
            raise LookupError("no second time")
        await self.save(1)


class Stubborn(Child):
    """Runs on when it is stopped, and takes its time with the rest."""

    @method
    async def busy(self) -> None:
        await self.tell("is busy")
        await trio.sleep_forever()

    async def on_stop(self, reason: ExitReason) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(4)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """The founder of a cluster of three, the others with labels and resources."""

    def patient() -> Platform:
        # No node dies here, and hundreds of children keep one loop busy: with the usual lease a
        # node of a loaded machine would lose its place.
        return Platform(environment=SystemEnvironment(Timings(lease=60.0)))

    async with (
        open_node("here", secret=SECRET, platform=patient()) as here,
        open_node(
            "large",
            join=here.address,
            secret=SECRET,
            platform=patient(),
            labels={"disk": "fast"},
            resources={"memory": 8, "gpu": 2},
        ),
        open_node(
            "small",
            join=here.address,
            secret=SECRET,
            platform=patient(),
            labels={"disk": "slow"},
            resources={"memory": 2},
        ),
    ):
        await here.wait_for(3)
        await here.options(name="notes").spawn(Notes)
        yield here


async def lines(node: Node) -> list[str]:
    return await (await node.lookup("notes", Notes)).read()


async def tree(node: Node, *children: ChildSpec, **options: Any) -> Supervisor:
    return await node.options(name="tree").spawn(Supervisor, children, **options)


async def child(node: Node, id: str) -> Child:
    return await node.lookup(f"tree/{id}", Child)


async def ends(call: Callable[[], Awaitable[object]]) -> None:
    """Make a call during which the actor ends."""
    with pytest.raises(UnderstudyError):
        await call()


async def until_states(top: Any, *states: str) -> None:
    """Wait until the children are in these states."""
    await until(
        top.children,
        f"the children are {states}",
        lambda found: [status.state for status in found] == list(states),
    )


async def gone(node: Node, name: str) -> None:
    """Wait until nobody has this name, nor will."""
    while True:
        try:
            await (await node.lookup(name, Child)).place()
        except ActorNotFoundError:
            return
        except UnderstudyError:
            pass
        await trio.sleep(0.01)


async def test_children_start_in_order_and_stop_in_reverse_order(node: Node) -> None:
    top = await tree(
        node,
        ChildSpec.of("a", Child),
        ChildSpec.of("b", Child).changed(on="large"),
        ChildSpec.of("c", Child),
    )
    await node.stop(top)
    assert await lines(node) == [
        "a starts",
        "b starts",
        "c starts",
        *(f"{id} stops: parent stopped" for id in "cba"),
    ]


async def test_a_child_that_fails_to_start_fails_its_supervisor_with_its_traceback(
    node: Node,
) -> None:
    once = ChildSpec.of("once", Once).changed(name="once")
    await node.stop(await node.options(name="once").spawn(Once))
    with pytest.raises(
        ActorStartError, match=r"tree: child 'once' did not start.*no second time"
    ) as caught:
        await tree(
            node, ChildSpec.of("a", Child), ChildSpec.of("b", Child), once, ChildSpec.of("d", Child)
        )
    assert "on_start" in caught.value.remote_traceback
    # Once could start once: that was before.
    assert await lines(node) == [
        "once stops: stopped",
        "a starts",
        "b starts",
        "b stops: parent stopped",
        "a stops: parent stopped",
    ]
    for name in ("tree", "tree/a", "tree/b"):
        with pytest.raises(ActorNotFoundError):
            await node.lookup(name)


async def test_a_child_that_is_not_needed_keeps_its_spec_and_is_no_failure(node: Node) -> None:
    temporary = ChildSpec.of("gone", NotNeeded).changed(restart="temporary")
    top = await tree(node, ChildSpec.of("idle", NotNeeded), temporary, ChildSpec.of("a", Child))
    (idle, a) = await top.children()
    assert (idle.id, idle.state, idle.node, a.state) == ("idle", "stopped", None, "running")
    with pytest.raises(ActorNotNeededError, match="tree/idle"):
        await top.restart_child("idle")
    with pytest.raises(ActorNotNeededError):
        await top.start_child(ChildSpec.of("another", NotNeeded))
    assert await top.count() == ChildCounts(specs=3, active=1, supervisors=0, workers=3)
    with pytest.raises(ActorNotFoundError):
        await node.lookup("tree/idle")


async def test_a_child_that_never_starts_fails_after_its_time_with_its_path(node: Node) -> None:
    with pytest.raises(
        ActorStartError,
        match=r"child 'slow' did not start.*tree/slow has not started within 0.05 s, its "
        r"start_timeout",
    ):
        await tree(node, ChildSpec.of("slow", Hanging).changed(on="large", start_timeout=0.05))
    await gone(node, "tree/slow")


async def test_a_supervisor_that_is_stopped_while_a_child_hangs_in_its_start_ends(
    node: Node,
) -> None:
    top = await tree(node)
    async with trio.open_nursery() as nursery:

        async def add() -> None:
            with pytest.raises(SupervisorStoppingError, match="tree is stopping"):
                await top.start_child(ChildSpec.of("slow", Hanging))

        nursery.start_soon(add)
        await until(top.children, "there is a child")
        await node.stop(top)
    await gone(node, "tree/slow")


async def test_a_child_that_ignores_its_stop_is_left_behind_after_its_time_and_its_name_is_free(
    node: Node,
) -> None:
    top = await tree(node, ChildSpec.of("a", Stubborn).changed(shutdown=0.1, on="large"))
    stubborn = await node.lookup("tree/a", Stubborn)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends, stubborn.busy)
        await until(lambda: lines(node), "a is busy", lambda found: "a is busy" in found)
        with trio.fail_after(60):
            await node.stop(top)
    await gone(node, "tree/a")


async def test_a_child_that_is_to_be_killed_is_not_asked(node: Node) -> None:
    top = await tree(node, ChildSpec.of("a", Child).changed(shutdown="kill", on="large"))
    await node.stop(top)
    assert await lines(node) == ["a starts"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("one-for-one", ["b starts"]),
        (
            "one-for-all",
            ["c stops: stopped", "a stops: stopped", "a starts", "b starts", "c starts"],
        ),
        ("rest-for-one", ["c stops: stopped", "b starts", "c starts"]),
    ],
)
async def test_each_strategy_restarts_its_children_across_nodes(
    node: Node, strategy: Any, expected: list[str]
) -> None:
    specs = [
        ChildSpec.of(id, Child).changed(on=on)
        for id, on in (("a", "here"), ("b", "large"), ("c", "small"))
    ]
    await tree(node, *specs, strategy=strategy)
    b = await child(node, "b")
    epoch = b.address.epoch
    await ends(b.fail)
    await until(b.place, "b lives again", lambda place: place[1] != epoch)
    found = await until(
        lambda: lines(node), "all is noted", lambda found: len(found) >= 3 + len(expected)
    )
    assert found[3:] == expected


async def test_temporary_siblings_that_are_stopped_by_a_strategy_are_forgotten(node: Node) -> None:
    top = await tree(
        node,
        ChildSpec.of("a", Child),
        ChildSpec.of("t", Child).changed(restart="temporary"),
        strategy="one-for-all",
    )
    await ends((await child(node, "a")).fail)
    await until(
        top.children, "a alone is there", lambda found: [status.id for status in found] == ["a"]
    )
    await gone(node, "tree/t")


async def test_a_failing_restart_is_repeated_until_the_intensity_is_exceeded(
    node: Node,
) -> None:
    top = await tree(node, ChildSpec.of("once", Once), intensity=3, period=100)
    once = await node.lookup("tree/once", Once)
    waiting: list[BaseException] = []

    async def wait() -> None:
        try:
            while True:
                await once.place()
        except NotExecutedError as error:
            waiting.append(error)
        except UnderstudyError:
            await wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await ends(once.fail)
        await gone(node, "tree/once")
    assert isinstance(waiting[0], ActorNotFoundError)
    with pytest.raises(ActorNotFoundError):
        await top.children()


async def test_waits_between_restarts_are_as_the_back_off_says(node: Node) -> None:
    backoff = RestartBackoff(initial_delay=0.3, jitter=0.0)
    top = await tree(node, ChildSpec.of("a", Child), backoff=backoff)
    a = await child(node, "a")
    began = trio.current_time()
    await ends(a.fail)
    await until_states(top, "restarting")
    await a.place()
    assert trio.current_time() - began >= 0.25


async def test_a_significant_child_that_ends_by_itself_ends_its_supervisor(
    node: Node,
) -> None:
    significant = [
        ChildSpec.of(id, Child).changed(restart="transient", significant=True) for id in "ab"
    ]
    top = await tree(
        node, *significant, ChildSpec.of("c", Child), automatic_shutdown="all-significant"
    )
    await top.stop_child("a")
    assert (await top.count()).active == 2
    await top.restart_child("a")
    await (await child(node, "a")).end()
    await until(top.count, "two are active", lambda count: count.active == 2)
    await (await child(node, "b")).end()
    for name in ("tree", "tree/c"):
        await gone(node, name)


async def test_what_is_no_child_may_end_beside_a_supervisor(node: Node) -> None:
    top = await tree(node, ChildSpec.of("a", Child))
    stranger = await node.options(name="tree/stranger").spawn(Child)
    await ends(stranger.fail)
    (status,) = await top.children()
    assert (status.id, status.restarts) == ("a", 0)


async def test_only_a_permanent_supervisor_that_gives_up_is_restarted(
    node: Node,
) -> None:
    def branch(id: str) -> ChildSpec:
        return ChildSpec.of(
            id, Supervisor, [ChildSpec.of("leaf", Child).changed(name=f"leaf of {id}")], intensity=0
        )

    top = await tree(node, branch("permanent"), branch("transient").changed(restart="transient"))
    leaf = await node.lookup("leaf of permanent", Child)
    await ends(leaf.fail)
    # Its promise ended with its supervisor, and is given again by the next.
    await until(top.children, "it is restarted", lambda found: found[0].restarts > 0)
    assert await leaf.place()
    await ends((await node.lookup("leaf of transient", Child)).fail)
    await gone(node, "leaf of transient")
    await until_states(top, "running", "stopped")
    permanent, transient = await top.children()
    assert (permanent.restarts, permanent.kind, transient.kind) == (1, "supervisor", "supervisor")
    assert transient.last_exit is not None
    assert transient.last_exit.kind == "shutdown"
    assert "more than 0 restarts" in transient.last_exit.text


async def test_ends_are_distinguished_and_kept(node: Node) -> None:
    specs = [
        ChildSpec.of("a", Child),
        ChildSpec.of("once", Once),
        ChildSpec.of("idle", Child).changed(idle_timeout=0.05, restart="transient"),
    ]
    top = await tree(
        node, *specs, intensity=2, period=0.01, backoff=RestartBackoff(initial_delay=0.02)
    )
    await ends((await child(node, "a")).fail)
    await (await child(node, "a")).end()
    await ends((await node.lookup("tree/once", Once)).fail)
    kinds: dict[str, set[str]] = {}
    while (
        not {"raised", "stopped"} <= kinds.get("a", set())
        or "start failed" not in kinds.get("once", set())
        or "idle" not in kinds
    ):
        kinds = {}
        for report in await top.deaths():
            kinds.setdefault(report.id, set()).add(report.reason.kind)
        await trio.sleep(0.01)
    assert kinds["idle"] == {"idle"}
    reports = [report for report in await top.deaths() if report.reason.kind == "raised"]
    assert reports[0].node in ("here", "large", "small")
    assert reports[0].epoch is not None
    assert "explode" in reports[0].reason.traceback


async def test_dynamic_children_are_spawned_stopped_and_forgotten_by_handle_and_limited_in_number(
    node: Node,
) -> None:
    pool = await node.options(name="pool").spawn(
        DynamicSupervisor, ChildSpec.of("job", Child), max_children=3, intensity=5
    )
    jobs: list[Any] = [await pool.spawn() for _ in range(3)]
    with pytest.raises(TooManyChildrenError, match="pool has 3 children, its limit"):
        await pool.spawn()
    await pool.stop_child(jobs[0])
    await ends(jobs[1].fail)
    assert await jobs[1].place()
    assert await pool.count() == ChildCounts(specs=2, active=2, supervisors=0, workers=2)
    with pytest.raises(ChildNotFoundError):
        await pool.stop_child(jobs[0])
    with pytest.raises(ChildRunningError):
        await pool.restart_child(jobs[1].name)
    await node.stop(pool)
    for job in jobs:
        await gone(node, job.name)
    with pytest.raises(ValueError, match="empty has no template"):
        await (await node.options(name="empty").spawn(DynamicSupervisor)).spawn()


class Slow(Child):
    """Starts when it may."""

    async def on_start(self) -> None:
        await (await self.node.lookup("gate", Gate)).wait()


class Gate(Actor):
    def __init__(self) -> None:
        self.opened = trio.Event()

    @method(concurrent=True)
    async def wait(self) -> None:
        await self.opened.wait()

    @method(concurrent=True)
    async def open(self) -> None:
        self.opened.set()


async def test_an_id_may_be_given_anew_while_its_forgetting_stands_in_line(node: Node) -> None:
    gate = await node.options(name="gate").spawn(Gate)
    top = await tree(node, ChildSpec.of("a", Child))
    await top.stop_child("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(top.start_child, ChildSpec.of("slow", Slow))
        await until(top.children, "there are two", lambda found: len(found) >= 2)
        nursery.start_soon(top.delete_child, "a")
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.start_soon(top.start_child, ChildSpec.of("a", Quiet))
        await trio.testing.wait_all_tasks_blocked(0.01)
        await gate.open()
    assert [(status.id, status.state) for status in await top.children()] == [
        ("slow", "running"),
        ("a", "running"),
    ]


async def test_temporary_children_that_end_while_they_are_being_stopped_disturb_nobody(
    node: Node,
) -> None:
    pool = await node.options(name="pool").spawn(DynamicSupervisor)
    jobs = [
        await pool.start_child(ChildSpec.of(f"job {number}", Quiet).changed(restart="temporary"))
        for number in range(60)
    ]

    async def stop(job: Handle) -> None:
        with contextlib.suppress(ChildNotFoundError):
            await pool.stop_child(job)

    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(stop, job)
            nursery.start_soon(node.stop, job)
    assert await pool.children() == []


async def test_hundreds_of_dynamic_children_are_started_at_once_and_spread_over_the_nodes(
    node: Node,
) -> None:
    pool = await node.options(name="pool").spawn(DynamicSupervisor, ChildSpec.of("job", Quiet))

    async def spawn() -> None:
        await pool.spawn()

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(spawn)
    places = [status.node for status in await pool.children()]
    assert len(places) == 200
    assert min(places.count(name) for name in ("here", "large", "small")) >= 60


class Quiet(Actor):
    pass


async def test_children_go_where_their_labels_resources_and_placement_say(node: Node) -> None:
    top = await tree(node, ChildSpec.of("fast", Child).changed(labels={"disk": "fast"}))
    assert (await (await child(node, "fast")).place())[0] == "large"
    for number in range(2):
        await top.start_child(
            ChildSpec.of(f"gpu {number}", Child).changed(resources={"gpu": 1, "memory": 3})
        )
        assert (await (await child(node, f"gpu {number}")).place())[0] == "large"
    with pytest.raises(
        ActorStartError, match=r"large has 0 gpu left of 2, and tree/gpu 2 asks for 1"
    ):
        await top.start_child(
            ChildSpec.of("gpu 2", Child).changed(resources={"gpu": 1}, start_timeout=0.2)
        )
    await top.stop_child("gpu 0")
    await top.start_child(ChildSpec.of("gpu 2", Child).changed(resources={"gpu": 1}))
    packed = [
        await top.start_child(ChildSpec.of(f"packed {number}", Quiet).changed(placement="pack"))
        for number in range(4)
    ]
    assert len({handle.address.node for handle in packed}) == 1
    with pytest.raises(NoPlacementError, match="has no gpu"):
        await node.options(resources={"gpu": 1}, on="small").spawn(Quiet)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: Supervisor([ChildSpec.of("a", Child), ChildSpec.of("a", Child)]),
            "child 'a': this id is given to two children",
        ),
        (
            lambda: Supervisor([ChildSpec.of(id, Child).changed(name="n") for id in "ab"]),
            "the name 'n' is given to two children",
        ),
        (lambda: Supervisor([], strategy="one_for_one"), "strategy must be one of"),  # type: ignore[arg-type]
        (lambda: Supervisor([], intensity=-1), "intensity must be at least 0"),
        (lambda: Supervisor([], period=0), "period"),
        (
            lambda: Supervisor(
                [ChildSpec.of("a", Child).changed(restart="transient", significant=True)]
            ),
            "child 'a': significant",
        ),
        (
            lambda: ChildSpec.of("b", Supervisor, [ChildSpec.of("a", Child)] * 2),
            "in supervisor 'b': child 'a'",
        ),
        (lambda: ChildSpec.of("c", Supervisor, [], intensity=-1), "in supervisor 'c': intensity"),
        (lambda: ChildSpec.of("\x9b31m", Child), "an id has no control characters"),
        (lambda: ChildSpec.of("a\udcff", Child), "no lone surrogates"),
        (lambda: ChildSpec.of("a ", Child), "no spaces at the ends"),
        (lambda: ChildSpec.of("a", Child).changed(shutdown=-1), "child 'a': shutdown"),
        (lambda: ChildSpec.of("a", Child).changed(start_timeout=0), "child 'a': start_timeout"),
        (
            lambda: ChildSpec.of("a", Child).changed(significant=True),
            "child 'a': a permanent child is restarted whenever it ends",
        ),
        (lambda: DynamicSupervisor(max_children=-1), "max_children"),
        (lambda: ChildSpec.of("a", Child).changed(placement="scatter"), "placement must be one of"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_defined(
    wrong: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


class Cycle(Supervisor):
    """Starts itself, for ever."""

    def __init__(self) -> None:
        super().__init__([ChildSpec.of("again", Cycle)])


async def test_a_supervisor_that_starts_itself_comes_to_an_end_with_its_path(node: Node) -> None:
    with pytest.raises(
        ActorStartError, match=r"tree/again/again.*check whether a supervisor starts itself"
    ):
        await node.options(name="tree").spawn(Cycle)
    await gone(node, "tree/again")
