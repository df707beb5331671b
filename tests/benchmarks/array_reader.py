"""A process that reads arrays from another's memory: `python -m tests.benchmarks.array_reader
lent|bare SIZE [DESCRIPTOR]`.

Each line of its input says where an array of SIZE bytes lies (`bare`: at the start of the
descriptor, which is mapped once), and whether to look at one number of each page or to sum them
all. It prints a line when it has done so.
"""

from __future__ import annotations

import json
import mmap
import sys

import numpy

from runtime.shared_memory.mappings import MappedArenas
from runtime.shared_memory.pool import SharedMemoryLocation

PAGE = mmap.PAGESIZE // 8


def main(kind: str, size: int, descriptor: int = -1) -> None:
    """Read until the input ends."""
    others = MappedArenas()
    memory = (
        memoryview(mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ))
        if kind == "bare"
        else memoryview(b"")
    )
    for line in sys.stdin.buffer:
        step, *where = json.loads(line)
        if kind == "lent":
            process, number, key, offset = where
            memory = others.lend(
                SharedMemoryLocation(process, number, bytes.fromhex(key), offset, size), None
            )
        array = numpy.frombuffer(memory, "float64")
        found = float(array[:: PAGE if step else 1].sum())
        del array
        sys.stdout.write(f"{found}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
