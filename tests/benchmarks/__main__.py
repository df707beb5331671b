"""`python -m tests.benchmarks [--json FILE] [--seconds S] [--rounds N]`."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from pathlib import Path

import trio

from tests.benchmarks.rows import Row, measure


def main() -> None:
    """Measure, print a table, and write it as data if asked."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON, too")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds after one that is not (default: %(default)s)")
    options = parser.parse_args()
    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in ("trio", "cbor2", "attrs"))
    print(f"Python {platform.python_version()}, {versions}; {os.cpu_count()} cores, {platform.machine()}")
    print(f"median of {options.rounds} rounds (min-max)")
    rows = trio.run(measure, options.seconds, options.rounds)
    print(f"{'work':<32} {'unit':<8} {'ours':>26} {'floor':>26} {'ratio':>6}")
    for row in rows:
        ours, floor = _figure(row.ours, row.ours_range), _figure(row.floor, row.floor_range)
        print(f"{row.work:<32} {row.unit:<8} {ours:>26} {floor:>26} {row.ratio:>6.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps([_data(row) for row in rows], indent=2))


def _figure(value: float, bounds: tuple[float, float]) -> str:
    digits = 3 if value < 10 else 0
    return f"{value:,.{digits}f} ({bounds[0]:,.{digits}f}-{bounds[1]:,.{digits}f})"


def _data(row: Row) -> dict[str, object]:
    return {"work": row.work, "unit": row.unit, "ours": row.ours, "floor": row.floor, "ratio": row.ratio}


if __name__ == "__main__":
    main()
