"""Below the text of an error stands where it is explained, wherever people read it."""

from __future__ import annotations

import copy
import json
import pickle
import traceback

import pytest
from click.testing import CliRunner

from actors import errors
from actors.errors import ActorNotFoundError, NotExecutedError, UnderstudyError
from runtime.command_line.explain import explain
from runtime.tracebacks import TracebackWriter

LINE = "More: understudy explain ActorNotFoundError"

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, UnderstudyError)
]


class NoSeatError(NotExecutedError):
    """A user's own."""


class NoPageError(UnderstudyError):
    """Derived from nothing that says what happened."""


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_a_traceback_ends_in_the_line_and_the_text_is_the_text() -> None:
    error = raised(ActorNotFoundError("no such actor"))
    written = "".join(traceback.format_exception(error))
    assert written.endswith(f"ActorNotFoundError: no such actor\n{LINE}\n")
    assert str(error) == "no such actor"
    assert TracebackWriter().text_of(error) == written


def test_the_line_stands_above_notes_and_only_once() -> None:
    error = ActorNotFoundError("no such actor")
    error.add_note("called by the test")
    error.add_note("twice")
    for copied in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert copied.__notes__ == [LINE, "called by the test", "twice"]
    error.__notes__ = []
    assert error.__notes__ == [LINE]


def test_errors_have_notes_of_their_own() -> None:
    one, other = ActorNotFoundError("one"), ActorNotFoundError("other")
    one.add_note("of one")
    assert other.__notes__ == [LINE]


def test_the_error_of_a_user_is_explained_by_the_nearest_of_ours() -> None:
    assert NoSeatError("row 1").__notes__ == ["More: understudy explain NotExecutedError"]


def test_an_error_that_no_page_explains_has_no_line() -> None:
    error = NoPageError("row 1")
    assert error.__notes__ == []
    error.add_note("called by the test")
    assert error.__notes__ == ["called by the test"]
    assert UnderstudyError("any").__notes__ == ["More: understudy explain UnderstudyError"]


def test_notes_that_are_no_list_are_left_as_they_are() -> None:
    error = ActorNotFoundError("no such actor")
    error.__notes__ = None  # type: ignore[assignment]
    assert error.__notes__ is None
    assert "no such actor" in "".join(traceback.format_exception(error))


def sentence_of(listed: dict[str, str], cls: type[UnderstudyError]) -> str:
    """The sentence by which an error is listed."""
    return listed[cls.__name__].strip()


@pytest.mark.parametrize("cls", CLASSES)
def test_the_command_of_each_line_prints_a_text(cls: type[UnderstudyError]) -> None:
    (line,) = cls("a text").__notes__
    command = line.removeprefix("More: understudy explain ").split()
    done = CliRunner().invoke(explain, [*command, "--json"])
    assert done.exit_code == 0
    told = json.loads(done.output)
    assert told["error"] == cls.__name__
    assert told["derives_from"] == [base.__name__ for base in cls.__bases__]
    assert "\n- Certain: " in told["text"]
    assert "](" not in told["text"]
    assert "<!--" not in told["text"]


def test_what_is_no_error_is_refused_with_the_nearest_name() -> None:
    done = CliRunner().invoke(explain, ["ActorNotFuondError"])
    assert done.exit_code == 2
    assert "did you mean ActorNotFoundError?" in done.output
    done = CliRunner().invoke(explain, ["kaput"])
    assert "lists them" in done.output


def test_all_are_listed_by_their_first_sentence() -> None:
    lines = CliRunner().invoke(explain, []).output.splitlines()
    listed = {name: sentence for name, _, sentence in (line.partition("  ") for line in lines)}
    assert sentence_of(listed, NotExecutedError) == "The call certainly never ran."
    for cls in CLASSES:
        told = json.loads(CliRunner().invoke(explain, [cls.__name__, "--json"]).output)
        assert told["text"].replace("\n", " ").startswith(sentence_of(listed, cls))
