"""What workers print: into files, to the console, or both, by pipes that are read no faster than what is behind them takes it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import IO

import attrs
import trio

from runtime.elastic.settings import ERR, OUT, Settings
from runtime.processes.child import read_available
from runtime.processes.output import LineSplitter

_CHUNK = 64 * 1024
_LINES_WAITING = 256
_DRAIN_CHUNKS = 32

STREAMS = {OUT: "stdout.log", ERR: "stderr.log"}
FILTERED = {OUT: "filtered_stdout.log", ERR: "filtered_stderr.log"}
"""Of all workers of a start together."""


class Console:
    """The agent's own standard output and error. A stopped terminal, or a pipe that nobody reads, holds up workers, not the agent."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[tuple[int, bytes]](_LINES_WAITING)
        self._broken: set[int] = set()
        self._idle = trio.Event()
        self._idle.set()

    async def write(self, stream: int, text: str) -> None:
        """Pass lines on; waits for room."""
        self._idle = trio.Event()
        await self._send.send((stream, text.encode()))

    async def run(self) -> None:
        """Write what comes, in order, until cancelled."""
        while True:
            if not self._receive.statistics().current_buffer_used:
                self._idle.set()
            stream, data = await self._receive.receive()
            if stream not in self._broken:
                await trio.to_thread.run_sync(self._write, stream, data, abandon_on_cancel=True)

    async def drain(self, seconds: float) -> None:
        """Wait until all is written, for so long at most."""
        with trio.move_on_after(seconds):
            await self._idle.wait()

    def _write(self, stream: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(stream, rest) :]
        except OSError:
            # Nobody reads any more, as with `| head`; the files have it all the same.
            self._broken.add(stream)


@attrs.frozen
class Filtered:
    """Where the lines of a stream go that contain one of `texts`, with a prefix: a file that is added to by whole lines."""

    texts: tuple[str, ...]
    file: IO[bytes]

    def keep(self, lines: list[str], prefix: str) -> None:
        """Add those that do."""
        found = "".join(f"{prefix}{line}\n" for line in lines if any(text in line for text in self.texts))
        try:
            if found:
                self.file.write(found.encode())
        except OSError:
            # A full disk costs the log, not the worker.
            pass


class Tee:
    """A stream of one worker: to a file as it comes, to the console in whole lines with a prefix (without if it is `plain`), and to a file
    of what is `filtered`.
    """

    def __init__(
        self,
        descriptor: int,
        file: IO[bytes] | None,
        console: Console | None,
        stream: int,
        prefix: str,
        filtered: Filtered | None = None,
        *,
        plain: bool = False,
    ) -> None:
        self._stream = trio.lowlevel.FdStream(descriptor)
        self._file = file
        self._filtered = filtered
        self._shown_prefix = "" if plain else prefix
        self._console = console
        self._number = stream
        self._prefix = prefix
        self._splitter = LineSplitter()

    async def follow(self) -> None:
        """Until all that hold the other end have closed it."""
        try:
            while data := await self._stream.receive_some(_CHUNK):
                lines = self._keep(data)
                await self._show(lines)
            await self._show(self._split(self._splitter.flush()))
        except trio.ClosedResourceError:
            # Closed by `close`: somebody who got away still holds the other end.
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening. What is in the pipe goes to the file: a console that was too slow costs no log."""
        for _ in range(_DRAIN_CHUNKS):
            data = read_available(self._stream)
            if not data:
                break
            self._keep(data)
        self._split(self._splitter.flush())
        self._stream.close()
        for file in (self._file, self._filtered.file if self._filtered is not None else None):
            if file is not None:
                file.close()

    def _keep(self, data: bytes) -> list[str]:
        """Write it to the files; the whole lines that it ends."""
        try:
            if self._file is not None:
                self._file.write(data)
        except OSError:
            # A full disk costs the log, not the worker.
            pass
        return self._split(self._splitter.feed(data))

    def _split(self, lines: list[str]) -> list[str]:
        if self._filtered is not None and lines:
            self._filtered.keep(lines, self._prefix)
        return lines

    async def _show(self, lines: list[str]) -> None:
        if self._console is not None and lines:
            await self._console.write(self._number, "".join(f"{self._shown_prefix}{line}\n" for line in lines))


@attrs.define
class Streams:
    """Where one worker's output goes: what its process is given, what is followed here, and what to close here once it has started."""

    stdout: int | IO[bytes] | None = None
    stderr: int | IO[bytes] | None = None
    tees: list[Tee] = attrs.field(factory=list)
    to_close: list[int | IO[bytes]] = attrs.field(factory=list)

    def started(self) -> None:
        """The process has its ends; ours go."""
        for each in self.to_close:
            if isinstance(each, int):
                os.close(each)
            else:
                each.close()
        self.to_close.clear()

    def abandon(self) -> None:
        """There is no process."""
        self.started()
        for tee in self.tees:
            tee.close()


def open_streams(settings: Settings, local_rank: int, directory: Path, console: Console, prefix: str) -> Streams:
    """Open what a worker is to write to, as its masks say."""
    streams = Streams()
    shown = settings.local_ranks is None or local_rank in settings.local_ranks
    try:
        for number, file_name in STREAMS.items():
            target: int | IO[bytes] | None = None if shown else subprocess.DEVNULL
            teed, texts = settings.tee.get(local_rank, 0) & number, settings.filters.get(number, ())
            redirected = settings.redirects.get(local_rank, 0) & number
            if teed or texts:
                reader, target = os.pipe()
                streams.to_close.append(target)
                # The tee closes them.
                file = open(directory / file_name, "ab", buffering=0) if teed or redirected else None  # noqa: SIM115
                filtered = Filtered(texts, open(directory.parent / FILTERED[number], "ab", buffering=0)) if texts else None  # noqa: SIM115
                to_console = console if shown and (teed or not redirected) else None
                streams.tees.append(Tee(reader, file, to_console, number, prefix, filtered, plain=not teed))
            elif redirected:
                target = open(directory / file_name, "ab", buffering=0)  # noqa: SIM115 - closed once the process has it
                streams.to_close.append(target)
            if number == OUT:
                streams.stdout = target
            else:
                streams.stderr = target
    except BaseException:
        streams.abandon()
        raise
    return streams
