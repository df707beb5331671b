"""The function that each process of a node calls first: what it raises, and what is refused."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from click.testing import CliRunner

from runtime.command_line.main import main
from runtime.functions.function_names import call_hook, hook_path


class Refusal(BaseException):
    """An error of the user's own that is no Exception."""


def exits() -> None:
    """Exit, as a script may that finds no collector."""
    sys.exit(5)


def refuses() -> None:
    """Raise what `except Exception` does not catch."""
    raise Refusal("no collector here")


def is_interrupted() -> None:
    """Raise as a signal does."""
    signal.raise_signal(signal.SIGINT)


async def waits() -> None:
    """Never run by a call."""


def yields() -> Iterator[None]:
    """Likewise."""
    yield


async def streams() -> AsyncIterator[None]:
    """Likewise."""
    yield


@pytest.mark.parametrize("hook", [exits, refuses])
def test_what_a_hook_raises_is_logged_with_its_name_and_ends_nothing(
    hook: object, caplog: pytest.LogCaptureFixture
) -> None:
    path = hook_path(hook)
    call_hook(path)
    (record,) = caplog.records
    assert record.getMessage() == f"{path}, the on_process_start of this process, raised"
    assert record.exc_info is not None


def test_an_interrupt_of_the_process_goes_on_and_the_hook_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = hook_path(is_interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            call_hook(path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert f"{path}, the on_process_start of this process, was interrupted" in caplog.text


@pytest.mark.parametrize("hook", [waits, yields, streams])
def test_a_hook_that_a_call_would_not_run_is_refused(hook: object) -> None:
    path = f"{__name__}:{getattr(hook, '__name__', '')}"
    for given in (hook, path):
        with pytest.raises(TypeError, match=f"{path} is an `async def` .* a plain `def`"):
            hook_path(given)


def test_the_command_says_in_one_line_that_a_call_would_not_run_the_hook() -> None:
    done = CliRunner().invoke(main, ["node", "--on-process-start", f"{__name__}:waits"])
    assert done.exit_code == 2
    assert f"{__name__}:waits is an `async def`" in done.output
