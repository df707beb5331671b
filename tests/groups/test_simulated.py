"""Groups while simulated nodes are killed, stopped and cut off: in the end all nodes see the
members that there are.
"""

from __future__ import annotations

import pytest
import trio

from actors import UnderstudyError
from runtime.groups.groups import ProcessGroup
from runtime.node import internals_of
from runtime.simulation import Simulation, simulate
from runtime.simulation.runs import cluster_of
from tests.groups.actors_used import Reader
from tests.waiting import until

GROUPS = ("one", "two")
PATIENCE = 60.0

SEEDS = (
    range(2),
    pytest.param(range(2, 5), marks=pytest.mark.long),
    *(pytest.param(range(first, first + 5), marks=pytest.mark.long) for first in range(5, 40, 5)),
)
"""The first of ten."""


async def memberships(simulation: Simulation) -> None:
    readers: list[Reader] = []
    # Held, and so followed, from the moment that each node is seen.
    held: dict[tuple[str, int], list[ProcessGroup[Reader]]] = {}

    def hold() -> None:
        for name in cluster_of(simulation).machines:
            node = cluster_of(simulation).live(name)
            if node is not None and (name, node.incarnation) not in held:
                held[name, node.incarnation] = [node.group(group, Reader) for group in GROUPS]

    for _ in range(40):
        hold()
        try:
            with trio.move_on_after(10):
                where = simulation.random.choice((*simulation.nodes, simulation.node.name))
                readers.append(
                    await simulation.node.options(on=where).spawn(
                        Reader, simulation.random.choice(GROUPS)
                    )
                )
            if readers:
                reader, group = simulation.random.choice(readers), simulation.random.choice(GROUPS)
                match simulation.random.randrange(4):
                    case 0:
                        await reader.enter.options(timeout=2)(group)
                    case 1:
                        await reader.exit.options(timeout=2)(group)
                    case 2:
                        with trio.move_on_after(10):
                            await simulation.node.stop(reader)
                    case _:
                        await simulation.node.group(group, Reader).broadcast(Reader.on_news, "news")
        except UnderstudyError:
            await trio.sleep(0.1)
        await trio.sleep(simulation.random.random())
    await simulation.calm()
    hold()
    seen: dict[str, object] = {}

    def is_wrong() -> bool:
        # A node that had lost its lease in the last of the faults may leave, and come back, only
        # now.
        hold()
        return wrong(simulation, held, seen)

    try:
        await until(
            is_wrong,
            "each node sees the members that there are",
            lambda found: not found,
            seconds=PATIENCE,
            every=0.2,
        )
    except AssertionError as error:
        raise AssertionError(f"{error}: {seen}") from None


def wrong(
    simulation: Simulation,
    held: dict[tuple[str, int], list[ProcessGroup[Reader]]],
    seen: dict[str, object],
) -> bool:
    """True if a node sees others than there are."""
    nodes = [cluster_of(simulation).live(name) for name in cluster_of(simulation).machines]
    seen.clear()
    for index, group in enumerate(GROUPS):
        there_are = sorted(
            one.address.name
            for node in nodes
            if node is not None
            for one in internals_of(node).groups._memberships.members(group)
            for _ in range(one.times)
        )
        for node in nodes:
            if node is None or (node.name, node.incarnation) not in held:
                seen["a node"] = "has just come or gone"
                continue
            sees = sorted(
                reader.name for reader in held[node.name, node.incarnation][index].members()
            )
            if sees != there_are:
                seen[f"{node.name} sees of {group}"] = sees, there_are
    return bool(seen)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_all_nodes_see_the_same_members_after_whatever_happened(seeds: range) -> None:
    simulate(memberships, seeds=seeds)


@pytest.mark.slow
def test_under_node_deaths_alone_as_well() -> None:
    simulate(memberships, seeds=range(100, 102), faults=["crash"])
