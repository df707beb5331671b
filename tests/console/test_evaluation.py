"""Statements of every kind of bad behaviour, run in a task: they end, and nothing else does."""

from __future__ import annotations

import contextvars
import os
import signal
import sys

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from runtime.console.evaluation import BackgroundTasks, Interrupts, evaluate
from runtime.console.statements import one_liner
from runtime.console.tracebacks import users_traceback


class Bench:
    """Statements in a namespace, with what was said and what background tasks have reported."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.count = 0
        self.said: list[str] = []
        self.reported: list[tuple[str, BaseException]] = []
        self.interrupts = Interrupts(self.said.append)
        self.background = BackgroundTasks(
            nursery, lambda name, error: self.reported.append((name, error))
        )
        self.namespace: dict[str, object] = {"nursery": self.background, "trio": trio, "os": os}

    async def run(self, text: str) -> BaseException | None:
        self.count += 1
        statement = one_liner(text, f"<test {self.count}>")
        return await evaluate(statement, self.namespace, self.interrupts)

    def press(self) -> None:
        """Ctrl-C, as it comes while no statement runs at this moment."""
        self.interrupts.on_signal(signal.SIGINT, sys._getframe())


@pytest.fixture
def bench(nursery: trio.Nursery) -> Bench:
    return Bench(nursery)


HOSTILE = """
class Bad(BaseException):
    def __str__(self): raise SystemExit
    __repr__ = __str__
    __class__ = property(__str__)
"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1 / 0", ZeroDivisionError),
        ("import sys; sys.exit(3)", SystemExit),
        ("raise KeyboardInterrupt", KeyboardInterrupt),
        ("raise GeneratorExit", GeneratorExit),
        ("raise BaseExceptionGroup('', [KeyboardInterrupt(), ValueError()])", BaseExceptionGroup),
        ("with trio.fail_after(0): await trio.sleep(1)", trio.TooSlowError),
        ("trio.run(trio.sleep, 1)", RuntimeError),
        ("await 1", TypeError),
        (HOSTILE + "raise Bad", BaseException),
        ("def f(): f()\nf()", RecursionError),
    ],
)
async def test_whatever_a_statement_raises_is_its_outcome(
    bench: Bench, text: str, kind: type[BaseException]
) -> None:
    failure = await bench.run(text)
    assert issubclass(type(failure), kind)
    assert failure is not None
    shown = users_traceback(failure)
    assert shown.endswith("\n")
    assert "runtime" not in shown
    assert len(shown) < 20_000
    assert await bench.run("a = 1") is None


async def test_a_traceback_has_the_lines_of_the_statement_and_no_frames_of_ours(
    bench: Bench,
) -> None:
    await bench.run("async def f():\n    await trio.sleep(-1)\n")
    failure = await bench.run("async with trio.open_nursery() as n: n.start_soon(f)")
    assert failure is not None
    shown = users_traceback(failure)
    assert "await trio.sleep(-1)" in shown
    assert "_run.py" not in shown
    assert "evaluation.py" not in shown


async def test_a_statement_that_does_not_compile_has_its_error(bench: Bench) -> None:
    failure = await bench.run("a b")
    assert isinstance(failure, SyntaxError)
    assert "a b" in users_traceback(failure)


async def test_context_variables_last_from_one_statement_to_the_next(bench: Bench) -> None:
    bench.namespace["v"] = contextvars.ContextVar[int]("v")
    assert await bench.run("v.set(5)") is None
    assert await bench.run("assert v.get() == 5") is None


async def test_ctrl_c_cancels_what_a_statement_awaits(bench: Bench, nursery: trio.Nursery) -> None:
    async def press() -> None:
        await wait_all_tasks_blocked()
        bench.press()

    nursery.start_soon(press)
    text = "try:\n    await trio.sleep_forever()\nfinally:\n    ended = True\n"
    assert isinstance(await bench.run(text), KeyboardInterrupt)
    assert bench.namespace["ended"] is True


async def test_ctrl_c_raises_in_code_of_the_statement_that_blocks(bench: Bench) -> None:
    with handled(bench.interrupts):
        bench.namespace["press"] = lambda: signal.raise_signal(signal.SIGINT)
        failure = await bench.run("press()\nassert False, 'not reached'")
        assert isinstance(failure, KeyboardInterrupt)
        # In the statement itself, in what it calls, and not when it has ended.
        text = (
            "try:\n    sorted([1, 2], key=lambda x: press())\nexcept KeyboardInterrupt:\n    a = 3"
        )
        assert await bench.run(text) is None
        assert bench.namespace["a"] == 3
        signal.raise_signal(signal.SIGINT)


async def test_ctrl_c_is_never_raised_in_code_of_trio(bench: Bench) -> None:
    with handled(bench.interrupts):
        # Then the frame that has called the user's is one of trio's: the statement is cancelled.
        bench.namespace["press"] = lambda: signal.raise_signal(signal.SIGINT)
        text = "trio.lowlevel.current_trio_token().run_sync_soon(press)\nawait trio.sleep_forever()"
        assert isinstance(await bench.run(text), KeyboardInterrupt)


async def test_a_statement_that_ignores_its_cancellation_is_reported(
    bench: Bench, nursery: trio.Nursery
) -> None:
    done = bench.namespace["done"] = trio.Event()

    async def press() -> None:
        await wait_all_tasks_blocked()
        bench.press()
        await wait_all_tasks_blocked()
        bench.press()
        assert "once more" in bench.said[0]
        done.set()

    nursery.start_soon(press)
    assert await bench.run("with trio.CancelScope(shield=True): await done.wait()") is None


async def test_the_cancellation_of_the_task_comes_out(bench: Bench) -> None:
    with trio.move_on_after(0) as scope:
        await bench.run(
            "try:\n    await trio.sleep(1)\nexcept BaseException:\n    raise ValueError"
        )
    assert scope.cancelled_caught


async def test_ctrl_c_at_the_prompt_ends_a_background_task_that_blocks(bench: Bench) -> None:
    with handled(bench.interrupts):
        bench.namespace["press"] = lambda: signal.raise_signal(signal.SIGINT)
        # Idle, it does nothing.
        signal.raise_signal(signal.SIGINT)
        text = "async def f():\n    await trio.sleep(0)\n    press()\nnursery.start_soon(f)"
        assert await bench.run(text) is None
        await bench.background.wait_ended()
        await wait_all_tasks_blocked()
    assert [(name, type(error)) for name, error in bench.reported] == [("f", KeyboardInterrupt)]


async def test_a_background_task_that_raises_ends_alone(bench: Bench) -> None:
    text = """
async def fail(error): raise error
async def go_on(task_status=None):
    task_status and task_status.started(7)
    await trio.sleep_forever()
nursery.start_soon(go_on)
for error in ValueError(), SystemExit(), KeyboardInterrupt():
    nursery.start_soon(fail, error)
assert await nursery.start(go_on) == 7
"""
    assert await bench.run(text) is None
    await wait_all_tasks_blocked()
    assert {type(error) for _, error in bench.reported} == {
        ValueError,
        SystemExit,
        KeyboardInterrupt,
    }
    assert bench.background.names == ("go_on", "go_on")
    assert "go_on" in repr(bench.background)
    bench.background.cancel()
    await bench.background.wait_ended()
    assert len(bench.reported) == 3


async def test_a_background_task_that_fails_before_it_has_started_fails_its_statement(
    bench: Bench,
) -> None:
    failure = await bench.run("async def f(task_status): 1 / 0\nawait nursery.start(f)")
    assert isinstance(failure, ZeroDivisionError)
    assert bench.reported == []


async def test_a_coroutine_is_no_background_task(bench: Bench) -> None:
    failure = await bench.run("nursery.start_soon(trio.sleep(1))")
    assert isinstance(failure, TypeError)
    assert "not a coroutine" in str(failure)


async def test_a_block_stays_open_from_one_statement_to_the_next(bench: Bench) -> None:
    bench.namespace["enter"] = bench.background.enter
    failure = await bench.run("inner = await enter(trio.open_nursery()); opened = trio.Event()")
    assert failure is None
    assert await bench.run("inner.start_soon(trio.sleep, 0); opened.set()") is None
    assert bench.background.names == ("NurseryManager",)
    assert isinstance(await bench.run("await enter(5)"), TypeError)


class handled:  # noqa: N801  used like a function
    """SIGINT comes to these interrupts within the block."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, self._interrupts.on_signal)

    def __exit__(self, *failure: object) -> None:
        signal.signal(signal.SIGINT, self._before)
