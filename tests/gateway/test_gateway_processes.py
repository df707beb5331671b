"""The command, real nodes, real kills, and curl."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sized
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from actors import ChildSpec, SpawnOptions, Supervisor
from runtime import open_local_cluster, open_node
from runtime.cluster_processes import LocalCluster
from runtime.node import internals_of
from tests import forked_python
from tests.authority import Authority, node_uri
from tests.gateway.actors_used import Counter, Saving
from tests.gateway.conftest import gateway
from tests.gateway.http_client import HttpAnswer, HttpClient
from tests.started_programs import started
from tests.waiting import until

pytestmark = pytest.mark.cluster

GATEWAY = [sys.executable, "-m", "runtime.command_line", "gateway"]


async def supervised(cluster: LocalCluster, name: str, actor: type) -> None:
    """An actor on any worker, started again when its node dies."""
    spec = ChildSpec(id=name, actor=actor, options=SpawnOptions(name=name, labels={"role": "work"}))
    await cluster.node.options(name=f"tree-{name}").spawn(Supervisor, [spec], intensity=100)


async def test_calls_whose_node_is_killed_get_their_true_outcomes() -> None:
    async with open_local_cluster(nodes=0) as cluster:
        await cluster.start_node("first", labels={"role": "work"})
        await supervised(cluster, "counter", Counter)
        await supervised(cluster, "saving", Saving)
        counter = await cluster.node.lookup("counter", Counter)
        answers: dict[str, HttpAnswer] = {}
        async with gateway(cluster.node) as http, trio.open_nursery() as nursery:

            async def call(name: str, actor: str, method: str, body: object, key: str) -> None:
                given = {"Idempotency_Key": key} if key else {}
                answers[name] = await http.call(actor, method, body, **given)

            assert (await http.call("saving", "add", [5], Idempotency_Key="add")).json == 5
            nursery.start_soon(call, "plain", "counter", "add_slowly", {"word": "a"}, "")
            nursery.start_soon(call, "keyed", "counter", "add_slowly", {"word": "b"}, "slow")
            nursery.start_soon(call, "saved", "saving", "save_and_hang", {}, "saved")
            await counter.wait_for("a begun")
            await counter.wait_for("b begun")
            await until(
                lambda: internals_of(cluster.node).store.range("applied/"),
                "the state is saved",
                lambda found: len(found.entries) >= 2,
            )
            await cluster.start_node("second", labels={"role": "work"})
            os.kill(cluster.processes["first"].pid, signal.SIGKILL)
            await until(lambda: len(answers), "all are answered", lambda count: count == 3)
            for answer in answers.values():
                # They ran: anything but "unknown" would be false.
                assert (answer.status, answer.json["outcome"]) == (504, "unknown")
                assert "@" not in answer.json["detail"], "clients call no service"
            assert "counter.add_slowly" in answers["plain"].json["detail"]
            # A repeat of what was not saved does not run; what was saved is answered.
            again = await http.call("counter", "add_slowly", {"word": "b"}, Idempotency_Key="slow")
            assert again.status == 504
            assert (await http.call("counter", "read", {})).json == 0
            saved = await http.call("saving", "save_and_hang", {}, Idempotency_Key="saved")
            assert (saved.status, saved.json) == (200, 6)
            assert (await http.call("saving", "add", [5], Idempotency_Key="add")).json == 5
            # And through a gateway that knows nothing of it.
            async with gateway(cluster.node) as other:
                found = await other.call("saving", "add", [5], Idempotency_Key="add")
                assert (found.status, found.json) == (200, 5)
                found = await other.call("saving", "save_and_hang", {}, Idempotency_Key="saved")
                assert (found.status, found.json) == (200, 6)
                assert (await other.call("saving", "read", {})).json == 6


@attrs.frozen
class Command(HttpClient):
    """A gateway in a process."""

    process: trio.Process

    async def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def command(*arguments: str) -> AsyncIterator[Command]:
    """`understudy gateway`, in a process."""
    async with started([*GATEWAY, "--json", *arguments]) as (process, line):
        yield Command(int(json.loads(line)["listen"].rpartition(":")[2]), process)
        if process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(60):
            assert await process.wait() == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_command_serves_curl(
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-these-tests\n")
    token.chmod(0o600)
    async with open_local_cluster(nodes=1) as cluster:
        await cluster.node.options(name="counter", on="worker-1").spawn(Counter)
        address = ("--address", cluster.address, "--listen", "127.0.0.1:0")
        async with (
            command(*address, "--allow", "counter.secret") as http,
            command(*address, "--token-file", str(token)) as guarded,
        ):

            async def curl(to: HttpClient, path: str, *options: str) -> str:
                done = await trio.run_process(
                    ["curl", "-sS", "-m", "20", *options, f"http://localhost:{to.port}{path}"],
                    capture_stdout=True,
                )
                return done.stdout.decode()

            add = "/v1/actors/counter/add"
            key = ("-H", "Idempotency-Key: one", "--json", '{"amount": 5}')
            bearer = ("-H", "Authorization: Bearer a-token-of-these-tests")
            assert await curl(http, add, *key) == "5"
            assert await curl(http, add, *key) == "5"
            assert await curl(guarded, add, *bearer, *key) == "5"
            assert json.loads(await curl(guarded, add, *key))["status"] == 401
            assert await curl(http, "/v1/actors/counter/secret", "--json", "{}") == '"hidden"'
            events = await curl(
                http,
                "/v1/actors/counter/count",
                *("-N", "-H", "Accept: text/event-stream", "--json", '{"to": 2}'),
            )
            assert events == "data: 0\n\ndata: 1\n\nevent: end\ndata: {}\n\n"
            large = tmp_path / "large"
            with large.open("wb") as file:
                file.truncate(1 << 30)
            refused = await curl(
                http, add, "-H", "Content-Type: application/json", "-T", str(large), "-X", "POST"
            )
            assert json.loads(refused)["status"] == 413
            assert "counter/add" in await curl(http, "/v1/openapi.json")


@pytest.mark.parametrize(
    ("role", "status"),
    [
        pytest.param("node", 200, marks=pytest.mark.long),
        pytest.param("operator", 200, marks=pytest.mark.long),
        ("client", 200),
        ("observer", 403),
    ],
)
async def test_the_command_has_the_rights_of_its_certificate(
    authority: Authority, role: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    async with open_node("w1", tls=authority.tls(node_uri("w1"))) as node:
        await node.options(name="counter").spawn(Counter)
        tls = authority.tls(node_uri("*" if role == "node" else "web", role=role))
        files = ("--tls-ca", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key)
        address = ("--address", node.address, "--listen", "127.0.0.1:0")
        async with command(*address, *files, "--allow", "counter.*") as http:
            answer = await http.call("counter", "add", [5])
            assert answer.status == status, answer.body
            # A method for operators alone, which no gateway needs to be by default.
            refused = await http.call("counter", "for_operators", [])
            assert (refused.status, refused.json["error"]) == (403, "NotAllowedError")
            assert [one.name for one in node.members()] == ["w1"]
        # More than its certificate has.
        more = "node" if role == "operator" else "operator"
        if role == "node":
            return
        with trio.fail_after(60):
            done = await trio.run_process(
                [*GATEWAY, *address, *files, "--role", more],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        assert done.returncode == 1
        assert f"for the role '{role}'".encode() in done.stderr
        assert len(done.stderr.splitlines()) == 1


async def test_a_call_survives_the_gateway_that_made_it() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        counter = await cluster.node.options(name="counter", on="worker-1").spawn(Counter)
        address = ("--address", cluster.address, "--listen", "127.0.0.1:0")
        async with command(*address) as first, gateway(cluster.node) as second:
            answers: list[HttpAnswer] = []

            async def repeat() -> None:
                answers.append(
                    await second.call("counter", "add_slowly", {"word": "a"}, Idempotency_Key="key")
                )

            async with first.connect() as connection, trio.open_nursery() as nursery:
                await connection.send(
                    "POST",
                    "/v1/actors/counter/add_slowly",
                    b'{"word": "a"}',
                    {"Idempotency-Key": "key"},
                )
                await counter.wait_for("a begun")
                await first.kill()
                nursery.start_soon(repeat)
                table = second_calls(cluster)
                await until(lambda: len(table), "the repeat is on its way", seconds=10)
                await counter.note_word("a may end")
            assert [(one.status, one.json) for one in answers] == [(200, 1)]
            assert await counter.read() == 1


def second_calls(cluster: LocalCluster) -> Sized:
    """The calls of this process that wait for an answer of the worker."""
    tables = internals_of(cluster.node).caller.routes.tables
    return next(table.pending for link, table in tables.items() if link.peer.name == "worker-1")


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    empty.chmod(0o600)
    for arguments, said, status in (
        (["--listen", "0.0.0.0:0"], "needs a token", 2),
        (["--listen", "here"], "here", 2),
        (["--token-file", str(empty)], "is empty; it should hold", 2),
        (["--max-body", "much"], "much", 2),
        (["--address", "127.0.0.1:1"], "no node answers", 1),
    ):
        done = forked_python.run(
            [sys.executable, "-m", "runtime.command_line", "gateway", *arguments],
            # Where no local clusters are open.
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr
