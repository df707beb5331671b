"""`python -m tests.benchmarks`: what the runtime does in a second, beside the bare floor measured
in the same run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from pathlib import Path

import trio

from tests.benchmarks.measuring import Figure, Row, Settings
from tests.benchmarks.rows import GROUPS, LONG


def main() -> None:
    """Measure, print a line as soon as it is known, and write all as data if asked."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON, too")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="for each figure (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="counted rounds after one that is not (default: %(default)s)",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="sizes that only show that it works; the figures mean nothing",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(GROUPS),
        help="measure only these rows; may be repeated. Without it, all but "
        f"{', '.join(sorted(LONG))}, which takes minutes",
    )
    options = parser.parse_args()
    settings = Settings(
        min(options.seconds, 0.25) if options.short else options.seconds,
        options.rounds,
        options.short,
    )
    versions = " ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("trio", "cbor2", "attrs")
    )
    print(
        f"Python {platform.python_version()}, {versions}; {os.cpu_count()} cores, "
        f"{platform.machine()}"
    )
    print(
        f"median of {options.rounds} rounds (min-max); ratio: more is better, whatever the unit; "
        "weights are taken once"
    )
    print(f"{'work':<42} {'unit':<8} {'ours':>26} {'floor':>26} {'ratio':>6}  goal", flush=True)
    rows: list[Row] = []
    for word in options.only or [word for word in GROUPS if word not in LONG]:
        for row in trio.run(GROUPS[word], settings):
            print(_line(row), flush=True)
            rows.append(row)
    if options.json is not None:
        options.json.write_text(json.dumps([_data(row) for row in rows], indent=2))


def _line(row: Row) -> str:
    goal = f"{row.goal}: {'met' if row.met else 'MISSED'}" if row.goal else ""
    if row.within_noise:
        goal += ", within the noise"
    if row.paired is not None:
        goal += f" [{row.paired.least:.3f} to {row.paired.most:.3f} with 95 % confidence]"
    against = "" if row.against == "floor" else f" [against: {row.against}]"
    return (
        f"{row.work:<42} {row.unit:<8} {_figure(row.ours):>26} {_figure(row.floor):>26} "
        f"{row.ratio:>6.2f}  {goal}{against}"
    )


def _figure(figure: Figure) -> str:
    digits = 3 if figure.value < 10 else 0
    if figure.least == figure.most:
        return f"{figure.value:,.{digits}f}"
    return f"{figure.value:,.{digits}f} ({figure.least:,.{digits}f}-{figure.most:,.{digits}f})"


def _data(row: Row) -> dict[str, object]:
    return {
        "work": row.work,
        "unit": row.unit,
        "ours": row.ours.value,
        "floor": row.floor.value,
        "ratio": row.ratio,
        "ratio_range": None if row.paired is None else [row.paired.least, row.paired.most],
        "against": row.against,
        "goal": row.goal,
        "met": row.met,
        "within_noise": row.within_noise,
    }


if __name__ == "__main__":
    main()
