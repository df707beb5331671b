"""The receive spin: the machine alone, against tables and chance, and connections that spin over
real sockets.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from runtime.links.cores import run_delay, usable_cores
from runtime.links.spin import (
    CREDIT,
    FIRST_PAUSE,
    LEAST_GAIN,
    LEAST_SECONDS,
    MISS,
    MOST_DEBT,
    MOST_LOOKING,
    MOST_PAUSE,
    MOST_SECONDS,
    PAUSE_GROWTH,
    PROVEN_SECONDS,
    REST,
    SETTLING_SECONDS,
    SMALL_RECEIVE,
    STREAK,
    USUAL_DELAY,
    WINDOW_SECONDS,
    Spin,
)
from runtime.links.spinner import Spinner
from runtime.links.transports import SocketConnection, SocketNetwork
from tests.limits import out_of_descriptors

SHORT, WAKE, LONG = 50e-6, 100e-6, 10e-3
"""Seconds: until the data is there, until a sleeping thread runs, and what is no short wait."""


@attrs.define
class Driver:
    """A connection that the tests play: it counts what the machine rests for, and reports as the
    real one does.
    """

    spin: Spin = attrs.field(factory=Spin)
    now: float = 0.0
    delay: float = 0.0
    wake: float = WAKE
    """What a receive takes longer that sleeps."""

    def receive(
        self, waited: float = SHORT, size: int = 20, *, hit: bool = True, delayed: float = 0.0
    ) -> None:
        """One receive. `hit`: whether a spin would have found the data; `delayed`: the part of its
        time without a core.
        """
        if not (self.spin.seconds and hit):
            waited += self.wake
        self.now += waited
        self.delay += waited * delayed
        if self.spin.resting:
            self.spin.resting -= 1
            return
        if self.spin.seconds and hit:
            self.spin.on_hit(self.now, waited, size)
        else:
            self.spin.on_slept(self.now, waited, size)
        if self.spin.seconds and self.now >= self.spin.due:
            self.spin.on_delayed(self.now, self.delay)

    def until_on(self, delayed: float = 0.0) -> float:
        """Sequential traffic until the spin is on; returns the seconds that it took."""
        began = self.now
        while not self.spin.seconds:
            self.receive(delayed=delayed)
            assert self.now - began < 2 * MOST_PAUSE
        return self.now - began

    def until_off(self, delayed: float = 0.0) -> float:
        """The same until it is off."""
        began = self.now
        while self.spin.seconds:
            self.receive(delayed=delayed)
            assert self.now - began < 2 * MOST_PAUSE
        return self.now - began


def test_it_is_off_until_small_receives_have_followed_each_other_closely() -> None:
    driver = Driver()
    for _ in range(STREAK - 1):
        driver.receive()
        assert not driver.spin.seconds
    driver.receive()
    assert driver.spin.seconds


@pytest.mark.parametrize(
    ("waited", "size"),
    [(LONG, 20), (SHORT, SMALL_RECEIVE + 1)],
    ids=["long waits", "large receives"],
)
def test_other_traffic_never_starts_it_and_costs_it_next_to_nothing(
    waited: float, size: int
) -> None:
    driver = Driver()
    rested = 0
    for _ in range(10 * REST):
        rested += driver.spin.resting > 0
        driver.receive(waited, size)
        assert not driver.spin.seconds
    assert rested >= 10 * REST * 0.98


def test_one_long_wait_in_each_streak_keeps_it_off() -> None:
    driver = Driver()
    for _ in range(50):
        for _ in range(STREAK - 1):
            driver.receive()
        driver.spin.resting = 0
        driver.receive(LONG)
        driver.spin.resting = 0
    assert not driver.spin.seconds


def test_it_stays_on_while_it_finds_data_and_never_waits_for_a_core() -> None:
    driver = Driver()
    driver.until_on()
    for _ in range(100_000):
        driver.receive()
        assert driver.spin.seconds


@pytest.mark.parametrize(("delayed", "windows"), [(1.0, 3), (0.5, 4), (0.3, 6)])
def test_it_goes_off_within_a_few_windows_of_waiting_for_a_core(
    delayed: float, windows: int
) -> None:
    driver = Driver()
    driver.until_on()
    for _ in range(10_000):
        driver.receive()
    assert driver.until_off(delayed=delayed) <= windows * WINDOW_SECONDS + 3 * SHORT


def test_a_process_that_comes_and_goes_does_not_end_it() -> None:
    driver = Driver()
    driver.until_on()
    for _ in range(100):
        for _ in range(int(0.8 * MOST_DEBT / SHORT)):
            driver.receive(delayed=1.0)
        for _ in range(int(MOST_DEBT / USUAL_DELAY / SHORT)):
            driver.receive()
        assert driver.spin.seconds


def test_a_trial_on_a_busy_machine_is_short_and_the_next_ones_are_ever_rarer() -> None:
    driver = Driver()
    pauses = []
    for _ in range(8):
        pauses.append(driver.until_on(delayed=0.5))
        assert driver.until_off(delayed=0.5) <= SETTLING_SECONDS + 3 * WINDOW_SECONDS + 5 * SHORT
    expected = [min(MOST_PAUSE, FIRST_PAUSE * PAUSE_GROWTH**n) for n in range(7)]
    slack = 2 * (REST + STREAK) * (SHORT + WAKE)
    assert all(
        pause <= seen <= pause + slack for pause, seen in zip(expected, pauses[1:], strict=True)
    )


def test_it_comes_back_when_the_machine_is_idle_again_and_has_earned_a_short_pause_by_then() -> (
    None
):
    driver = Driver()
    for _ in range(6):
        driver.until_on(delayed=0.5)
        driver.until_off(delayed=0.5)
    driver.until_on()
    end = driver.now + PROVEN_SECONDS
    while driver.now < end:
        driver.receive()
    assert driver.spin.seconds
    driver.until_off(delayed=0.5)
    assert driver.until_on() < 2 * FIRST_PAUSE


def test_the_waits_of_the_first_moments_are_no_evidence() -> None:
    driver = Driver()
    driver.until_on()
    end = driver.now + SETTLING_SECONDS - 2 * SHORT
    while driver.now < end:
        driver.receive(delayed=0.9)
    for _ in range(1000):
        driver.receive()
    assert driver.spin.seconds


def test_the_kernel_moves_the_two_apart_again_after_a_time_without_traffic() -> None:
    driver = Driver()
    driver.until_on()
    for _ in range(5):
        for _ in range(1000):
            driver.receive()
        driver.receive(1.0, hit=False)
        end = driver.now + SETTLING_SECONDS - 2 * SHORT
        while driver.now < end:
            driver.receive(delayed=0.9)
        assert driver.spin.seconds


@pytest.mark.parametrize("slice_", [0.002, 0.02, 0.2])
def test_a_machine_so_busy_that_the_measurements_come_late_ends_it_all_the_same(
    slice_: float,
) -> None:
    driver = Driver()
    driver.until_on()
    for _ in range(20):
        driver.receive(slice_, delayed=0.9)
    assert not driver.spin.seconds


def test_it_goes_off_after_misses() -> None:
    driver = Driver()
    driver.until_on()
    misses = 0
    while driver.spin.seconds:
        driver.receive(LONG, hit=False)
        misses += 1
    assert misses == CREDIT // MISS + 1


def test_single_misses_among_many_hits_are_forgiven() -> None:
    driver = Driver()
    driver.until_on()
    for _ in range(1000):
        driver.receive(LONG, hit=False)
        for _ in range(MISS + 1):
            driver.receive()
        assert driver.spin.seconds


def test_large_receives_while_it_is_on_end_it_even_though_it_found_them() -> None:
    driver = Driver()
    driver.until_on()
    for _ in range(CREDIT // MISS + 1):
        driver.receive(size=SMALL_RECEIVE + 1)
    assert not driver.spin.seconds


@pytest.mark.parametrize("wake", [30e-6, 120e-6, 400e-6])
def test_it_stays_on_where_it_saves_much_of_a_wait_however_slowly_the_kernel_wakes_a_core(
    wake: float,
) -> None:
    driver = Driver(wake=wake)
    while not driver.spin.seconds:
        driver.receive(wake)
    for _ in range(10_000):
        driver.receive(wake)
        assert driver.spin.seconds


@pytest.mark.parametrize("waited", [SHORT, 400e-6])
def test_a_trial_that_saves_too_little_ends_soon_and_the_next_ones_are_ever_rarer(
    waited: float,
) -> None:
    driver = Driver(wake=LEAST_GAIN / 2 * waited)
    on = 0.0
    for _ in range(6):
        while not driver.spin.seconds:
            driver.receive(waited)
        began = driver.now
        while driver.spin.seconds:
            driver.receive(waited)
        on += driver.now - began
        assert driver.now - began <= SETTLING_SECONDS + (STREAK + 2) * waited
    assert on < 0.01 * driver.now


def test_it_goes_off_when_waits_grow_so_long_that_it_saves_too_little_of_them() -> None:
    driver = Driver(wake=40e-6)
    driver.until_on()
    for _ in range(1000):
        driver.receive(SHORT)
    assert driver.spin.seconds
    for _ in range(100):
        driver.receive(2 * driver.wake / LEAST_GAIN)
    assert not driver.spin.seconds


@pytest.mark.parametrize("stalls", [1, 3])
def test_a_thread_that_did_not_run_for_a_while_says_nothing_of_the_peer(stalls: int) -> None:
    """A virtual machine stands still for milliseconds now and then."""
    driver = Driver(wake=40e-6)
    driver.until_on()
    for _ in range(20):
        for _ in range(1000):
            driver.receive()
        for _ in range(stalls):
            driver.receive(2 * MOST_SECONDS)
        assert driver.spin.seconds


def test_a_stall_in_a_trial_does_not_end_it() -> None:
    driver = Driver()
    driver.until_on()
    while driver.now - driver.spin._began < SETTLING_SECONDS:
        driver.receive()
    driver.receive(5 * MOST_SECONDS)
    for _ in range(10 * STREAK):
        driver.receive()
        assert driver.spin.seconds


def test_it_looks_again_and_again_after_turns_that_no_other_task_has_used() -> None:
    spin, quickest = Spin(), 4e-6
    # One turn alone says nothing yet.
    assert spin.on_turn(quickest) == 0.0
    looked = spin.on_turn(quickest)
    assert quickest < looked <= 10 * quickest
    assert spin.on_turn(2 * quickest) == looked
    assert spin.on_turn(10 * quickest) == 0.0
    # A machine that has become faster.
    spin.on_turn(quickest / 2)
    assert spin.on_turn(quickest / 2) == looked / 2


def test_it_looks_once_a_turn_beside_a_task_that_is_always_busy() -> None:
    """Which has no step between its own where it comes last in one pass of the loop and first in
    the next: trio turns the order around for half of the passes.
    """
    draw = random.Random(1)
    for step in (8e-6, 20e-6, 500e-6):
        spin, first, looks = Spin(), True, []
        for _ in range(1000):
            was_first, first = first, draw.random() < 0.5
            steps = 1 + was_first - first
            looks.append(spin.on_turn(2.5e-6 + steps * step))
        # The quickest turn of all is known after a few, and no look is long before that.
        assert max(looks) <= MOST_LOOKING
        assert not any(looks[20:])


def test_each_trial_finds_out_anew_how_quick_a_turn_is() -> None:
    driver = Driver()
    driver.until_on()
    driver.spin.on_turn(1e-6)
    for _ in range(2):
        assert driver.spin.on_turn(8e-6) == 0.0
    driver.until_off(delayed=0.9)
    driver.until_on()
    assert driver.spin.on_turn(8e-6) > 0.0


def test_it_spins_for_less_when_the_other_end_answers_faster() -> None:
    driver = Driver()
    while not driver.spin.seconds:
        driver.receive(4 * SHORT)
    for _ in range(100):
        driver.receive(4 * SHORT)
    slow = driver.spin.seconds
    for _ in range(100):
        driver.receive(LEAST_SECONDS / 2)
    assert LEAST_SECONDS <= driver.spin.seconds < slow / 2


receives = st.tuples(st.floats(0, 0.05), st.integers(0, 65536), st.booleans(), st.floats(0, 1))


@given(st.lists(st.one_of(receives, st.just((SHORT, 20, True, 0.0))), max_size=400))
def test_whatever_happens_a_spin_is_bounded_and_its_pauses_are_too(
    story: list[tuple[float, int, bool, float]],
) -> None:
    driver = Driver()
    for waited, size, hit, delayed in story:
        driver.receive(waited, size, hit=hit, delayed=delayed)
        seconds = driver.spin.seconds
        assert seconds == 0.0 or LEAST_SECONDS <= seconds <= MOST_SECONDS
        assert 0 <= driver.spin.resting <= REST
    if driver.spin.seconds:
        driver.until_off(delayed=1.0)
    # A silence, after which no pause is left.
    driver.receive(MOST_PAUSE)
    assert driver.until_on() <= 2 * (REST + STREAK) * (SHORT + WAKE)


@given(st.integers(0, 400))
def test_it_has_a_time_for_the_next_look_at_the_core_as_long_as_it_is_on(count: int) -> None:
    driver = Driver()
    driver.until_on()
    for _ in range(count):
        driver.receive()
        assert driver.now < driver.spin.due <= driver.now + SETTLING_SECONDS + WINDOW_SECONDS


# Connections over real sockets. Whether the spin is on is set by the test: how fast this machine is
# must not matter.


ENDLESS = 1 << 40

Connect = Callable[[Spinner | None], tuple[SocketConnection, socket.socket]]


@attrs.define
class Ends:
    """A connection that may spin, the socket at its other end, and what it shares with the other
    connections of its network.
    """

    connection: SocketConnection
    peer: socket.socket
    spinner: Spinner

    def spin(self) -> None:
        """Let the next receive spin."""
        self.connection._spin.resting = 0
        self.connection._spin.seconds = 1e9
        self.connection._spin.due = float("inf")
        # What the last poll has found would be reported first, and end it.
        self.connection._found = 0

    async def receive_in(self, nursery: trio.Nursery, received: list[object]) -> None:
        """Receive in a task, which is in the middle of its spin when this returns; what comes of it
        goes to `received`.
        """

        async def receive() -> None:
            try:
                received.append(await self.connection.receive())
            except (OSError, trio.ClosedResourceError) as error:
                received.append(error)

        self.spin()
        nursery.start_soon(receive)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        assert self.spinner.current
        assert not received


@pytest.fixture
def connected() -> Iterator[Connect]:
    """Makes a connection and the socket at its other end; both are closed after the test."""
    opened: list[socket.socket] = []

    def connect(spinner: Spinner | None) -> tuple[SocketConnection, socket.socket]:
        ours, theirs = socket.socketpair()
        connection = SocketConnection(ours, spinner)
        opened.extend((ours, theirs))
        return connection, theirs

    yield connect
    for end in opened:
        end.close()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, connected: Connect) -> Ends:
    monkeypatch.setattr("runtime.links.spinner.MOST_ROUNDS", ENDLESS)
    spinner = Spinner(lambda: 0.0)
    return Ends(*connected(spinner), spinner)


async def test_what_arrives_during_a_spin_is_delivered_once(ends: Ends) -> None:
    async with trio.open_nursery() as nursery:
        received: list[object] = []
        await ends.receive_in(nursery, received)
        ends.peer.send(b"first")
    assert received == [b"first"]
    ends.peer.send(b"second")
    ends.spin()
    assert await ends.connection.receive() == b"second"
    assert not ends.spinner.current


async def test_the_end_of_the_peer_during_a_spin_is_seen(ends: Ends) -> None:
    async with trio.open_nursery() as nursery:
        received: list[object] = []
        await ends.receive_in(nursery, received)
        ends.peer.close()
    assert received == [b""]


async def test_closing_during_a_spin_wakes_the_receive(ends: Ends) -> None:
    async with trio.open_nursery() as nursery:
        received: list[object] = []
        await ends.receive_in(nursery, received)
        ends.connection.close()
    assert [type(found) for found in received] == [trio.ClosedResourceError]
    assert not ends.spinner.current


async def test_cancelling_during_a_spin_loses_nothing(ends: Ends) -> None:
    for number in range(50):
        async with trio.open_nursery() as nursery:
            received: list[object] = []
            await ends.receive_in(nursery, received)
            # Data and cancellation in one pass of the scheduler: whichever is seen first, the data
            # is delivered exactly once.
            ends.peer.send(b"%d" % number)
            nursery.cancel_scope.cancel()
        assert not ends.spinner.current
        if not received:
            received.append(await ends.connection.receive())
        assert received == [b"%d" % number]


async def test_other_tasks_have_their_turn_while_one_spins(ends: Ends) -> None:
    async with trio.open_nursery() as nursery:
        received: list[object] = []
        await ends.receive_in(nursery, received)
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
        assert ends.spinner.current
        ends.peer.send(b"at last")
    assert received == [b"at last"]


async def test_a_spin_that_finds_nothing_in_its_rounds_sleeps_and_still_delivers(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.links.spinner.MOST_ROUNDS", 10)
    turns = 0
    turn = ends.connection._turn

    async def counting() -> None:
        nonlocal turns
        turns += 1
        await turn()

    ends.connection._turn = counting
    async with trio.open_nursery() as nursery:
        received: list[object] = []
        ends.spin()

        async def receive() -> None:
            received.append(await ends.connection.receive())

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        assert turns == 10
        assert not ends.spinner.current
        ends.peer.send(b"later")
    assert received == [b"later"]


async def test_only_one_connection_of_a_network_spins_at_a_time(
    ends: Ends, connected: Connect
) -> None:
    other = Ends(*connected(ends.spinner), ends.spinner)
    async with trio.open_nursery() as nursery:
        received: list[object] = []
        await ends.receive_in(nursery, received)
        other.spin()
        other.peer.send(b"for the one that sleeps")
        assert await other.connection.receive() == b"for the one that sleeps"
        assert ends.spinner.current
        ends.peer.send(b"for the one that spins")
    assert received == [b"for the one that spins"]


async def test_without_a_spinner_nothing_is_measured(connected: Connect) -> None:
    connection, theirs = connected(None)
    before = connection._spin.resting
    for _ in range(3 * STREAK):
        theirs.send(b"data")
        assert await connection.receive() == b"data"
    assert not connection._spin.seconds
    assert connection._spin.resting == before


def test_a_way_to_spin_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match="'sometimes' is not a spin mode; choose one of auto, on, off"
    ):
        SocketNetwork(spin="sometimes")


def test_a_network_spins_only_if_asked_and_with_two_cores_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert SocketNetwork().spinner is None
    for cores, spins in [(1.0, False), (1.5, False), (2.0, True), (64.0, True)]:
        monkeypatch.setattr("runtime.links.transports.usable_cores", lambda cores=cores: cores)
        assert (SocketNetwork(spin="auto").spinner is not None) == spins
        assert SocketNetwork(spin="on").spinner is not None
        assert SocketNetwork(spin="off").spinner is None
    monkeypatch.setattr("runtime.links.transports.run_delay", lambda: None)
    assert SocketNetwork(spin="on").spinner is None


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8.0),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/cpu.max": "50000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            },
            0.5,
        ),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "max 100000"}, 8.0),
        ({"proc/self/cgroup": "0::/../../x", "sys/fs/cgroup/cpu.max": "300000 100000"}, 3.0),
        (
            {
                "proc/self/cgroup": "4:memory:/m\n1:cpu,cpuacct:/p\n0::/",
                "sys/fs/cgroup/cpu/p/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/p/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            8.0,
        ),
        ({"proc/self/cgroup": "nonsense", "sys/fs/cgroup/cpu.max": "rubbish"}, 8.0),
    ],
)
def test_a_quota_of_the_control_group_or_of_one_above_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: float
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cores(written(tmp_path, files)) == expected


def test_the_kernel_says_how_long_a_thread_waited_for_a_core_or_it_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = run_delay()
    assert here is None or here() >= 0.0
    monkeypatch.setattr(
        "runtime.links.cores.DELAY_FILE",
        str(written(tmp_path, {"schedstat": "5 2500000000 7\n"}) / "schedstat"),
    )
    told = run_delay()
    assert told is not None
    assert told() == 2.5
    monkeypatch.setattr(
        "runtime.links.cores.DELAY_FILE", str(written(tmp_path, {"empty": ""}) / "empty")
    )
    assert run_delay() is None
    monkeypatch.setattr("runtime.links.cores.DELAY_FILE", str(tmp_path / "missing"))
    assert run_delay() is None
    # A connection that asks while it receives must not break.
    with out_of_descriptors():
        assert told() == 2.5


class OrderedSpin(Spin):
    """A spin that is on when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.next = 1e9
        self.due = float("inf")

    def on_slept(self, now: float, waited: float, size: int) -> None:
        self.seconds = self.next

    on_hit = on_slept


async def test_the_connections_that_spin_are_counted(ends: Ends) -> None:
    spin = ends.connection._spin = OrderedSpin()
    for after in (1e9, 1e9, 0.0, 0.0, 1e9):
        spin.next = after
        ends.peer.send(b"data")
        assert await ends.connection.receive() == b"data"
        assert ends.spinner.on == (after > 0)
    ends.connection.close()
    ends.connection.close()
    assert ends.spinner.on == 0
