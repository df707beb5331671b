"""Opening a node: what it was given makes sense or is refused, and it can be used in full from the
moment that it is there.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
import trio

from actors import Actor, method
from actors.errors import JoinError, NoPlacementError
from runtime import open_node
from runtime.membership.members import PREFIX, NodeRecord
from runtime.membership.restart_intents import NAMES
from runtime.node import internals_of
from tests.live_pair import SECRET, Pair


class Greeter(Actor):
    """Says where it is."""

    @method
    async def where(self) -> str:
        return self.node.name


@pytest.mark.parametrize("joins", [False, True])
async def test_what_is_placed_by_label_or_resource_at_once_finds_the_node_that_was_just_opened(
    joins: bool,
) -> None:
    async with open_node("founder", secret=SECRET) as founder:
        for number in range(15):
            label = {"number": str(number)}
            async with open_node(
                f"n{number}",
                join=founder.address if joins else None,
                secret=SECRET,
                labels=label,
                resources={"slots": 1},
            ) as node:
                assert (
                    next(member for member in node.members() if member.name == node.name).state
                    == "up"
                )
                found = await node.options(labels=label, resources={"slots": 1}).spawn(Greeter)
                assert await found.where() == node.name
                if joins:
                    # Nor does another node, which may not have heard of it yet, say that there is
                    # none.
                    found = await founder.options(labels=label).spawn(Greeter)
                    assert await found.where() == node.name


UNDIALLED = (
    *("0:7400", "0x0", "0x0.0", "00.0.0.0:7400", "000", "0.0", "0.0.0.0.", "0.0.0.0.:1"),
    *("::", "[::]:7400", "::ffff:0.0.0.0", "[::ffff:0.0.0.0]:7400", "::0.0.0.0", "::ffff:0:0"),
    *("*", "*:7400", "a b:1", " a:1", "a\tb", "a\x1bb:1", "10.0.0.1/8", "me@here", "a,b:1"),
)
"""Addresses that name all interfaces of a machine, and what is none."""


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"name": ""}, ValueError, "name='' is not a usable name"),
        ({"name": " n"}, ValueError, "not a usable name"),
        ({"name": "a\nb"}, ValueError, "not a usable name"),
        ({"name": "@node"}, ValueError, "not a usable name"),
        ({"name": "n" * 256}, ValueError, "not a usable name"),
        ({"name": "\ud800"}, ValueError, "no lone surrogates"),
        ({"name": 7}, TypeError, "name must be a str"),
        ({"cluster": ""}, ValueError, "cluster='' is not a usable name"),
        ({"cluster": None}, TypeError, "cluster must be a str"),
        ({"labels": {"": "x"}}, ValueError, "labels have names, unlike '': 'x'"),
        ({"resources": {"": 1}}, ValueError, "resources have names, unlike '': 1"),
        ({"labels": {"zone": 7}}, TypeError, "labels map str to str, not 'zone': 7"),
        ({"labels": {"zone": "\ud800"}}, ValueError, "labels have no control characters"),
        ({"labels": ["zone"]}, TypeError, "labels are a mapping"),
        ({"labels": {"zone": "b" * 16_381}}, ValueError, "labels are too long: .* 16385 bytes"),
        ({"labels": {"z" * 16_385: ""}}, ValueError, "labels are too long"),
        ({"labels": {"zone": "\u20ac" * 5461}}, ValueError, "labels are too long: .* 16387 bytes"),
        ({"labels": {str(one): "" for one in range(257)}}, ValueError, "at most 256 labels"),
        ({"resources": {"z" * 16_385: 1}}, ValueError, "resources are too long"),
        ({"resources": {str(one): 1 for one in range(257)}}, ValueError, "at most 256 resources"),
        ({"resources": {"cpu": "4"}}, TypeError, "resources map names to numbers, not 'cpu': '4'"),
        ({"resources": {"cpu": True}}, TypeError, "resources map names to numbers"),
        ({"resources": {"cpu": -1}}, ValueError, "amounts of at least 0"),
        ({"resources": {"cpu": math.nan}}, ValueError, "amounts of at least 0"),
        ({"resources": {"cpu": math.inf}}, ValueError, "amounts of at least 0"),
        ({"resources": {"cpu": 10**400}}, ValueError, "amounts of at least 0"),
        ({"resources": {"\ud800": 1.0}}, ValueError, "resources have no control"),
        ({"resources": 4}, TypeError, "resources are a mapping"),
        ({"join": 7400}, TypeError, "join must be a str"),
        ({"join": "here"}, JoinError, "expected HOST:PORT"),
        ({"join": "here:70000"}, JoinError, "a port from 0 to 65535"),
        ({"join": "tcp://here:7400"}, JoinError, "without tcp://, as in here:7400"),
        ({"join": "http://here:7400/"}, JoinError, "without http://, as in here:7400"),
        ({"listen": 7400}, TypeError, "listen must be a str"),
        ({"listen": "7400"}, ValueError, "expected HOST:PORT"),
        ({"advertise": "0.0.0.0:7400"}, ValueError, "not an address that other nodes can dial"),
        *(({"advertise": one}, ValueError, "is not an address") for one in UNDIALLED),
        ({"advertise": "a..b"}, ValueError, "nothing before a dot, or between two dots"),
        ({"listen": "a..b:7400"}, ValueError, "'a..b:7400' is not an address: its host has noth"),
        ({"listen": "unix:/x"}, ValueError, "'unix:/x': a node listens at HOST:PORT"),
        ({"join": "a..b:7400"}, JoinError, "'a..b:7400' is not an address: its host has nothing"),
        ({"advertise": "a" * 245}, ValueError, "advertise=.* the host has 245 characters"),
        ({"advertise": "here:port"}, ValueError, "expected HOST:PORT"),
        ({"advertise": ""}, ValueError, "not an address that other nodes can dial"),
        ({"advertise": "\ud800:7400"}, ValueError, "the character '.ud800', which no host has"),
        ({"advertise": ":::"}, ValueError, "is not an address"),
        ({"advertise": "[fe80:::1]:7400"}, ValueError, "is not an address"),
        ({"secret": ""}, ValueError, "secret is empty"),
        ({"secret": "\udcff"}, ValueError, "secret holds a lone surrogate"),
        ({"secret": [b"one", "\udcff"]}, ValueError, "secret holds a lone surrogate"),
        ({"secret": 7}, TypeError, "secret must be bytes or a str"),
        ({"reference_memory": "1G"}, TypeError, "reference_memory is a number of bytes"),
        ({"reference_memory": -1}, ValueError, "reference_memory is a number of bytes"),
        ({"reference_memory": 10**400}, ValueError, "reference_memory is a number of bytes"),
        ({"log_memory": 10**400}, ValueError, "log_memory must be at most"),
        ({"thread_limit": 10**400}, ValueError, "thread_limit must be at most"),
        ({"client_actors": 10**400}, ValueError, "client_actors must be at most"),
        ({"call_timeout": 10**400}, ValueError, "call_timeout must be a positive number"),
        ({"blocked_limit": 10**400}, ValueError, "blocked_limit must be a finite number"),
        ({"reference_directory": "/no/such/directory"}, ValueError, "is not a directory"),
        ({"references_on_leave": "keep"}, ValueError, "references_on_leave is one of"),
    ],
)
async def test_an_option_that_makes_no_sense_is_refused_by_name(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        async with open_node(**{"secret": SECRET, **options}):
            pass


async def test_the_most_labels_and_resources_leave_a_record_that_all_nodes_read() -> None:
    labels = {f"{one:03}": "\u20ac" * 20 for one in range(256)}
    labels["000"] += "x" * 256
    assert sum(len(f"{key}{text}".encode()) for key, text in labels.items()) == 16 * 1024
    resources = {f"{one:064}": 10**308 for one in range(256)}
    async with (
        open_node("f" * 255, secret=SECRET) as founder,
        open_node(
            "\u20ac" * 255,
            join=founder.address,
            secret=SECRET,
            advertise=f"{'.'.join(['a' * 60] * 4)}.:65535",
            labels=labels,
            resources=resources,
        ) as node,
    ):
        with trio.fail_after(60):
            await founder.wait_for(2)
        seen = next(one for one in founder.members() if one.name == node.name)
        assert (seen.labels, seen.resources) == (labels, resources)
        assert node.name in [one.name for one in node.members()]


@pytest.mark.parametrize(
    "wrong",
    [
        {"resources": {"cpu": "lots"}},
        {"resources": 5},
        {"resources": {"cpu": math.nan}},
        {"resources": {"cpu": 10**400}},
        {"labels": {"a": 1}},
    ],
)
async def test_what_one_node_says_wrongly_of_itself_breaks_no_placement_on_others(
    pair: Pair, wrong: dict[str, Any]
) -> None:
    """As a node of another version might, or one that is mistaken."""
    store, here = internals_of(pair.here).store, pair.here
    record = attrs.evolve(
        internals_of(pair.there).registration.record, name="mistaken", state="up", **wrong
    )
    lease = await store.grant(60.0)
    await store.put(
        PREFIX + "mistaken", bytes(internals_of(here).endpoint.codec.encode(record, [])), lease
    )
    with trio.fail_after(60):
        await here.wait_for(3)
        await pair.there.wait_for(3)
    for node in (pair.here, pair.there):
        with pytest.raises(NoPlacementError, match="has no cpu"):
            await node.options(resources={"cpu": 1}).spawn(Greeter)
        with pytest.raises(NoPlacementError, match="does not carry the label"):
            await node.options(labels={"zone": "north"}).spawn(Greeter)


async def test_an_amount_that_no_float_holds_in_the_record_of_a_name_breaks_no_placement(
    pair: Pair,
) -> None:
    here = internals_of(pair.here)
    node, incarnation = pair.there.name, pair.there.incarnation
    claim: list[object] = [node, incarnation, "any:Class", 1, "", {"cpu": 10**400}]
    await here.store.put(f"{NAMES}strange", b"\0" + bytes(here.endpoint.codec.encode(claim, [])))
    for asking in (pair.here, pair.there):
        with pytest.raises(NoPlacementError, match="has no cpu"):
            await asking.options(resources={"cpu": 1}).spawn(Greeter)
        assert await (await asking.options(placement="spread").spawn(Greeter)).where()


@pytest.mark.parametrize("value", [b"", b"\xff", b"\x01", "record"])
async def test_a_record_that_is_none_is_passed_over(pair: Pair, value: bytes | str) -> None:
    here = pair.here
    if isinstance(value, str):
        strange = NodeRecord("strange", 7, "", 0, "", 0, 0.0)  # type: ignore[arg-type]
        value = bytes(internals_of(here).endpoint.codec.encode(strange, []))
    await internals_of(here).store.put(PREFIX + "strange", value)
    await internals_of(here).store.put(PREFIX + "strange/2", value)
    with trio.fail_after(60):
        # They have seen it, and live.
        async with open_node("third", join=here.address, secret=SECRET) as third:
            await here.wait_for(3)
            await pair.there.wait_for(3)
            assert [member.name for member in third.members()] == ["here", "there", "third"]
            assert await (await pair.there.options(on="third").spawn(Greeter)).where() == "third"


async def test_a_variable_with_a_wrong_way_to_spin_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UNDERSTUDY_SPIN", "sometimes")
    with pytest.raises(ValueError, match="UNDERSTUDY_SPIN='sometimes' is not a spin mode; choose"):
        async with open_node():
            pytest.fail("opened")
