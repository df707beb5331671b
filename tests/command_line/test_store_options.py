"""`--store` and `--data-dir`, right and wrong, as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import forked_python
from tests.command_line.shell import UNDERSTUDY
from tests.etcd import needs_etcd, shared_etcd

ENVIRONMENT = {**os.environ, "UNDERSTUDY_SECRET": "of the tests of options"}


def understudy(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that should end."""
    return forked_python.run(
        [*UNDERSTUDY, *arguments], capture_output=True, timeout=50, env=ENVIRONMENT
    )


@contextmanager
def node(*arguments: str) -> Iterator[dict[str, object]]:
    """A running `understudy node`, killed at the end; gives what it prints as JSON."""
    command = [*UNDERSTUDY, "node", "--json", "--listen", "127.0.0.1:0", *arguments]
    with forked_python.Popen(
        command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--store", "redis://one:6379"),
            "a store's address is etcd://HOST:PORT,HOST:PORT, not redis://",
        ),
        (("--store", "etcd://one:2379?pasword-file=x"), "did you mean 'password-file'?"),
        (
            ("--store", "etcd://one:2379", "--join", "127.0.0.1:1"),
            "give --join or --store, not both",
        ),
        (("--data-dir", "here", "--join", "127.0.0.1:1"), "leave it out beside --join or --store"),
        (("--resource", "gpus=many"), "--resource takes KEY=NUMBER, zero or more, not gpus=many"),
        (("--label", "rack"), "--label takes KEY=VALUE, not 'rack'"),
    ],
)
def test_a_wrong_option_is_an_error_of_one_line_and_no_traceback(
    arguments: tuple[str, ...], expected: str
) -> None:
    done = understudy("node", *arguments)
    assert done.returncode != 0
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_an_etcd_that_is_not_there_is_named_with_the_next_step() -> None:
    done = understudy("node", "--listen", "127.0.0.1:0", "--store", "etcd://127.0.0.1:1")
    assert done.returncode == 1
    assert "no member of the etcd at 127.0.0.1:1 answers" in done.stderr
    assert "is it running, and is this its address?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_store_is_named_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite3").write_bytes(b"no database at all" * 1000)
    done = understudy("node", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert f"{tmp_path / 'store.sqlite3'} is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_status_shows_what_kind_of_store_there_is_and_how_it_is(tmp_path: Path) -> None:
    with node("--name", "first", "--data-dir", str(tmp_path), "--resource", "gpus=2") as founder:
        address = str(founder["address"])
        done = understudy("status", "--address", address)
        assert "store embedded on first, reachable" in done.stdout, done.stdout + done.stderr
        assert "up" in done.stdout
        facts = json.loads(understudy("status", "--address", address, "--json").stdout)
        assert facts["store"]["kind"] == "embedded"
        assert facts["nodes"][0]["resources"] == {"gpus": 2.0}


def test_a_founder_comes_back_under_its_name_and_at_its_address(tmp_path: Path) -> None:
    with node("--data-dir", str(tmp_path)) as before:
        pass
    with node("--data-dir", str(tmp_path)) as again:
        assert (again["node"], again["address"]) == (before["node"], before["address"])
        assert int(str(again["incarnation"])) > int(str(before["incarnation"]))


@needs_etcd
def test_nodes_of_an_etcd_find_each_other_without_the_address_of_any_node() -> None:
    with (
        shared_etcd(1) as etcd,
        node("--name", "one", "--store", etcd.address),
        node("--name", "two", "--store", etcd.address) as two,
    ):
        done = understudy("status", "--address", str(two["address"]))
        assert f"2 nodes, store etcd at {etcd.address}, reachable" in done.stdout, (
            done.stdout + done.stderr
        )
        assert "one" in done.stdout
        etcd.pause(0)
        while "not reachable" not in done.stdout:
            done = understudy("status", "--address", str(two["address"]))
        etcd.resume(0)
        assert done.returncode == 1
        assert "named actors pause until the store answers" in done.stdout
        assert f"`understudy doctor --store {etcd.address}`" in done.stdout


@needs_etcd
def test_doctor_looks_at_each_member_of_an_etcd() -> None:
    with shared_etcd(1) as etcd:
        assert "etcd answers: 127.0.0.1:" in understudy("doctor", "--store", etcd.address).stdout
        half = understudy("doctor", "--store", f"{etcd.address},127.0.0.1:1")
        assert half.returncode == 1
        assert "no member of the etcd at 127.0.0.1:1 answers" in half.stdout
    assert "a store's address is etcd://" in understudy("doctor", "--store", "redis://one:1").stdout


def test_doctor_looks_at_a_store_that_nobody_serves(tmp_path: Path) -> None:
    assert "has no store yet" in understudy("doctor", "--data-dir", str(tmp_path)).stdout
    with node("--data-dir", str(tmp_path)):
        busy = understudy("doctor", "--data-dir", str(tmp_path))
        assert busy.returncode == 1
        assert "is in use by another node" in busy.stdout
    assert "is sound: revision" in understudy("doctor", "--data-dir", str(tmp_path)).stdout
    (tmp_path / "store.sqlite3").write_bytes(b"no database at all" * 1000)
    assert "is damaged" in understudy("doctor", "--data-dir", str(tmp_path)).stdout
