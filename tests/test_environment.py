"""Exceptions that a nursery has wrapped, and what the kernel says of processes."""

from __future__ import annotations

import os

import pytest
import trio

from runtime import environment as environment_module
from runtime.environment import SystemEnvironment, process_start, raise_alone, unwrap
from runtime.user_errors import leaves


class ReachError(Exception):
    """What the code under test expects."""


def test_one_exception_comes_out_of_nested_groups() -> None:
    error = ReachError()
    assert unwrap(error) is error
    assert unwrap(ExceptionGroup("outer", [ExceptionGroup("inner", [error])])) is error


def test_several_exceptions_stay_a_group() -> None:
    group = ExceptionGroup("", [ReachError(), ReachError()])
    assert unwrap(group) is group
    assert unwrap(ExceptionGroup("outer", [group])) is group


async def test_an_error_in_the_moment_of_a_cancellation_is_raised_alone() -> None:
    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ReachError

    caught: list[BaseExceptionGroup[BaseException]] = []
    with trio.CancelScope() as scope:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(fail_when_cancelled)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        except BaseExceptionGroup as group:
            caught.append(group)
            with pytest.raises(ReachError):
                raise_alone(group)
        # Leaving the cancellations out does not end them.
        assert trio.current_effective_deadline() == -float("inf")
        with pytest.raises(trio.Cancelled):
            await trio.lowlevel.checkpoint()
    assert len(caught) == 1
    assert len(caught[0].exceptions) > 1


async def test_cancellations_alone_stay_what_they_are() -> None:
    alone: list[BaseException] = []
    with trio.CancelScope() as scope:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(trio.sleep_forever)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        except BaseException as error:
            alone.append(unwrap(error))
            raise
    assert scope.cancelled_caught
    assert all(isinstance(leaf, trio.Cancelled) for one in alone for leaf in leaves(one))


def test_facts_of_the_own_process_are_read_once_and_anew_after_a_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []

    def count(pid: int) -> str:
        read.append(pid)
        return process_start(pid)

    monkeypatch.setattr(environment_module, "process_start", count)
    environment = SystemEnvironment()
    own = environment.process()
    assert own == environment.process() == SystemEnvironment().process()
    assert (own.pid, own.started) == (os.getpid(), process_start(os.getpid()))
    assert read == 2 * [own.pid]
    assert not environment.has_ended(own)
    # A fork copies the environment.
    parent = os.getppid()
    monkeypatch.setattr(os, "getpid", lambda: parent)
    forked = environment.process()
    assert (forked.pid, forked.started) == (parent, process_start(parent))
