"""Errors that come again are rebuilt without reading their description: each is one of its own."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest

from actors.errors import CallError, RemoteError
from actors.messages import message
from runtime.calls.error_codec import CallPlace, place_of, raised_by_method
from runtime.calls.pending_calls import OutgoingCalls, PendingCall
from runtime.calls.reply_handler import MOST_REPEATED, MOST_REPEATED_BYTES, ReplyHandler
from runtime.calls.routes import Routes
from runtime.links.link import Link
from runtime.wire.arrays import array_head
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame, Kind
from tests.test_tracebacks import CASES, fail, raised

CODEC = Codec(sentinel=b"sentinel")
LINK = cast("Link", object())
HERE = CallPlace("one", "work", "worker-1", 3)
THERE = CallPlace("other", "toil", "worker-2", 4)


@message
class KeptError(Exception):
    """Arrives as itself."""


@message
@attrs.define(auto_exc=True)
class DefaultsError(Exception):
    """Its peers may send fewer fields than it has."""

    code: int = 3


class Caller:
    """The handler of a node with one link, and what ends its calls."""

    def __init__(self) -> None:
        self.table = OutgoingCalls[Any]()
        routes = cast("Routes", SimpleNamespace(tables={LINK: self.table}))
        self.handler = ReplyHandler(CODEC, routes, CODEC.find_class, lambda: 0.0)
        self.number = 0

    def outcome(self, error: BaseException, place: CallPlace = HERE) -> CallError:
        """How a call ends whose method has raised this."""
        self.number += 1
        call = PendingCall[Any](self.number, place, None)
        self.table.begin(call)
        code, plain = raised_by_method(error, CODEC.size_of)
        control = array_head(3, self.number) + CODEC.encode(code, []) + CODEC.encode(plain, [])
        self.handler.on_error(LINK, Frame(Kind.ERROR, 0, control, ()))
        self.handler.check_invariants()
        assert not self.table.pending
        assert call.error is not None
        return call.error

    @property
    def kept(self) -> int:
        """Descriptions that the handler keeps."""
        return len(self.handler._repeated)


SHARED: dict[str, Callable[[], object]] = {
    "builtin": CASES["plain"],
    "key": CASES["key"],
    "sent": lambda: fail(KeptError("text", 2)),
}


@pytest.mark.parametrize("case", SHARED)
def test_an_error_that_comes_again_is_as_the_first(case: str) -> None:
    caller, error = Caller(), raised(SHARED[case])
    first, again = caller.outcome(error), caller.outcome(error)
    assert caller.kept == 1
    assert first is not again
    assert type(first) is type(again)
    assert isinstance(again, RemoteError)
    assert isinstance(again, type(error))
    assert again.args == error.args
    assert traceback.format_exception(first) == traceback.format_exception(again)
    assert {**vars(first), "_understudy_origin": 0} == {**vars(again), "_understudy_origin": 0}
    restored = pickle.loads(pickle.dumps(again))
    assert traceback.format_exception(restored) == traceback.format_exception(again)


def test_what_is_done_to_one_of_them_changes_no_other() -> None:
    caller, error = Caller(), raised(SHARED["builtin"])
    for _ in range(3):
        found: Any = caller.outcome(error)
        assert not hasattr(found, "mine")
        assert found.args == error.args
        assert "changed" not in "".join(traceback.format_exception(found))
        found.mine = 1
        found.args = ("changed",)
        found.add_note("changed")


def test_each_says_which_call_it_has_ended() -> None:
    caller, error = Caller(), raised(SHARED["builtin"])
    caller.outcome(error)
    found = caller.outcome(error, THERE)
    assert caller.kept == 1
    assert place_of(found) == THERE
    assert (found.actor, found.method, found.node, found.epoch) == ("other", "toil", "worker-2", 4)
    assert any("other.toil on node worker-2" in note for note in found.__notes__)


@pytest.mark.parametrize(
    "case",
    {
        **{name: CASES[name] for name in ("own", "notes", "group", "misspelt")},
        "list": lambda: fail(ValueError([1])),
        "long": lambda: fail(ValueError("x" * MOST_REPEATED_BYTES)),
    }.items(),
    ids=lambda case: case[0],
)
def test_what_errors_could_share_is_not_kept(case: tuple[str, Callable[[], object]]) -> None:
    caller, error = Caller(), raised(case[1])
    for _ in range(2):
        assert isinstance(caller.outcome(error), RemoteError)
    assert not caller.kept


def test_errors_of_a_class_with_defaults_have_them_each_time() -> None:
    caller = Caller()
    for _ in range(3):
        found: Any = caller.outcome(DefaultsError())
        assert found.code == 3


def test_places_in_turn_are_not_mixed_up() -> None:
    caller, error = Caller(), raised(SHARED["builtin"])
    for place in (HERE, HERE, THERE, HERE, THERE, THERE):
        found: Any = caller.outcome(error, place)
        assert place_of(found) == place
        assert found.actor == place.actor
        (note,) = (note for note in found.__notes__ if note.startswith("raised by"))
        assert f"{place.actor}.{place.method}" in note


def test_an_answer_without_a_call_is_dropped() -> None:
    caller, error = Caller(), raised(SHARED["builtin"])
    caller.outcome(error)
    code, plain = raised_by_method(error, CODEC.size_of)
    control = array_head(3, 77) + CODEC.encode(code, []) + CODEC.encode(plain, [])
    caller.handler.on_error(LINK, Frame(Kind.ERROR, 0, control, ()))
    caller.handler.on_error(cast("Link", object()), Frame(Kind.ERROR, 0, control, ()))


def test_the_table_is_bounded() -> None:
    caller = Caller()
    for number in range(MOST_REPEATED + 10):
        caller.outcome(ValueError(number))
    assert 0 < caller.kept <= MOST_REPEATED
