"""Pictures for notebooks: whatever is in them is text, and there is no more of it than a page
holds.
"""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from actors.html import MOST_ROWS, MOST_TEXT, card, dotted_state, escaped, html_table

EVIL = "<script>alert('1')</script>\"'&<img src=x onerror=y>\u202e\x1b[31m"


class Tags(HTMLParser):
    """The tags and the text of some markup; raises for tags that are not closed in order."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert {name for name, _ in attrs} <= {"style"}, attrs
        self.tags.append(tag)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


class Hostile:
    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


@pytest.mark.parametrize(
    "markup",
    [
        escaped(EVIL),
        dotted_state(EVIL),
        card(EVIL, EVIL, [(EVIL, EVIL), ("x", Hostile())], note=EVIL),
        html_table([EVIL], [[escaped(EVIL)]], 1),
    ],
)
def test_everything_is_escaped(markup: str) -> None:
    read = Tags(markup)
    assert not {"script", "img"} & {*read.tags}
    assert "<script>" in read.text
    # Neither the direction of writing, nor a terminal, is touched.
    assert "\u202e" not in read.text
    assert "\x1b" not in read.text


def test_texts_and_tables_are_bounded() -> None:
    assert len(escaped("x" * 10_000_000)) == MOST_TEXT
    many = html_table(["n"], ([escaped(number)] for number in range(10**9)), 10**9)
    assert many.count("<tr>") == MOST_ROWS + 1
    assert "and 999,999,900 more" in many
    assert Tags(many).tags


def test_what_is_no_text_is_shown_by_its_class() -> None:
    assert escaped(Hostile()) == "Hostile"
    assert escaped(None) == "NoneType"
    assert escaped(12_345) == "12,345"
    assert escaped(True) == "True"
