"""How long programs take to start: one with a local cluster, and the command, each in a new
interpreter.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from subprocess import PIPE

import trio

from tests.benchmarks.measuring import Row, Settings, at_most, in_turn

NODES = 4
BARE = "import trio, attrs, cbor2"


async def measure(settings: Settings) -> list[Row]:
    """A cluster until all of its nodes are ready, from its opening and from the start of the
    program; and the command, beside interpreters that only import.
    """
    nodes = 1 if settings.short else NODES
    program = ("-m", "tests.benchmarks.opened_cluster", str(nodes))

    async def opened() -> float:
        return 1000 * float((await _output(*program))[0])

    async def ready() -> float:
        return (await _output(*program))[1]

    async def taken(*arguments: str) -> float:
        return (await _output(*arguments))[1]

    opening, program_ready, version, bare, click = await in_turn(
        settings.rounds,
        opened,
        ready,
        partial(taken, "-m", "runtime.command_line", "--version"),
        partial(taken, "-c", BARE),
        partial(taken, "-c", "import click"),
    )
    imports = "an interpreter that imports trio, attrs and cbor2"
    return [
        at_most(
            Row(f"local cluster of {nodes}, from its opening", "ms", opening, bare, imports), 200
        ),
        Row(
            f"local cluster of {nodes}, from program start",
            "ms",
            program_ready,
            bare,
            imports,
        ),
        Row("understudy --version", "ms", version, click, "an interpreter that imports click"),
    ]


async def _output(*arguments: str) -> tuple[str, float]:
    """What an interpreter prints first, and the milliseconds from its start until then, or to its
    end if it prints nothing. Waits for its end in any case.
    """
    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(trio.run_process, [sys.executable, *arguments], stdout=PIPE)
        )
        first = await process.stdout.receive_some()
        took = 1000 * (time.perf_counter() - began)
    return first.decode(), took
