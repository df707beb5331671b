"""Count what anti-patterns do: `python -m examples.wrong_patterns` prints the second table of the
page on patterns.

Each pair does the same work twice on a cluster of this machine: first as it is often written, then
as it should be. The first ways are wrong, and not only slow, so each side counts what went wrong.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable

import attrs
import trio

from actors import (
    Actor,
    ChildSpec,
    ExitReason,
    RetryPolicy,
    SpawnOptions,
    Supervisor,
    method,
    wait_any,
)
from actors.errors import (
    CallError,
    MailboxFullError,
    NotExecutedError,
    OutcomeUnknownError,
    RemoteError,
)
from runtime import LocalCluster, open_local_cluster

Work = Callable[[LocalCluster], Awaitable[int]]

PATIENT = RetryPolicy(max_retries=20, initial_delay=0.02)


class Balance(Actor):
    """A number that several callers change."""

    def __init__(self) -> None:
        self.value = 0
        self.keys: set[str] = set()
        self.asked = 0

    @method
    async def get(self) -> int:
        return self.value

    @method
    async def set(self, value: int) -> None:
        self.value = value

    @method
    async def add(self, amount: int) -> None:
        self.value += amount
        self.asked += 1

    @method
    async def add_once(self, key: str, amount: int) -> None:
        """Not again under the same key."""
        self.asked += 1
        if key not in self.keys:
            self.keys.add(key)
            self.value += amount

    @method
    async def times_asked(self) -> int:
        return self.asked


async def read_then_write(cluster: LocalCluster) -> int:
    balance = await cluster.node.options(on="worker-1").spawn(Balance)

    async def add_one() -> None:
        await balance.set(await balance.get() + 1)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(add_one)
    return 20 - await balance.get()


async def add_in_one_call(cluster: LocalCluster) -> int:
    balance = await cluster.node.options(on="worker-1").spawn(Balance)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(balance.add, 1)
    return 20 - await balance.get()


class Ledger(Actor):
    """Saves its total, at different times."""

    async def on_start(self) -> None:
        self.total: int = await self.saved() or 0

    async def on_stop(self, reason: ExitReason) -> None:
        if reason.is_normal:
            await self.save(self.total)

    @method
    async def add_and_save_at_the_end(self, amount: int) -> None:
        self.total += amount

    @method
    async def add_and_save(self, amount: int) -> None:
        await self.save(self.total + amount)
        self.total += amount

    @method
    async def crash(self) -> None:
        self.nursery.start_soon(fail)
        await trio.sleep_forever()

    @method(idempotent=True)
    async def read(self) -> int:
        return self.total


async def fail() -> None:
    raise RuntimeError("on purpose")


async def ledger_of(cluster: LocalCluster, name: str) -> Ledger:
    """A supervised ledger on the node of this process."""
    here = cluster.node.name
    spec = ChildSpec(id="ledger", actor=Ledger, options=SpawnOptions(name=name, on=here))
    await cluster.node.options(on=here).spawn(Supervisor, [spec])
    return await cluster.node.lookup(name, Ledger)


async def crash_and_read(ledger: Ledger) -> int:
    try:
        await ledger.crash()
    except OutcomeUnknownError:
        return await ledger.read.options(retry=PATIENT)()
    raise AssertionError("it did not crash")


async def save_at_the_end(cluster: LocalCluster) -> int:
    ledger = await ledger_of(cluster, "saves at the end")
    for _ in range(10):
        await ledger.add_and_save_at_the_end(1)
    return 10 - await crash_and_read(ledger)


async def save_before_the_answer(cluster: LocalCluster) -> int:
    ledger = await ledger_of(cluster, "saves before it answers")
    for _ in range(10):
        await ledger.add_and_save(1)
    return 10 - await crash_and_read(ledger)


class Till(Actor):
    """Pays from a balance that another actor keeps, and crashes after its first payment."""

    def __init__(self, balance: Balance) -> None:
        self.balance = balance

    @method(idempotent=True)
    async def pay(self, amount: int) -> None:
        await self.balance.add(-amount)
        await self.crash_once()

    @method(idempotent=True)
    async def pay_under_a_key(self, key: str, amount: int) -> None:
        await self.balance.add_once(key, -amount)
        await self.crash_once()

    async def crash_once(self) -> None:
        if await self.balance.times_asked() == 1:
            self.nursery.start_soon(fail)
            await trio.sleep_forever()


async def till_of(cluster: LocalCluster, name: str) -> tuple[Balance, Till]:
    """A supervised till on the node of this process, and the balance that it pays from."""
    here = cluster.node.name
    balance = await cluster.node.options(on=here).spawn(Balance)
    options = SpawnOptions(name=name, on=here)
    spec = ChildSpec(id="till", actor=Till, args=(balance,), options=options)
    await cluster.node.options(on=here).spawn(Supervisor, [spec])
    return balance, await cluster.node.lookup(name, Till)


async def repeat_the_effect(cluster: LocalCluster) -> int:
    balance, till = await till_of(cluster, "pays again")
    await till.pay.options(retry=PATIENT)(1)
    return -await balance.get() - 1


async def give_it_an_identity(cluster: LocalCluster) -> int:
    balance, till = await till_of(cluster, "pays under a key")
    await till.pay_under_a_key.options(retry=PATIENT)("order 4711", 1)
    return -await balance.get() - 1


class Clerk(Actor):
    """Asks another clerk, who wants to tell it something."""

    def __init__(self, other: Clerk | None = None) -> None:
        self.other = other
        self.notes = 0

    @method
    async def meet(self, other: Clerk) -> None:
        self.other = other

    @method
    async def ask_awaited(self) -> None:
        assert self.other is not None
        await self.other.answer_and_await()

    @method
    async def ask(self) -> None:
        assert self.other is not None
        await self.other.answer()

    @method
    async def answer_and_await(self) -> None:
        assert self.other is not None
        await self.other.note()

    @method
    async def answer(self) -> None:
        assert self.other is not None
        await self.other.note.send()

    @method
    async def note(self) -> None:
        self.notes += 1


async def two_clerks(cluster: LocalCluster) -> Clerk:
    clerk = await cluster.node.options(on="worker-1").spawn(Clerk)
    await clerk.meet(await cluster.node.spawn(Clerk, clerk))
    return clerk


async def call_back_and_wait(cluster: LocalCluster) -> int:
    clerk = await two_clerks(cluster)
    try:
        await clerk.ask_awaited()
    except RemoteError:
        return 1
    return 0


async def call_back_one_way(cluster: LocalCluster) -> int:
    clerk = await two_clerks(cluster)
    try:
        await clerk.ask()
    except RemoteError:
        return 1
    return 0


ROWS: list[int] = []
"""At the top of a module: another list in each process."""


class Collector(Actor):
    """Keeps rows, of its own and in the module's list."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    @method
    async def add_to_the_module(self, row: int) -> None:
        ROWS.append(row)

    @method
    async def add(self, row: int) -> None:
        self.rows.append(row)

    @method
    async def rows_of_the_module(self) -> int:
        return len(ROWS)

    @method
    async def count(self) -> int:
        return len(self.rows)


async def share_a_global(cluster: LocalCluster) -> int:
    here = await cluster.node.options(on=cluster.node.name).spawn(Collector)
    there = await cluster.node.options(on="worker-1").spawn(Collector)
    before = await here.rows_of_the_module()
    for row in range(20):
        await (here, there)[row % 2].add_to_the_module(row)
    return 20 - (await here.rows_of_the_module() - before)


async def share_an_actor(cluster: LocalCluster) -> int:
    collector = await cluster.node.options(on="worker-1").spawn(Collector)
    for row in range(20):
        await collector.add(row)
    return 20 - await collector.count()


class Worker(Actor):
    """Does jobs, of which the first takes until the measurement is over."""

    def __init__(self) -> None:
        self.is_over = trio.Event()

    @method(concurrent=True)
    async def work(self, number: int) -> int:
        if number == 0:
            await self.is_over.wait()
        return number

    @method(concurrent=True)
    async def finish(self) -> None:
        self.is_over.set()

    @method
    async def never_end(self) -> None:
        await trio.sleep_forever()

    @method
    async def work_for(self, seconds: float) -> None:
        await trio.sleep(seconds)


async def in_the_order_of_the_calls(cluster: LocalCluster) -> int:
    worker = await cluster.node.options(on="worker-1").spawn(Worker)
    results = [await worker.work.remote(number) for number in range(20)]
    handled = []
    # The first is still running, and this waits for it. The limit ends the measurement.
    with trio.move_on_after(0.3):
        for result in results:
            handled.append(await result.fetch())
    await worker.finish()
    return 19 - len(handled)


async def as_they_come(cluster: LocalCluster) -> int:
    worker = await cluster.node.options(on="worker-1").spawn(Worker)
    waiting = [await worker.work.remote(number) for number in range(20)]
    handled: list[int] = []
    while len(handled) < 19:
        done, waiting = await wait_any(waiting)
        handled += [await result.fetch() for result in done]
    await worker.finish()
    return 19 - len(handled)


async def refused(cluster: LocalCluster, at_once: int) -> int:
    worker = await cluster.node.options(on="worker-1", mailbox_limit=10).spawn(Worker)
    found = 0
    limiter = trio.CapacityLimiter(at_once)

    async def call() -> None:
        nonlocal found
        async with limiter:
            try:
                await worker.work_for(0.001)
            except MailboxFullError:
                found += 1

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(call)
    return found


async def without_a_bound(cluster: LocalCluster) -> int:
    return await refused(cluster, at_once=100)


async def with_a_bound(cluster: LocalCluster) -> int:
    return await refused(cluster, at_once=8)


async def still_waiting(cluster: LocalCluster, timeout: float | None) -> int:
    workers = [await cluster.node.options(on="worker-1").spawn(Worker) for _ in range(5)]
    waiting = 0

    async def call(worker: Worker) -> None:
        nonlocal waiting
        waiting += 1
        try:
            await worker.never_end.options(timeout=timeout)()
        except OutcomeUnknownError:
            waiting -= 1

    # The limit is the end of this measurement, and not the time limit of a call.
    with trio.move_on_after(0.3 if timeout is None else 60):
        async with trio.open_nursery() as nursery:
            for worker in workers:
                nursery.start_soon(call, worker)
    return waiting


async def no_time_limit(cluster: LocalCluster) -> int:
    return await still_waiting(cluster, None)


async def a_time_limit(cluster: LocalCluster) -> int:
    return await still_waiting(cluster, 0.1)


class Shop(Actor):
    """Ships an order, and fails after it."""

    def __init__(self) -> None:
        self.shipped = 0

    @method
    async def ship(self) -> None:
        self.shipped += 1
        raise ConnectionError("the mail server does not answer")

    @method
    async def count(self) -> int:
        return self.shipped


async def repeat_after_any_error(cluster: LocalCluster) -> int:
    shop = await cluster.node.options(on="worker-1").spawn(Shop)
    for _ in range(3):
        try:
            await shop.ship()
            break
        except CallError:
            continue
    return await shop.count() - 1


async def repeat_what_did_not_run(cluster: LocalCluster) -> int:
    shop = await cluster.node.options(on="worker-1").spawn(Shop)
    for _ in range(3):
        try:
            await shop.ship()
            break
        except NotExecutedError:
            continue
        except CallError:
            break
    return await shop.count() - 1


@attrs.frozen
class Pair:
    """One work in two ways, and what is counted of it."""

    name: str
    counted: str
    unwise: Work
    wise: Work


PAIRS = (
    Pair(
        "read and write in two calls, or in one",
        "of 20 additions, lost",
        read_then_write,
        add_in_one_call,
    ),
    Pair(
        "save at the end, or before the answer",
        "of 10 additions, lost in a crash",
        save_at_the_end,
        save_before_the_answer,
    ),
    Pair(
        "repeat an effect elsewhere, or give it an identity",
        "of 1 payment, made too often",
        repeat_the_effect,
        give_it_an_identity,
    ),
    Pair(
        "call back and wait, or one way", "calls that fail", call_back_and_wait, call_back_one_way
    ),
    Pair("share a global, or an actor", "of 20 rows, not seen", share_a_global, share_an_actor),
    Pair(
        "results in the order of the calls, or as they come",
        "of 19 results, held up by a slow one",
        in_the_order_of_the_calls,
        as_they_come,
    ),
    Pair(
        "calls without a bound, or with one", "of 100 calls, refused", without_a_bound, with_a_bound
    ),
    Pair("no time limit, or one", "of 5 calls, still waiting", no_time_limit, a_time_limit),
    Pair(
        "repeat after any error, or what did not run",
        "of 1 order, shipped too often",
        repeat_after_any_error,
        repeat_what_did_not_run,
    ),
)


async def counted(pairs: tuple[Pair, ...]) -> list[tuple[str, str, int, int]]:
    """The name of each pair, what is counted, and the counts of its two sides."""
    async with open_local_cluster(nodes=1) as cluster:
        return [
            (pair.name, pair.counted, await pair.unwise(cluster), await pair.wise(cluster))
            for pair in pairs
        ]


def table(rows: list[tuple[str, str, int, int]]) -> str:
    """The rows as the docs show them."""
    lines = ["| what | counted | before | after |", "|---|---|---|---|"]
    lines += [f"| {name} | {what} | {before} | {after} |" for name, what, before, after in rows]
    return "\n".join(lines)


def main() -> None:
    """Count all pairs, or those whose names contain the words given."""
    # What crashes here does so on purpose, and the log would show it.
    logging.getLogger("understudy").setLevel(logging.CRITICAL)
    wanted = [pair for pair in PAIRS if all(word in pair.name for word in sys.argv[1:])]
    print(table(trio.run(counted, tuple(wanted))))


if __name__ == "__main__":
    main()
