"""`etcd://` addresses, right and wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.store.etcd.address import EtcdAddress


def test_members_users_and_options_are_read() -> None:
    found = EtcdAddress.parse("etcd://ann:p%40ss@one:2379,[::1]:2380?ca=/ca.pem&prefix=team")
    assert found.endpoints == (("one", 2379), ("::1", 2380))
    assert (found.user, found.password) == ("ann", "p@ss")
    assert found.tls
    assert found.ca == Path("/ca.pem")
    assert found.prefix == "team"


def test_a_password_comes_from_a_file_and_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hush\n")
    (tmp_path / "password").chmod(0o600)
    found = EtcdAddress.parse(f"etcd://ann@one:2379?password-file={tmp_path / 'password'}")
    assert found.password == "hush"
    assert "hush" not in repr(found) + str(found) + found.public


def test_the_address_that_others_get_leads_them_to_the_same_keys() -> None:
    for text in (
        "etcd://one:2379",
        "etcd://one:2379,[::1]:2380?prefix=team",
        "etcd://one:2379?prefix=a%26b%20c%23d",
    ):
        assert EtcdAddress.parse(text).public == text
        assert EtcdAddress.parse(EtcdAddress.parse(text).public) == EtcdAddress.parse(text)
    for text in ("etcd://ann:hush@one:2379", "etcd://one:2379?tls=yes"):
        assert not EtcdAddress.parse(text).public


@pytest.mark.parametrize(
    "text",
    [
        "etcd:/ann:hush@one:2379",
        "ann:hush@one:2379",
        "http://ann:hush@one:2379",
        "etcd://ann:?hush@one:2379",
        "etcd://ann:#hush@one:2379",
        "etcd://ann:/hush@one:2379",
        "etcd://ann:[hush]@one:2379",
        "etcd://one:2379,[::1:2380",
        "etcd://one:2379,[[::1]]:2380",
        "etcd://ann:hush",
        "etcd://ann:hush@one",
        "etcd://ann:hush@one:2379?tls=maybe",
    ],
)
def test_an_address_that_is_written_wrong_does_not_give_its_password_away(text: str) -> None:
    with pytest.raises(ValueError, match=r"etcd|HOST:PORT|tls") as refused:
        EtcdAddress.parse(text)
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_members_may_be_separated_by_a_comma_and_a_space() -> None:
    assert EtcdAddress.parse("etcd://one:1, two:2").endpoints == (("one", 1), ("two", 2))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://one:6379", "etcd://HOST:PORT,HOST:PORT, not redis://"),
        ("one:2379", "not 'one:2379'"),
        ("etcd://one", "HOST:PORT, not 'one'"),
        ("etcd://one:2379,", "HOST:PORT, not ''"),
        ("etcd://one:port", "2379 by default"),
        ("etcd://one:70000", "HOST:PORT, not 'one:70000'"),
        ("etcd://one:2379/understudy", r"\?prefix=NAME"),
        ("etcd://one:2379?certs=x", "did you mean 'cert'"),
        ("etcd://one:2379?colour=red", "it has: ca, cert"),
        ("etcd://one:2379?tls=maybe", "tls is yes or no"),
        ("etcd://one:2379?ca=", "has no value"),
        ("etcd://one:2379?cert=a.pem", "cert and key go together"),
        ("etcd://ann@one:2379?password-file=/no/such/file", "cannot be read: No such file"),
    ],
)
def test_a_wrong_address_says_what_is_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        EtcdAddress.parse(text)
