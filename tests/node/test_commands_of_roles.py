"""The commands of persons with certificates of their roles, against a node with certificates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from actors import Actor, method
from runtime import open_node
from runtime.command_line.main import main
from tests.authority import Authority, node_uri


class Ledger(Actor):
    @method
    async def total(self) -> int:
        return 42


@pytest.fixture
async def address(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Of a node with a ledger."""
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    async with open_node("w1", tls=authority.tls(node_uri("w1"))) as node:
        await node.options(name="ledger").spawn(Ledger)
        yield node.address


COMMANDS: dict[tuple[str, ...], str] = {
    ("status",): "operator client observer",
    ("list", "actors"): "operator client observer",
    ("tree",): "operator client observer",
    ("pools",): "operator client observer",
    ("logs",): "operator observer",
    ("stack", "w1"): "operator observer",
    ("refs",): "operator observer",
    ("inspect", "ledger"): "operator observer",
    ("expel", "--list"): "operator observer",
    ("why",): "operator observer",
    ("top",): "operator observer",
    ("list", "calls"): "operator observer",
    ("list", "nodes"): "operator observer",
    ("list", "deaths"): "operator observer",
    ("debug", "ledger"): "",
    ("pools", "--journals"): "operator observer",
    ("secret", "status"): "",
    ("timeline", "--seconds", "0.1", "-o", "timeline"): "operator",
    ("profile", "w1", "--seconds", "0.1", "-o", "profile"): "operator",
    ("call", "ledger", "total"): "operator client",
    ("expel", "--absent", "w9"): "operator",
    ("expel", "--readmit", "w9"): "operator",
    ("stop", "--actor", "ledger"): "operator",
}
"""Commands, in this order, and for which roles they work."""


@pytest.mark.parametrize("role", ["operator", "client", "observer"])
async def test_commands_work_with_the_rights_of_their_certificate(
    authority: Authority, address: str, role: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    tls = authority.tls(node_uri("ann", role=role))
    files = ("--tls-ca", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key)

    def run(words: tuple[str, ...]) -> Result:
        return CliRunner().invoke(main, [*words, "--address", address, *files])

    for words, roles in COMMANDS.items():
        result = await trio.to_thread.run_sync(run, words)
        assert (result.exit_code == 0) == (role in roles.split()), (words, result.output)
        assert "Traceback" not in result.output
        if result.exit_code and not (role == "operator" and words[0] == "debug"):
            # One line for a person, with what is refused, and nothing else.
            said = result.stderr.strip()
            assert f"does not let {role} 'ann' call" in said, (words, result.output)
            assert len(said.splitlines()) == 1, (words, said)
            assert not result.stdout.strip(), (words, result.stdout)
