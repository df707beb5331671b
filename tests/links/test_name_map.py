"""Which SPIFFE IDs stand for which members."""

from __future__ import annotations

import pytest

from runtime.links.credentials import MOST_RULES, NameMap
from runtime.wire.handshake import Certified

RULES = """
# whom the agent of the platform certifies

spiffe://example.org/ns/prod/sa/special         understudy://prod/operator/special  # first
spiffe://example.org/ns/prod/sa/w-{name}        understudy://prod/node/{name}
spiffe://example.org/ns/{space}/sa/any          understudy://{space}/node/*
"""


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("spiffe://example.org/ns/prod/sa/w-1", ("prod", "node", "1")),
        ("spiffe://example.org/ns/prod/sa/special", ("prod", "operator", "special")),
        ("spiffe://example.org/ns/test/sa/any", ("test", "node", "*")),
        ("understudy://prod/client/bob", ("prod", "client", "bob")),
    ],
)
def test_an_id_is_named_by_the_first_rule_that_matches(
    uri: str, named: tuple[str, str, str]
) -> None:
    found = NameMap(RULES).certified((uri,))
    assert (found.cluster, found.role, found.name) == named
    assert found.uris == (uri,)


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://example.com/ns/prod/sa/w-1",
        "spiffe://exampleXorg/ns/prod/sa/w-1",
        "spiffe://example.org/ns/prod/sa/w-",
        "spiffe://example.org/ns/prod/sa/w-1/more",
        "spiffe://example.org/ns/prod/sa/w-a/b",
        "spiffe://example.org/ns/prod/sa/w-%2A",
        "spiffe://example.org/ns/prod/sa/w-*",
        "spiffe://example.org/ns/prod/sa/w-{x}",
        "spiffe://example.org/ns/prod/sa/w-1\n",
        "SPIFFE://example.org/ns/prod/sa/w-1",
        "x-spiffe://example.org/ns/prod/sa/w-1",
        "spiffe://example.org/ns//sa/any",
        "",
    ],
)
def test_what_no_rule_matches_names_nobody(uri: str) -> None:
    assert NameMap(RULES).certified((uri,)) == Certified(uris=(uri,))


def test_a_certificate_with_more_than_one_id_names_nobody() -> None:
    uris = "spiffe://example.org/ns/prod/sa/w-1", "spiffe://example.org/ns/prod/sa/special"
    assert not NameMap(RULES).certified(uris).role
    assert not NameMap().certified(uris[:1]).role


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("spiffe://a/b", "line 1: a rule is two words"),
        ("spiffe://a/b understudy://c/node/n more", "a rule is two words"),
        ("https://a/b understudy://c/node/n", "is not spiffe://"),
        ("spiffe://{domain}/b understudy://c/node/n", "the trust domain is written out"),
        ("spiffe://a understudy://c/node/n", "is not spiffe://TRUST-DOMAIN/PATH"),
        ("spiffe://a/{x}/{x} understudy://c/node/{x}", "each word once"),
        ("spiffe://a/{X} understudy://c/node/n", "letters a to z"),
        ("spiffe://a/{x understudy://c/node/n", "letters a to z"),
        ("spiffe://a/b understudy://c/king/n", "a role that is written out"),
        ("spiffe://a/{role} understudy://c/{role}/n", "a role that is written out"),
        ("spiffe://a/{x} understudy://c/node/{y}", "the words of"),
        ("spiffe://a/{x} understudy://c/node/{x.__class__}", "is not understudy://"),
        ("spiffe://a/{x} understudy://c/node/{x!r}", "is not understudy://"),
        ("spiffe://a/b understudy://c/node", "is not understudy://"),
        ("spiffe://a/b spiffe://a/b", "is not understudy://"),
    ],
)
def test_what_is_no_rule_is_named_with_its_line(rule: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        NameMap(rule)


def test_the_number_of_rules_is_bounded() -> None:
    rule = "spiffe://a/b understudy://c/node/n\n"
    NameMap(rule * MOST_RULES)
    with pytest.raises(ValueError, match="are more than"):
        NameMap(rule * (MOST_RULES + 1))
