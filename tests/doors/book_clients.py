"""Programs that add to the counter of the test of the book, each at another door, and write down
the outcome of each call: `python -m tests.doors.book_clients DOOR WHERE COUNTER BOOK LAST`.

`LAST` is the key of the last call, in the middle of which the program is killed. `serve` is a
FastAPI application, for `http`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from actors.errors import NotExecutedError, OutcomeUnknownError
from runtime import aio, blocking
from tests.doors.book_actors import BookCounter

CALLS = 50


class Book:
    """What became of each call, one line for each step."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._path = Path(path)

    @contextmanager
    def call(self, key: str) -> Iterator[None]:
        """Write down that it begins, and how it ends."""
        self._write("begun", key)
        try:
            yield
        except NotExecutedError:
            self._write("not executed", key)
        except OutcomeUnknownError:
            self._write("unknown", key)
        else:
            self._write("value", key)

    def _write(self, what: str, key: str) -> None:
        # One write, so that a kill leaves whole lines.
        with self._path.open("ab", buffering=0) as file:
            file.write(f"{key} {what}\n".encode())


def keys(door: str, last: str) -> list[str]:
    """The keys of one client."""
    return [*(f"{door}-{number}" for number in range(CALLS)), last]


def use_blocking(door: str, where: str, name: str, book: Book, last: str) -> None:
    """A script."""
    with blocking.connect(where) as cluster:
        counter = cluster.lookup(name, BookCounter)
        for key in keys(door, last):
            with book.call(key):
                counter.add(key)


def use_threads(door: str, where: str, name: str, book: Book, last: str) -> None:
    """A script whose calls are under way at once."""
    with blocking.connect(where) as cluster:
        counter = cluster.lookup(name, BookCounter)
        futures = {key: counter.add.future(key) for key in keys(door, last)}
        for key, future in futures.items():
            with book.call(key):
                future.result()


async def use_asyncio(door: str, where: str, name: str, book: Book, last: str) -> None:
    """A program on asyncio, whose calls are under way a few at once."""
    async with aio.connect(where) as cluster:
        counter = await cluster.lookup(name, BookCounter)

        async def add(key: str) -> None:
            with book.call(key):
                await counter.add(key)

        *first, final = keys(door, last)
        for begin in range(0, CALLS, 10):
            await asyncio.gather(*map(add, first[begin : begin + 10]))
        await add(final)


def use_notebook(door: str, where: str, name: str, book: Book, last: str) -> None:
    """A notebook whose one cell is a script. Ends as its kernel does, by the same signal."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    cell = nbformat.v4.new_code_cell(
        "import os\n"
        "from pathlib import Path\n"
        "from tests.doors.book_clients import Book, use_blocking\n"
        f"Path({kernel_file(book.path)!r}).write_text(str(os.getpid()))\n"
        f"use_blocking({door!r}, {where!r}, {name!r}, Book({book.path!r}), {last!r})\n"
    )
    notebook = nbformat.v4.new_notebook(cells=[cell])
    try:
        NotebookClient(notebook, timeout=None).execute()
    except DeadKernelError:
        os.kill(os.getpid(), signal.SIGKILL)


def kernel_file(book: str) -> str:
    """Where the kernel of a notebook writes down its process."""
    return f"{book}.kernel"


def use_http(door: str, where: str, name: str, book: Book, last: str) -> None:
    """curl, which asks a FastAPI application."""
    for key in keys(door, last):
        with book.call(key):
            add_by_curl(f"{where}/{key}")


def use_gateway(door: str, where: str, name: str, book: Book, last: str) -> None:
    """curl, which asks `understudy gateway`."""
    for key in keys(door, last):
        with book.call(key):
            add_by_curl(f"{where}/v1/actors/{name}/add", json.dumps({"key": key}))


def add_by_curl(url: str, body: str = "") -> None:
    """One addition. Raises the outcome that the status says; what breaks off is unknown."""
    options = ("--silent", "--output", os.devnull, "--write-out", "%{http_code}")
    asked = subprocess.run(
        ["curl", *options, "--header", "Content-Type: application/json", "--data", body, url],
        capture_output=True,
        text=True,
        check=False,
    )
    # 000: the connection was refused, or broke off.
    if asked.stdout == "503":
        raise NotExecutedError(url)
    if asked.returncode or asked.stdout != "200":
        raise OutcomeUnknownError(f"{url}: {asked.stdout}, status {asked.returncode}")


def web_application(where: str, name: str) -> Any:
    """A FastAPI application with one route."""
    from fastapi import FastAPI, Request

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with aio.connect(where) as cluster:
            app.state.counter = await cluster.lookup(name, BookCounter)
            yield

    async def add(key: str, request: Request) -> int:
        counter: BookCounter = request.app.state.counter
        return await counter.add(key)

    # The annotations are text, and FastAPI looks for their names in this module.
    add.__annotations__ = {"key": str, "request": Request, "return": int}
    application = FastAPI(lifespan=lifespan)
    application.post("/{key}")(add)
    return application


def serve(where: str, name: str) -> None:
    """Serve it, and print the address."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    # A client that connects before it is ready waits in the queue of the socket.
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    server = uvicorn.Server(uvicorn.Config(web_application(where, name), log_level="warning"))
    server.run(sockets=[listening])


def main() -> None:
    """See above."""
    door, where, name, *rest = sys.argv[1:]
    if door == "serve":
        serve(where, name)
        return
    book, last = Book(rest[0]), rest[1]
    if door == "asyncio":
        asyncio.run(use_asyncio(door, where, name, book, last))
    else:
        {
            "blocking": use_blocking,
            "futures": use_threads,
            "gateway": use_gateway,
            "http": use_http,
            "notebook": use_notebook,
        }[door](door, where, name, book, last)
    os._exit(0)


if __name__ == "__main__":
    main()
