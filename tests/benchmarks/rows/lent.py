"""An array that another process of the host reads where it lies: what the memory of references
does, without its protocol.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy
import trio

from runtime.environment import SystemEnvironment
from runtime.shared_memory.pool import MemoryPool
from tests.benchmarks.measuring import MEBIBYTE, Row, Settings, Work, at_least, in_turn

GIBIBYTE = 1024 * MEBIBYTE
Ask = Callable[[Sequence[object]], float]
Once = Callable[[bool], None]


async def measure(settings: Settings) -> list[Row]:
    """From the owner's own array, copied into a block that is used again, to the answer of who has
    read it. In threads: pipes block.
    """
    size = settings.size(8) * MEBIBYTE
    with ExitStack() as stack:
        array = numpy.arange(size / 8)
        lent, bare = stack.enter_context(_lent(array)), stack.enter_context(_bare(array))
        target = memoryview(bytearray(size))

        def copy(_: bool) -> None:
            target[:] = array.data.cast("B")

        def work(once: Once, pages: bool) -> Work:
            async def rate() -> float:
                return await trio.to_thread.run_sync(
                    lambda: _rate(once, pages, size, settings.seconds)
                )

            return rate

        touched, touched_bare, summed, summed_bare, copied = await in_turn(
            settings.rounds,
            work(lent, True),
            work(bare, True),
            work(lent, False),
            work(bare, False),
            work(copy, True),
        )
    name = f"array of {size // MEBIBYTE} MiB read in place"
    against = "a bare memfd, mapped once"
    return [
        at_least(Row(f"{name}, each page", "GiB/s", touched, touched_bare, against), value=8),
        Row(f"{name}, summed", "GiB/s", summed, summed_bare, against),
        Row("the same beside memcpy", "GiB/s", touched, copied, "a copy alone"),
    ]


def _rate(once: Once, pages: bool, size: int, seconds: float) -> float:
    """GiB per second."""
    once(pages)
    began, count = time.perf_counter(), 0
    while not count or time.perf_counter() - began < seconds:
        once(pages)
        count += 1
    return count * size / GIBIBYTE / (time.perf_counter() - began)


@contextmanager
def _lent(array: numpy.ndarray) -> Iterator[Once]:
    pool = MemoryPool(SystemEnvironment(), GIBIBYTE)
    source = array.data.cast("B")

    with _reader("lent", source.nbytes) as ask:

        def once(pages: bool) -> None:
            block = pool.take(source.nbytes)
            assert block is not None
            block.memory[:] = source
            place = block.place
            _check(
                array,
                pages,
                ask([pages, place.process, place.descriptor, place.key.hex(), place.offset]),
            )

        yield once
    pool.close()


@contextmanager
def _bare(array: numpy.ndarray) -> Iterator[Once]:
    source = array.data.cast("B")
    descriptor = os.memfd_create("floor")
    try:
        os.ftruncate(descriptor, source.nbytes)
        memory = memoryview(mmap.mmap(descriptor, source.nbytes))
        with _reader("bare", source.nbytes, descriptor) as ask:

            def once(pages: bool) -> None:
                memory[:] = source
                _check(array, pages, ask([pages]))

            yield once
    finally:
        os.close(descriptor)


def _check(array: numpy.ndarray, pages: bool, found: float) -> None:
    """That it was the array, and all of it: its numbers are 0, 1, 2 and so on."""
    step = mmap.PAGESIZE // 8 if pages else 1
    last = (len(array) - 1) // step * step
    assert found == (last // step + 1) * last / 2


@contextmanager
def _reader(kind: str, size: int, *descriptors: int) -> Iterator[Ask]:
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.array_reader",
        kind,
        str(size),
        *map(str, descriptors),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=descriptors
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def ask(what: Sequence[object]) -> float:
            questions.write(json.dumps(what).encode() + b"\n")
            questions.flush()
            return float(answers.readline())

        yield ask
