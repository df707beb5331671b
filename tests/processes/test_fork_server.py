"""Children start, are told apart in how they end, print, and are all gone after the block: with
real processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from runtime.processes import (
    ChildDiedError,
    ChildProcess,
    ExitStatus,
    ForkServer,
    ForkServerDiedError,
    ForkServerStartError,
    ProcessError,
    child_process,
    open_fork_server,
)
from runtime.processes.warm_process import Warm
from tests.failures.error_examples import check_shown, said
from tests.processes.conftest import Marked
from tests.waiting import until

pytestmark = pytest.mark.cluster

TARGETS = "tests.processes.targets"
KILLED = ExitStatus(None, signal.SIGKILL)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def own_processes(server: ForkServer) -> set[int]:
    """The warm process and the outer process."""
    return {server.pid, server._warm.process.pid}


async def test_a_child_receives_its_argument_reports_and_exits_with_code_0() -> None:
    async with open_fork_server() as server:
        argument = os.urandom(1_000_000)
        child = await server.start(f"{TARGETS}:digest", argument, "one")
        assert await child.ready() == hashlib.sha256(argument).digest()
        assert await child.wait() == ExitStatus(0, None)
        assert child.exit_status == ExitStatus(0, None)
        assert (child.name, child.exit_status.describe()) == ("one", "exit code 0")


async def test_the_end_of_the_block_needs_no_new_thread(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As at the end of a program on Python 3.12.0 and 3.12.1.
    async def refused(*_: object, **__: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with trio.fail_after(30):
        async with open_fork_server() as server:
            child = await server.start(f"{TARGETS}:echo_and_stay", b"", "stays")
            await child.ready()
            monkeypatch.setattr(trio.to_thread, "run_sync", refused)
    assert marked.pids() == set()


async def test_an_error_at_the_end_of_the_block_does_not_hold_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reap = Warm.reap

    async def broken(warm: Warm, seconds: float) -> bool:
        await reap(warm, seconds)
        raise RuntimeError("cannot wait for it")

    monkeypatch.setattr(Warm, "reap", broken)
    told = pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="cannot wait for it"))
    with trio.fail_after(30), told:
        async with open_fork_server():
            pass


async def test_exit_codes_and_signals_are_distinguished() -> None:
    async with open_fork_server() as server:
        child = await server.start(f"{TARGETS}:exit_with", b"3", "three")
        assert (await child.wait()).describe() == "exit code 3"
        for signum in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
            child = await server.start(f"{TARGETS}:echo_and_stay", b"", "victim")
            await child.ready()
            os.kill(child.pid, signum)
            assert (await child.wait()).describe() == f"killed by {signum.name}"


async def test_a_child_whose_target_returns_ends_in_order() -> None:
    lines: list[str] = []
    async with open_fork_server(on_line=lambda name, line: lines.append(line)) as server:
        child = await server.start(f"{TARGETS}:leave_much_behind", b"", "one")
        assert await child.wait() == ExitStatus(0, None)
    # Each of the three writes by a buffer of its own. Nothing is freed one by one: that would copy
    # most of the memory that the child shares with the warm process.
    assert sorted(lines) == ["C library", "exit handler", "no newlinethread"]
    assert lines.index("no newlinethread") < lines.index("exit handler")


async def test_every_waiter_learns_of_the_end_and_later_ones_too() -> None:
    found: list[ExitStatus] = []

    async def wait(child: ChildProcess) -> None:
        found.append(await child.wait())

    async with open_fork_server() as server:
        child = await server.start(f"{TARGETS}:echo_and_stay", b"", "victim")
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait, child)
            await trio.testing.wait_all_tasks_blocked()
            child.send_signal(signal.SIGKILL)
        assert await child.wait() == KILLED
        child.send_signal(signal.SIGKILL)
    assert found == [KILLED] * 5


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (f"{TARGETS}:fail", "LookupError: nothing of the kind"),
        (f"{TARGETS}:missing", "AttributeError"),
        ("no.such:thing", "ModuleNotFoundError"),
    ],
)
async def test_a_child_that_fails_says_where_and_ready_does_not_hang(
    target: str, expected: str
) -> None:
    lines: list[tuple[str, str]] = []
    async with open_fork_server(on_line=lambda name, line: lines.append((name, line))) as server:
        child = await server.start(target, b"", "bad")
        with pytest.raises(ChildDiedError, match=expected) as caught:
            await child.ready()
        assert caught.value.exit_status == ExitStatus(1, None) == await child.wait()
        assert any(name == "bad" and expected in line for name, line in lines)


async def test_a_report_made_just_before_the_end_is_not_lost() -> None:
    async with open_fork_server() as server:
        for number in range(20):
            child = await server.start(f"{TARGETS}:report_and_die", b"%d" % number, "brief")
            assert await child.wait() == KILLED
            assert await child.ready() == b"%d" % number


async def test_a_report_over_its_limit_is_an_error_of_its_sender() -> None:
    async with open_fork_server() as server:
        child = await server.start(f"{TARGETS}:echo", bytes(64 * 1024), "largest")
        assert await child.ready() == bytes(64 * 1024)
        child = await server.start(f"{TARGETS}:echo", bytes(64 * 1024 + 1), "larger")
        with pytest.raises(
            ChildDiedError,
            match="ValueError: a message of 65537 bytes is larger than the limit of 65536",
        ):
            await child.ready()


@pytest.mark.parametrize("garbage", [b"\x00\x01\x00\x01", b"Segmentation fault\n" * 1000])
async def test_garbage_in_a_report_pipe_ends_that_child_alone(garbage: bytes) -> None:
    async with open_fork_server() as server:
        sibling = await server.start(f"{TARGETS}:echo_and_stay", b"", "sibling")
        for target in ("garble_reports", "garble_reports_and_exit"):
            child = await server.start(f"{TARGETS}:{target}", garbage, "garbled")
            with pytest.raises(ChildDiedError, match="it wrote no valid report to its report pipe"):
                await child.ready()
            assert await child.wait() == (
                KILLED if target == "garble_reports" else child.exit_status
            )
        await (await server.start(f"{TARGETS}:echo", b"", "next")).ready()
        assert sibling.exit_status is None


async def test_a_refused_fork_fails_its_start_alone(marked: Marked) -> None:
    async with open_fork_server(preload=["tests.processes.refused_fork"]) as server:
        sibling = await server.start(f"{TARGETS}:echo_and_stay", b"", "sibling")
        baseline = descriptors()
        for _ in range(3):
            with pytest.raises(ProcessError) as caught:
                await server.start(f"{TARGETS}:echo", b"", "refused")
            check_shown("ProcessError", said(caught.value))
            next_one = await server.start(f"{TARGETS}:echo_and_stay", b"", "next")
            await next_one.ready()
            next_one.send_signal(signal.SIGKILL)
            assert await next_one.wait() == KILLED
        await until(descriptors, "all descriptors are closed", lambda open: open == baseline)
        assert sibling.exit_status is None


async def test_a_child_starts_clean() -> None:
    async with open_fork_server(preload=["colorsys"]) as server:
        sibling = await server.start(f"{TARGETS}:echo_and_stay", b"", "sibling")
        await sibling.ready()
        children = [
            await server.start(f"{TARGETS}:describe", b"", f"child-{number}") for number in range(2)
        ]
        facts, other = [json.loads(await child.ready()) for child in children]
    assert facts["stdin"] == "/dev/null"
    assert {
        name: target
        for name, target in facts["descriptors"].items()
        if "socket" in target or "eventpoll" in target
    } == {}
    pipes = [target for target in facts["descriptors"].values() if "pipe" in target]
    assert len(set(pipes)) == 2, "its output and its reports, nothing of its siblings"
    assert facts["leads_session"]
    assert facts["sigint"]
    assert facts["sigterm"]
    assert facts["sigchld"]
    assert facts["blocked"] == []
    assert facts["threads"] == 1
    assert facts["cwd"] == os.getcwd()
    assert facts["preloaded"]
    assert facts["collects_garbage"]
    assert facts["random"] != other["random"]


async def test_output_comes_line_by_line_and_is_complete_when_the_end_is_known() -> None:
    lines: list[str] = []
    async with open_fork_server(on_line=lambda _, line: lines.append(line)) as server:
        child = await server.start(
            f"{TARGETS}:print_bytes", b"one\n\xff\n\nlast without an end", "printer"
        )
        await child.wait()
        assert lines == ["one", "\N{REPLACEMENT CHARACTER}", "", "last without an end"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_lines_stay_whole_while_others_write(
    unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    lines: list[str] = []
    async with open_fork_server(on_line=lambda _, line: lines.append(line)) as server:
        child = await server.start(f"{TARGETS}:print_between", b"", "printer")
        await child.wait()
    assert lines == ["another", "a whole line"]


async def test_a_flood_of_output_arrives_whole_and_fills_no_memory() -> None:
    count = 0

    def on_line(name: str, line: str) -> None:
        nonlocal count
        count += 1

    async with open_fork_server(on_line=on_line) as server:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        child = await server.start(f"{TARGETS}:flood", b"100", "flood")
        assert await child.wait() == ExitStatus(0, None)
    assert count == 100 * 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024


async def test_fifty_start_at_once_and_every_descriptor_comes_back() -> None:
    async with open_fork_server() as server:
        baseline = descriptors()
        children: list[ChildProcess] = []

        async def start(number: int) -> None:
            child = await server.start(
                f"{TARGETS}:echo_and_stay", b"%d" % number, f"child-{number}"
            )
            assert await child.ready() == b"%d" % number
            children.append(child)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(start, number)
        assert len({child.pid for child in children}) == 50
        for child in children:
            child.send_signal(signal.SIGKILL)
        for child in children:
            assert await child.wait() == KILLED
        await until(descriptors, "all descriptors are closed", lambda open: open == baseline)


async def test_the_block_ends_all_and_gives_every_descriptor_back(marked: Marked) -> None:
    async with open_fork_server():
        # The first use of trio and of its threads opens descriptors that stay.
        pass
    baseline = descriptors()
    async with open_fork_server() as server:
        children = [await server.start(f"{TARGETS}:echo_and_stay", b"", "child") for _ in range(3)]
        for child in children:
            await child.ready()
        assert marked.pids() == own_processes(server) | {child.pid for child in children}
    assert marked.pids() == set()
    assert {child.exit_status for child in children} == {ExitStatus(None, signal.SIGTERM)}
    assert descriptors() == baseline


async def test_a_child_that_ignores_sigterm_or_is_stopped_is_killed_after_the_grace(
    marked: Marked,
) -> None:
    async with open_fork_server(grace=0.05) as server:
        stubborn = await server.start(f"{TARGETS}:ignore_sigterm", b"", "stubborn")
        stopped = await server.start(f"{TARGETS}:echo_and_stay", b"", "stopped")
        await stubborn.ready()
        await stopped.ready()
        stopped.send_signal(signal.SIGSTOP)
        await until(
            Path(f"/proc/{stopped.pid}/stat").read_text, "it is stopped", lambda text: " T " in text
        )
    assert (stubborn.exit_status, stopped.exit_status) == (KILLED, KILLED)
    assert marked.pids() == set()


@pytest.mark.parametrize("how", ["exit", "kill"])
async def test_processes_that_a_child_has_started_end_with_it(marked: Marked, how: str) -> None:
    async with open_fork_server() as server:
        bystander = await server.start(f"{TARGETS}:start_families", b"stay", "bystander")
        others = {int(pid) for pid in (await bystander.ready()).split()}
        child = await server.start(f"{TARGETS}:start_families", how.encode(), "parent")
        started = {int(pid) for pid in (await child.ready()).split()}
        assert len(started) == len(others) == 5
        if how == "kill":
            # The environment of a process is there a moment after it.
            await until(marked.pids, "all are there", lambda pids: started <= pids)
            child.send_signal(signal.SIGKILL)
        await child.wait()
        await until(
            marked.pids, "those that were started are gone", lambda pids: not started & pids
        )
        await until(marked.pids, "the others are there", lambda pids: others <= pids)
    assert marked.pids() == set()


@pytest.mark.parametrize("killed", ["warm process", "outer process"])
async def test_the_death_of_the_warm_process_ends_its_children_and_refuses_new_ones(
    marked: Marked, killed: str
) -> None:
    async with open_fork_server() as server:
        warm, outer = server.pid, server._warm.process.pid
        assert warm != outer
        children = [await server.start(f"{TARGETS}:stay_silent", b"", "child") for _ in range(3)]
        parent = await server.start(f"{TARGETS}:start_families", b"stay", "parent")
        families = {int(pid) for pid in (await parent.ready()).split()}
        assert len(families) == 5
        await until(marked.pids, "all are there", lambda pids: families <= pids)
        os.kill(warm if killed == "warm process" else outer, signal.SIGKILL)
        for child in [*children, parent]:
            assert await child.wait() == KILLED
        if killed == "warm process":
            # A successor must not meet them, as where a child alone has ended.
            assert not marked.pids() - {outer, warm}
        for child in children:
            with pytest.raises(ChildDiedError):
                await child.ready()
        await marked.gone()
        with pytest.raises(ForkServerDiedError) as caught:
            await server.start(f"{TARGETS}:echo", b"", "late")
        if killed == "warm process":
            check_shown("ForkServerDiedError", said(caught.value))


async def test_the_death_of_the_warm_process_ends_nothing_that_the_program_has_started_itself(
    marked: Marked,
) -> None:
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    others = {name: text for name, text in os.environ.items() if name not in marked.environment}
    with subprocess.Popen(command, env=others) as own:  # noqa: ASYNC220
        try:
            async with open_fork_server() as server:
                child = await server.start(f"{TARGETS}:stay_silent", b"", "child")
                os.kill(server.pid, signal.SIGKILL)
                assert await child.wait() == KILLED
                await marked.gone()
            assert own.poll() is None
        finally:
            own.kill()
    assert own.returncode == -signal.SIGKILL, "it was not reaped by another"


async def test_a_warm_process_that_hangs_is_killed_with_all_its_children(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.processes.fork_server._KILL_TIME", 0.2)
    async with open_fork_server(grace=0.05) as server:
        child = await server.start(f"{TARGETS}:stay_silent", b"", "child")
        # Stopped is the only way to hang that works from outside; here it must not look so, as if
        # it were stuck in a system call.
        os.kill(server.pid, signal.SIGSTOP)
        monkeypatch.setattr("runtime.processes.warm_process.Warm.is_stopped", lambda warm: False)
    assert marked.pids() == set()
    assert child.exit_status == KILLED


async def test_a_stopped_warm_process_ends_after_the_grace_with_all_its_descendants(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.processes.fork_server._KILL_TIME", 600)
    async with open_fork_server(grace=0.05) as server:
        child = await server.start(f"{TARGETS}:echo_and_stay", b"", "child")
        parent = await server.start(f"{TARGETS}:stay_with_grandchild", b"", "parent")
        # In a session of its own: neither the death of its parent nor its process group leads to
        # it.
        grandchild = int(await parent.ready())
        os.kill(server.pid, signal.SIGSTOP)
        await until(marked.pids, "the grandchild is there", lambda pids: grandchild in pids)
    assert marked.pids() == set()
    assert (child.exit_status, parent.exit_status) == (KILLED, KILLED)


async def test_imports_that_hang_are_given_up_after_the_ready_timeout(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.processes.fork_server._KILL_TIME", 600)
    baseline = descriptors()
    with pytest.raises(
        ForkServerStartError, match=r"not ready after 0\.5 s.*endless_import.*after the import"
    ):
        async with open_fork_server(preload=["tests.processes.endless_import"], ready_timeout=0.5):
            pytest.fail("it must not open")
    assert marked.pids() == set()
    assert descriptors() == baseline


async def test_an_open_that_is_cancelled_while_the_imports_hang_ends_at_once(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.processes.fork_server._KILL_TIME", 600)
    imports = trio.Event()

    scope = trio.CancelScope()

    async def open_it() -> None:
        with scope:
            async with open_fork_server(
                preload=["tests.processes.endless_import"],
                on_line=lambda *_: imports.set(),
                grace=600,
                ready_timeout=600,
            ):
                pytest.fail("it must not open")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_it)
        await imports.wait()
        scope.cancel()
    assert scope.cancelled_caught
    assert marked.pids() == set()


async def test_a_start_that_is_cancelled_leaves_no_child(marked: Marked) -> None:
    async with open_fork_server() as server:
        with trio.CancelScope() as scope:
            scope.cancel()
            await server.start(f"{TARGETS}:stay_silent", b"", "unwanted")
        assert scope.cancelled_caught
        # Requests are carried out in order: once this one is answered, the unwanted child exists or
        # has ended.
        await (await server.start(f"{TARGETS}:echo", b"", "next")).wait()
        await until(
            marked.pids, "the server alone is left", lambda pids: pids == own_processes(server)
        )


async def test_after_the_block_nothing_starts() -> None:
    async with open_fork_server() as server:
        pass
    with pytest.raises(ForkServerDiedError):
        await server.start(f"{TARGETS}:echo", b"", "late")


async def test_cancelling_the_owner_still_cleans_up(marked: Marked) -> None:
    with trio.CancelScope() as scope:
        async with open_fork_server() as server:
            child = await server.start(f"{TARGETS}:echo_and_stay", b"", "child")
            await child.ready()
            scope.cancel()
            await trio.sleep_forever()
    assert child.exit_status == ExitStatus(None, signal.SIGTERM)
    assert marked.pids() == set()


async def test_an_error_in_the_block_comes_out_as_it_was_raised(marked: Marked) -> None:
    with pytest.raises(LookupError, match="mine"):  # noqa: PT012 - the block is what is tested
        async with open_fork_server() as server:
            await server.start(f"{TARGETS}:stay_silent", b"", "child")
            raise LookupError("mine")
    assert marked.pids() == set()


async def test_ctrl_c_that_interrupts_a_task_of_the_server_comes_out_alone(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed = trio.Event()
    send_all = ForkServer._send_all

    async def interrupted(server: ForkServer) -> None:
        # Not in a nursery of this file, whose groups stay whole.
        assert server._nursery is not None
        server._nursery.start_soon(send_all, server)
        await pressed.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(ForkServer, "_send_all", interrupted)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the block is what is tested
        async with open_fork_server(grace=0.1):
            pressed.set()
            await trio.sleep_forever()
    assert marked.pids() == set()


async def test_an_on_line_that_raises_ends_the_block_and_leaves_nothing(marked: Marked) -> None:
    calls = []

    def on_line(name: str, line: str) -> None:
        calls.append(line)
        raise OSError("disk full")

    baseline = descriptors()
    with pytest.raises(OSError, match="disk full"):  # noqa: PT012 - the block is what is tested
        async with open_fork_server(on_line=on_line) as server:
            for _ in range(3):
                child = await server.start(f"{TARGETS}:print_bytes", b"text\n" * 2, "printer")
            await trio.sleep_forever()
    assert child.exit_status is not None
    assert len(calls) == 1
    assert marked.pids() == set()
    assert descriptors() == baseline


@pytest.mark.parametrize(
    "module",
    [
        "no_such_module_anywhere",
        "tests.processes.broken_import",
        "tests.processes.generated_import",
    ],
)
async def test_an_import_that_fails_is_reported_with_its_traceback(
    module: str, marked: Marked
) -> None:
    baseline = descriptors()
    with pytest.raises(ForkServerStartError, match=module) as caught:
        async with open_fork_server(preload=[module]):
            pytest.fail("it must not open")
    assert "Traceback" in caught.value.remote_traceback
    # The last line of the traceback, with the place in the code of the user's, if there is one.
    last = caught.value.remote_traceback.rstrip().rpartition("\n")[2]
    assert f"could not import {module}: {last}" in str(caught.value)
    assert "runtime/" not in str(caught.value)
    assert str(caught.value).endswith("broken_import.py:5") is ("broken" in module)
    assert marked.pids() == set()
    assert descriptors() == baseline


async def test_a_warm_process_killed_during_its_imports_is_an_error_and_no_hang(
    marked: Marked,
) -> None:
    async def kill_it() -> None:
        await until(marked.pids, "a process has begun")
        for pid in marked.pids():
            os.kill(pid, signal.SIGKILL)

    async def open_it() -> None:
        with pytest.raises(ForkServerDiedError, match="killed by SIGKILL"):
            async with open_fork_server(preload=["tests.processes.endless_import"]):
                pytest.fail("it must not open")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_it)
        nursery.start_soon(kill_it)


async def test_a_child_that_cannot_be_seen_is_killed_all_the_same(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_fork_server() as server:
        child = await server.start(f"{TARGETS}:echo_and_stay", b"", "victim")
        await child.ready()
        # As where the last descriptor is that of the process itself.
        monkeypatch.setattr(child_process, "process_start", lambda pid: "")
        child.kill()
        with trio.fail_after(30):
            assert await child.wait() == KILLED


async def test_the_package_is_found_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runtime.py").write_text("raise AssertionError('the wrong runtime')")
    monkeypatch.chdir(tmp_path)
    async with open_fork_server() as server:
        child = await server.start(f"{TARGETS}:describe", b"", "child")
        assert json.loads(await child.ready())["cwd"] == str(tmp_path)


async def test_many_deaths_are_each_reported_once_while_others_start(marked: Marked) -> None:
    async with open_fork_server() as server:

        async def start_and_kill() -> None:
            for _ in range(10):
                child = await server.start(f"{TARGETS}:echo_and_stay", b"", "victim")
                await child.ready()
                os.kill(child.pid, signal.SIGKILL)
                assert await child.wait() == KILLED

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(start_and_kill)
        assert marked.pids() == own_processes(server)


async def test_a_block_that_does_not_wait_begins_during_the_imports(marked: Marked) -> None:
    async with open_fork_server(preload=["colorsys"], wait_ready=False) as server:
        child = await server.start(f"{TARGETS}:describe", b"", "child")
        assert json.loads(await child.ready())["preloaded"]
        await server.ready()
    assert marked.pids() == set()


@pytest.mark.parametrize("module", ["no_such_module_anywhere", "tests.processes.broken_import"])
async def test_a_block_that_does_not_wait_learns_of_a_failed_import_from_what_needs_it(
    module: str, marked: Marked
) -> None:
    async with open_fork_server(preload=[module], wait_ready=False) as server:
        for _ in range(2):
            with pytest.raises(ForkServerStartError, match=module):
                await server.ready()
        with pytest.raises(ForkServerStartError, match=module):
            await server.start(f"{TARGETS}:echo", b"", "child")
    assert marked.pids() == set()


async def test_a_block_that_is_left_during_the_imports_ends_at_once(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.processes.fork_server._KILL_TIME", 600)
    baseline = descriptors()
    async with open_fork_server(
        preload=["tests.processes.endless_import"], wait_ready=False, grace=600, ready_timeout=600
    ) as server:
        # The outer process may not have forked yet, and its environment is there a moment after it.
        outer = server._warm.process.pid
        await until(marked.pids, "the outer process is there", lambda pids: outer in pids)
    assert marked.pids() == set()
    assert descriptors() == baseline
