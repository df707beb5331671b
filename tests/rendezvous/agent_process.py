"""One agent in a process of its own: it takes part in every round, and prints what it is told as
lines of JSON.

`python -m tests.rendezvous.agent_process BACKEND ENDPOINT JOB MIN MAX OPTIONS`
"""

from __future__ import annotations

import json
import sys

import trio

from runtime.rendezvous.interface import RendezvousHandler, RendezvousInfo
from runtime.rendezvous.parameters import RendezvousError, RendezvousParameters, RoundOverError
from runtime.rendezvous.registry import create_handler


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201


async def work(handler: RendezvousHandler) -> None:
    """Round after round, until the rendezvous is closed."""
    while True:
        info = await handler.next_rendezvous()
        say(
            kind="round",
            round=info.round,
            rank=info.rank,
            world=info.world_size,
            participants=info.participants,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(meet, info)
            # Whatever it is, the next round is for it.
            await handler.wait_change(info.round)
            nursery.cancel_scope.cancel()
        say(kind="over", round=info.round)


async def meet(info: RendezvousInfo) -> None:
    """One of them may lead; all of them meet, unless one dies on the way."""
    try:
        if info.rank == 0:
            say(
                kind="leader",
                round=info.round,
                won=(await info.store.compare_set("leader", None, b"%d" % info.rank))[0],
            )
        await info.store.barrier("all are here", info.world_size, timeout=60)
        say(kind="met", round=info.round)
    except RoundOverError:
        pass


async def main(backend: str, endpoint: str, job: str, least: str, most: str, options: str) -> None:
    """The process."""
    parameters = RendezvousParameters(
        backend, endpoint, job, int(least), int(most), **json.loads(options)
    )
    try:
        async with create_handler(parameters) as handler:
            await work(handler)
    except RendezvousError as error:
        say(kind="error", type=type(error).__name__, text=str(error))


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])  # type: ignore[arg-type]
