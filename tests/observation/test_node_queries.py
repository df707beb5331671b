"""The tree as a node asks for it: actors without names, supervisors that start, lie or are silent,
and stores that are away.
"""

from __future__ import annotations

from typing import cast

import pytest
import trio

from actors import Actor, ChildSpec, DynamicSupervisor, Supervisor, method
from actors.errors import StoreUnavailableError
from actors.identifiers import NodeId
from actors.messages import import_path
from runtime import draw_tree
from runtime.membership.names import Names
from runtime.node import Node, internals_of
from runtime.observation import node_queries
from runtime.observation.node_queries import ask_for_tree
from runtime.observation.tree import Branch, Tree
from tests.live_pair import LONG_LEASE, Pair
from tests.waiting import until


class Worker(Actor):
    @method
    async def wait(self) -> None:
        await trio.sleep_forever()


class Gate(Actor):
    """Lets `Late` start when it is opened."""

    def __init__(self) -> None:
        self.reached = trio.Event()
        self.opened = trio.Event()

    @method(concurrent=True)
    async def pass_through(self) -> None:
        self.reached.set()
        await self.opened.wait()

    @method(concurrent=True)
    async def wait_reached(self) -> None:
        await self.reached.wait()

    @method(concurrent=True)
    async def open(self) -> None:
        self.opened.set()


class Late(Actor):
    async def on_start(self) -> None:
        await (await self.node.lookup("gate", Gate)).pass_through()


class Liar(Supervisor):
    """Has a method of its own where a supervisor's status is asked for."""

    @method(concurrent=True, idempotent=True)
    async def status(self) -> str:  # type: ignore[override]
        return "fine"


def states(tree: Tree) -> dict[str, str]:
    return {branch.id: branch.state for branch in tree.walk()}


async def asked_with(node: Node, names: object, members: list[NodeId] | None = None) -> Tree:
    if members is None:
        members = [NodeId(member.name, member.incarnation) for member in node.members()]
    return await ask_for_tree(
        internals_of(node).endpoint, cast("Names", names), members, node.cluster
    )


async def test_supervisors_without_names_of_their_own_and_children_anywhere_are_shown(
    pair: Pair, where: str
) -> None:
    inner = ChildSpec.of("inner", Supervisor, [ChildSpec.of("x", Worker).changed(on=where)])
    with trio.fail_after(60):
        supervisor = await pair.there.spawn(
            Supervisor, [ChildSpec.of("a", Worker).changed(on="here"), inner]
        )
        for node in (pair.here, pair.there):
            tree = await node.tree()
            (root,) = tree.roots
            assert tree.answers
            assert root.name == cast("Branch", supervisor).name
            assert list(states(tree)) == [root.id, "a", "inner", "x"]
            assert {
                branch.id: branch.node for branch in tree.walk() if branch.id in ("a", "x")
            } == {"a": "here", "x": where}
            assert root.age is not None


async def test_calls_that_wait_are_counted_and_actors_of_nobody_are_no_part_of_the_tree(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        await pair.here.options(name="loner").spawn(Worker)
        await pair.here.options(name="top").spawn(
            Supervisor, [ChildSpec.of("a", Worker).changed(on=where)]
        )
        worker = await pair.here.lookup("top/a", Worker)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(worker.wait)
            while (tree := await pair.here.tree()).roots[0].children[0].waiting != 2:
                pass
            nursery.cancel_scope.cancel()
        assert tree.loose == ("loner",)
        assert "loner" not in draw_tree(tree)


async def test_a_supervisor_that_starts_is_shown_with_what_runs_already_and_is_not_waited_for(
    pair: Pair, where: str
) -> None:
    specs = [
        ChildSpec.of("quick", Worker).changed(on=where),
        ChildSpec.of("late", Late).changed(on=where),
    ]
    with trio.fail_after(60):
        gate = await pair.here.options(name="gate").spawn(Gate)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.there.options(name="top").spawn, Supervisor, specs)
            await gate.wait_reached()
            tree = await pair.here.tree()
            assert tree.answers
            assert states(tree) == {"top": "starting", "quick": "running", "late": "starting"}
            await gate.open()
        # A node keeps its answer for a multiple of the time that it took: on a busy machine the
        # first answers after the start may be of before.
        running = {"top": "running", "quick": "running", "late": "running"}
        while states(await pair.here.tree()) != running:
            pass


async def test_a_supervisor_with_another_status_of_its_own_hides_nothing(pair: Pair) -> None:
    with trio.fail_after(60):
        await pair.here.options(name="liar").spawn(Liar, [ChildSpec.of("a", Worker)])
        tree = await pair.there.tree()
        assert states(tree) == {"liar": "running", "a": "running"}
        assert tree.roots[0].strategy == "one-for-one"
        assert tree.answers


async def test_without_the_store_the_tree_is_that_of_the_nodes_that_answer(pair: Pair) -> None:
    class Away:
        async def owned(self, names: list[str]) -> dict[str, object]:
            assert names == ["top"], "only what no node has told is asked for"
            raise StoreUnavailableError("the store is away\nfor a while")

    class Silent:
        async def owned(self, names: list[str]) -> dict[str, object]:
            await trio.sleep_forever()
            raise AssertionError

    child = ChildSpec.of("a", Worker).changed(on="here")
    here = [NodeId("here", pair.here.incarnation)]
    with trio.fail_after(60):
        await pair.there.options(name="top").spawn(Supervisor, [child])
        for names, problem in (
            (Away(), "the store is away"),
            (Silent(), "did not answer within 1 s"),
        ):
            tree = await asked_with(pair.here, names, here)
            assert states(tree) == {"top": "gone", "a": "running"}
            (told,) = tree.problems
            assert problem in told
            assert "for a while" not in told
            # What the nodes tell needs no store.
            tree = await asked_with(pair.here, names)
            assert states(tree) == {"top": "running", "a": "running"}
            assert tree.answers


async def test_names_are_searched_up_to_a_bound_for_what_a_silent_node_runs(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_queries, "MOST_NAMES", 3)
    child = ChildSpec.of("a", Worker).changed(on="there")
    names = internals_of(pair.here).names
    with trio.fail_after(60):
        await pair.here.options(name="top").spawn(Supervisor, [child])
        for number in range(3):
            await pair.here.options(name=f"A{number}").spawn(Worker)
        await pair.there.options(name="Z").spawn(Worker)
        # It answers nothing, and its names come after the bound, except for the child: that one is
        # known to its supervisor.
        internals_of(pair.there).cells.pop("@inspection")
        tree = await asked_with(pair.here, names)
        (found,) = [branch for branch in tree.walk() if branch.id == "a"]
        assert (found.state, found.class_path) == ("running", import_path(Worker))
        assert "Z" not in states(tree)
        assert tree.left_out == (
            "of the names in the store, the first 3 were searched for actors of silent nodes",
        )
        monkeypatch.setattr(node_queries, "MOST_NAMES", 100)
        tree = await asked_with(pair.here, names)
        assert tree.left_out == ()


async def test_a_node_that_is_no_member_any_more_is_reported_and_what_it_ran_is_shown(
    pair: Pair,
) -> None:
    with trio.fail_after(60):
        await pair.there.options(name="top").spawn(
            Supervisor, [ChildSpec.of("a", Worker).changed(on="here")]
        )
        tree = await ask_for_tree(
            internals_of(pair.here).endpoint,
            internals_of(pair.here).names,
            [NodeId("here", pair.here.incarnation)],
            "understudy",
        )
        assert states(tree) == {"top": "does not answer", "a": "running"}
        assert tree.roots[0].problem == "its node there is not a member of the cluster"


@LONG_LEASE
@pytest.mark.parametrize("count", [0, 300])
async def test_supervisors_are_asked_side_by_side_however_many_there_are(
    pair: Pair, count: int
) -> None:
    with trio.fail_after(60):
        pool = await pair.there.options(name="pool").spawn(
            DynamicSupervisor, ChildSpec.of("s", Supervisor)
        )
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(pool.spawn)
        # The starts of that many may keep a busy machine for longer than an answer may take.
        tree = await until(pair.here.tree, "both nodes answer", lambda tree: tree.answers)
        assert len(tree.roots[0].children) == count
