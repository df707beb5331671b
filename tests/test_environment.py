"""Exceptions that a nursery has wrapped, and what the kernel says of processes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from runtime import environment as environment_module
from runtime.environment import (
    NoThreadError,
    SystemEnvironment,
    first,
    first_leaf,
    has_ended,
    process_start,
    raise_alone,
    unwrap,
)
from runtime.processes.linux_processes import name_process
from runtime.user_errors import is_machinery, leaves
from tests.limits import out_of_descriptors, out_of_threads

ROOT = Path(__file__).resolve().parents[1]


class ReachError(Exception):
    """What the code under test expects."""


@pytest.fixture
def as_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nurseries of this file count as the runtime's."""
    monkeypatch.setattr(
        environment_module, "is_machinery", lambda file: file == __file__ or is_machinery(file)
    )


async def fail(*errors: Exception) -> None:
    """Raise one of the errors from each task of a nursery."""

    async def raise_it(error: Exception) -> None:
        raise error

    async with trio.open_nursery() as nursery:
        for error in errors:
            nursery.start_soon(raise_it, error)


async def group_of(*errors: Exception) -> BaseException:
    """What `fail` raises in a task of another nursery."""
    try:
        async with AsyncExitStack() as stack:
            nursery = await stack.enter_async_context(trio.open_nursery())
            nursery.start_soon(fail, *errors)
    except BaseExceptionGroup as group:
        return group
    raise AssertionError("it has raised nothing")


@pytest.mark.usefixtures("as_runtime")
async def test_one_exception_comes_out_of_nested_groups() -> None:
    error = ReachError()
    assert unwrap(error) is error
    assert unwrap(await group_of(error)) is error


async def fail_alone(error: Exception) -> None:
    try:
        await fail(error)
    except ExceptionGroup as group:
        raise_alone(group)


@pytest.mark.usefixtures("as_runtime")
async def test_an_error_that_is_taken_out_of_its_group_keeps_its_history() -> None:
    error = ReachError()
    error.__cause__ = ValueError("the cause")
    with pytest.raises(ReachError) as caught:
        await fail_alone(error)
    assert caught.value is error
    assert str(error.__cause__) == "the cause"
    assert error.__context__ is None


@pytest.mark.usefixtures("as_runtime")
async def test_several_exceptions_stay_a_group() -> None:
    group = unwrap(await group_of(ReachError(), ReachError()))
    assert isinstance(group, ExceptionGroup)
    assert len(group.exceptions) == 2


@pytest.mark.usefixtures("as_runtime")
async def test_the_first_exception_is_the_most_urgent_and_no_member_of_a_users_group() -> None:
    one, theirs = ReachError(), ExceptionGroup("theirs", [ValueError(1), KeyError(2)])
    assert first(one) is one
    assert first(theirs) is theirs
    assert first(await group_of(one)) is one
    within = first(await group_of(theirs))
    assert isinstance(within, ExceptionGroup)
    assert within.exceptions == theirs.exceptions
    interrupt = KeyboardInterrupt()
    urgent = BaseExceptionGroup("theirs", [ValueError(1), interrupt])
    assert first_leaf(BaseExceptionGroup("all", [theirs, urgent])) is interrupt
    assert first_leaf(ExceptionGroup("all", [theirs, one])) is theirs.exceptions[0]


@pytest.mark.usefixtures("as_runtime")
async def test_groups_of_other_code_stay_whole() -> None:
    theirs = ExceptionGroup("", [ReachError()])
    assert unwrap(theirs) is theirs
    # Not the same one: trio makes a new group of what a cancelled scope leaves of it.
    within = unwrap(await group_of(theirs))
    assert isinstance(within, ExceptionGroup)
    assert (within.message, within.exceptions) == (theirs.message, theirs.exceptions)
    try:
        raise theirs
    except ExceptionGroup:
        assert unwrap(theirs) is theirs


async def test_groups_of_nurseries_of_other_code_stay_whole() -> None:
    group = await group_of(ReachError())
    assert unwrap(group) is group


@pytest.mark.usefixtures("as_runtime")
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


def ended_child() -> int:
    """The id of a process that is no more."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as child:
        child.wait()
    return child.pid


def test_a_process_out_of_descriptors_takes_no_other_for_dead_but_those_that_are() -> None:
    environment = SystemEnvironment()
    own, ended = environment.process(), ended_child()
    with out_of_descriptors():
        assert process_start(os.getpid()) == "", "it cannot be seen"
        assert not environment.has_ended(own)
        assert has_ended(ended, "1")
    assert has_ended(ended, "1")
    assert not has_ended(ended, ""), "without its start time nothing is proven"
    assert has_ended(os.getpid(), "1"), "its id was reused"
    assert not has_ended(1 << 70, "1"), "a peer may say anything"


HIDDEN = """
import os, sys
from runtime.environment import has_ended, process_start
living, started, ended = sys.argv[1:]
print(process_start(int(living)) == "", has_ended(int(living), started), has_ended(int(ended), "1"))
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None,
    reason="mounts a /proc that hides processes, which takes root, unshare and setpriv",
)
def test_a_process_of_another_user_that_proc_hides_has_not_ended() -> None:
    hide = "mount -t proc -o hidepid=invisible proc /proc && exec setpriv --reuid 12345 "
    hide += '--regid 12345 --clear-groups "$@"'
    told = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-c", hide, "sh", sys.executable, "-c", HIDDEN),
            *(str(os.getpid()), process_start(os.getpid()), str(ended_child())),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "mount:" in told.stderr:
        pytest.skip(f"this sandbox mounts no /proc: {told.stderr.strip()}")
    if "loading shared libraries" in told.stderr:
        pytest.skip(f"another user may not read this Python: {told.stderr.strip()}")
    assert told.stdout.split() == ["True", "False", "True"], told.stderr


def test_a_process_is_known_whose_name_is_no_text() -> None:
    name = ctypes.create_string_buffer(16)
    libc = ctypes.CDLL(None)
    libc.prctl(16, name)
    try:
        # Cut in the middle of a character, as the kernel cuts names.
        name_process("n" + 7 * "\N{BLACK STAR}")
        own = SystemEnvironment().process()
        assert own.started
        assert not SystemEnvironment().has_ended(own)
    finally:
        libc.prctl(15, name)


async def test_what_finds_no_thread_has_not_run_and_says_so() -> None:
    environment, ran = SystemEnvironment(), list[str]()
    with out_of_threads():
        with pytest.raises(NoThreadError, match=r"no further thread.*pids-limit"):
            await environment.in_thread(lambda: ran.append("first"))
        assert not ran
    await environment.in_thread(lambda: ran.append("second"))
    assert ran == ["second"]

    def asks_for_another() -> None:
        threading.Thread(target=list).start()

    # What a function raises by itself is its own.
    patched = pytest.MonkeyPatch()
    with patched.context() as patch:

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        def run() -> None:
            patch.setattr(threading.Thread, "start", refuse)
            asks_for_another()

        with pytest.raises(RuntimeError, match="new thread"):
            await environment.in_thread(run)
