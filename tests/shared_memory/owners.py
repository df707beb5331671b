"""Processes whose memory is read, and processes that read it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.shared_memory.pool import SharedMemoryLocation

ROOT = Path(__file__).resolve().parents[2]


class Owner:
    """An `owner_process`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def say(self, *words: object) -> Any:
        """A command, and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def keep(self, size: int, byte: int) -> SharedMemoryLocation:
        """A value of the one byte; where it lies."""
        answer = self.say("keep", size, byte)
        return SharedMemoryLocation(**{**answer, "key": bytes.fromhex(answer["key"])})

    def kill(self) -> None:
        """As with kill -9; it is gone afterwards."""
        self._process.kill()
        self._process.wait()


@contextmanager
def open_owner(*arguments: object) -> Iterator[Owner]:
    """An owner, until the block ends."""
    command = [sys.executable, "-m", "tests.shared_memory.owner_process", *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Owner(process)
        finally:
            process.kill()


def read_elsewhere(
    place: SharedMemoryLocation, script: str, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """A process that maps a place and runs a script, which finds the error or the view as `found`.
    `before`: words before its command.
    """
    code = (
        "from runtime.shared_memory.mappings import MappedArenas, NotLendableError\n"
        "from runtime.shared_memory.pool import SharedMemoryLocation\n"
        f"try: found = MappedArenas().lend({place!r}, None)\n"
        f"except NotLendableError as error: found = error\n{script}"
    )
    return subprocess.run(
        [*before, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
