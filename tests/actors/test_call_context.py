"""The call context as a value: bounded, and with nothing malformed in it."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import CallContext, call_context
from actors.call_context import CURRENT, MOST_BYTES, MOST_TEXT, valid_traceparent

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LATER = "01" + PARENT[2:] + "-" + "x" * 200

MALFORMED = [
    "",
    "no parent",
    PARENT[:-1],
    PARENT + "-more",
    PARENT.upper(),
    "ff" + PARENT[2:],
    "00-" + "0" * 32 + "-b7ad6b7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    "01" + PARENT[2:] + "-" + "x" * 10_000,
    PARENT + "\r\nevil: 1",
    "\u0660" + PARENT[1:],
]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_traceparent_is_dropped_with_its_state(text: str) -> None:
    assert valid_traceparent(text) == ""
    for context in (
        CallContext.of({"a": "b"}, traceparent=text, tracestate="x=1", baggage="k=v"),
        CallContext(f"{text}\nx=1\nk=v\n" + '{"a":"b"}') if "\n" not in text else None,
    ):
        if context is not None:
            assert (context.traceparent, context.tracestate) == ("", "")
            assert (context.baggage, dict(context)) == ("k=v", {"a": "b"})
            # And it is not passed on, whether it was looked at before or not.
            assert context.text == '\n\nk=v\n{"a":"b"}'


def test_a_later_version_is_passed_on_as_it_is() -> None:
    later = "01" + PARENT[2:] + "-what.comes.next"
    assert CallContext.of(traceparent=later).text == later


def test_what_only_passes_through_is_cleaned_too() -> None:
    assert CallContext("garbage\nx=1").text == ""
    assert CallContext(PARENT + "\nx=1\n\n\nlater lines").text == PARENT + "\nx=1"


@given(st.text(max_size=300))
def test_any_text_of_a_peer_is_some_context(text: str) -> None:
    context = CallContext(text)
    again = CallContext(context.text)
    assert again.text == context.text
    assert dict(again) == dict(context)
    assert (again.traceparent, again.baggage) == (context.traceparent, context.baggage)


@pytest.mark.parametrize(
    "line",
    [
        "[" * MOST_TEXT,
        "[" * 50_000,
        "{",
        "[]",
        '{"a":1}',
        '{"a":"\\ud800"}',
        "9" * 5000,
        '{"a":{"b":"c"}}',
        "null",
    ],
)
def test_values_that_are_none_are_left_out(line: str) -> None:
    context = CallContext(f"{PARENT}\n\n\n{line}")
    assert dict(context) == {}
    assert context.traceparent == (PARENT if len(line) < MOST_TEXT else "")


def test_nothing_larger_than_our_own_is_kept() -> None:
    assert CallContext("x" * (MOST_TEXT + 1)).text == ""
    largest = CallContext.of({"\x01": "\x01" * (MOST_BYTES - 1)}, traceparent=PARENT)
    assert len(largest.text) <= MOST_TEXT
    # Many short names that JSON escapes are the longest text for so many bytes.
    names = ["".join(each) for each in itertools.product(map(chr, range(14, 32)), repeat=3)]
    many = CallContext.of(dict.fromkeys(names[: MOST_BYTES // 3], ""), traceparent=LATER)
    assert CallContext(many.text) == many
    assert CallContext(many.text).traceparent == LATER
    assert dict(CallContext(largest.text)) == dict(largest)


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=8))
def test_values_come_back_as_they_were(values: dict[str, str]) -> None:
    try:
        context = CallContext.of(values, traceparent=PARENT)
    except ValueError:
        assert any("\ud800" <= char <= "\udfff" for one in values.items() for char in "".join(one))
        return
    assert dict(CallContext(context.text)) == values
    assert CallContext(context.text).traceparent == PARENT


def test_too_much_is_refused_where_it_is_set() -> None:
    with call_context.having(a="x" * (MOST_BYTES - 1)):
        assert len(call_context.get()["a"]) == MOST_BYTES - 1
        # With those already there, not by itself.
        with (
            pytest.raises(ValueError, match=r"8193 bytes.*at most 8192"),
            call_context.having(b=""),
        ):
            raise AssertionError("not reached")
        assert "b" not in call_context.get()
    # Bytes and not characters.
    with pytest.raises(ValueError, match="bytes"), call_context.having(a="ü" * (MOST_BYTES // 2)):
        raise AssertionError("not reached")
    assert CURRENT.get() is None


@pytest.mark.parametrize("value", [1, b"x", ["x"]])
def test_values_are_texts(value: object) -> None:
    with pytest.raises(TypeError, match=r"'tenant'.*convert it with str"):
        CallContext.of({"tenant": value})  # type: ignore[dict-item]


def test_blocks_nest_and_names_can_be_taken_away() -> None:
    with call_context.having(tenant="acme", user="ada"):
        with call_context.having(user=None, role="clerk") as inner:
            assert dict(inner) == dict(call_context.get()) == {"tenant": "acme", "role": "clerk"}
        assert dict(call_context.get()) == {"tenant": "acme", "user": "ada"}
    assert dict(call_context.get()) == {}


def test_an_empty_context_is_none_at_all() -> None:
    token = call_context.set(CallContext())
    assert CURRENT.get() is None
    call_context.reset(token)
    with call_context.having(a=None):
        assert CURRENT.get() is None
    with pytest.raises(TypeError, match="CallContext"):
        call_context.set({"a": "b"})  # type: ignore[arg-type]


def test_values_do_not_come_into_logs() -> None:
    context = CallContext.of({"token": "secret"}, traceparent=PARENT)
    assert "secret" not in repr(context)
    assert PARENT in repr(context)
    assert json.loads(context.text.rpartition("\n")[2]) == {"token": "secret"}
