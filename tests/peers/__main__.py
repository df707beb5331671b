"""`python -m tests.peers`: this library beside others, the same works in turn in one run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import attrs

from tests.peers.environments import PEERS, ROOT, NotInstalledError, command, variables
from tests.peers.works import WORKS, Work

OURS = "understudy"
SCRIPT_SECONDS = 240
"""A script that takes longer is killed with its processes; what it has printed counts."""

FIGURE = re.compile(r'^\{"work": "([a-z0-9-]+)", "figure": ([0-9.e+-]+)\}', re.MULTILINE)
"""A line that `works.report` has printed."""

Found = dict[tuple[str, str], list[float]]
"""The figures of a peer and a work, one for each round."""


def main() -> None:
    """Measure in rounds, print the table, and say where another library wins."""
    options = _options()
    commands = _install(options.only or list(PEERS), options.environments)
    found: Found = {}
    for number in range(options.rounds + 1):
        for name, words in commands.items():
            print(f"round {number} of {options.rounds}: {PEERS[name].title}", flush=True)
            figures = _measure(name, words, options.seconds, options.work or list(WORKS))
            # The first round warms up the machine and the files that are read; it does not count.
            if number or not options.rounds:
                for work, figure in figures.items():
                    found.setdefault((name, work), []).append(figure)
    print("\n".join(_table(list(commands), found)), flush=True)
    if options.json is not None:
        rows = [{"peer": name, "work": work, "figures": f} for (name, work), f in found.items()]
        options.json.write_text(json.dumps(rows, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.peers", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(PEERS), help="may be repeated")
    parser.add_argument("--work", action="append", choices=list(WORKS), help="may be repeated")
    parser.add_argument(
        "--rounds", type=int, default=5, help="after one that does not count (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="for each work (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as well")
    parser.add_argument(
        "--environments",
        type=Path,
        default=ROOT / ".venv-peers",
        metavar="FOLDER",
        help="where the libraries are installed (%(default)s)",
    )
    return parser.parse_args()


def _install(names: Sequence[str], folder: Path) -> dict[str, list[str]]:
    commands = {}
    for name in names:
        try:
            commands[name] = command(name, folder)
        except NotInstalledError as error:
            print(f"{PEERS[name].title} is left out: {error}", flush=True)
    return commands


def _measure(
    name: str, words: Sequence[str], seconds: float, works: Sequence[str]
) -> dict[str, float]:
    """The figures that one run of a peer's script prints."""
    # A session of its own, so that everything that the library started can be killed with it.
    process = subprocess.Popen(
        [*words, str(seconds), *works],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=variables(name),
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=SCRIPT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        print(f"{PEERS[name].title} took longer than {SCRIPT_SECONDS} s", flush=True)
    else:
        if process.returncode:
            last = (errors.strip() or "no message").splitlines()[-1]
            print(f"{PEERS[name].title} exited with {process.returncode}: {last}", flush=True)
    return dict(_figures(output))


def _figures(output: str) -> Sequence[tuple[str, float]]:
    # A library may print lines of its own, also behind ours in the same line.
    return [(work, float(figure)) for work, figure in FIGURE.findall(output)]


@attrs.frozen
class Cell:
    """The figures of one library at one work."""

    figures: Sequence[float]

    @property
    def value(self) -> float:
        """Their median."""
        return median(self.figures)

    def __str__(self) -> str:
        spread = f" ({_short(min(self.figures))} to {_short(max(self.figures))})"
        return _short(self.value) + (spread if len(self.figures) > 1 else "")


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def _table(names: Sequence[str], found: Found) -> list[str]:
    """A table in Markdown, a line for each work, and a column for each library."""
    lines = [
        "",
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}; "
        "medians of the counted rounds, and their range; best in bold",
        "",
        "| work | unit | " + " | ".join(PEERS[name].title for name in names) + " |",
        "|---|---|" + "---:|" * len(names),
    ]
    wins: list[str] = []
    losses: list[str] = []
    for key, work in WORKS.items():
        cells = {name: Cell(found[name, key]) for name in names if (name, key) in found}
        if not cells:
            continue
        best = _best(work, cells)
        shown = [
            (f"**{cells[name]}**" if name == best else str(cells[name])) if name in cells else "-"
            for name in names
        ]
        lines.append(f"| {work.title} | {work.unit} | " + " | ".join(shown) + " |")
        if OURS in cells:
            (wins if best == OURS else losses).append(work.title)
    lines += ["", f"{PEERS[OURS].title} is ahead in {len(wins)} of {len(wins) + len(losses)}."]
    if losses:
        lines.append("Another library is ahead in: " + "; ".join(losses) + ".")
    return lines


def _best(work: Work, cells: dict[str, Cell]) -> str:
    pick = min if work.less_is_better else max
    return pick(cells, key=lambda name: cells[name].value)


if __name__ == "__main__":
    main()
