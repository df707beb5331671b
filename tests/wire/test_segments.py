"""Received segments become bytes or writable memory without a copy, and never something that
changes under its owner.
"""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest

from runtime.wire.frames import HUGE_SIZE, ReceivedSegment, writable


@pytest.mark.parametrize("size", [0, 1, 1_000, HUGE_SIZE - 1, HUGE_SIZE, HUGE_SIZE + 4_097])
def test_what_was_written_comes_out_as_bytes_or_as_memory(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    for cut in (0, size // 3, size):
        segment = ReceivedSegment(size)
        assert len(segment) == size
        for start, stop in ((0, cut), (cut, size)):
            with segment.view(start, stop) as view:
                view[:] = data[start:stop]
        assert bytes(segment) == data[:size]
        assert bytes(segment) is bytes(segment)
        assert segment.writable() == data[:size]


def test_bytes_that_were_taken_out_never_change() -> None:
    segment = ReceivedSegment(1_000)
    taken = bytes(segment)
    segment.writable()[0] = 1
    assert taken == bytes(1_000)
    other = ReceivedSegment(1_000)
    memory = other.writable()
    taken = bytes(other)
    memory[0] = 1
    assert taken == bytes(1_000)


def test_memory_in_a_cycle_of_objects_is_freed_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    for _ in range(100):
        for data in (ReceivedSegment(1_000).writable(), ReceivedSegment(1_000).view(10, 20)):
            holder = SimpleNamespace(data=data)
            holder.itself = holder
            del holder, data
        gc.collect()
    assert printed == []


def test_memory_for_a_segment_is_not_taken_before_bytes_arrive() -> None:
    if sys.platform != "linux":
        pytest.skip("the size of a process is read from Linux's /proc")

    def resident() -> int:
        with open("/proc/self/statm") as pages:
            return int(pages.read().split()[1]) * 4096

    before = resident()
    segments = [ReceivedSegment(200 * 1024 * 1024) for _ in range(5)]
    with segments[0].view(0, 10) as view:
        view[:] = b"0123456789"
    assert resident() - before < 50 * 1024 * 1024


def test_writable_memory_of_each_kind_of_segment() -> None:
    array = bytearray(b"abc")
    assert writable(array) is array
    view = memoryview(array)
    assert writable(view) is view
    for frozen in (b"abc", memoryview(b"abc")):
        got = writable(frozen)
        got[0] = 0
        assert bytes(frozen) == b"abc"
