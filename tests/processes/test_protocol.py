"""Messages survive the way between a fork server and its parent, whatever the sizes in which the
bytes arrive.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.processes import protocol

MESSAGES = [
    protocol.SetUp([b"a", b"\xff"], ["trio"], None, b"/\xff.py"),
    protocol.StartProcess(1, "n", "m:f", b"\0\xff"),
    protocol.Signal(1, 15),
    protocol.Begun(2),
    protocol.ServerReady(),
    protocol.SetUpFailed("m", "text"),
    protocol.Started(1, 2),
    protocol.Refused(1, "no"),
    protocol.Exited(1, 9),
]


@given(st.lists(st.sampled_from(MESSAGES)), st.integers(1, 30))
def test_messages_arrive_equal_and_in_order(messages: list[protocol.Message], size: int) -> None:
    data = b"".join(protocol.encode(message) for message in messages)
    reader = protocol.MessageReader()
    bodies = [
        body
        for start in range(0, len(data), size)
        for body in reader.feed(data[start : start + size])
    ]
    assert [protocol.decode(body) for body in bodies] == messages


def test_a_frame_that_announces_too_much_is_refused_before_it_is_collected() -> None:
    with pytest.raises(ValueError, match="larger than the limit"):
        protocol.MessageReader().feed((protocol.MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))


def test_a_body_that_is_too_large_is_refused_by_its_sender() -> None:
    with pytest.raises(ValueError, match="larger than the limit"):
        protocol.encode_frame(bytes(protocol.MAX_MESSAGE_BYTES + 1))
