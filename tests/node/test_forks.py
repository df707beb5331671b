"""Methods that fork: the node answers once, its links stand, and the fork ends where it would go on
as the node.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Awaitable, Callable

import pytest
import trio

from actors import Actor, method
from runtime.environment import Beside, Environment, LookAtStack, SystemEnvironment
from runtime.testing import Platform
from tests.limits import out_of_descriptors
from tests.live_pair import Pair, open_pair
from tests.waiting import until


def status_of(child: int) -> int:
    """Wait until a fork has ended: it does so without help of the loop."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Forker(Actor):
    """Forks in the thread of the event loop, or in one of its own."""

    @method
    async def fork(self, how: str) -> tuple[int, int]:
        """Return the process that answers, and the status of its fork."""
        child = os.fork()
        if child == 0:
            self.go_on(how)
            if how == "wait":
                await trio.lowlevel.checkpoint()
            return os.getpid(), -1
        return os.getpid(), status_of(child)

    @method
    def fork_in_thread(self) -> int:
        child = os.fork()
        if child == 0:
            os._exit(3)
        return status_of(child)

    @method
    async def fork_without_descriptors(self) -> tuple[int, int]:
        with out_of_descriptors():
            child = os.fork()
            if child == 0:
                return os.getpid(), -1
            return os.getpid(), status_of(child)

    @method
    async def process(self) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(4,))
        process.start()
        process.join()
        return process.exitcode

    def go_on(self, how: str) -> None:
        if how == "raise":
            raise ValueError("in the fork")
        if how == "exit":
            sys.exit(0)


@pytest.mark.parametrize("how", ["return", "wait", "raise", "exit"])
async def test_a_fork_that_comes_back_to_the_loop_ends_and_answers_nothing(
    pair: Pair, where: str, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    forker = await pair.here.options(on=where).spawn(Forker)
    for _ in range(3):
        assert await forker.fork(how) == (os.getpid(), 1)
    assert "came back to the event loop" in capfd.readouterr().err
    # The numbers of frames are those of one process: the link stands.
    for _ in range(5):
        assert await forker.fork_in_thread() == 3


class Noticing(SystemEnvironment):
    """Notices when the loops run that nodes have beside their own. One that begins without a free
    descriptor leaves sockets open that trio has made for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[threading.Event] = []

    def run_beside(
        self, function: Callable[[Environment, LookAtStack], Awaitable[None]]
    ) -> Beside | None:
        begun = threading.Event()
        self.begun.append(begun)

        async def noticed(environment: Environment, stack: LookAtStack) -> None:
            begun.set()
            await function(environment, stack)

        return super().run_beside(noticed)


async def test_so_does_one_for_which_no_descriptor_is_free(
    where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = Noticing()
    async with open_pair(Platform(environment=environment)) as pair:
        forker = await pair.here.options(on=where).spawn(Forker)
        begun = environment.begun
        await until(lambda: all(one.is_set() for one in begun), "the loops beside theirs run")
        assert len(begun) == 2
        for _ in range(3):
            assert await forker.fork_without_descriptors() == (os.getpid(), 1)
        assert "came back to the event loop" in capfd.readouterr().err
        assert await forker.fork_in_thread() == 3


async def test_forks_that_end_by_themselves_are_not_affected(pair: Pair, where: str) -> None:
    forker = await pair.here.options(on=where).spawn(Forker)
    assert await forker.process() == 4
    assert await forker.fork_in_thread() == 3
