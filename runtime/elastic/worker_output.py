"""The output of workers: to files, to the console, or both, through pipes. A pipe is read no faster
than its files and the console accept the data.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import IO

import attrs
import trio

from runtime.elastic.settings import ERR, OUT, ElasticSettings
from runtime.processes.child_process import LineSplitter, read_available

_CHUNK = 64 * 1024
"""Bytes of one read, which is what a pipe of Linux holds."""


_LINES_WAITING = 256
"""Pieces of output that wait for the console. When they are as many, the workers' writes block."""


_DRAIN_CHUNKS = 32
"""Reads of what is left in a pipe that is being closed: a writer that escaped could fill it for
ever.
"""


STREAMS = {OUT: "stdout.log", ERR: "stderr.log"}
"""By stream: the log file of one worker."""


FILTERED = {OUT: "filtered_stdout.log", ERR: "filtered_stderr.log"}
"""By stream: the file for filtered lines of all workers of one start."""


class Console:
    """Writes to the agent's own standard output and error. If the terminal is stopped or the reader
    of a pipe is slow, the workers are held up, not the agent.
    """

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[tuple[int, bytes]](_LINES_WAITING)
        self._broken: set[int] = set()
        self._unwritten = 0
        """Pieces that wait for room, are queued or are being written."""
        self._drained: trio.Event | None = None
        """Set when all are written; there while a task waits for that."""

    async def write(self, stream: int, text: str) -> None:
        """Queue lines; waits for room."""
        self._unwritten += 1
        try:
            await self._send.send((stream, text.encode()))
        except BaseException:
            # Cancelled before it was queued: no `drain` must wait for it.
            self._on_written()
            raise

    async def run(self) -> None:
        """Write queued lines in order, until cancelled."""
        while True:
            stream, data = await self._receive.receive()
            if stream not in self._broken:
                await trio.to_thread.run_sync(self._write, stream, data, abandon_on_cancel=True)
            self._on_written()

    def _on_written(self) -> None:
        self._unwritten -= 1
        assert self._unwritten >= 0, "what is written was counted before"
        if not self._unwritten and self._drained is not None:
            self._drained.set()
            self._drained = None

    async def drain(self, seconds: float) -> None:
        """Wait until everything is written, for at most `seconds`."""
        with trio.move_on_after(seconds):
            # Again after each wake-up: more may have been queued before this task runs.
            while self._unwritten:
                # One event for all that wait, and never replaced while one of them does.
                if self._drained is None:
                    self._drained = trio.Event()
                await self._drained.wait()

    def _write(self, stream: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(stream, rest) :]
        except OSError:
            # The reader has gone, as with `| head`. The log files still get the lines.
            self._broken.add(stream)


@attrs.frozen
class Filtered:
    """A file that collects the lines of a stream which contain one of `texts`, each with a prefix.
    It is appended to in whole lines.
    """

    texts: tuple[str, ...]
    file: IO[bytes]

    def write(self, lines: list[str], prefix: str) -> None:
        """Add the lines that contain one of the texts."""
        found = "".join(
            f"{prefix}{line}\n" for line in lines if any(text in line for text in self.texts)
        )
        try:
            if found:
                self.file.write(found.encode())
        except OSError:
            # The disk is full: the log is lost, and the worker goes on.
            pass


class Tee:
    """One stream of a worker. It is written to a file as it comes, to the console in whole lines
    with a prefix (none if `plain`), and to a file of `filtered` lines.
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
        """Read until all processes that hold the write end have closed it."""
        try:
            while data := await self._stream.receive_some(_CHUNK):
                lines = self._keep(data)
                await self._show(lines)
            await self._show(self._split(self._splitter.flush()))
        except trio.ClosedResourceError:
            # `close` has closed our end, because a process that escaped still holds the other one.
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading. What is still in the pipe goes to the file, so that a slow console loses no
        log.
        """
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
        """Write data to the files. Returns the lines that it completes."""
        try:
            if self._file is not None:
                self._file.write(data)
        except OSError:
            # The disk is full: the log is lost, and the worker goes on.
            pass
        return self._split(self._splitter.feed(data))

    def _split(self, lines: list[str]) -> list[str]:
        if self._filtered is not None and lines:
            self._filtered.write(lines, self._prefix)
        return lines

    async def _show(self, lines: list[str]) -> None:
        if self._console is not None and lines:
            await self._console.write(
                self._number, "".join(f"{self._shown_prefix}{line}\n" for line in lines)
            )


@attrs.define
class Streams:
    """The output of one worker: the descriptors for its process, the streams that are read here,
    and what to close here once the process has started.
    """

    stdout: int | IO[bytes] | None = None
    stderr: int | IO[bytes] | None = None
    tees: list[Tee] = attrs.field(factory=list)
    to_close: list[int | IO[bytes]] = attrs.field(factory=list)

    def close_inherited(self) -> None:
        """Close the ends that the started process has inherited. The pipe then ends with the last
        process that holds it.
        """
        for each in self.to_close:
            if isinstance(each, int):
                os.close(each)
            else:
                each.close()
        self.to_close.clear()

    def abandon(self) -> None:
        """Close everything, because the process could not be started."""
        self.close_inherited()
        for tee in self.tees:
            tee.close()


def open_streams(
    settings: ElasticSettings, local_rank: int, directory: Path, console: Console, prefix: str
) -> Streams:
    """Open the output of a worker according to its masks."""
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
                # The tee closes both files.
                file = filtered = None
                if teed or redirected:
                    file = open(directory / file_name, "ab", buffering=0)  # noqa: SIM115
                if texts:
                    shared = directory.parent / FILTERED[number]
                    part = open(shared, "ab", buffering=0)  # noqa: SIM115
                    filtered = Filtered(texts, part)
                to_console = console if shown and (teed or not redirected) else None
                streams.tees.append(
                    Tee(reader, file, to_console, number, prefix, filtered, plain=not teed)
                )
            elif redirected:
                # Closed once the process has it.
                target = open(directory / file_name, "ab", buffering=0)  # noqa: SIM115
                streams.to_close.append(target)
            if number == OUT:
                streams.stdout = target
            else:
                streams.stderr = target
    except BaseException:
        streams.abandon()
        raise
    return streams
