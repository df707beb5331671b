"""Nodes that the cluster has expelled: their links are cut, their actors are placed elsewhere, and
they do not come back by their name, their certificate, or a handshake that they draw out.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cbor2
import pytest
import trio
from click.testing import CliRunner
from trio.testing import MockClock

from actors import Actor, ChildSpec, DynamicSupervisor, RetryPolicy, method
from actors.errors import (
    CallError,
    ExpelledError,
    LeaseLostError,
    NotAMemberError,
    UnderstudyError,
    WrongSecretError,
)
from actors.options import SpawnOptions
from actors.peers import VerifiedPeer
from runtime import open_node
from runtime.command_line.main import EXPELLED_STATUS, main
from runtime.command_line.secret_rotation import rotate_secret
from runtime.environment import SystemEnvironment
from runtime.links.encryption import system_network
from runtime.links.keyring import read_secrets
from runtime.links.peers import PeerPolicy
from runtime.links.transports import Connection
from runtime.membership.cluster_client import ClusterAccess, ClusterClient, open_client
from runtime.membership.cluster_secret import find_security
from runtime.membership.expulsion_service import expulsions_of
from runtime.membership.expulsions import Expulsion, Expulsions
from runtime.node import Node, internals_of
from runtime.testing import EtcdServer, Platform
from runtime.timings import Timings
from runtime.wire.frames import Kind, encode_frame
from tests import forked_python
from tests.authority import Authority, Elsewhere, node_uri
from tests.command_line.shell import command_in_thread
from tests.memory_network import MemoryNetwork
from tests.node.test_strangers import dial, introduction, shake_hands, wait_closed
from tests.waiting import until

SECRET = "a secret of the tests of expulsions"


class Keeper(Actor):
    @method
    async def place(self) -> str:
        return self.node.name


class Guard(DynamicSupervisor):
    """Keeps its children on nodes with a label."""


async def expel(by: Node, name: str, absent: bool = False) -> dict[str, Any]:
    service = expulsions_of(internals_of(by).endpoint, by.name, by.incarnation)
    told: dict[str, Any] = await service.expel(name, absent)
    return told


async def readmit(by: Node, name: str) -> dict[str, Any]:
    service = expulsions_of(internals_of(by).endpoint, by.name, by.incarnation)
    told: dict[str, Any] = await service.readmit(name)
    return told


@asynccontextmanager
async def until_expelled(name: str, **options: Any) -> AsyncIterator[Node]:
    """A node, which must have been expelled at the end of the block."""
    try:
        async with open_node(name, **options) as node:
            yield node
            await node.asked_to_leave.wait()
    except ExpelledError as error:
        assert f"node '{name}' was expelled" in str(error)  # noqa: PT017
    else:
        pytest.fail(f"{name} ended without a word")


async def refused(error: type[UnderstudyError], text: str, name: str, **options: Any) -> None:
    """A node of this name cannot be opened."""
    with pytest.raises(error, match=text):
        async with open_node(name, **options):
            pytest.fail("joined")


def in_memory() -> Callable[[], dict[str, Any]]:
    network = MemoryNetwork()
    return lambda: {"secret": SECRET, "platform": Platform(network=network)}


async def test_an_expelled_node_ends_its_actors_live_elsewhere_and_it_cannot_come_back(
    autojump_clock: MockClock,
) -> None:
    place = in_memory()
    labels = {"keeps": "yes"}
    async with (
        open_node("w1", **place()) as w1,
        open_node("w2", join=w1.address, labels=labels, **place()) as w2,
    ):
        guard = await w1.options(name="guard").spawn(Guard)
        async with until_expelled("w3", join=w1.address, labels=labels, **place()) as w3:
            await w1.wait_for(3)
            for number in range(4):
                where = SpawnOptions(name=f"keeper-{number}", labels=labels)
                await guard.start_child(ChildSpec(id=str(number), actor=Keeper, options=where))
            retry = RetryPolicy(max_retries=20)
            keepers = [
                (await w2.lookup(f"keeper-{number}", Keeper)).options(retry=retry)
                for number in range(4)
            ]
            assert "w3" in [await keeper.place() for keeper in keepers]
            began = trio.current_time()
            assert (await expel(w1, "w3"))["problem"] == ""
            # It has said that it stopped its actors: nobody waits for its lease.
            assert trio.current_time() - began < Timings().lease / 2
            await w1.wait_gone("w3")
            cells = internals_of(w3).cells.values()
            assert not any(cell.leased and cell.ended is None for cell in cells)
            assert {await keeper.place() for keeper in keepers} == {"w2"}
        for node in (w1, w2):
            assert not [one for one in internals_of(node).links if one.name == "w3"]
        await refused(ExpelledError, "--readmit w3", "w3", join=w2.address, **place())
        assert (await expel(w2, "w3"))["again"] is True
        assert [one.name for one in internals_of(w2).expulsions.all()] == ["w3"]
        assert (await readmit(w2, "w3"))["problem"] == ""
        await until(lambda: not internals_of(w1).expulsions.all(), "the founder knows of it")
        async with open_node("w3", join=w1.address, **place()):
            await w1.wait_for(3)


async def test_calls_in_the_block_of_an_expelled_node_end_though_they_have_no_deadline(
    autojump_clock: MockClock,
) -> None:
    place = in_memory()
    async with (
        open_node("w1", **place()) as w1,
        open_node("w2", join=w1.address, **place()) as w2,
        until_expelled("w3", join=w1.address, **place()) as w3,
    ):
        await w1.wait_for(3)
        await w2.options(name="there").spawn(Keeper)
        await w3.options(name="moved").spawn(Keeper)
        there, moved = [await w3.lookup(name, Keeper) for name in ("there", "moved")]
        assert [await there.place(), await moved.place()] == ["w2", "w3"]
        assert (await expel(w1, "w3"))["problem"] == ""
        await w2.options(name="moved").spawn(Keeper)
        with trio.fail_after(60):
            with pytest.raises(NotAMemberError, match="was not called: this node has left"):
                await there.place()
            with pytest.raises(NotAMemberError):
                await w3.options(on="w2").spawn(Keeper)
            # Where it runs now stands in the store, which answers the node no more.
            with pytest.raises(NotAMemberError, match="'w3' was expelled"):
                await moved.place()


async def test_a_node_is_expelled_where_the_store_is_a_real_etcd(etcd: EtcdServer) -> None:
    """All nodes reach that by themselves, so nobody serves it who could refuse the expelled one."""
    place: dict[str, Any] = {"secret": SECRET, "store": etcd.address}
    async with open_node("w1", **place) as w1, open_node("w2", **place) as w2:
        async with until_expelled("w3", **place) as w3:
            await w3.options(name="keeper").spawn(Keeper)
            assert await (await w2.lookup("keeper", Keeper)).place() == "w3"
            lease = internals_of(w3).registration.record.lease
            assert (await expel(w2, "w3"))["problem"] == ""
            await w1.wait_gone("w3")
            # Its lease, and all that it tied, is gone from etcd, by the node that has expelled it.
            with pytest.raises(LeaseLostError):
                await internals_of(w1).store.time_to_live(lease)
            assert await (await w1.options(name="keeper").spawn(Keeper)).place() == "w1"
        for node in (w1, w2):
            assert not [one for one in internals_of(node).links if one.name == "w3"]
        # Neither by the store, nor by a member that tells where the store is.
        await refused(ExpelledError, "--readmit w3", "w3", **place)
        await refused(ExpelledError, "--readmit w3", "w3", join=w2.address, secret=SECRET)
        assert [one.name for one in internals_of(w1).expulsions.all()] == ["w3"]
        assert (await readmit(w1, "w3"))["problem"] == ""
        await until(lambda: not internals_of(w2).expulsions.all(), "the other knows of it")
        async with open_node("w3", **place) as again:
            await w1.wait_for(3)
            assert [one.name for one in again.members()] == ["w1", "w2", "w3"]


async def test_the_names_of_a_node_that_does_not_answer_are_given_away_when_its_lease_has_ended(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = in_memory()
    async with open_node("w1", **place()) as w1:  # noqa: SIM117
        async with until_expelled("w2", join=w1.address, **place()) as w2:
            await w2.options(name="keeper").spawn(Keeper)
            del internals_of(w2).cells["@expulsions"]
            clock, began = internals_of(w2).registration.clock, trio.current_time()
            # Deaf to all ways in which it could learn of it.
            for deaf in ("_was_expelled", "_on_expulsion"):
                monkeypatch.setattr(w2, deaf, lambda *_: None)
            monkeypatch.setattr(internals_of(w2).endpoint.peers, "_policy", PeerPolicy())
            monkeypatch.setattr(internals_of(w2).expulsions, "_changed", lambda expulsion: None)
            await expel(w1, "w2")
            assert not clock.is_held(trio.current_time())
            assert trio.current_time() - began < 3 * Timings().lease
            assert internals_of(w1).members.find("w2") is None
            monkeypatch.undo()
            w2._was_expelled(ExpelledError("node 'w2' was expelled"))


class CutNetwork(MemoryNetwork):
    """Nobody is reached while it is cut."""

    is_cut = False

    async def connect(self, address: str) -> Connection:
        if self.is_cut:
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError(errno.ECONNREFUSED, "cut")
        return await super().connect(address)


class Gate(Actor):
    """Answers when it is opened."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.waiting = 0

    @method(concurrent=True)
    async def passed(self) -> str:
        self.waiting += 1
        await self.opened.wait()
        return "passed"

    @method(concurrent=True)
    async def open(self) -> None:
        self.opened.set()


async def test_a_node_that_is_expelled_while_its_link_is_cut_does_not_resume_its_session(
    autojump_clock: MockClock,
) -> None:
    network = CutNetwork()
    place: dict[str, Any] = {"secret": SECRET, "platform": Platform(network=network)}
    outcomes: dict[str, object] = {}

    async def call(node: Node) -> None:
        try:
            outcomes[node.name] = await (await node.lookup("gate", Gate)).passed()
        except CallError as error:
            outcomes[node.name] = error

    async with open_node("w1", **place) as w1, open_node("w2", join=w1.address, **place) as w2:
        gate = await w1.options(name="gate").spawn(Gate)
        instance = internals_of(w1).cells["gate"].instance
        assert isinstance(instance, Gate)
        async with until_expelled("w3", join=w1.address, **place) as w3:
            await w1.wait_for(3)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, w2)
                nursery.start_soon(call, w3)
                await until(lambda: instance.waiting == 2, "both calls run")
                sessions = {link.peer.name: link for link in internals_of(w1).links.values()}
                network.is_cut = True
                network.reset_all()
                nursery.start_soon(expel, w1, "w3")
                await until(
                    lambda: internals_of(w1).expulsions.find("w3") is not None, "it is expelled"
                )
                assert not sessions["w3"].connected
                network.is_cut = False
                # Within its lease, so that only the expulsion can refuse it.
                with trio.fail_after(Timings().lease / 2):
                    await w3.asked_to_leave.wait()
                await gate.open()
        assert outcomes["w2"] == "passed"
        assert isinstance(outcomes["w3"], CallError)
        assert sessions["w2"].ended is None
        assert sessions["w3"].ended is not None
        for node in (w1, w2):
            assert not [one for one in internals_of(node).links if one.name == "w3"]


async def test_the_only_node_cannot_be_expelled(etcd: EtcdServer) -> None:
    """Where no node keeps the store: the only one would leave no node that takes it back."""
    place: dict[str, Any] = {"secret": SECRET, "store": etcd.address, "cluster": "alone"}
    async with until_expelled("w1", **place) as w1:
        for absent in (False, True):
            problem = (await expel(w1, "w1", absent=absent))["problem"]
            assert problem == "node w1 is the only node of the cluster: stop it"
        assert internals_of(w1).expulsions.all() == ()
        async with open_node("w2", **place) as w2:
            await w1.wait_for(2)
            assert (await expel(w2, "w1"))["problem"] == "", "with another one it can"
            await w2.wait_gone("w1")
            problem = (await expel(w2, "w2"))["problem"]
            assert problem == "node w2 is the only node of the cluster: stop it"
            assert [member.name for member in w2.members()] == ["w2"]


async def test_of_nodes_that_expel_each_other_at_once_one_is_left(etcd: EtcdServer) -> None:
    place: dict[str, Any] = {"secret": SECRET, "store": etcd.address, "cluster": "duel"}
    answers: dict[str, str] = {}

    async def by(node: Node, name: str) -> None:
        # The one that is expelled may end before it has answered.
        with contextlib.suppress(CallError):
            answers[node.name] = (await expel(node, name))["problem"]

    with contextlib.suppress(ExpelledError):
        async with open_node("w1", **place) as w1:
            with contextlib.suppress(ExpelledError):
                async with open_node("w2", **place) as w2:
                    await w1.wait_for(2)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(by, w1, "w2")
                        nursery.start_soon(by, w2, "w1")
                    expelled = [one.name for one in internals_of(w1).expulsions.all()]
                    assert len(expelled) == 1
                    assert list(answers.values()).count("") == 1
                    await {"w1": w1, "w2": w2}[expelled[0]].asked_to_leave.wait()


async def test_what_cannot_be_expelled_is_refused_with_the_next_step(
    autojump_clock: MockClock,
) -> None:
    place = in_memory()
    async with open_node("founder", **place()) as founder:
        assert "keeps the cluster's store" in (await expel(founder, "founder"))["problem"]
        async with open_node("other", join=founder.address, **place()) as other:
            await founder.wait_for(2)
            assert "did you mean 'other'" in (await expel(founder, "othr"))["problem"]
            assert "does not expel itself" in (await expel(other, "other"))["problem"]
            assert "keeps the cluster's store" in (await expel(other, "founder"))["problem"]
            assert "no node called 'other'" in (await readmit(founder, "other"))["problem"]
            assert (await expel(founder, "away", absent=True))["problem"] == ""
            await refused(ExpelledError, "was expelled", "away", join=founder.address, **place())
            assert "did you mean 'away'" in (await readmit(founder, "awy"))["problem"]


async def told_after_offer(stream: trio.SocketStream) -> bytes:
    """What the node says to an offer that would open a session, before it closes the connection."""
    await stream.send_all(encode_frame(Kind.RESUME, cbor2.dumps([1, 0, 1, 0, 0])))
    with trio.fail_after(60):
        return await wait_closed(stream)


async def test_who_draws_its_handshake_out_is_refused_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    me = introduction(name="w2")
    object.__setattr__(me.peer, "role", "node")
    async with open_node("w1", secret=SECRET) as w1:
        async with await dial(w1) as stream:
            await shake_hands(stream, me, SECRET.encode())
            await expel(w1, "w2", absent=True)
            assert await told_after_offer(stream) == b""
        assert "was expelled" in caplog.text
        async with await dial(w1) as stream:
            with pytest.raises(ExpelledError, match="was expelled") as caught:
                await shake_hands(stream, me, SECRET.encode())
        assert caught.value.proven
        # In the same way, one whose secret is removed meanwhile.
        async with await dial(w1) as stream:
            await shake_hands(stream, introduction(name="client-1"), SECRET.encode())
            internals_of(w1).keyring.replace([b"another secret"])
            assert await told_after_offer(stream) == b""
        assert "a secret that is not accepted any more" in caplog.text


@pytest.mark.usefixtures("no_secret")
async def test_an_expelled_certificate_is_refused_under_every_name(authority: Authority) -> None:
    def joining(stem: str, uri: str = "*") -> dict[str, Any]:
        given = authority.tls(node_uri(uri), stem=stem)
        return {"tls": given, "platform": Platform(environment=Elsewhere())}

    shared = joining("shared")
    shared_by_all = authority.tls(node_uri("*"), stem="w1")
    async with open_node("w1", tls=shared_by_all) as w1:
        place: dict[str, Any] = {"join": w1.address}
        async with open_node("w3", **place, **shared), open_node("w4", **place, **shared):
            await w1.wait_for(3)
            await until(lambda: len(internals_of(w1).links) >= 2, "both have links")
            assert "w4 shows the certificate of w3" in (await expel(w1, "w3"))["problem"]
        await w1.wait_gone("w3")
        of_w1: dict[str, Any] = {
            "tls": shared_by_all,
            "platform": Platform(environment=Elsewhere()),
        }
        async with open_node("w5", **place, **of_w1):
            await w1.wait_for(2)
            assert "w1 shows the certificate of w5" in (await expel(w1, "w5"))["problem"]
        own = joining("own")
        async with until_expelled("w2", **place, **own):
            await w1.wait_for(2)
            told = await expel(w1, "w2")
            assert len(told["certificate"]) == 64
        for name, given in (("w2", own), ("w2", joining("named", "w2")), ("another", own)):
            # The handshake refuses already: the store is not asked.
            await refused(ExpelledError, "refused the connection", name, **place, **given)
        async with open_node("another", **place, **joining("new")):
            pass


@pytest.mark.usefixtures("no_secret")
@pytest.mark.parametrize("role", ["operator", "client", "observer"])
async def test_operators_expel_and_others_do_not(
    authority: Authority, role: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy.audit")
    environment = SystemEnvironment()
    tls = authority.tls(node_uri("ann", role=role))
    secret, tls = find_security(None, tls, environment.token, needs_own=False)
    network = system_network(environment, tls)
    async with (
        open_node("w1", tls=authority.tls(node_uri("w1"))) as w1,
        open_client(
            w1.address, ClusterAccess("understudy", secret, environment, network)
        ) as client,
    ):
        service = expulsions_of(client.endpoint, w1.name, w1.incarnation)
        outcomes = [
            await _outcome(lambda: service.expel("w9", True)),
            await _outcome(lambda: service.listing()),
            await _outcome(lambda: service.readmit("w9")),
            await _outcome(lambda: service.on_expelled("go away")),
        ]
        allowed = {"operator": [1, 1, 1, 0], "client": [0, 0, 0, 0], "observer": [0, 1, 0, 0]}
        assert outcomes == [bool(one) for one in allowed[role]]
        assert not w1.asked_to_leave.is_set()
    assert ("acts for operator 'ann'" in caplog.text) == (role == "operator")
    assert ("expel w9" in caplog.text) == (role == "operator")


@pytest.mark.usefixtures("no_secret")
async def test_the_certificate_of_an_expelled_node_is_of_no_use_though_no_node_has_seen_it(
    authority: Authority,
) -> None:
    """It was expelled while it did not run, and comes back as an operator, to readmit itself."""
    async with open_node("w1", tls=authority.tls(node_uri("w1"))) as w1:
        told = await expel(w1, "w2", absent=True)
        assert told["certificate"] == ""
        for role in ("operator", "client", "observer"):
            with pytest.raises(ExpelledError, match="was expelled"):
                async with open_node(join=w1.address, tls=authority.tls(node_uri("w2")), role=role):
                    pytest.fail("joined")
        assert [one.name for one in internals_of(w1).expulsions.all()] == ["w2"]


async def _outcome(call: Callable[[], Any]) -> bool:
    try:
        await call()
    except UnderstudyError:
        return False
    return True


def test_the_view_refuses_by_name_and_certificate_and_survives_garbage() -> None:
    seen: list[Expulsion] = []
    view = Expulsions(seen.append)
    first = Expulsion("w2", 1.0, "abc")
    assert Expulsion.decoded("w2", first.encoded()) == first
    for value in (b"", b"\xff", cbor2.dumps([1]), cbor2.dumps({"at": 1e300, "certificate": 7})):
        assert Expulsion.decoded("w2", value) == Expulsion("w2")
        assert str(Expulsion.decoded("w2", value))
    view.put(first)
    view.put(first)
    assert seen == [first]

    def refused(name: str, role: Any = "node", certificate: str = "", node: str = "") -> bool:
        peer = VerifiedPeer(role, name, node or name, 1, "certificate", certificate)
        view.check_invariants()
        return view.refusal(peer) is not None

    assert refused("w2")
    assert refused("w3", certificate="abc")
    assert refused("w3", "client", "abc")
    assert refused("w3", node="w2")
    assert not refused("w3")
    # Persons have names of their own.
    assert not refused("w2", "operator")
    for role in ("operator", "client", "observer"):
        of_node = VerifiedPeer(role, "w2", "client-1", 1, "certificate", "unseen", "node")
        assert view.refusal(of_node) is not None
    with view.sparing("w2"):
        assert not refused("w2")
    view.put(Expulsion("w2", 2.0, "def"))
    assert not refused("w3", certificate="abc")
    assert refused("w3", certificate="def")
    view.keep_only({"w5"})
    assert not refused("w2")
    assert view.all() == ()


# By commands, as persons expel.


async def test_a_process_that_is_expelled_says_so_and_ends_with_a_status_of_its_own(
    tmp_path: Path,
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    async with open_node("w1", secret=file) as w1:
        reach = ("--address", w1.address, "--secret-file", str(file))
        words = ("--name", "w2", "--join", w1.address, "--secret-file", str(file))
        started = [sys.executable, "-m", "runtime.command_line", "node", *words]
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                ends: list[subprocess.CompletedProcess[str]] = []

                async def run() -> None:
                    ends.append(await forked_python.run_process(started, check=False, timeout=60))

                nursery.start_soon(run)
                await w1.wait_for(2)
                unknown = await command_in_thread("expel", "w3", "--keep-secret", *reach)
                assert (unknown.exit_code, "with --absent" in unknown.output) == (1, True)
                # The secret is all that proves it: without another one it would come back.
                alone = await command_in_thread("expel", "w2", *reach)
                assert (alone.exit_code, "Add --rotate --to FILE" in alone.output) == (2, True)
                assert {member.name for member in w1.members()} == {"w1", "w2"}
                done = await command_in_thread("expel", "w2", "--keep-secret", *reach)
                assert done.exit_code == 0
                assert "node w2 was expelled: " in done.output
                assert "still knows the cluster's secret" in done.output
            assert ends[0].returncode == EXPELLED_STATUS
            assert "node 'w2' was expelled from the cluster on 20" in ends[0].stderr
            assert "Traceback" not in ends[0].stderr
            twice = await command_in_thread("expel", "w2", "--keep-secret", *reach)
            assert (twice.exit_code, "was expelled already" in twice.output) == (0, True)
            # It does not reach the ports of the machine: it is refused before it listens for long.
            again = await command_in_thread("node", *words)
            assert again.exit_code == EXPELLED_STATUS
            assert "--readmit w2" in again.output
        assert "w2" in (await command_in_thread("expel", "--list", *reach)).output
        assert (await command_in_thread("expel", "--readmit", "w2", *reach)).exit_code == 0
        assert "no node is expelled" in (await command_in_thread("expel", "--list", *reach)).output
        assert (await command_in_thread("expel", "--readmit", "w2", *reach)).exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a NODE"),
        (("w1", "--list"), "give a NODE"),
        (("w1", "--rotate"), "--to FILE are given together"),
        (("--list", "--absent"), "--to FILE are given together"),
        (("--list", "--keep-secret"), "and with a NODE"),
        (("w1", "--rotate", "--to", "next", "--keep-secret"), "not both"),
    ],
)
def test_words_that_do_not_go_together_are_refused(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, ["expel", *words])
    assert (result.exit_code, said in result.output) == (2, True)


async def test_the_new_secret_is_not_given_to_a_node_that_joins_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, new = tmp_path / "now", tmp_path / "new"
    now.write_text(SECRET)
    now.chmod(0o600)
    late: list[Node] = []
    joined = trio.Event()
    async with AsyncExitStack() as stack:
        w1 = await stack.enter_async_context(open_node("w1", secret=SECRET))
        w2 = await stack.enter_async_context(open_node("w2", join=w1.address, secret=SECRET))
        await stack.enter_async_context(until_expelled("w3", join=w1.address, secret=SECRET))
        nursery = await stack.enter_async_context(trio.open_nursery())
        environment = SystemEnvironment()
        secret, tls = find_security(SECRET, None, environment.token, needs_own=False)
        network = system_network(environment, tls)
        # The expelled machine has more than one way in: a client, and a node of another name.
        client: ClusterClient = await stack.enter_async_context(
            open_client(w1.address, ClusterAccess("understudy", secret, environment, network))
        )
        rotate, token = rotate_secret, trio.lowlevel.current_trio_token()

        async def rotate_later(*args: Any, **kwargs: Any) -> Any:
            # The command has a loop of its own.
            await trio.to_thread.run_sync(partial(trio.from_thread.run, join, trio_token=token))
            return await rotate(*args, **kwargs)

        async def join() -> None:
            nursery.start_soon(member)
            await joined.wait()

        async def member() -> None:
            with contextlib.suppress(ExpelledError):
                async with open_node("w9", join=w1.address, secret=SECRET) as node:
                    late.append(node)
                    joined.set()
                    await node.asked_to_leave.wait()

        monkeypatch.setattr("runtime.command_line.expel.rotate_secret", rotate_later)
        done = await command_in_thread(
            *("expel", "w3", "--address", w1.address, "--secret-file", str(now)),
            *("--rotate", "--to", str(new)),
        )
        assert done.exit_code == 0, done.output
        assert "w9 joined meanwhile and was not given the secret" in done.output
        assert "still knows the cluster's secret" not in done.output
        (given,) = read_secrets(new)
        assert internals_of(w1).keyring.secrets() == internals_of(w2).keyring.secrets() == (given,)
        assert internals_of(late[0]).keyring.secrets() == (SECRET.encode(),)
        # Those that know the old secret only have no connection any more; w2 has.
        await until(lambda: internals_of(w2).endpoint.peers.link(_peer(w1)).connected, "w2 is back")
        outside = {client.endpoint.identity.name, "w9"}
        links = internals_of(w1).links.values()
        assert not [one for one in links if one.peer.name in outside and one.connected]
        await refused(WrongSecretError, "could not prove", "w3", join=w1.address, secret=SECRET)
        late[0]._was_given_up(ExpelledError("the test is over"))


def _peer(node: Node) -> Any:
    return node._introduction.peer
