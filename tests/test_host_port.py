"""What no machine can have as a host is said before anything is looked up."""

from __future__ import annotations

import pytest

from runtime.host_port import host_problem


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "node-1.example.org",
        "node-1.example.org.",
        "a_b",
        "127.0.0.1",
        "::1",
        "fe80::1%eth0",
        "bücher.example",
        "a" * 63,
        "ü" * 20,
    ],
)
def test_a_host_that_may_exist_has_no_problem(host: str) -> None:
    assert host_problem(host) == ""
    if ":" not in host:
        host.encode("idna")


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("a..b", "between two dots"),
        (".a", "before a dot"),
        (".", "before a dot"),
        ("a\u3002\u3002b", "between two dots"),
        ("a" * 64, "more than 63 characters"),
        ("ü" * 60, "more than 63 characters"),
        ("a b", "the character ' '"),
        ("a/b", "the character '/'"),
        ("a\x00", r"the character '\x00'"),
        ("\udcff", r"the character '\udcff'"),
        ("a:b", "no IPv6 address"),
        (":::", "no IPv6 address"),
    ],
)
def test_a_host_that_no_machine_can_have_is_said_to_be_one(host: str, words: str) -> None:
    assert words in host_problem(host)
