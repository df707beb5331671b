"""One counter, used at every door at once by programs that are killed in the middle of a call: the
book of the outcome of each call is right.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from runtime.blocking import BlockingLocalCluster
from tests import forked_python
from tests.doors.book_actors import BookCounter
from tests.doors.book_clients import CALLS, kernel_file
from tests.needed import skip_module_without

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

skip_module_without(
    *("nbclient", "ipykernel", "nbformat", "hypercorn", "fastapi", "uvicorn"),
    reason="{0} is not installed: `make test` installs it",
)

if shutil.which("curl") is None:
    pytest.skip("curl is not installed: apt-get install curl", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
DOORS = ("blocking", "futures", "asyncio", "notebook", "http", "gateway")
BY_HTTP = ("http", "gateway")


@contextmanager
def client(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of `tests.doors.book_clients`."""
    with program("tests.doors.book_clients", *arguments) as running:
        yield running


@contextmanager
def program(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program, killed at the end of the block if it still runs."""
    with forked_python.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.kill()


def outcomes(book: Path) -> dict[str, str]:
    """What is known of each call: the last that was written down of it."""
    return dict(line.split(" ", 1) for line in book.read_text().splitlines())


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_the_book_of_programs_that_are_killed_in_the_middle_of_a_call(
    cluster: BlockingLocalCluster, tmp_path: Path, when: str
) -> None:
    name = f"book-{when}"
    counter = cluster.options(name=name, on="worker-1").spawn(BookCounter)
    books = {door: tmp_path / door for door in DOORS}
    with ExitStack() as stack:
        server = stack.enter_context(client("serve", cluster.address, name))
        assert server.stdout is not None
        served = {"http": f"http://127.0.0.1:{server.stdout.readline().strip()}"}
        asked = ("--allow", f"{name}.add", "--listen", "127.0.0.1:0", "--json")
        gateway = stack.enter_context(
            program("runtime.command_line", "gateway", "--address", cluster.address, *asked)
        )
        assert gateway.stdout is not None
        listening = json.loads(gateway.stdout.readline())["listen"]
        served["gateway"] = f"http://127.0.0.1:{listening.rpartition(':')[2]}"
        killed: dict[str, subprocess.Popen[str]] = {}
        for door, book in books.items():
            where = served.get(door, cluster.address)
            running = stack.enter_context(client(door, where, name, str(book), f"{when}-{door}"))
            # At HTTP the server dies, and its client writes down what that looks like.
            killed[door] = {"http": server, "gateway": gateway}.get(door, running)
        for door, running in killed.items():
            assert counter.wait_held(f"{when}-{door}")
            if door == "futures":
                # Its calls were under way at once: let it write down all but the last.
                while len(outcomes(books[door])) <= CALLS:
                    assert running.poll() is None
            if door == "notebook":
                # Its kernel runs the calls, and the program that has started it ends with it.
                os.kill(int(Path(kernel_file(str(books[door]))).read_text()), signal.SIGKILL)
            else:
                running.send_signal(signal.SIGKILL)
            # The cluster finds out, and cancels what the program had asked for.
            assert counter.wait_released(f"{when}-{door}")
        assert all(each.wait(PATIENCE) == -signal.SIGKILL for each in killed.values())
        for door in BY_HTTP:
            while outcomes(books[door]).get(f"{when}-{door}") == "begun":
                continue
    added = Counter(counter.all_added())
    known = {key: what for book in books.values() for key, what in outcomes(book).items()}
    assert len(known) == len(DOORS) * (CALLS + 1)
    for key, what in known.items():
        if what == "value":
            assert added[key] == 1, key
        elif what == "not executed":
            assert added[key] == 0, key
        else:
            # Killed while it was under way ("begun"), or said to be unknown.
            assert added[key] <= 1, (key, what)
    assert set(added) <= set(known)
    # All but the last call of each has its value; of the last nobody knows, and yet it is so.
    unknown = {key for key, what in known.items() if what != "value"}
    assert unknown == {f"{when}-{door}" for door in DOORS}
    assert {key for key in unknown if added[key]} == (unknown if when == "before" else set())
    assert all(known[f"{when}-{door}"] == "unknown" for door in BY_HTTP)
