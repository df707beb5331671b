"""Lines to a stderr that is not read, read slowly, closed or gone: nothing waits, nothing but whole
lines is lost, and how many is told.
"""

from __future__ import annotations

import logging
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio
import trio.lowlevel

from runtime.stderr_writer import StderrHandler, StderrWriter
from tests.loaders import SourceLoader, generated, without_entry
from tests.waiting import until

PIPE_BYTES = 64 * 1024


class Pipe:
    """A pipe, and a writer to it."""

    def __init__(self, limit: int = 20_000) -> None:
        self.reader, self.end = os.pipe()
        self.writer = StderrWriter(self.end, limit)

    def fill(self) -> None:
        """Have the writer's thread stand in a write."""
        self.writer.write("x" * 2 * PIPE_BYTES)
        # The pipe takes only half of it.
        assert is_read(self.reader, 20)

    def read_all(self) -> list[str]:
        """All lines, read until the writer has written what waits."""
        found, written = b"", False
        # Another process that writes to the pipe may do so behind that line.
        while b"end of all\n" not in found or not found.endswith(b"\n"):
            if not written and self.writer.flush(0):
                written = True
                self.writer.write("end of all")
            if is_read(self.reader):
                found += os.read(self.reader, PIPE_BYTES)
        lines = found.decode().splitlines()
        lines.remove("end of all")
        return lines


def is_read(reader: int, seconds: float = 0.01) -> bool:
    """True if there is something to be read, within this time."""
    return bool(select.select([reader], [], [], seconds)[0])


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    opened = Pipe()
    try:
        yield opened
    finally:
        os.close(opened.reader)
        opened.writer.flush(5)
        os.close(opened.end)


def test_lines_that_nobody_reads_are_dropped_and_counted_where_they_are_missing(
    pipe: Pipe,
) -> None:
    pipe.fill()
    for number in range(5000):
        pipe.writer.write(f"line {number}")
    assert not pipe.writer.flush(0.01)
    lines = pipe.read_all()
    assert len(lines.pop(0)) == 2 * PIPE_BYTES
    told = re.fullmatch(r"(\d+) lines were left out here: stderr was not read", lines.pop())
    assert told is not None
    assert lines == [f"line {number}" for number in range(len(lines))]
    assert len(lines) + int(told[1]) == 5000
    assert 100 < len(lines) < 200
    # From here on as ever.
    pipe.writer.write("again")
    assert pipe.read_all() == ["again"]


def test_dropped_lines_are_reported_before_the_next_line(pipe: Pipe) -> None:
    pipe.fill()
    pipe.writer.write("y" * 15_000)
    for _ in range(7):
        pipe.writer.write("z" * 10_000)
    pipe.writer.write("small")
    lines = pipe.read_all()
    assert [line[:7] for line in lines[1:]] == ["yyyyyyy", "7 lines", "small"]


def test_a_line_of_ten_megabytes_arrives_whole(pipe: Pipe) -> None:
    pipe.fill()
    pipe.writer.write("w" * 10 * 2**20)
    pipe.writer.write("too many bytes wait")
    _, line, told = pipe.read_all()
    assert len(line) == 10 * 2**20
    assert told.startswith("1 lines were left out")


def test_a_reader_that_has_gone_costs_nothing() -> None:
    reader, end = os.pipe()
    writer = StderrWriter(end)
    os.close(reader)
    for _ in range(100):
        writer.write("to nobody")
    assert writer.flush(10)
    os.close(end)
    writer.write("to a file that is closed")
    assert writer.flush(10)


def test_a_pipe_that_another_process_made_non_blocking(pipe: Pipe) -> None:
    os.set_blocking(pipe.end, False)
    pipe.fill()
    assert not pipe.writer.flush(0.01)
    assert [len(line) for line in pipe.read_all()] == [2 * PIPE_BYTES]


async def test_who_can_wait_for_room_loses_nothing(pipe: Pipe) -> None:
    pipe.fill()
    async with trio.open_nursery() as nursery:

        async def print_all() -> None:
            for number in range(1000):
                pipe.writer.write(f"{number:0100}")
                await pipe.writer.wait_room()
            nursery.cancel_scope.cancel()

        async def read_all() -> None:
            while True:
                if is_read(pipe.reader):
                    found.append(os.read(pipe.reader, PIPE_BYTES))
                await trio.lowlevel.checkpoint()

        found: list[bytes] = []
        nursery.start_soon(print_all)
        await until(lambda: pipe.writer.is_full, "the lines wait")
        nursery.start_soon(read_all)
    lines = b"".join(found).decode().splitlines() + pipe.read_all()
    assert [int(line) for line in lines[1:]] == list(range(1000))


def test_after_a_fork_the_child_writes_by_itself(pipe: Pipe) -> None:
    pipe.fill()
    pipe.writer.write("of the parent")
    child = os.fork()
    if not child:
        pipe.writer.write("of the child")
        os._exit(not pipe.writer.flush(20))
    text = "\n".join(pipe.read_all())
    assert os.waitpid(child, 0)[1] == 0
    text += "\n".join(pipe.read_all())
    assert (text.count("of the child"), text.count("of the parent")) == (1, 1)


def test_a_record_that_makes_no_text_is_one_line_and_a_traceback(pipe: Pipe) -> None:
    handler = StderrHandler(pipe.writer)
    record = logging.LogRecord("mine", logging.ERROR, "app.py", 7, "%d", ("text",), None)
    handler.emit(record)
    text = "\n".join(pipe.read_all())
    assert text.startswith(
        "a line of the logger 'mine' cannot be written; it is logged at app.py:7"
    )
    assert "TypeError" in text


AT_THE_END = """
import logging, os, sys
from runtime.logs.formats import write_logs

write_logs(logging.WARNING, "text", times=False)
if sys.argv[1] == "stuck":
    for _ in range(200):
        logging.warning("x" * 1000)
logging.warning("last")
"""


def test_the_last_lines_are_written_at_the_end_of_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END, ""], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "WARNING root: last\n")


def test_a_process_whose_stderr_is_stuck_ends_all_the_same() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", AT_THE_END, "stuck"], stderr=subprocess.PIPE
    ) as process:
        try:
            # Not a signal, which would show that the interpreter has aborted.
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_why_a_record_makes_no_text_is_told_where_a_loader_has_no_source(pipe: Pipe) -> None:
    def fail(record: logging.LogRecord) -> str:
        return str(generated(SourceLoader(without_entry))["divide"](0))

    handler = StderrHandler(pipe.writer)
    handler.format = fail  # type: ignore[method-assign]
    handler.emit(logging.LogRecord("mine", logging.ERROR, "app.py", 7, "text", (), None))
    assert pipe.read_all()[-1] == "ZeroDivisionError: division by zero"
