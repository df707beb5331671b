"""A reader of the tutorial, who types its commands into terminals and compares what they print.

`python -m tests.tutorial.reader` follows all chapters with the programs of the current `PATH`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import attrs

from tests.tutorial.pages import FIRST, Command, commands_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    (ROOT / "docs" / "tutorial").glob("[0-9]*.md"), key=lambda page: int(page.stem.split("-")[0])
)
PORTS = ("7400", "9464")
"""Those of the pages: each chapter gets free ones in their place, so that chapters run side by
side.
"""
SECONDS = 60.0
"""For one command. The slowest takes some 4."""


class TutorialError(AssertionError):
    """A command of the tutorial does not do what its page says."""


@attrs.define(eq=False)
class Terminal:
    """A command that goes on while others are typed elsewhere."""

    process: subprocess.Popen[str]
    output: str = ""
    _reader: threading.Thread | None = None
    _changed: threading.Condition = attrs.field(factory=threading.Condition)
    _ended: bool = False

    def begin(self) -> None:
        """Collect what the command prints, until it ends."""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.output += line
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, command: Command) -> None:
        """Wait until it has printed what the page says. Raises TutorialError if it does not."""
        pattern = command.pattern()
        with self._changed:
            self._changed.wait_for(
                lambda: pattern.match(self.output) is not None or self._ended, SECONDS
            )
            if pattern.match(self.output) is None:
                raise TutorialError(_difference(command, self.output))

    def close(self) -> None:
        """Close the window: what runs in it is killed."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        if self._reader is not None:
            self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


def follow(page: Path, directory: Path, environment: Mapping[str, str]) -> None:
    """Do what a chapter says in `directory`, which has its programs. Raises TutorialError where
    something else comes.
    """
    ports: dict[str, str] = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
    # For the reader it is the default of all commands.
    environment = {**environment, "UNDERSTUDY_ADDRESS": f"127.0.0.1:{ports[PORTS[0]]}"}
    for program in directory.rglob("*.py"):
        program.write_text(_with_ports(program.read_text(), ports))
    terminals: list[Terminal] = []
    try:
        for asked in commands_of(page):
            command = attrs.evolve(
                asked,
                text=_only_these(_with_ports(asked.text, ports), terminals),
                printed=_with_ports(asked.printed, ports),
            )
            process = subprocess.Popen(
                ["bash", "-c", command.text],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            terminal = Terminal(process)
            terminals.append(terminal)
            if command.terminal == FIRST:
                _finish(command, terminal)
            else:
                terminal.begin()
                terminal.wait_for(command)
    finally:
        for terminal in terminals:
            terminal.close()


def _finish(command: Command, terminal: Terminal) -> None:
    try:
        terminal.output, _ = terminal.process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise TutorialError(f"$ {command.text}\nhas not ended after {SECONDS:g} s") from None
    if not command.pattern().fullmatch(terminal.output):
        raise TutorialError(_difference(command, terminal.output))


def _difference(command: Command, output: str) -> str:
    return f"$ {command.text}\nthe page says:\n{command.printed}\nit prints:\n{output}"


def _with_ports(text: str, ports: Mapping[str, str]) -> str:
    for written, used in ports.items():
        text = text.replace(written, used)
    return text


def _only_these(text: str, terminals: list[Terminal]) -> str:
    """A command that kills by name, for what runs in these terminals: another chapter that is
    followed beside this one has processes of the same name.
    """
    # Each terminal is a session of its own.
    sessions = ",".join(str(terminal.process.pid) for terminal in terminals)
    return text.replace("pkill ", f"pkill -s {sessions} ")


def _free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [str(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def programs_in(directory: Path) -> Path:
    """A copy of the tutorial's programs, as the reader has them in a directory of his own."""
    copy = directory / "theatre"
    shutil.copytree(
        ROOT / "examples" / "tutorial", copy, ignore=shutil.ignore_patterns("__pycache__")
    )
    return copy


def main() -> int:
    """Follow all chapters, one after the other; returns the status for `sys.exit`."""
    for page in PAGES:
        with tempfile.TemporaryDirectory() as place:
            directory = programs_in(Path(place))
            state = Path(place, "state")
            try:
                follow(page, directory, {**os.environ, "XDG_STATE_HOME": str(state)})
            except TutorialError as error:
                print(f"{page.name}: not as the page says\n{error}")
                return 1
        print(f"{page.name}: as the page says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
