"""A process that owns values: `python -m tests.shared_memory.owner_process [KEPT]`.

It reads commands from its input, one a line, and answers each with a line of JSON: `keep SIZE BYTE`
makes a value of that byte and says where it lies, `fill NUMBER BYTE` overwrites one, `drop NUMBER`
lets one go, `resident DESCRIPTOR` says how much memory an arena has, `close` closes the pool.
"""

from __future__ import annotations

import json
import os
import sys

import attrs

from runtime.environment import SystemEnvironment
from runtime.shared_memory.pool import Block, MemoryPool


def main(kept: int) -> None:
    """Obey until the input ends."""
    pool = MemoryPool(SystemEnvironment(), 2**30, kept)
    blocks: dict[int, Block] = {}
    for line in sys.stdin:
        word, *numbers = line.split()
        first, second = (*map(int, numbers), 0, 0)[:2]
        answer: object = None
        if word == "keep":
            block = pool.take(first)
            assert block is not None
            block.memory[:] = bytes([second]) * first
            blocks[len(blocks)] = block
            answer = {**attrs.asdict(block.place), "key": block.place.key.hex()}
            del block
        elif word == "fill":
            memory = blocks[first].memory
            memory[:] = bytes([second]) * memory.nbytes
            del memory
        elif word == "drop":
            del blocks[first]
            pool.tidy()
        elif word == "resident":
            answer = os.stat(f"/proc/self/fd/{first}").st_blocks * 512
        elif word == "close":
            pool.close()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2**28)
