"""`python -m tests.growth`: one row for each thing that there may be many of, with what each costs
by their number, and whether that grows.
"""

from __future__ import annotations

import gc
import sys

import click
import trio

from tests.growth.curves import SUBJECTS
from tests.growth.measuring import Curve, table, verdict


@click.command()
@click.option("--full", is_flag=True, help="As many as there may be: up to a million. Long.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(SUBJECTS)),
    help="Measure only this; may be given several times.",
)
@click.option("--most", type=int, help="Not more of anything than this.")
def main(full: bool, only: tuple[str, ...], most: int | None) -> None:
    """Measure how costs grow with numbers. Exits with 1 if one grows worse than linearly."""
    # As nodes do: otherwise the collector looks at a million objects again and again.
    gc.set_threshold(50_000, 20, 100)
    curves: list[Curve] = []
    for name in only or SUBJECTS:
        subject = SUBJECTS[name]
        if not subject.is_there:
            click.echo(f"{subject.what}: {subject.needs} is not installed, left out", err=True)
            continue
        count = subject.most if full else subject.usual
        curve = trio.run(subject.curve, subject.what, min(count, most or count))
        click.echo(f"{curve.what}: {verdict(curve)}", err=True)
        curves.append(curve)
    click.echo(table(curves))
    sys.exit(any(curve.is_worse_than_linear for curve in curves))


if __name__ == "__main__":
    main()
