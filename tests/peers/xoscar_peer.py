"""xoscar: a pool of this process and another one, asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import numpy as np
import xoscar

from tests.peers import works
from tests.peers.works import IN_FLIGHT, report


class Bench(xoscar.StatelessActor):
    """Does as little as possible."""

    async def read(self) -> int:
        return 16

    async def echo(self, data: Any) -> Any:
        return data

    async def fail(self) -> None:
        raise ValueError("as asked")

    async def wait(self) -> None:
        await asyncio.sleep(1000)

    async def pid(self) -> int:
        return os.getpid()


async def _calls(actor: Any, seconds: float, names: set[str]) -> None:
    if "sequential" in names:
        report("sequential", await works.asyncio_rate(actor.read, seconds))
    if "pipelined" in names:
        report("pipelined", await works.asyncio_crowd(actor.read, seconds, IN_FLIGHT))
    for name, size in (("echo-1k", works.KIBIBYTE), ("echo-64k", 64 * works.KIBIBYTE)):
        if name in names:
            data = bytes(size)
            found = await works.asyncio_rate(lambda data=data: actor.echo(data), seconds)  # type: ignore[misc]
            report(name, found if name == "echo-1k" else works.mebibytes(found, size))
    if "echo-array" in names:
        array = np.ones(works.ARRAY_BYTES // 8)
        found = await works.asyncio_rate(lambda: actor.echo(array), seconds)
        report("echo-array", works.mebibytes(found, works.ARRAY_BYTES))
    if "raise" in names:

        async def fail() -> None:
            try:
                await actor.fail()
            except ValueError:
                return

        report("raise", await works.asyncio_crowd(fail, seconds, 200))


async def main() -> None:
    """Do all works that the command line names; it has no map."""
    seconds, names = works.seconds_and_works()
    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=1)
    async with pool:
        there = xoscar.allocate_strategy.ProcessIndex(1)

        async def create(uid: str) -> Any:
            return await xoscar.create_actor(
                Bench, uid=uid, address=pool.external_address, allocate_strategy=there
            )

        actor = await create("bench")
        await actor.read()
        await _calls(actor, seconds, names)
        if "first" in names:
            took = []
            for number in range(50):
                began = time.perf_counter()
                await (await create(f"first-{number}")).read()
                took.append(1000 * (time.perf_counter() - began))
            report("first", sorted(took)[25])
        if "actors" in names:
            began = time.perf_counter()
            made = await asyncio.gather(*[create(f"many-{n}") for n in range(works.ACTORS)])
            await made[-1].read()
            report("actors", works.ACTORS / (time.perf_counter() - began))
        if "kill" in names:
            pid = await actor.pid()
            waiting = asyncio.ensure_future(actor.wait())
            await asyncio.sleep(0.3)
            began = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            try:
                await asyncio.wait_for(waiting, 20)
            except Exception as error:
                if not isinstance(error, asyncio.TimeoutError):
                    report("kill", 1000 * (time.perf_counter() - began))


if __name__ == "__main__":
    asyncio.run(main())
