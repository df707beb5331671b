"""The runtime's own actors among those of users: they are shown as what they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest

from actors import Actor, method
from actors.messages import import_path
from runtime import Node
from runtime.command_line.status import print_status
from runtime.command_line.tables import table
from runtime.functions.worker import FunctionWorker
from runtime.node import internals_of
from runtime.observation.actor_listing import COLUMNS, ActorListing
from runtime.observation.cluster_html import status_html
from runtime.observation.roles import POOL, POOL_KEEPER, ROLES, members_of, with_roles
from runtime.observation.tree import draw_tree
from runtime.pools.supervisor import CoroutineMember, FunctionMember, PoolKeeper, PoolSupervisor
from runtime.testing import Platform
from tests.live_pair import in_virtual_time, open_pair
from tests.memory_network import MemoryNetwork


class Resizer(Actor):
    """A member of a pool."""

    @method
    async def resize(self) -> None:
        """Nothing."""


@attrs.frozen
class Setting:
    """`here` has the supervisor of the pool `images` of three members, and `there` stands for
    it.
    """

    here: Node
    there: Node


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    async with open_pair(Platform(network=MemoryNetwork())) as pair:
        await pair.here.pool("images", Resizer, size=3)
        yield Setting(pair.here, pair.there)


async def rows_of(node: Node) -> list[dict[str, object]]:
    environment = internals_of(node).environment
    listing = ActorListing(internals_of(node).endpoint.host, node.name, environment.now)
    found: list[dict[str, object]] = (await listing.select([], "name", 100))["actors"]
    return found


def test_the_classes_have_these_paths() -> None:
    ours = (PoolSupervisor, PoolKeeper, FunctionMember, CoroutineMember, FunctionWorker)
    assert set(ROLES) == set(map(import_path, ours))


def test_a_tree_shows_a_pool_with_its_size_and_its_keepers() -> None:
    async def test(both: Setting) -> None:
        tree = await both.here.tree()
        (pool,) = tree.roots
        assert (pool.name, pool.role) == ("images", POOL)
        roles = [child.role for child in pool.children]
        assert sorted(roles) == ["", "", "", POOL_KEEPER]
        drawn = draw_tree(tree).splitlines()
        assert drawn[1].startswith("images (pool of 3) ")
        assert sum("keeper-" in line and "(pool keeper)" in line for line in drawn) == 1
        facts = tree.facts()["roots"]
        assert isinstance(facts, list)
        assert facts[0]["role"] == POOL
        assert "pool of 3" in tree._repr_html_()

    in_virtual_time(setting, test)


def test_lists_show_a_pool_with_its_size_and_its_keepers() -> None:
    async def test(both: Setting) -> None:
        rows = [*await rows_of(both.here), *await rows_of(both.there)]
        found = {str(row["name"]): row for row in rows}
        assert (found["images"]["role"], found["images"]["members"]) == (POOL, 3)
        assert sum(row["role"] == POOL_KEEPER for row in rows) == 1
        # Programs find the class, as before.
        assert found["images"]["class"] == import_path(PoolSupervisor)
        text = "\n".join(table(COLUMNS, list(map(with_roles, rows))))
        assert "(pool of 3)" in text
        assert text.count("(pool keeper)") == 1
        assert "PoolKeeper" not in text
        assert "PoolSupervisor" not in text
        page = status_html("cluster", [], {"here": rows})
        assert "(pool of 3)" in page
        assert "PoolKeeper" not in page

    in_virtual_time(setting, test)


def test_status_shows_them_likewise(capsys: pytest.CaptureFixture[str]) -> None:
    async def test(both: Setting) -> None:
        node = {"name": "here", "answers": True, "state": "up", "joined": 0.0, "incarnation": 1}
        node |= {"pid": 7, "addresses": [], "actors": await rows_of(both.here)}
        store = {"kind": "embedded", "node": "here", "address": "", "away": False}
        print_status({"cluster": "one", "nodes": [node], "store": store, "ended": [], "time": 1.0})

    in_virtual_time(setting, test)
    printed = capsys.readouterr().out
    assert "(pool of 3)" in printed
    assert "PoolSupervisor" not in printed


def test_what_an_earlier_version_reports_has_a_role_as_well() -> None:
    row = {"name": "images", "class": import_path(PoolSupervisor)}
    assert with_roles(row)["class"] == "(pool)"
    assert with_roles({"name": "nobody", "class": None})["class"] is None


def test_a_class_of_a_user_that_calls_itself_a_pool_is_asked_nothing() -> None:
    class Trap:
        @property
        def present_members(self) -> int:
            raise AssertionError("asked")

    assert members_of(Trap()) is None
