"""The blocking door within one program: values, errors, options, streams, references, futures and
threads, and every place from which it must not be used.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    BadArgumentsError,
    CallTimeoutError,
    HandshakeError,
    JoinError,
    NoPlacementError,
    NotAMemberError,
    OutcomeUnknownError,
    PoolStoppedError,
    RemoteError,
    WrongDoorError,
    WrongSecretError,
)
from runtime import open_node
from runtime.blocking import Blocking, BlockingLocalCluster, connect, open_local_cluster
from runtime.node import internals_of
from tests.doors.actors_used import Counter
from tests.doors.conftest import raised
from tests.functions.functions_used import double, wait_for_file
from tests.pools.actors_used import NoSuchShapeError, Squares
from tests.waiting import until_blocking

pytestmark = pytest.mark.cluster

THREADS = 16
CALLS = 10_000


def test_methods_return_their_values(
    counter: Blocking[Counter], cluster: BlockingLocalCluster
) -> None:
    assert counter.add(5) == 5
    assert cluster.lookup(counter.name, Counter).read() == 5
    assert cluster.lookup(counter.name).add(1) == 6
    assert cluster.options(name=counter.name).get_or_spawn(Counter).read() == 6
    counter.add.send(1)
    assert counter.options(timeout=5.0).read() == 7


def test_groups_of_users_arrive_whole(counter: Blocking[Counter]) -> None:
    errors = [
        raised(counter.fail_in_group),
        counter.fail_in_group.future().exception(60.0),
        raised(counter.fail_in_nursery),
    ]
    assert [type(error).__name__ for error in errors] == 3 * ["ExceptionGroup"]
    assert all(isinstance(error, RemoteError) for error in errors)
    with pytest.raises(ActorDiedError, match=r"ExceptionGroup: outer \(1 sub-exception\)"):
        counter.fail_in_own_task()


def test_errors_are_those_of_any_call(
    counter: Blocking[Counter], cluster: BlockingLocalCluster
) -> None:
    with pytest.raises(RemoteError, match="no way") as caught:
        counter.fail("no way")
    assert isinstance(caught.value, ValueError)
    with pytest.raises(BadArgumentsError, match="amount"):
        counter.add()  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="did you mean 'read'"):
        counter.raed()  # type: ignore[attr-defined]
    with pytest.raises(ActorNotFoundError, match="nobody"):
        cluster.lookup("nobody", Counter)
    # Names are compared once a second at most, and other tests look names up as well.
    until_blocking(
        lambda: str(raised(lambda: cluster.lookup(f"{counter.name}s", Counter))),
        "the nearest name is in the text",
        lambda text: text.endswith(f"did you mean {counter.name!r}?"),
        every=0.1,
    )
    with pytest.raises(TypeError, match="handle"):
        Counter.add(1)


def test_the_error_of_a_line_from_a_program_on_trio_says_what_to_write_here(
    cluster: BlockingLocalCluster,
) -> None:
    with pytest.raises(AttributeError, match=r"call the cluster itself, as in cluster\.spawn"):
        cluster.node  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'lokup'$") as caught:
        cluster.lokup  # type: ignore[attr-defined] # noqa: B018
    # From these two Python makes its "Did you mean".
    assert (caught.value.name, caught.value.obj) == ("lokup", cluster)


def test_a_timeout_ends_the_call_and_the_method(counter: Blocking[Counter]) -> None:
    with pytest.raises(CallTimeoutError):
        counter.hang.options(timeout=0.5)("late")
    assert counter.wait_for("late cancelled")


def test_streams_are_iterators(counter: Blocking[Counter]) -> None:
    assert list(counter.count(100)) == list(range(100))
    with counter.count(1_000_000) as numbers:
        assert next(numbers) == 0
    assert next(numbers, None) is None
    assert counter.wait_for("count closed")
    with pytest.raises(TypeError, match="never repeated"):
        counter.count.options(retry=None)  # type: ignore[call-arg]


def test_a_stream_that_is_dropped_is_closed(counter: Blocking[Counter]) -> None:
    assert next(counter.count(1_000_000)) == 0
    assert counter.wait_for("count closed")


def test_results_and_values_by_reference(
    counter: Blocking[Counter], cluster: BlockingLocalCluster
) -> None:
    kept = counter.add.remote(4)
    assert kept.fetch() == 4
    assert kept.ready()
    assert kept.owner == "worker-1"
    numbers = cluster.put([1, 2, 3])
    assert counter.total(numbers.as_value()) == 6
    assert counter.owner(numbers) == cluster.name
    assert numbers.call.index(3) == 2
    assert numbers.call.copy.remote().fetch() == [1, 2, 3]
    done, waiting = cluster.wait_any([kept, numbers], count=2)  # type: ignore[arg-type, var-annotated]
    assert (done, waiting) == ([kept, numbers], [])


def test_a_future_has_the_outcome(counter: Blocking[Counter]) -> None:
    assert counter.add.future(3).result(timeout=30) == 3
    assert isinstance(counter.fail.future("so").exception(timeout=30), ValueError)


def test_a_future_that_is_cancelled_cancels_the_method(counter: Blocking[Counter]) -> None:
    future = counter.hang.future("future")
    assert counter.wait_for("future begun")
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    assert counter.wait_for("future cancelled")


def test_futures_of_one_thread_run_in_their_order(counter: Blocking[Counter]) -> None:
    words = [str(number) for number in range(200)]
    for future in [counter.append.future(word) for word in words]:
        future.result(timeout=30)
    assert counter.noted_words() == words


@pytest.mark.slow
def test_ten_thousand_calls_from_sixteen_threads(counter: Blocking[Counter]) -> None:
    def some(_: int) -> list[int]:
        return [counter.add(1) for _ in range(CALLS // THREADS)]

    with ThreadPoolExecutor(THREADS) as threads:
        sums = [number for numbers in threads.map(some, range(THREADS)) for number in numbers]
    assert sorted(sums) == list(range(1, CALLS + 1))
    assert counter.read() == CALLS


def test_handles_move_between_connections_and_in_messages(
    counter: Blocking[Counter], cluster: BlockingLocalCluster
) -> None:
    other = cluster.options(on="worker-1").spawn(Counter)
    assert counter.add_to(cluster.argument(other), 2) == 2
    assert counter.add_to(other, 2) == 4  # type: ignore[arg-type]
    assert cluster.handle(counter.me()).add(1) == 1
    assert cluster.handle(counter.me()) == counter
    with connect(cluster.address) as second:
        assert second.handle(counter).add(1) == 2


def test_actors_go_to_nodes_that_host_and_not_to_connections(cluster: BlockingLocalCluster) -> None:
    with connect(cluster.address, name="script") as script:
        spawned = [script.spawn(Counter) for _ in range(4)]
        assert "script" not in {each.address.node for each in spawned}
        assert script.options(on="script").spawn(Counter).address.node == "script"
        with pytest.raises(NoPlacementError, match="place"):
            script.options(labels={"place": "none"}).spawn(Counter)
        assert script.spawn(Counter, 7).read() == 7
        for each in spawned:
            script.stop(each)
        assert script.wait_ended(spawned[0]).reason.kind == "no such actor"


def test_contextvars_are_those_of_the_caller(cluster: BlockingLocalCluster) -> None:
    variable = contextvars.ContextVar[str]("variable")
    variable.set("carried")

    async def read() -> str:
        return variable.get()

    door = cluster._door
    assert door.wait(read) == "carried"
    assert door.future(read).result(timeout=30) == "carried"


def test_after_close_every_call_says_so(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    connection = connect(cluster.address)
    handle = connection.lookup(counter.name, Counter)
    stream = handle.count(10)
    group = connection.group("closed", Counter)
    future = handle.hang.future("closed")
    assert counter.wait_for("closed begun")
    connection.close()
    connection.close()
    assert isinstance(future.exception(timeout=30), OutcomeUnknownError)
    assert counter.wait_for("closed cancelled")
    for use in (
        lambda: handle.read(),
        lambda: handle.read.future(),
        lambda: next(stream),
        lambda: handle.read.remote(),
        lambda: connection.lookup(counter.name, Counter),
        lambda: connection.members(),
        lambda: connection.spawn(Counter),
        lambda: connection.run(abs, 1),
        lambda: connection.future(abs, 1),
        lambda: connection.group("closed", Counter),
        lambda: group.members(),
    ):
        with pytest.raises(NotAMemberError, match=r"closed.*connect again"):
            use()


def test_no_node_at_the_address() -> None:
    with pytest.raises(JoinError, match=r"no node answers at 127\.0\.0\.1:9"):
        connect("127.0.0.1:9", cluster="local", secret="none")


def test_a_local_cluster_shows_its_secret_also_where_its_name_is_given(
    cluster: BlockingLocalCluster,
) -> None:
    with connect(cluster.address, cluster="local") as opened:
        assert opened.members()
    with pytest.raises(HandshakeError):
        connect(cluster.address, cluster="another")


def test_a_wrong_secret(cluster: BlockingLocalCluster) -> None:
    with pytest.raises(WrongSecretError, match="secret"):
        connect(cluster.address, cluster="local", secret="wrong")


def test_within_trio_the_error_names_the_door(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    async def main() -> list[Exception | None]:
        return [raised(use) for use in uses]

    executor = cluster.executor(max_workers=1)
    uses: list[Any] = [
        lambda: counter.add(1),
        lambda: connect(cluster.address),
        lambda: next(counter.count(1)),
        lambda: cluster.run(abs, 1),
        lambda: cluster.group("loops", Counter),
        executor.shutdown,
        cluster.close,
    ]
    for error in trio.run(main):
        assert isinstance(error, WrongDoorError)
        assert "runtime.open_node" in str(error)
    for error in asyncio.run(main()):
        assert isinstance(error, WrongDoorError)
        assert "runtime.aio" in str(error)
    assert counter.read() == 0


def test_a_callback_of_a_future_must_not_block(counter: Blocking[Counter]) -> None:
    errors: list[Exception | None] = []
    called = threading.Event()

    def callback(_: object) -> None:
        errors.append(raised(lambda: counter.add(1)))
        called.set()

    counter.read.future().add_done_callback(callback)
    assert called.wait(30)
    # A future that was done before calls it in this thread, which may block.
    assert errors == [None] or isinstance(errors[0], WrongDoorError)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_a_callback_of_a_future_raises_ends_no_connection(
    cluster: BlockingLocalCluster,
    counter: Blocking[Counter],
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    def callback(_: object) -> None:
        raise error

    future = counter.wait_for.future("told")
    future.add_done_callback(callback)
    counter.append("told")
    assert future.result(timeout=30)
    # The loop goes on, and so does the connection, with all links that it had.
    assert counter.add(1) == 1
    assert caplog.text.count("a callback of a future") == 1

    with cluster.executor(max_workers=1) as executor:
        first = executor.submit(wait_for_file, str(tmp_path / "go"))
        first.add_done_callback(callback)
        # It waits for the place of the first, whose end starts it.
        second = executor.submit(double, 1)
        (tmp_path / "go").touch()
        assert second.result(timeout=30) == 2


def test_what_a_callback_of_a_future_with_an_outcome_raises_comes_out(
    counter: Blocking[Counter],
) -> None:
    def callback(_: object) -> None:
        raise SystemExit(3)

    future = counter.read.future()
    assert future.result(timeout=30) == 0
    with pytest.raises(SystemExit):
        future.add_done_callback(callback)


def test_a_thread_of_an_event_loop_may_block(counter: Blocking[Counter]) -> None:
    async def main() -> int:
        return await trio.to_thread.run_sync(counter.add, 1)

    async def asyncio_main() -> int:
        return await asyncio.to_thread(counter.add, 1)

    assert trio.run(main) == 1
    assert asyncio.run(asyncio_main()) == 2


def test_a_notebook_cell_may_block(counter: Blocking[Counter]) -> None:
    # As ipykernel runs a cell: a plain function, called by a coroutine of that package.
    kernel: dict[str, Any] = {"__name__": "ipykernel.kernelapp"}
    exec("async def execute(cell): return cell()", kernel)
    assert asyncio.run(kernel["execute"](lambda: counter.add(1))) == 1


def test_two_clusters_share_one_thread(cluster: BlockingLocalCluster) -> None:
    before = [thread.name for thread in threading.enumerate()].count("understudy loop")
    with open_local_cluster(0) as second, connect(second.address):
        names = [thread.name for thread in threading.enumerate()]
        assert before == names.count("understudy loop") == 1


async def test_a_handle_of_trio_moves_to_the_blocking_door_and_back(
    cluster: BlockingLocalCluster, counter: Blocking[Counter]
) -> None:
    founder = cluster._door.node
    async with open_node(
        join=cluster.address, cluster="local", secret=internals_of(founder).keyring
    ) as node:
        theirs = await node.lookup(counter.name, Counter)
        assert await theirs.add(1) == 1
        ours = await trio.to_thread.run_sync(lambda: cluster.handle(theirs).add(1))
        assert ours == 2


@pytest.mark.parametrize("nodes", [-1, "2", True, 1.5])
def test_a_number_of_nodes_that_makes_no_sense_is_refused(nodes: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="nodes is a number of processes"):
        open_local_cluster(nodes)


def test_an_address_that_is_no_text_is_refused_by_name() -> None:
    address: Any = 7400
    with pytest.raises(TypeError, match="address must be a str"):
        connect(address)


def test_a_pool_works_on_items_that_a_script_reads(cluster: BlockingLocalCluster) -> None:
    with cluster.pool("squares", Squares, 1, size=2) as pool:
        assert list(pool.map(Squares.square, range(100))) == [n * n + 1 for n in range(100)]
        # The source blocks, and calls the cluster itself.
        source = (len(cluster.members()) * 0 + number for number in range(20))
        assert list(pool.map(Squares.square, source, ordered=True)) == [
            n * n + 1 for n in range(20)
        ]
        with pytest.raises(NoSuchShapeError):
            list(pool.map(Squares.picky, [1, 2, 3]))
        for result in pool.map(Squares.square, iter(int, 1)):
            assert result == 1
            break
        counted = pool.map(Squares.square, dict.fromkeys(range(100)))
        assert counted.counts().total == 100, "of what is read in a thread as well"
        with ThreadPoolExecutor(1) as thread:
            states = thread.submit(lambda: [one.done for one in counted.progress(0.01)])
            assert len(list(counted)) == 100
            assert states.result()[-1] == 100
        assert list(pool.starmap(Squares.square, [(2,), (3,)])) == [5, 10]
        assert pool.submit(Squares.square, 4).fetch() == 17
        stay = list(pool.map(Squares.square, [2, 3], keep=True))
        assert [one.fetch() for one in stay] == [5, 10]
        assert [answer.value for answer in pool.call_all(Squares.square, 1)] == [2, 2]
        chosen = pool.choose("round-robin")
        assert chosen.square(2) == 5
        same = cluster.lookup_pool("squares", Squares)
        assert list(same.map(Squares.square, [1])) == [2]
        pool.resize(1)
        assert pool.members()
    with pytest.raises(ValueError, match="min must not be above max"):
        cluster.pool(None, Squares, min=3, max=2)
    with pytest.raises(PoolStoppedError):
        list(pool.map(Squares.square, [1]))
