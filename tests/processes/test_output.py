"""Lines come out whole, in order and bounded, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.processes.child_process import MAX_LINE_BYTES, LineSplitter


@given(
    lines=st.lists(
        st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]))
    ),
    cuts=st.lists(st.integers(1, 50)),
)
def test_the_way_the_bytes_are_cut_does_not_show(lines: list[str], cuts: list[int]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    splitter = LineSplitter()
    found = []
    for cut in cuts:
        found += splitter.feed(data[:cut])
        data = data[cut:]
    found += splitter.feed(data)
    assert found == lines
    assert splitter.flush() == []


def test_a_last_line_without_an_end_comes_out_at_the_flush() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\r\ntwo") == ["one"]
    assert splitter.flush() == ["two"]
    assert splitter.flush() == []


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    assert LineSplitter().feed(b"a\xffb\n") == ["a\N{REPLACEMENT CHARACTER}b"]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_very_long_line_comes_in_pieces_that_split_no_character(end: bytes) -> None:
    text = "a" + "\N{EURO SIGN}" * MAX_LINE_BYTES
    splitter = LineSplitter()
    pieces = splitter.feed(text.encode() + end) + splitter.flush()
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= MAX_LINE_BYTES for piece in pieces)


@given(st.lists(st.binary(max_size=3 * MAX_LINE_BYTES), max_size=4))
def test_no_more_than_one_piece_is_kept_and_no_piece_is_longer_than_the_limit(
    chunks: list[bytes],
) -> None:
    splitter = LineSplitter()
    for chunk in chunks:
        assert all(len(line) <= MAX_LINE_BYTES for line in splitter.feed(chunk))
        assert sum(len(line) for line in splitter.flush()) <= MAX_LINE_BYTES
