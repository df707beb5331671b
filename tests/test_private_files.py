"""Files with secrets that others can read are refused, wherever they come in."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from runtime.command_line.main import main
from runtime.links.keyring import Keyring, read_secrets
from runtime.private_files import refuse_open_file
from runtime.store.etcd.address import EtcdAddress


def written(path: Path, mode: int) -> Path:
    path.write_text("0123456789abcdef\n")
    path.chmod(mode)
    return path


def etcd(path: Path) -> None:
    EtcdAddress.parse(f"etcd://user@127.0.0.1:1?password-file={path}")


def gateway(path: Path) -> None:
    done = CliRunner().invoke(main, ["gateway", "--token-file", str(path)])
    assert done.exit_code == 2
    raise ValueError(done.output)


@pytest.mark.parametrize("use", [Keyring.of_file, read_secrets, etcd, gateway])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o610])
def test_a_file_that_others_can_use_is_refused(
    tmp_path: Path, use: Callable[[Path], object], mode: int
) -> None:
    path = written(tmp_path / "my file", mode)
    with pytest.raises(ValueError, match=rf"mode {mode:o}\): chmod 600 '.*/my file'"):
        use(path)


@pytest.mark.parametrize("use", [Keyring.of_file, read_secrets, etcd, gateway])
def test_a_file_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], object]
) -> None:
    """Root could read it, and so could its owner."""
    path = written(tmp_path / "my file", 0o600)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        user = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(ValueError, match=r"another user \(uid \d+\).* chown \d+ '.*/my file'"):
        use(path)


def test_a_file_of_the_owner_alone_is_used(tmp_path: Path) -> None:
    for mode in (0o600, 0o400, 0o700):
        path = written(tmp_path / f"{mode:o}", mode)
        assert Keyring.of_file(path).secrets() == (b"0123456789abcdef",)


def test_the_group_of_the_shared_file_may_read_it_and_all_users_may_not(tmp_path: Path) -> None:
    assert Keyring.of_file(written(tmp_path / "secret", 0o660), "shared").secrets()
    with pytest.raises(ValueError, match="others can read"):
        Keyring.of_file(written(tmp_path / "secret", 0o664), "shared")


def test_a_file_that_becomes_readable_leaves_the_secret_in_use_and_is_an_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "secret", 0o600)
    keyring = Keyring.of_file(path)
    path.write_text("another secret\n")
    path.chmod(0o644)
    with caplog.at_level(logging.ERROR):
        assert keyring.secrets() == (b"0123456789abcdef",)
    assert "chmod 600" in caplog.text
    assert "stays in use" in caplog.text
    path.chmod(0o600)
    assert keyring.secrets() == (b"another secret",)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """As a shell's `<(command)` gives one."""
    reading, writing = os.pipe()
    os.write(writing, b"0123456789abcdef\n")
    os.close(writing)
    try:
        refuse_open_file("secret file", f"/dev/fd/{reading}")
        assert read_secrets(Path(f"/dev/fd/{reading}")) == (b"0123456789abcdef",)
    finally:
        os.close(reading)
