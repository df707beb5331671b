"""The traceback writer says what the module `traceback` says, at the first time and again."""

from __future__ import annotations

import functools
import gc
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.environment import SystemEnvironment
from runtime.links.transports import split_host_port
from runtime.tracebacks import CLASSES_KEPT, FRAMES_KEPT, TracebackWriter
from runtime.user_errors import raised_at, traceback_of
from tests.loaders import HARMFUL, SOURCE, SourceLoader, generated


class OwnError(Exception):
    """One of a user's."""


class ManyLinesError(Exception):
    def __str__(self) -> str:
        return "first\nsecond"


class FalseError(Exception):
    """Counts as false, so that the module `traceback` does not look for its cause."""

    def __bool__(self) -> bool:
        return False


class NotedError(Exception):
    __notes__ = ("a note of the class",)  # type: ignore[assignment]


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise SystemExit


class OddMeta(type):
    def __hash__(cls) -> int:
        raise SystemExit


class OddError(Exception, metaclass=OddMeta):
    """Its class cannot be a key of a table."""


def fail(error: BaseException) -> None:
    raise error


def caused() -> None:
    try:
        fail(KeyError("inner"))
    except KeyError as error:
        raise OwnError("outer") from error


def during() -> None:
    try:
        caused()
    except OwnError:
        fail(ValueError("meanwhile"))


def hidden() -> None:
    try:
        caused()
    except OwnError:
        raise ValueError("alone") from None


def false_with_cause() -> None:
    try:
        caused()
    except OwnError as error:
        raise FalseError("no cause shown") from error


def noted() -> None:
    error = OwnError("with notes")
    error.add_note("one\ntwo")
    error.add_note("ü")
    raise error


def odd_notes() -> None:
    error = OwnError("with what is no note")
    error.__notes__ = [1, "two"]  # type: ignore[list-item]
    raise error


def in_a_circle() -> None:
    one, other = OwnError("one"), OwnError("other")
    one.__cause__, other.__cause__ = other, one
    raise one


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    else:
        fail(OwnError("deep"))


def group() -> None:
    raise ExceptionGroup("some", [OwnError("one"), ValueError("two")])


def on_one_line() -> None:
    calls = "; ".join(f"call{number} = lambda: call{number - 1}()" for number in range(1, 6))
    exec(f"call0 = lambda: 1 / 0; {calls}; call5()", {})


CASES: dict[str, Callable[[], object]] = {
    "plain": lambda: fail(ValueError("text", 3)),
    "silent": lambda: fail(ValueError()),
    "key": lambda: fail(KeyError("quoted")),
    "own": lambda: fail(OwnError("text")),
    "lines": lambda: fail(ManyLinesError()),
    "cause": caused,
    "during": during,
    "hidden": hidden,
    "false": false_with_cause,
    "notes": noted,
    "odd notes": odd_notes,
    "notes of the class": lambda: fail(NotedError("x")),
    "circle": in_a_circle,
    "deep": lambda: deep(40),
    "too deep": lambda: deep(200),
    "group": group,
    "one line": on_one_line,
    "misspelt": lambda: traceback.format_exeption,  # type: ignore[attr-defined]
    "unknown name": lambda: exec("valeu = 1\nvalue"),
    "import": lambda: exec("from traceback import format_exeption"),
    "syntax": lambda: exec("a b"),
    "speechless": lambda: fail(SpeechlessError()),
    "odd class": lambda: fail(OddError("x")),
    "interrupt of its own": lambda: fail(KeyboardInterrupt("x")),
}


@pytest.mark.parametrize("case", CASES)
def test_it_says_what_the_module_says(case: str) -> None:
    writer = TracebackWriter()
    for _ in range(3):
        error = raised(CASES[case])
        assert writer.text_of(error) == traceback_of(error)
        assert writer.text_of(error, 40) == traceback_of(error, 40)
        writer.check_invariants()


def test_an_exception_that_was_not_raised_has_no_frames() -> None:
    assert TracebackWriter().text_of(OwnError("x")) == traceback_of(OwnError("x"))


@pytest.mark.parametrize("kind", ["__cause__", "__context__"])
def test_a_chain_without_end_is_left_out_and_costs_nothing(kind: str) -> None:
    error = ValueError("the first")
    for number in range(50_000):
        following = ValueError(f"number {number}")
        setattr(following, kind, error)
        error = following
    try:
        raise LookupError("the last") from error
    except LookupError as last:
        for text in (traceback_of(last), TracebackWriter().text_of(last)):
            assert text.startswith(
                "(more than 200 causes and contexts of it are left out)\nTraceback"
            )
            assert text.endswith("LookupError: the last\n")
            assert len(text) < 1_000
        # Taken apart, from its end: Python does that one exception within the other.
        last.__cause__ = last.__context__ = None
    while error is not None:
        following = getattr(error, kind)
        setattr(error, kind, None)
        error = following


def test_a_limit_of_the_program_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, error = TracebackWriter(), raised(CASES["deep"])
    writer.text_of(error)
    monkeypatch.setattr(sys, "tracebacklimit", 1, raising=False)
    assert writer.text_of(error) == traceback_of(error)


@pytest.mark.parametrize("kind", HARMFUL)
def test_a_loader_that_cannot_say_its_source_costs_only_that_line(kind: str) -> None:
    space = generated(HARMFUL[kind]())
    file = space["divide"].__code__.co_filename

    def divide() -> None:
        try:
            fail(KeyError("the cause"))
        except KeyError as error:
            try:
                space["divide"](0)
            except ZeroDivisionError as another:
                another.add_note("a note")
                raise another from error

    error = raised(divide)
    for text in (traceback_of(error), TracebackWriter().text_of(error)):
        assert f'  File "{file}", line 2, in divide\n' in text
        assert "ZeroDivisionError: division by zero\n" in text
        if kind != "opaque":
            # All the rest is there: other lines, causes and notes.
            assert "KeyError: 'the cause'\n" in text
            assert "    raise another from error\n" in text
            assert text.endswith("\na note\n")
    assert raised_at(error) == f"{file}:2, in divide"


def test_the_lines_of_a_loader_that_can_say_its_source_are_shown() -> None:
    loader = SourceLoader(lambda name: SOURCE)
    space, writer = generated(loader), TracebackWriter()
    error = raised(lambda: space["divide"](0))
    assert writer.stack_of_plain(error) is None
    assert raised_at(error)
    assert loader.asked == 0, "code of the user's was run"
    assert "    return 1 / number\n" in traceback_of(error)
    assert writer.text_of(error) == traceback_of(error)
    # Now `linecache` has it.
    assert "    return 1 / number\n" in (writer.stack_of_plain(error) or "")
    assert loader.asked == 1


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    for text in ("first / 0", "second_one / 0"):
        name = text.split()[0]
        file.write_text(text)
        space: dict[str, Any] = {name: 1, "__name__": "changing"}
        code = compile(text, str(file), "exec")
        error = raised(functools.partial(exec, code, space))
        assert f"    {text}\n" in (TracebackWriter().stack_of_plain(error) or "")


def test_equal_code_of_two_files_is_distinguished() -> None:
    writer = TracebackWriter()
    for file in ("one.py", "other.py"):
        code = compile("def work():\n    raise ValueError(1)\n", file, "exec")
        found: dict[str, Any] = {}
        exec(code, found)
        error = raised(found["work"])
        assert writer.text_of(error) == traceback_of(error)


def test_its_tables_are_bounded_and_keep_no_frame() -> None:
    writer = TracebackWriter()
    for number in range(max(FRAMES_KEPT, CLASSES_KEPT) + 10):
        found: dict[str, Any] = {}
        exec("def work(error):\n    raise error\n", found)
        own = type(f"Error{number % 600}", (Exception,), {})
        error = raised(functools.partial(found["work"], own("x")))
        assert "in work" in writer.text_of(error)
    writer.check_invariants()
    kept = weakref.ref(error)
    del error
    gc.collect()
    assert kept() is None


def raised(work: Callable[[], object]) -> BaseException:
    """What it raises."""
    try:
        work()
    except BaseException as error:  # noqa: ASYNC103  a test looks at it
        return error  # noqa: ASYNC104
    raise AssertionError("it raised nothing")


async def raised_in_a_thread(function: Callable[[], object]) -> Exception:
    with pytest.raises(ValueError, match=r"no-port|invalid literal") as caught:
        await SystemEnvironment().in_thread(function)
    begin = caught.value.__traceback__
    assert begin is not None
    # Without the frame of this function, which is none of the runtime's.
    return caught.value.with_traceback(begin.tb_next)


@pytest.mark.parametrize("text_of", [TracebackWriter().text_of, traceback_of])
async def test_a_traceback_begins_with_the_users_code(
    text_of: Callable[[BaseException], str],
) -> None:
    def called() -> None:
        # What the user's code calls is shown, also if it is the runtime's.
        split_host_port("no-port")

    error = await raised_in_a_thread(called)
    assert "in in_thread" in "".join(traceback.format_exception(error))
    names = [line.partition(", in ")[2] for line in text_of(error).splitlines() if ", in " in line]
    assert names == ["called", "split_host_port"]


@pytest.mark.parametrize("text_of", [TracebackWriter().text_of, traceback_of])
async def test_a_traceback_without_a_users_frame_is_whole(
    text_of: Callable[[BaseException], str],
) -> None:
    error = await raised_in_a_thread(functools.partial(int, "x"))
    assert text_of(error) == "".join(traceback.format_exception(error))
