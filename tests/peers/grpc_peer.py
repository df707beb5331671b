"""gRPC: grpc.aio with raw bytes, without protobuf, between two processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

import grpc

from tests.peers import works
from tests.peers.works import IN_FLIGHT, report

SIZES = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


async def _serve(pipe: Connection) -> None:
    async def read(_request: bytes, _context: Any) -> bytes:
        return b"\x10"

    async def echo(request: bytes, _context: Any) -> bytes:
        return request

    async def fail(_request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "as asked")
        raise AssertionError("abort raises")

    async def wait(_request: bytes, _context: Any) -> bytes:
        await asyncio.sleep(1000)
        return b""

    server = grpc.aio.server(options=SIZES)
    methods = {"read": read, "echo": echo, "fail": fail, "wait": wait}
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(port)
    await server.wait_for_termination()


def serve(pipe: Connection) -> None:
    """What the other process does."""
    asyncio.run(_serve(pipe))


async def main(port: int, pid: int) -> None:
    """Do all works that the command line names; it has no actors to start and no map."""
    seconds, names = works.seconds_and_works()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=SIZES) as channel:
        read, echo, fail, wait = (
            channel.unary_unary(f"/bench/{name}") for name in ("read", "echo", "fail", "wait")
        )
        if "sequential" in names:
            report("sequential", await works.asyncio_rate(lambda: read(b"\x10"), seconds))
        if "pipelined" in names:
            report(
                "pipelined", await works.asyncio_crowd(lambda: read(b"\x10"), seconds, IN_FLIGHT)
            )
        for name, size in (("echo-1k", works.KIBIBYTE), ("echo-64k", 64 * works.KIBIBYTE)):
            if name in names:
                data = bytes(size)
                found = await works.asyncio_rate(lambda data=data: echo(data), seconds)  # type: ignore[misc]
                report(name, found if name == "echo-1k" else works.mebibytes(found, size))
        if "raise" in names:

            async def failing() -> None:
                try:
                    await fail(b"")
                except grpc.aio.AioRpcError:
                    return

            report("raise", await works.asyncio_crowd(failing, seconds, 200))
        if "kill" in names:
            waiting = asyncio.ensure_future(wait(b""))
            await asyncio.sleep(0.3)
            began = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            try:
                await waiting
            except grpc.aio.AioRpcError:
                report("kill", 1000 * (time.perf_counter() - began))


if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,))
    process.start()
    try:
        asyncio.run(main(here.recv(), process.pid or 0))
    finally:
        process.kill()
        process.join()
