"""A driver of a map with a journal; its arguments are ADDRESS NAME ITEMS FILE. Each result that it
is given it appends to FILE, before it asks for the next.
"""

from __future__ import annotations

import sys
from pathlib import Path

from actors import Actor, method
from runtime.blocking import connect


class Recorder(Actor):
    """Writes down what it runs: a line for each, in a file of its own process."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    @method
    def run(self, item: int) -> int:
        with (self._folder / f"ran-{self.name.replace('/', '-')}").open("a") as file:
            file.write(f"{item}\n")
        return item * item


def main() -> None:
    """Drive the map to its end."""
    address, name, items, path = sys.argv[1:]
    with connect(address) as cluster:
        pool = cluster.lookup_pool("recorders", Recorder)
        with Path(path).open("a") as file:
            for result in pool.map(Recorder.run, range(int(items)), journal=name):
                file.write(f"{result}\n")
                file.flush()
    sys.stdout.write("done\n")
