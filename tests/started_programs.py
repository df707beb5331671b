"""Programs that tests in trio start: the first line that one prints says that it is there."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

SECONDS = 60.0
"""How long a program may take until it is there."""


@asynccontextmanager
async def started(
    command: Sequence[str], **options: Any
) -> AsyncIterator[tuple[trio.Process, str]]:
    """Start a program; gives its process and the first line that it prints, and kills it at the end
    of the block. Raises AssertionError if it ends before that line.
    """
    process = await trio.lowlevel.open_process([*command], stdout=subprocess.PIPE, **options)
    assert process.stdout is not None
    try:
        line = b""
        with trio.fail_after(SECONDS):
            while not line.endswith(b"\n"):
                piece = await process.stdout.receive_some()
                assert piece, f"{' '.join(command)} has ended"
                line += piece
        yield process, line.decode()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()
