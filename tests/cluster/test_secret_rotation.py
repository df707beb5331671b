"""The secret of real nodes is changed while they work, and while their connections are cut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from actors.errors import WrongSecretError
from runtime import open_node
from runtime.command_line.main import main
from runtime.links.keyring import read_secrets
from runtime.node import Node, internals_of
from tests import forked_python
from tests.cluster.rotating_actors import Echo, Relay

pytestmark = pytest.mark.cluster

OLD = "the secret of before, of a cluster in a test"
LIMIT = 600.0
"""Ends a test that hangs, and no other: how long its commands take depends on the machine."""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "runtime.command_line", *words]


async def run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = await forked_python.run_process(command(*words), check=False, timeout=LIMIT)
    if check:
        assert done.returncode == 0, done.stderr
    return done


async def rotated(*words: str) -> subprocess.CompletedProcess[str]:
    """Rotate; again where a node has not answered in time, as the command says: with connections
    that are cut all the time, a slow machine may need longer than it waits.
    """
    done = await run(*words, check=False)
    while "the rotation waits for" in done.stderr:
        done = await run(*words, check=False)
    assert done.returncode == 0, done.stderr
    return done


def secret_file(place: Path, name: str) -> Path:
    path = place / f"{name}.secret"
    path.write_text(OLD + "\n")
    path.chmod(0o600)
    return path


@asynccontextmanager
async def node_process(
    place: Path, name: str, founder: Node, *, in_variable: bool = False
) -> AsyncIterator[forked_python.Popen]:
    words = command("node", "--name", name, "--join", founder.address, "--listen", "127.0.0.1:0")
    environment = {**os.environ, "UNDERSTUDY_SECRET": OLD}
    if not in_variable:
        del environment["UNDERSTUDY_SECRET"]
        words += ["--secret-file", str(secret_file(place, name))]
    with forked_python.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@asynccontextmanager
async def load(nodes: list[Node], relay: Relay, echo: Echo) -> AsyncIterator[list[int]]:
    """Calls all the time, over links whose connections are cut all the time. Any call that fails
    fails the test.
    """
    answered: list[int] = []
    async with trio.open_nursery() as nursery:

        async def call() -> None:
            while True:
                number = len(answered)
                answer = await (relay.ask("echo", number) if number % 2 else echo.echo(number))
                assert answer == number
                answered.append(number)

        async def cut() -> None:
            while True:
                for node in nodes:
                    for link in tuple(internals_of(node).links.values()):
                        link.drop_connection()
                await echo.cut.send()
                await trio.sleep(0.05)

        nursery.start_soon(call)
        nursery.start_soon(cut)
        yield answered
        # What was done last has to be survived as well.
        reached = len(answered) + 4
        while len(answered) < reached:  # noqa: ASYNC110
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


@pytest.mark.timeout(LIMIT)
async def test_a_secret_is_changed_and_changed_back_under_load(tmp_path: Path) -> None:
    own, operators, new = tmp_path / "founder.secret", tmp_path / "ops.secret", tmp_path / "new"
    for path in (own, operators):
        path.write_text(OLD)
        path.chmod(0o600)
    with trio.fail_after(LIMIT):
        async with AsyncExitStack() as stack:
            founder = await stack.enter_async_context(
                open_node("founder", secret=own, data_dir=tmp_path / "data")
            )
            await stack.enter_async_context(node_process(tmp_path, "filed", founder))
            await stack.enter_async_context(
                node_process(tmp_path, "variable", founder, in_variable=True)
            )
            await founder.wait_for(3)
            echo = await founder.options(name="echo", on="filed").spawn(Echo)
            relay = await founder.options(on="variable", isolation="process").spawn(Relay)
            rotate = (
                "secret",
                "rotate",
                "--address",
                founder.address,
                "--secret-file",
                str(operators),
            )
            async with load([founder], relay, echo) as answered:
                done = await rotated(*rotate, "--to", str(new))
                assert answered
            text = done.stdout
            (secret,) = read_secrets(new)
            assert secret.decode() not in text + done.stderr
            assert "variable: has it in memory only: set UNDERSTUDY_SECRET" in text
            assert "filed: could not" not in text
            for path in (own, tmp_path / "filed.secret"):
                assert read_secrets(path) == (secret,)
            with pytest.raises(WrongSecretError):
                async with open_node(join=founder.address, secret=OLD):
                    pass
            refused = await run(
                "status", "-a", founder.address, "--secret-file", str(operators), check=False
            )
            assert refused.returncode == 1
            assert "could not prove" in refused.stderr
            # Its own file is the only one with the new secret, if that is what is given.
            kept = await run(*rotate, "--to", str(own), "--back", check=False)
            assert kept.returncode == 1
            assert "copy that file" in kept.stderr
            assert read_secrets(own) == (secret,)
            async with open_node("joined", join=founder.address, secret=secret) as joined:
                async with load([founder, joined], relay, echo):
                    await rotated(*rotate, "--to", str(new), "--back")
                assert internals_of(joined).keyring.secrets() == (OLD.encode(),)
            assert read_secrets(own) == (OLD.encode(),)
            await rotated(*rotate, "--to", str(new))
            assert read_secrets(own) == (secret,)
    # The store's record has gone along: the founder comes back by the secret of now.
    async with open_node("founder", secret=own, data_dir=tmp_path / "data"):
        pass


async def test_a_node_that_is_away_is_named_and_the_rotation_goes_on_later(tmp_path: Path) -> None:
    operators, new = tmp_path / "ops.secret", tmp_path / "new"
    operators.write_text(OLD)
    operators.chmod(0o600)
    with trio.fail_after(LIMIT):
        async with AsyncExitStack() as stack:
            founder = await stack.enter_async_context(open_node("founder", secret=OLD))
            other = await stack.enter_async_context(
                open_node("other", secret=OLD, join=founder.address)
            )
            rotate = (
                *("secret", "rotate", "--address", founder.address),
                *("--secret-file", str(operators), "--to", str(new)),
            )
            service = internals_of(other).cells.pop("@keyring")
            done = await run(*rotate, check=False)
            assert done.returncode == 1
            assert "the rotation waits for other" in done.stderr
            assert "Traceback" not in done.stderr
            # Nothing was removed: both still understand each other.
            assert OLD.encode() in internals_of(founder).keyring.secrets()
            internals_of(other).cells["@keyring"] = service
            done = await run(*rotate, "--without", "ohter")
            # Of a mistyped name it would be wrong to say that it was left out.
            assert "--without ohter: no member has that name" in done.stdout
            assert "left out" not in done.stdout
            assert (
                internals_of(founder).keyring.secrets()
                == internals_of(other).keyring.secrets()
                == read_secrets(new)
            )


def test_a_rotation_needs_two_files_and_one_back_the_secret_that_there_is(tmp_path: Path) -> None:
    own, absent = secret_file(tmp_path, "own"), tmp_path / "absent"
    rotate = ["secret", "rotate", "--secret-file", str(own), "--address", "127.0.0.1:1"]
    same = CliRunner().invoke(main, [*rotate, "--to", str(own)])
    assert (same.exit_code, "are the same file" in same.output) == (2, True)
    back = CliRunner().invoke(main, [*rotate, "--to", str(absent), "--back"])
    assert (back.exit_code, "--back needs the secret" in back.output) == (2, True)
    assert not absent.exists()
