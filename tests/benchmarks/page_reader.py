"""Open pages of a dashboard: each reads a stream of events, as a browser does, and shows nothing.

`python -m tests.benchmarks.page_reader HOST:PORT TOKEN TOPIC...` opens one page for each topic,
which shows the cluster as well, when it reads `open`, and answers when all have read what they show
first. It closes them when it reads `close`.
"""

from __future__ import annotations

import sys
from functools import partial

import trio


async def stay_open(
    host: str, token: str, topic: str, *, task_status: trio.TaskStatus[None]
) -> None:
    """One page, until it is cancelled. It has started when each of its topics has come."""
    request = (
        f"GET /api/events?topic=cluster&topic={topic} HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {token}\r\n\r\n"
    )
    name, _, port = host.rpartition(":")
    missing = {f'"topic":"{one}"'.encode() for one in ("cluster", topic)}
    seen = b""
    async with await trio.open_tcp_stream(name, int(port)) as stream:
        await stream.send_all(request.encode())
        while part := await stream.receive_some(65536):
            if not missing:
                continue
            seen += part
            assert seen.startswith(b"HTTP/1.1 200 "), seen
            missing = {one for one in missing if one not in seen}
            if not missing:
                task_status.started()
        raise EOFError("the dashboard has closed a page")


async def main(host: str, token: str, *topics: str) -> None:
    """Do what the lines of the input say."""
    while await line_of_input() == "open\n":
        async with trio.open_nursery() as pages:
            async with trio.open_nursery() as opening:
                for topic in topics:
                    opening.start_soon(pages.start, stay_open, host, token, topic)
            print("open", flush=True)
            await line_of_input()
            pages.cancel_scope.cancel()
        print("closed", flush=True)


async def line_of_input() -> str:
    """The next one; empty at the end."""
    return await trio.to_thread.run_sync(sys.stdin.readline)


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
