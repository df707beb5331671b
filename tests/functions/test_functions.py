"""Functions in worker processes: values, errors, harm, cancellation, places, repeats."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors import RetryPolicy, SpawnOptions
from actors.actor import Member
from actors.errors import (
    ActorDiedError,
    ActorStartError,
    BadArgumentsError,
    CallTimeoutError,
    DeadlineExceededError,
    EncodeError,
    FunctionNotImportableError,
    NodeNotFoundError,
    NotAMemberError,
    NotExecutedError,
    NoWorkerError,
    OutcomeUnknownError,
    RemoteError,
    ReplyEncodeError,
)
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.functions.service import FUNCTION_SERVICE, most_workers
from runtime.isolation import parent
from runtime.node import Node, internals_of
from runtime.node.opening import Platform
from runtime.supervision.actor_placement import ActorPlacement
from runtime.supervision.placement import Refusals
from runtime.timings import Timings
from tests.functions import functions_used as used
from tests.isolation.actors_used import Counter
from tests.isolation.conftest import SECRET, is_running
from tests.waiting import until

pytestmark = pytest.mark.cluster


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """A node alone, whose functions run in real processes."""
    async with open_node("alone", secret=SECRET, resources={"gpu": 1}) as opened:
        yield opened


def worker_names(node: Node) -> list[str]:
    """The workers of a node."""
    return [name for name in internals_of(node).cells if "FunctionWorker" in name]


async def noted(path: Path, *, lines: int = 1) -> list[str]:
    """The lines that functions have noted in a file."""
    return await until(
        lambda: path.read_text().splitlines() if path.exists() else [],
        f"{lines} lines are noted",
        lambda found: len(found) >= lines,
    )


async def test_a_result_that_cannot_be_read_is_that_of_the_function(node: Node) -> None:
    with trio.fail_after(60):
        with pytest.raises(
            OutcomeUnknownError, match=r"^tests\.functions\.functions_used:sold_out ran, but"
        ):
            await node.run(used.sold_out)


async def test_values_and_errors_of_functions(node: Node, tmp_path: Path) -> None:
    """One test, because the first worker of a node takes a while to start."""
    assert await node.run(used.double, 21) == 42
    assert await node.run(used.double_under_trio, 21, after=0.001) == 42
    assert await node.run(used.returns_coroutine, 21) == 42
    assert await node.run(used.decorated, 21) == 42
    assert await node.run(used.Shop.price, 2) == 6
    assert await node.run(math.factorial, 5) == 120
    assert await node.run(used.ordered, used.Order("nut", 2), size=used.Size.SMALL) == used.Order(
        "nut", 3
    )
    reference = await node.put([1, 2, 3])
    assert await node.run(used.total, reference.as_value()) == 6
    assert await node.run(used.parent_pid) != os.getpid()

    with pytest.raises(RemoteError, match="no nuts") as caught:
        await node.run(used.fail, "no nuts")
    assert isinstance(caught.value, ValueError)
    assert "functions_used.py" in caught.value.remote_traceback
    assert FUNCTION_SERVICE not in str(caught.value) + "".join(caught.value.__notes__)
    with pytest.raises(used.OutOfStockError, match="no nuts"):
        await node.run(used.fail_with_message, "no nuts")
    before = await node.run(used.pid)
    for function in (
        used.raise_system_exit,
        used.raise_keyboard_interrupt,
        used.raise_generator_exit,
    ):
        with pytest.raises(RemoteError) as other:
            await node.run(function)
        assert other.value.remote_type.startswith("builtins:")
    # In the same process: only their calls have ended.
    assert await node.run(used.pid) == before
    with pytest.raises(ReplyEncodeError, match="object"):
        await node.run(used.unsendable)
    with pytest.raises(ReplyEncodeError, match="or use a stream, which is a method of an actor"):
        await node.run(used.returns_generator)
    with pytest.raises(EncodeError, match="number"):
        await node.run(used.double, object())  # type: ignore[call-overload]
    with pytest.raises(ActorDiedError, match=r"functions_used:exit_at_once.*exited with code 7"):
        await node.run(used.exit_at_once)
    with pytest.raises(ActorDiedError, match=r"functions_used:kill_itself.*SIGKILL"):
        await node.run(used.kill_itself)
    assert await node.run(used.double, 1) == 2


async def test_what_has_no_name_elsewhere_is_refused_at_once(node: Node) -> None:
    def nested() -> None:
        """Is in no module."""

    uses: list[Any] = [lambda: 1, nested, used.Shop().open, partial(used.double, 1), 5, trio]
    for function in uses:
        with pytest.raises(FunctionNotImportableError):
            await node.run(function)
    with pytest.raises(FunctionNotImportableError, match="decorator"):
        await node.run(vars(used.decorated)["__wrapped__"], 1)
    with pytest.raises(FunctionNotImportableError, match="add is a method of an actor: spawn"):
        await node.run(Counter.add)  # type: ignore[call-overload]
    with pytest.raises(BadArgumentsError, match="number"):
        await node.run(used.double)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="name= is for actors"):
        await node.options(name="double").run(used.double, 1)
    with pytest.raises(ValueError, match="idempotent"):
        await node.options(idempotent=True).spawn(Counter)
    assert not worker_names(node)


async def test_places_that_do_not_exist(node: Node) -> None:
    with pytest.raises(NodeNotFoundError, match="nowhere"):
        await node.options(on="nowhere").run(used.double, 1)
    with pytest.raises(NoWorkerError, match="place=none"):
        await node.options(labels={"place": "none"}).run(used.double, 1)
    with pytest.raises(NoWorkerError, match="2 is asked for"):
        await node.options(resources={"gpu": 2}).run(used.double, 1)


async def test_resources_are_taken_while_the_function_runs(node: Node, tmp_path: Path) -> None:
    there, go = tmp_path / "there", tmp_path / "go"
    with_gpu = node.options(resources={"gpu": 1})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(with_gpu.run, used.wait_for_file, str(go))
        await until(lambda: any("function-" in one for one in internals_of(node).cells), "it runs")
        with pytest.raises(DeadlineExceededError, match="no node had room"):
            await with_gpu.options(timeout=0.3).run(used.note, str(there), "too early")
        nursery.start_soon(with_gpu.run, used.note, str(there), "in turn")
        go.touch()
        assert await noted(there) == ["in turn"]
    assert not any("function-" in one for one in internals_of(node).cells)


async def test_calls_that_wait_for_resources_run_in_turn_without_looking_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first in line reads the store, and when something was given back."""
    placed = 0
    place = ActorPlacement.place

    async def counted(self: ActorPlacement, options: SpawnOptions, refusals: Refusals) -> Member:
        nonlocal placed
        placed += 1
        return await place(self, options, refusals)

    monkeypatch.setattr(ActorPlacement, "place", counted)
    # No look is due to time: a call that misses its turn waits for ever.
    platform = Platform(environment=SystemEnvironment(Timings(room_look=1e6)))
    gone, path = trio.CancelScope(), tmp_path / "turns"
    async with open_node("alone", secret=SECRET, resources={"gpu": 1}, platform=platform) as node:

        async def leaves_the_line() -> None:
            with gone:
                await with_gpu.run(used.note, str(path), "cancelled")

        with_gpu = node.options(resources={"gpu": 1})
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(with_gpu.run, used.note, str(path), str(number))
                # In this order.
                await trio.testing.wait_all_tasks_blocked(0.001)
                if number == 3:
                    nursery.start_soon(leaves_the_line)
            gone.cancel()
    assert await noted(path, lines=6) == [str(number) for number in range(6)]
    assert placed <= 24


async def test_workers_are_few_and_used_again(node: Node) -> None:
    pids: list[int] = []

    async def run() -> None:
        pids.append(await node.run(used.pid))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(run)
    assert len(pids) == 50
    assert len(set(pids)) <= most_workers()
    assert len(worker_names(node)) <= most_workers()


async def test_a_cancelled_function_ends(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "waits"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run, used.wait_for_cancellation, str(path))
        (pid,) = await noted(path)
        nursery.cancel_scope.cancel()
    assert (await noted(path, lines=2))[1] == "cancelled"
    # It ended by itself, and its process is used again.
    assert await node.run(used.pid) == int(pid)


@pytest.mark.parametrize("resources", [{}, {"gpu": 1.0}], ids=["", "with resources"])
@pytest.mark.parametrize("function", [used.block, used.block_the_loop])
async def test_what_ignores_its_end_is_killed(
    node: Node, tmp_path: Path, function: Any, resources: dict[str, float]
) -> None:
    path = tmp_path / "blocks"
    # A worker that has started, so that the time is for the function alone.
    assert await node.run(used.double, 1) == 2
    text = f"functions_used:{function.__name__} gave no answer within its timeout of 2 s;"
    with pytest.raises(CallTimeoutError, match=text):
        await node.options(timeout=2, resources=resources).run(function, str(path))
    (pid,) = await noted(path)
    await until(lambda: is_running(int(pid)), "it was killed", lambda runs: not runs)
    assert await node.run(used.double, 1) == 2


async def test_a_worker_that_is_killed_ends_one_call_or_has_it_repeated(
    node: Node, tmp_path: Path
) -> None:
    again = RetryPolicy(max_retries=2, initial_delay=0.01)
    marks = [str(tmp_path / str(number)) for number in range(4)]
    with pytest.raises(OutcomeUnknownError, match="die_unless"):
        await node.run(used.die_unless, marks[0])
    with pytest.raises(OutcomeUnknownError):
        await node.options(retry=again).run(used.die_unless, marks[1])
    repeated = node.options(retry=again, idempotent=True)
    assert await repeated.run(used.die_unless, marks[2]) == "repeated"
    unknown = RetryPolicy(max_retries=2, initial_delay=0.01, repeat_unknown=True)
    assert await node.options(retry=unknown).run(used.die_unless, marks[3]) == "repeated"


async def test_an_idle_worker_that_is_killed_is_not_lent(node: Node) -> None:
    pid = await node.run(used.pid)
    (name,) = worker_names(node)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: worker_names(node), "its end is known", lambda names: name not in names)
    assert await node.run(used.pid) != pid


async def test_a_memory_limit_is_the_processes_own(node: Node) -> None:
    gibibyte = 1024**3
    small = node.options(isolation="process", memory_limit=gibibyte)
    with pytest.raises(MemoryError):
        await small.run(used.take_memory, 2 * gibibyte)
    assert await small.run(used.take_memory, 1024) == 1024


@pytest.mark.parametrize("limit", [1, 64 * 1024**2])
async def test_a_memory_limit_that_python_itself_exceeds_is_named(node: Node, limit: int) -> None:
    small = node.options(isolation="process", memory_limit=limit)
    with trio.fail_after(60), pytest.raises(NoWorkerError, match=f"memory_limit is {limit:,} b"):
        await small.run(used.take_memory, 1024)


@pytest.mark.slow
async def test_after_its_block_a_node_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    async with open_node("alone", secret=SECRET) as node, trio.open_nursery() as nursery:
        nursery.start_soon(node.run, used.block, str(path))
        (pid,) = await noted(path)
        nursery.cancel_scope.cancel()
    assert not is_running(int(pid))
    with pytest.raises(NotAMemberError):
        await node.run(used.double, 1)


async def test_what_keeps_a_worker_from_starting_is_in_its_callers_error(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent, "CHILD_MODULE", "tests.processes.broken_import")
    async with open_node("other", join=node.address, secret=SECRET) as other:
        for caller in (node, other):
            for resources in ({}, {"gpu": 1.0}):
                with pytest.raises(NoWorkerError) as caught:
                    await caller.options(on="alone", resources=resources).run(used.double, 1)
                assert re.search(
                    "on node alone: .* could not import tests.processes.broken_import: SystemExit: "
                    r"this module does not want to be imported, at \S+broken_import\.py:5$",
                    str(caught.value),
                )
                assert 'sys.exit("this module' in caught.value.remote_traceback
                assert any(
                    caught.value.remote_traceback.rstrip() in one for one in caught.value.__notes__
                )
    with pytest.raises(ActorStartError, match=r"imported, at \S+broken_import\.py:5") as failed:
        await node.options(isolation="process").spawn(Counter)
    assert failed.value.remote_traceback == caught.value.remote_traceback


async def test_a_module_that_is_missing_there_is_named(node: Node) -> None:
    from runtime.functions.function_names import FunctionCall

    for path, why in (
        ("no_such_module:f", "no_such_module"),
        ("math:no_such_function", r"no_such_function.* not under `if __name__ =="),
        ("math:pi", "cannot be called"),
        ("tests.functions.harmful_module:f", "the module raises"),
    ):
        with pytest.raises(FunctionNotImportableError, match=why):
            await internals_of(node).functions.run(FunctionCall(path, None, (), {}, SpawnOptions()))
    with pytest.raises(NotExecutedError) as ended:
        await internals_of(node).functions.run(
            FunctionCall("tests.functions.exiting_module:f", None, (), {}, SpawnOptions())
        )
    assert str(ended.value) == (
        "tests.functions.exiting_module:f was not run: its worker process on node alone ended "
        "while it imported the function: exited with code 9"
    )
    assert await node.run(used.double, 1) == 2
