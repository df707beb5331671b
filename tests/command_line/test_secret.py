"""`understudy secret rotate` where it fails: it leaves nothing, or says what is there and how to go
on.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click import ClickException, UsageError

from runtime import open_node
from runtime.command_line.secret_rotation import NewSecret
from runtime.links.keyring import read_secrets
from runtime.node import internals_of
from tests.command_line.shell import command_in_thread

SECRET = "a secret of the tests of rotations that fail"


def secret_file(path: Path, text: str = SECRET) -> Path:
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


async def test_with_a_wrong_secret_no_new_one_is_made(tmp_path: Path) -> None:
    wrong, right = secret_file(tmp_path / "wrong", "no"), secret_file(tmp_path / "right")
    new = tmp_path / "new"
    async with open_node("w1", secret=SECRET) as w1:
        for words in (("secret", "rotate"), ("expel", "w2", "--rotate")):
            reach = ("--address", w1.address, "--to", str(new))
            done = await command_in_thread(*words, *reach, "--secret-file", str(wrong))
            assert (done.exit_code, "could not prove" in done.output) == (1, True), done.output
            assert not new.exists()
            assert "not finished" not in done.output
        # The expulsion is refused after the file was made.
        unknown = await command_in_thread(
            "expel", "w2", "--rotate", *reach, "--secret-file", str(right)
        )
        assert (unknown.exit_code, "no node called 'w2'" in unknown.output) == (1, True)
        assert not new.exists()
        done = await command_in_thread("secret", "rotate", *reach, "--secret-file", str(right))
        assert done.exit_code == 0, done.output
        assert f"made a new secret: {new}" in done.output
        assert internals_of(w1).keyring.secrets() == read_secrets(new)


async def test_a_secret_that_can_be_guessed_is_not_rotated_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, short = secret_file(tmp_path / "old", "x"), secret_file(tmp_path / "short", "y" * 15)
    # A cluster that only this machine can reach may have any.
    async with open_node("w1", secret=old) as w1, open_node("w2", secret=old, join=w1.address):
        assert caplog.messages == []
        reach = ("--address", w1.address, "--to", str(short), "--secret-file", str(old))
        for words in (("secret", "rotate"), ("expel", "w2", "--rotate")):
            done = await command_in_thread(*words, *reach)
            assert done.exit_code == 2
            assert f"{short} has a secret of 15 bytes, which can be guessed" in done.output
            assert "openssl rand -hex 32" in done.output
        assert internals_of(w1).keyring.secrets() == (b"x",)
        secret_file(short, "y" * 16)
        done = await command_in_thread("secret", "rotate", *reach)
        assert done.exit_code == 0, done.output
        # Back to what it had is always possible.
        short_again = ("--to", str(short), "--back", *reach[:2], *reach[4:])
        secret_file(old, "x")
        done = await command_in_thread("secret", "rotate", *short_again)
        assert done.exit_code == 0, done.output


async def test_others_are_warned_of_a_secret_that_can_be_guessed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_node(listen="0.0.0.0:0", advertise="127.0.0.1", secret="x"):
        warned = [text for text in caplog.messages if "can be guessed" in text]
    assert len(warned) == 1
    assert "`understudy secret rotate`" in warned[0]


async def test_the_secret_that_a_users_clusters_share_is_not_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    shared, new = tmp_path / "state" / "understudy" / "secret", tmp_path / "new"
    async with open_node("w1") as w1, open_node("w2", join=w1.address) as w2:
        before = read_secrets(shared)
        for words in (("secret", "rotate"), ("expel", "w2", "--rotate")):
            done = await command_in_thread(*words, "--to", str(new), "--address", w1.address)
            assert done.exit_code == 1
            assert "start it with --secret-file" in done.output
            assert f"share, in {shared}" in done.output
            assert not new.exists()
        assert read_secrets(shared) == before
        for node in (w1, w2):
            assert internals_of(node).keyring.secrets() == before, "no node has another one"
        assert len(w1.members()) == 2, "and none was expelled"


async def test_a_rotation_that_fails_on_its_way_says_how_to_go_on(tmp_path: Path) -> None:
    old, new = secret_file(tmp_path / "old"), tmp_path / "new"
    async with (
        open_node("w1", secret=SECRET) as w1,
        open_node("w2", join=w1.address, secret=SECRET) as w2,
    ):
        await w1.wait_for(2)
        full = [SECRET.encode(), b"a", b"b", b"c"]
        internals_of(w2).keyring.replace(full)
        reach = ("--address", w1.address, "--secret-file", str(old), "--to", str(new))
        done = await command_in_thread("secret", "rotate", *reach)
        assert (done.exit_code, "w2 has not changed its secret" in done.output) == (1, True)
        assert f"nodes may accept the secret in {new}" in done.output
        assert "Run the same command again" in done.output
        # As it was said: the file has what w1 accepts, so that the same command goes on.
        assert internals_of(w1).keyring.secrets() == (SECRET.encode(), *read_secrets(new))
        internals_of(w2).keyring.replace(full[:1])
        back = await command_in_thread("secret", "rotate", *reach, "--back")
        assert back.exit_code == 0, back.output
        assert internals_of(w1).keyring.secrets() == (SECRET.encode(),)
        done = await command_in_thread("secret", "rotate", *reach)
        assert done.exit_code == 0, done.output
        assert "made a new secret" not in done.output
        for node in (w1, w2):
            assert internals_of(node).keyring.secrets() == read_secrets(new)


def test_two_commands_at_once_do_not_overwrite_each_others_secret(tmp_path: Path) -> None:
    path = tmp_path / "new"
    one, other = NewSecret(path), NewSecret(path)
    one.on_given()
    with pytest.raises(ClickException, match="was made meanwhile"):
        other.on_given()
    other.discard()
    one.discard()
    assert read_secrets(path) == (one.secret,) == (NewSecret(path).secret,)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    new = NewSecret(tmp_path / "absent" / "new")
    with pytest.raises(ClickException, match="cannot be written: No such file or directory"):
        new.on_given()
    assert not new.is_given
    # Through a link, as files are written in other places.
    (tmp_path / "link").symlink_to(tmp_path / "target")
    linked = NewSecret(tmp_path / "link")
    linked.write()
    assert read_secrets(tmp_path / "target") == (linked.secret,)
    linked.discard()
    assert not (tmp_path / "target").exists()


def test_a_file_of_another_user_gives_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = secret_file(tmp_path / "new")
    real = Path.stat

    def of_another(self: Path, **options: bool) -> os.stat_result:
        found = real(self, **options)
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:10]))

    # As root, which can read it all the same.
    monkeypatch.setattr(Path, "stat", of_another)
    with pytest.raises(UsageError, match="belongs to another user"):
        NewSecret(path)
