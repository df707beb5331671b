"""What objects of a cluster look like in a notebook, at each door: open, busy, closed, forked."""

from __future__ import annotations

import asyncio
import copy
import threading
from typing import Any, cast

import attrs
import pytest
import trio

from actors import ChildSpec, Supervisor
from actors.errors import ForkedProcessError
from actors.handle import Handle
from runtime import open_node
from runtime.aio import connect as connect_aio
from runtime.blocking import Blocking, BlockingLocalCluster, connect
from tests.actors.test_html import Tags
from tests.doors.actors_used import Counter

pytestmark = pytest.mark.cluster

SPECIAL = (
    "_repr_mimebundle_",
    "_ipython_display_",
    "_ipython_canary_method_should_not_exist_",
    "__dataclass_fields__",
    "__wrapped__",
)


def picture(shown: object) -> str:
    """The text of what a notebook shows of an object."""
    return Tags(shown._repr_html_()).text  # type: ignore[attr-defined]


def test_a_handle_shows_what_it_knows_and_is_asked_for_nothing_else(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    shown = picture(counter)
    for word in (counter.name, "tests.doors.actors_used:Counter", "worker-1", "add, add_to, "):
        assert word in shown
    known = cluster.lookup(counter.name)
    elsewhere = attrs.evolve(known.address, class_path="not_imported_here:Counter")
    # `handle` gives it the caller of the cluster's node.
    unknown = cluster.handle(Handle(cast("Any", None), elsewhere, None))
    assert "any may be tried" in picture(unknown)
    for handle in (known, unknown):
        for name in SPECIAL:
            assert getattr(handle, name, None) is None
    assert isinstance(copy.copy(counter), Handle)


def test_references(cluster: BlockingLocalCluster, counter: Blocking[Counter]) -> None:
    assert "kept byworker-1" in picture(counter.add.remote(1))
    assert "kept bydriver" in picture(cluster.put(1))


def test_a_tree_is_a_table(cluster: BlockingLocalCluster) -> None:
    assert "no supervisors" in picture(cluster.tree())
    specs = [ChildSpec(id="<b>till</b>", actor=Counter)]
    shop = cluster.options(name="shop", on="worker-1").spawn(Supervisor, specs)
    shown = cluster.tree()._repr_html_()
    assert "&lt;b&gt;till" in shown
    assert "<b>till" not in shown
    assert "one-for-one" in picture(cluster.tree())
    cluster.stop(shop)


def test_a_cluster_shows_its_nodes_and_why_if_it_cannot(cluster: BlockingLocalCluster) -> None:
    assert "worker-1" in picture(cluster)
    other = connect(cluster.address, name="pictured")
    assert "pictured" in picture(other)
    # Its loop is blocked: a picture waits for it, but not for long.
    free, blocked = threading.Event(), threading.Event()
    waits = other._door.future(lambda: _block(blocked, free))
    assert blocked.wait(60)
    assert "busy" in picture(other)
    free.set()
    waits.result(60)
    assert "worker-1" in picture(other)
    other.close()
    assert "closed" in picture(other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(other._door.session, "_pid", 1)
        assert "fork" in picture(other)
        with pytest.raises(ForkedProcessError):
            other.members()


async def _block(blocked: threading.Event, free: threading.Event) -> None:
    blocked.set()
    free.wait(60)  # blocks the loop on purpose


def test_the_other_doors(cluster: BlockingLocalCluster) -> None:
    async def under_asyncio() -> str:
        async with connect_aio(cluster.address) as opened:
            return picture(opened)

    async def under_trio() -> tuple[str, str, str]:
        async with open_node("pictured", cluster="pictures", secret="s") as node:
            before = picture(node)
            assert "pictured" in repr(node)
            within = picture(cluster)
        return before, picture(node), within

    assert "worker-1" in asyncio.run(under_asyncio())
    before, after, within = trio.run(under_trio)
    assert "pictured" in before
    assert "incarnation" in after
    assert "trio run" in within
