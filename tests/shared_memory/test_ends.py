"""That an end is told once nothing can reach the object any more, and not before."""

from __future__ import annotations

import gc
import threading

from runtime.shared_memory.pool import FinalizerQueue


class Keeper:
    """What is given a token."""

    def __init__(self, ends: FinalizerQueue[str], name: str) -> None:
        self.token = ends.token(name)


class Saver:
    """In a ring with a keeper, which its finalizer saves."""

    def __init__(self, keeper: Keeper, saved: list[Keeper]) -> None:
        self.ring = self
        self.keeper = keeper
        self.saved = saved

    def __del__(self) -> None:
        self.saved.append(self.keeper)


def test_an_end_is_reported_once() -> None:
    ends: FinalizerQueue[str] = FinalizerQueue()
    keeper = Keeper(ends, "first")
    assert ends.gone() == []
    del keeper
    assert ends.gone() == ["first"]
    assert ends.gone() == []


def test_a_ring_of_garbage_ends_when_it_is_collected() -> None:
    ends: FinalizerQueue[str] = FinalizerQueue()
    ring: list[object] = [Keeper(ends, "ring")]
    ring.append(ring)
    del ring
    gc.collect()
    assert ends.gone() == ["ring"]


def test_what_a_finalizer_saves_has_not_ended() -> None:
    ends: FinalizerQueue[str] = FinalizerQueue()
    saved: list[Keeper] = []
    Saver(Keeper(ends, "saved"), saved)
    gc.collect()
    assert len(saved) == 1
    assert ends.gone() == []
    gc.collect()
    assert ends.gone() == []
    saved.clear()
    assert ends.gone() == ["saved"]


def test_ends_in_other_threads_are_reported() -> None:
    ends: FinalizerQueue[str] = FinalizerQueue()
    keepers = [Keeper(ends, str(number)) for number in range(100)]

    def let_go() -> None:
        while keepers:
            keepers.pop()

    threads = [threading.Thread(target=let_go) for _ in range(1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends.gone(), key=int) == [str(number) for number in range(100)]


def test_a_token_outlives_its_queue() -> None:
    ends: FinalizerQueue[str] = FinalizerQueue()
    keeper = Keeper(ends, "late")
    del ends
    gc.collect()
    del keeper
    gc.collect()
