"""A real terminal (pty) with a command in it, which a test types into and reads."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

SECONDS = 60.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\x07")


class TypingTerminal:
    """Runs `words` in a terminal of its own, of which it is the foreground process."""

    def __init__(self, words: Sequence[str], place: Path, environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        # Wide, so that readline breaks no line.
        fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x28\x00\x00\x04\x00\x00\x00\x00")
        self.process = subprocess.Popen(
            words,
            cwd=place,
            env={**environment, "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self._slave = slave
        self._unread = ""

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._master, text.encode())

    def read_to(self, pattern: str) -> str:
        """Everything up to the first match, which is waited for. Raises AssertionError."""
        until = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self._unread)):
            left = until - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self._unread!r}"
            if select.select([self._master], [], [], left)[0]:
                try:
                    data = os.read(self._master, 65536)
                except OSError:
                    data = b""
                assert data, f"ended without {pattern!r}: {self._unread!r}"
                self._unread = ESCAPES.sub("", self._unread + data.decode())
        text, self._unread = self._unread[: found.end()], self._unread[found.end() :]
        return text

    def attributes(self) -> list[object]:
        """The modes of the terminal as they are now."""
        return termios.tcgetattr(self._slave)

    def wait(self) -> int:
        """The exit status, once it has ended."""
        return self.process.wait(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)
