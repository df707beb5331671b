"""What TAB offers, and that nothing of the user's can break it."""

from __future__ import annotations

import pytest

from actors.errors import StoreUnavailableError
from runtime.console.completion import MOST, Completer


class Hostile:
    """An object whose attributes raise."""

    def __dir__(self) -> list[str]:
        raise SystemExit

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


NAMES = ["counter-1", "counter-2", "shop/till", "it's"]


def completer(**namespace: object) -> Completer:
    return Completer({"bank": [1], "hostile": Hostile(), **namespace}, lambda: NAMES)


@pytest.mark.parametrize(
    ("line", "word", "expected"),
    [
        ("await lookup('cou", "cou", ["counter-1", "counter-2"]),
        ('x = await node.lookup( "counter-', "", ["1", "2"]),
        ('lookup("shop/t', "t", ["till"]),
        ('lookup("', "", ["counter-1", "counter-2", "it's", "shop/till"]),
        ('lookup("nobody', "nobody", []),
        ('lookup("counter-1", Cou', "Cou", []),
        ("bank.app", "bank.app", ["bank.append("]),
        ("ban", "ban", ["bank"]),
        ("hostile.x", "hostile.x", []),
        ("unknown.x", "unknown.x", []),
        ("  ", "", ["    "]),
    ],
)
def test_completions(line: str, word: str, expected: list[str]) -> None:
    assert completer().matches(line, word) == expected


def test_names_that_cannot_be_asked_for_are_not_offered() -> None:
    def fail() -> list[str]:
        raise StoreUnavailableError("away")

    assert Completer({}, fail).matches('lookup("', "") == []


def test_no_more_are_offered_than_can_be_read() -> None:
    many = Completer({}, lambda: [f"actor-{number}" for number in range(10 * MOST)])
    assert len(many.matches('lookup("a', "a")) == MOST
