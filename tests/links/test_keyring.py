"""Several secrets at once: files with them, and which of them proves."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from runtime.links.keyring import (
    MOST_SECRETS,
    Keyring,
    keyring_of,
    read_secrets,
    secret_id,
    split_secrets,
    write_secrets,
)
from runtime.wire.handshake import Acceptor, Dialer, Introduction, Peer

OLD, NEW = b"the old secret", b"the new secret"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_file_has_one_secret_in_a_line(tmp_path: Path) -> None:
    path = written(tmp_path / "secret", f"{NEW.decode()}\r\n\n{OLD.decode()}\n")
    assert read_secrets(path) == (NEW, OLD)


def test_bytes_that_are_no_text_are_one_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"\xff\n\x00\nx")
    path.chmod(0o600)
    assert read_secrets(path) == (b"\xff\n\x00\nx",)
    with pytest.raises(ValueError, match="not a line of text"):
        write_secrets(path, [b"\xff\n\x00", b"x"])
    assert path.read_bytes() == b"\xff\n\x00\nx"


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ValueError, match="is empty"):
        read_secrets(path)


def test_a_file_of_many_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="is it the right file"):
        split_secrets(b"\n".join(b"%d" % number for number in range(MOST_SECRETS + 1)), "it")


def test_a_new_file_is_for_its_owner_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secrets(path, [OLD])
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    write_secrets(path, [NEW, OLD])
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["secret"]


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    path = written(tmp_path / "secret", "old")
    link = tmp_path / "link"
    link.symlink_to(path)
    write_secrets(link, [NEW])
    assert link.is_symlink()
    assert path.read_bytes() == NEW + b"\n"


def test_a_rotation_is_written_to_the_file_step_by_step(tmp_path: Path) -> None:
    path = written(tmp_path / "secret", OLD.decode())
    keyring = Keyring.of_file(path)
    seen: list[tuple[bytes, ...]] = []
    keyring.on_changed.append(lambda: seen.append(keyring.secrets()))
    keyring.install(NEW)
    assert read_secrets(path) == (OLD, NEW)
    keyring.use(secret_id(NEW))
    assert read_secrets(path) == (NEW, OLD)
    keyring.keep(secret_id(NEW))
    assert read_secrets(path) == (NEW,)
    assert seen == [(OLD, NEW), (NEW, OLD), (NEW,)]
    assert not keyring.problem


def test_a_file_that_changes_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "secret", OLD.decode())
    keyring = Keyring.of_file(path)
    write_secrets(path, [OLD, NEW])
    assert keyring.secrets() == (OLD, NEW)
    path.unlink()
    with caplog.at_level(logging.ERROR, "understudy.links"):
        assert keyring.secrets() == keyring.secrets() == (OLD, NEW)
    assert caplog.text.count("cannot be read") == 1
    write_secrets(path, [NEW])
    assert keyring.secrets() == (NEW,)


def test_what_could_not_be_written_is_not_undone_by_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "secret", OLD.decode())
    keyring = Keyring.of_file(path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("runtime.links.keyring.write_secrets", refuse)
    keyring.install(NEW)
    keyring.use(secret_id(NEW))
    assert "Permission denied" in keyring.problem
    # As configuration management does that finds nothing to change.
    os.utime(path)
    assert keyring.secrets() == (NEW, OLD)
    monkeypatch.undo()
    # Changed by hand, it is the file that says what is accepted.
    write_secrets(path, [NEW])
    assert keyring.secrets() == (NEW,)
    assert not keyring.problem


def test_what_is_not_installed_is_neither_used_nor_kept() -> None:
    keyring = Keyring([OLD])
    for change in (keyring.use, keyring.keep):
        with pytest.raises(ValueError, match="not installed"):
            change(secret_id(NEW))
    assert keyring.secrets() == (OLD,)


def test_secrets_are_bounded() -> None:
    keyring = Keyring([b"%d" % number for number in range(MOST_SECRETS)])
    with pytest.raises(ValueError, match="rotations"):
        keyring.install(NEW)
    for wrong in ([], [b""], [b"%d" % number for number in range(MOST_SECRETS + 1)]):
        with pytest.raises(ValueError, match="secrets"):
            keyring.replace(wrong)
    assert len(keyring.secrets()) == MOST_SECRETS


def test_nothing_shows_a_secret() -> None:
    assert "secret" not in repr(Keyring([OLD]))
    assert OLD.hex() not in secret_id(OLD)
    assert secret_id(OLD) != secret_id(NEW)


def test_what_a_program_may_give(tmp_path: Path) -> None:
    path = written(tmp_path / "secret", "a\nb")
    assert keyring_of(path).secrets() == (b"a", b"b")
    assert keyring_of("a\nb").secrets() == (b"a", b"b")
    assert keyring_of(b"a\nb").secrets() == (b"a\nb",)
    assert keyring_of(["a", b"b", "a"]).secrets() == (b"a", b"b")
    assert keyring_of(" kept as it is ").secrets() == (b" kept as it is ",)
    for wrong in ([], [""], b"", ""):
        with pytest.raises(ValueError, match="empty"):
            keyring_of(wrong)


@pytest.mark.parametrize(
    ("dialers", "acceptors", "accepted"),
    [
        ((OLD,), (OLD, NEW), True),
        ((OLD,), (NEW, OLD), True),
        ((NEW, OLD), (OLD, NEW), True),
        ((NEW,), (OLD, NEW), True),
        ((OLD,), (NEW,), False),
        ((NEW,), (OLD,), False),
    ],
)
def test_a_proof_by_any_accepted_secret_is_answered_by_the_same(
    dialers: tuple[bytes, ...], acceptors: tuple[bytes, ...], accepted: bool
) -> None:
    def side(name: str) -> Introduction:
        return Introduction("test", Peer(name, 1, "node"))

    dialer = Dialer(side("alice"), dialers[0], b"d" * 32)
    acceptor = Acceptor(side("bob"), acceptors[0], b"a" * 32, others=acceptors[1:])
    challenge = acceptor.receive(*dialer.start())
    assert challenge is not None
    proof = dialer.receive(*challenge)
    assert proof is not None
    answer = acceptor.receive(*proof)
    assert (acceptor.error is None) == accepted
    if accepted:
        assert answer is not None
        dialer.receive(*answer)
        assert dialer.peer is not None
        assert acceptor.peer is not None
