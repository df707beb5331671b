"""`python -m tests.chaos [namespaces] [etcd] [founder] [--seconds 600] [--kills 200] [--seed 0]`;
all three runs by default.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from functools import partial
from shutil import which

import trio

from tests.chaos.hosts import missing
from tests.chaos.runs import run_etcd, run_founder, run_namespaces

SHOWN = 20


def main() -> int:
    """Returns the number of mistakes, at most 1 of which is told by the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="namespaces, etcd or founder; all of them by default"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=600.0,
        help="how long faults are drawn in namespaces and etcd (600)",
    )
    parser.add_argument(
        "--kills", type=int, default=200, help="how often the founder is killed (200)"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the faults (0)")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    # As Ctrl-C: the namespaces and processes of a run are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    known = {
        "namespaces": (partial(run_namespaces, asked.seconds, asked.seed), missing()),
        "etcd": (
            partial(run_etcd, asked.seconds, asked.seed),
            "" if which("etcd") else "there is no etcd: apt-get install etcd-server",
        ),
        "founder": (partial(run_founder, asked.kills, asked.seed), ""),
    }
    if unknown := [name for name in asked.runs if name not in known]:
        parser.error(f"there is no run called {unknown[0]!r}; there are: {', '.join(known)}")
    mistakes = 0
    for name in asked.runs or known:
        run, problem = known[name]
        if problem:
            sys.stdout.write(f"{name}: left out: {problem}\n")
            continue
        sys.stdout.write(f"{name}, seed {asked.seed}\n")
        sys.stdout.flush()
        books = trio.run(run)
        sys.stdout.write(
            f"  {books.summary()}\n"
            + "".join(f"  MISTAKE {mistake}\n" for mistake in books.mistakes()[:SHOWN])
        )
        sys.stdout.flush()
        mistakes += len(books.mistakes())
    return mistakes


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
