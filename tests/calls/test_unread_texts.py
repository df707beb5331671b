"""What callers are told that leave answers unread, as the pages about errors show it. To fill the
bounds themselves takes minutes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from actors.identifiers import NodeId
from runtime.calls import dispatch
from runtime.calls.replies import ReplyEncoder
from runtime.wire.codec import Codec
from tests.failures.error_examples import check_shown, said

LINK: Any = SimpleNamespace(
    peer=SimpleNamespace(name="driver", identity=NodeId("driver", 3)),
    backlog=600_000_000,
    backlog_frames=600,
    most_backlog=256 * 1024 * 1024,
)


def test_what_is_said_of_answers_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    check_shown("AnswersUnreadError", said(dispatch._unread(LINK)))
    encoder = ReplyEncoder(Codec(sentinel=bytes(8)))
    refused: list[object] = []
    monkeypatch.setattr(encoder, "of_error", lambda number, link, error: refused.append(error))
    invocation: Any = SimpleNamespace(full_name="counter.large")
    encoder.of_value(1, invocation, bytes(1_000_000), LINK)
    check_shown("AnswerDroppedError", said(refused[0]))
