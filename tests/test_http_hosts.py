"""Which names in Host headers are answered, at which addresses of this machine."""

from __future__ import annotations

import pytest

from runtime.http_hosts import host_name, host_refusal, leads_here, split_target


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("LocalHost.:80", "localhost"),
        ("[::1]:80", "[::1]"),
        ("[::1", "[::1]"),
        ("[::1]evil.example", "[::1]evil.example"),
        ("[::1].evil.example:80", "[::1].evil.example:80"),
        ("w1.example", "w1.example"),
        ("", ""),
        (":80", ""),
    ],
)
def test_the_name_in_a_header(host: str, name: str) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.9.9.9", "[::1]"])
def test_names_that_lead_here(name: str) -> None:
    assert leads_here(name)


@pytest.mark.parametrize(
    "name",
    ["", "0.0.0.0", "127.1", "0177.0.0.1", "2130706433", "127.0.0.1.x", "[::]", "w1", "[::1]x"],
)
def test_names_that_may_lead_elsewhere(name: str) -> None:
    assert not leads_here(name)


def test_only_what_this_machine_alone_reaches_is_judged() -> None:
    assert host_refusal("evil.example", "127.0.0.1", "w1")
    assert host_refusal("evil.example", "::1", "w1")
    assert host_refusal("", "127.0.0.1", "w1")
    assert not host_refusal("W1:9464", "127.0.1.1", "w1")
    assert not host_refusal(None, "127.0.0.1", "w1")
    # Prometheus asks by whatever name it was given.
    assert not host_refusal("w1.example:9464", "10.0.0.5", "w1")


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("/metrics", ("/metrics", "header")),
        ("/a?b=http://c/d", ("/a?b=http://c/d", "header")),
        ("*", ("*", "header")),
        ("http://a:80/metrics?b", ("/metrics?b", "a:80")),
        ("HTTPS://A", ("/", "A")),
        ("http://a?b", ("/?b", "a")),
        ("ftp://a/b", ("ftp://a/b", "header")),
    ],
)
def test_an_address_in_full_names_the_host_itself(target: str, found: tuple[str, str]) -> None:
    assert split_target(target, "header") == found


@pytest.mark.parametrize("target", ["http://", "http:///a", "http://a@b/", "http://a:80@b/"])
def test_an_address_without_a_host_or_with_a_user_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="http://HOST/PATH"):
        split_target(target, "header")
