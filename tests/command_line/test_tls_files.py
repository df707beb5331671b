"""`understudy tls`: what its files are, and what is said of those that are no such files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click import ClickException
from click.testing import CliRunner

from runtime.command_line.main import main
from runtime.command_line.secret import _tell
from runtime.command_line.secret_rotation import NewSecret, Rotation, check_not_plain
from runtime.environment import host_identity
from runtime.links.encryption import Tls
from runtime.links.keyring import secret_id
from runtime.membership.keyring_service import KeyringFacts


def said(*words: str) -> tuple[int, str]:
    """The exit status and the one line that a command prints."""
    result = CliRunner().invoke(main, ["tls", *words])
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def test_a_key_of_the_ca_that_others_can_read_signs_nothing(tmp_path: Path) -> None:
    place = ["--dir", str(tmp_path)]
    assert said("ca", *place)[0] == 0
    key = tmp_path / "ca-key.pem"
    assert key.stat().st_mode & 0o777 == 0o600
    for mode in (0o640, 0o604, 0o666):
        key.chmod(mode)
        for words in (("cert", *place, "--name", "w1"), ("revoke", *place)):
            status, text = said(*words)
            assert status == 1
            assert f"others can read the key of the CA {key} (mode {mode:o}): chmod 600" in text
            assert len(text.splitlines()) == 1
    assert not (tmp_path / "w1.pem").exists()
    assert not (tmp_path / "crl.pem").exists()
    key.chmod(0o600)
    assert said("cert", *place, "--name", "w1")[0] == 0


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00\xff" * 100])
def test_a_key_of_the_ca_that_is_none_is_named_in_one_line(tmp_path: Path, content: bytes) -> None:
    place = ["--dir", str(tmp_path)]
    assert said("ca", *place)[0] == 0
    (tmp_path / "ca-key.pem").write_bytes(content)
    status, text = said("cert", *place, "--name", "w1")
    assert status == 1
    assert "ca-key.pem is not a private key in PEM" in text
    assert "http" not in text
    assert len(text.splitlines()) == 1
    (tmp_path / "ca-key.pem").unlink()
    status, text = said("cert", *place, "--name", "w1")
    assert status == 1
    assert "No such file or directory; `understudy tls ca` makes it" in text


def test_a_key_of_another_ca_signs_nothing(tmp_path: Path) -> None:
    place = ["--dir", str(tmp_path)]
    assert said("ca", *place)[0] == 0
    assert said("cert", *place, "--name", "w1")[0] == 0
    # As a careless copy does: the key of a node in the place of the CA's.
    (tmp_path / "w1-key.pem").replace(tmp_path / "ca-key.pem")
    for words in (("cert", *place, "--name", "w2"), ("revoke", *place)):
        status, text = said(*words)
        assert status == 1
        assert f"{tmp_path}/ca-key.pem is not the key of {tmp_path}/ca.pem" in text
        assert len(text.splitlines()) == 1
    assert not (tmp_path / "w2.pem").exists()
    assert not (tmp_path / "crl.pem").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["info", "nofile.pem"], "cannot be read: No such file"),
        (["info", "."], "cannot be read: Is a directory"),
        (["info", __file__], "it is not a certificate in PEM"),
        (["expiry", __file__], "it is not a certificate in PEM"),
        (["expiry"], "Missing argument"),
        (["expiry", "--within", "-1", "x"], "not in the range"),
        (["cert", "--dir", "no pki", "--name", "a"], "`understudy tls ca --dir 'no pki'` makes it"),
        (["cert", "--name", "a", "--role", "king"], "'king' is not one of"),
        (["cert", "--name", "a", "--days", "0"], "not in the range"),
        (["cert", "--name", "a", "--days", "3000000"], "not in the range 1<=x<=36500"),
        (["ca", "--days", "99999999"], "not in the range 1<=x<=36500"),
        (["revoke", "--days", "99999999"], "not in the range 1<=x<=36500"),
        (["cert", "--name", ""], "an empty text names nothing"),
        (["cert", "--name", "a\x1b[2J"], "without control characters"),
        (["cert", "--name", "a/b"], "cannot be the name of a file"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said("ca")[0] == 0
    status, printed = said(*words)
    assert status in (1, 2)
    assert text in printed
    assert len(printed.splitlines()) == 1
    assert printed.strip().isprintable()


def test_a_node_that_has_answered_was_not_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    facts = KeyringFacts((secret_id(b"x" * 32),), "file", "now", "")
    rotation = Rotation(b"x" * 32, NewSecret(Path("next")), without=("w1", "gone", "typo"))
    _tell(rotation, {"w1": facts}, {"w1", "gone"}, as_json=False)
    printed = capsys.readouterr().out
    assert "\nleft out: gone; other nodes refuse them now\n" in printed
    assert "--without typo: no member has that name" in printed
    assert "not left out, because they have answered: w1" in printed


def member(name: str, host: str, *addresses: str) -> Any:
    return {"name": name, "host": host, "addresses": list(addresses)}


@pytest.mark.parametrize("mode", ["off", "accept", None, "require"])
def test_no_secret_is_sent_to_another_machine_without_encryption(mode: Any) -> None:
    here = host_identity()
    near = [
        member("a", here, "tcp:10.0.0.1:7400"),
        member("b", "elsewhere", "tcp:127.0.0.1:7400"),
    ]
    check_not_plain(near, Tls(mode=mode))
    far = [*near, member("c", "elsewhere", "tcp:127.0.0.1:7400", "tcp:10.0.0.3:7400")]
    if mode in ("off", "accept"):
        with pytest.raises(ClickException, match=f"--tls {mode} .* could be read on the way to c"):
            check_not_plain(far, Tls(mode=mode))
    else:
        check_not_plain(far, Tls(mode=mode))
