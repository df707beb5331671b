"""An event loop for callers that have none."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial

import pytest
import trio

from runtime.torchrun.threads import LoopEndedError, LoopThread

LIMIT = 50.0


class Service:
    """Ends when it is asked to; knows whether it did so in order."""

    def __init__(self) -> None:
        self.ended = False

    async def run(self, stopping: trio.Event) -> None:
        await stopping.wait()
        self.ended = True


def started() -> tuple[LoopThread, Service]:
    service = Service()
    loop = LoopThread(service.run, "a loop")
    loop.start()
    return loop, service


def test_calls_give_values_and_raise_what_was_raised() -> None:
    loop, service = started()

    async def value() -> str:
        await trio.lowlevel.checkpoint()
        return threading.current_thread().name

    async def trouble(error: Exception) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    assert loop.call(value) == "a loop"
    for error in (KeyError("on purpose"), ExceptionGroup("whole", [KeyError("on purpose")])):
        with pytest.raises(type(error), match=r"on purpose|whole"):
            loop.call(partial(trouble, error))
    assert loop.stop(LIMIT)
    assert service.ended


def test_many_threads_may_call_at_the_same_time() -> None:
    loop, _ = started()
    meet = trio.Event()
    there: list[int] = []

    async def together() -> int:
        there.append(1)
        if len(there) == 8:
            meet.set()
        await meet.wait()
        return len(there)

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(loop.call(together))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert found == [8] * 8
    assert loop.stop(LIMIT)


@pytest.mark.parametrize("nursery", [False, True])
def test_a_call_under_way_ends_with_the_loop_and_so_does_one_that_comes_later(
    nursery: bool,
) -> None:
    loop, _ = started()
    begun = threading.Event()
    found: list[BaseException] = []

    async def wait() -> None:
        begun.set()
        await trio.sleep_forever()

    async def wait_in_nursery() -> None:
        # When it is cancelled, a group of cancellations comes out of this.
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever)
            await wait()

    def call() -> None:
        with pytest.raises(LoopEndedError) as caught:
            loop.call(wait_in_nursery if nursery else wait)
        found.append(caught.value)

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(LIMIT)
    assert loop.stop(LIMIT)
    thread.join(LIMIT)
    assert "stopped while this call was under way" in str(found[0])
    with pytest.raises(LoopEndedError):
        loop.call(wait)
    assert loop.stop(LIMIT), "it may be stopped again"


def test_a_service_that_fails_ends_the_calls_and_not_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: told.append(arguments.exc_value))
    fail = trio.Event()

    async def service(stopping: trio.Event) -> None:
        await fail.wait()
        raise ValueError("broken")

    loop = LoopThread(service, "a loop")
    loop.start()

    async def wait() -> None:
        fail.set()
        await trio.sleep_forever()

    with pytest.raises(LoopEndedError):
        loop.call(wait)
    assert loop.stop(LIMIT)
    assert len(told) == 1


def test_a_signal_that_interrupts_the_wait_cancels_the_call() -> None:
    class HungUpError(Exception):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise HungUpError

    loop, _ = started()
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            await trio.sleep_forever()
        finally:
            cancelled.set()

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(HungUpError):
            loop.call(wait)
        assert cancelled.wait(LIMIT)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert loop.stop(LIMIT)
