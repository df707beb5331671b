"""`understudy demo`: the main job, shown."""

from __future__ import annotations

import json
import logging
import sys

import attrs
import click
import trio

from runtime.demonstration.demo import Demo, DemoEvent, DemoOutcome
from runtime.demonstration.scheduler import Progress

WIDTH = 32

_COLOURS: dict[str, str] = {
    "killed": "red",
    "detected": "yellow",
    "rerun": "green",
    "restarted": "green",
    "joined": "green",
    "left": "cyan",
    "done": "green",
}


@click.command(epilog="Example:  understudy demo --json")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the outcome and the time line as JSON."
)
@click.option("--logs", is_flag=True, help="Also show the logs of the node processes.")
@click.option(
    "--store",
    metavar="etcd://HOST:PORT,...",
    help="Keep the cluster's store in etcd instead of in this process.",
)
def demo(as_json: bool, logs: bool, store: str | None) -> None:
    """Index every identifier of the standard library on a cluster while its nodes join, leave and
    are killed.

    The same job runs undisturbed, and in a single process, too. If the results differ, the exit
    status is 1.
    """
    show = _DemoDisplay(quiet=as_json, logs=logs)
    logger = logging.getLogger("understudy")
    level = logger.level
    if not logs:
        # Nodes die here on purpose: the time line shows it, so their warnings are not needed.
        logger.setLevel(logging.CRITICAL)
    try:
        outcome = trio.run(Demo(show.event, show.progress, store).play, show.line)
    finally:
        # Tests, and programs that run the command in their own process, log on as before.
        logger.setLevel(level)
    if as_json:
        click.echo(json.dumps(attrs.asdict(outcome), indent=2))
    else:
        show.outcome(outcome)
    raise SystemExit(0 if outcome.equal else 1)


class _DemoDisplay:
    """A time line, and on a terminal a progress bar below it."""

    def __init__(self, *, quiet: bool, logs: bool) -> None:
        self._quiet = quiet
        self._logs = logs
        self._bar = sys.stdout.isatty() and not quiet

    def event(self, event: DemoEvent) -> None:
        if not self._quiet:
            kind = click.style(event.kind.ljust(10), fg=_COLOURS.get(event.kind))
            took = "" if event.milliseconds is None else f" [{event.milliseconds:.0f} ms]"
            self._clear()
            click.echo(f"{event.at:6.2f} s  {kind} {event.text}{took}")

    def progress(self, progress: Progress) -> None:
        if self._bar:
            filled = WIDTH * progress.done // progress.total
            workers = ", ".join(progress.workers) or "no worker"
            click.echo(
                f"\r\x1b[K{'#' * filled}{'-' * (WIDTH - filled)} {progress.done}/{progress.total} "
                f"pieces, by {workers}",
                nl=False,
            )

    def line(self, name: str, line: str) -> None:
        if self._logs:
            self._clear()
            click.echo(f"[{name}] {line}", err=True)

    def outcome(self, outcome: DemoOutcome) -> None:
        self._clear()
        comparison = (
            click.style("equal", fg="green")
            if outcome.equal
            else click.style("NOT EQUAL", fg="red")
        )
        alone = outcome.seconds_single
        rows = {
            "in a single process": alone,
            "on the cluster, undisturbed": outcome.seconds_undisturbed,
            "on the cluster, with the kills": outcome.seconds,
        }
        click.echo(f"\nThe same job, {outcome.pieces} pieces:")
        for what, seconds in rows.items():
            click.echo(f"  {what:32}{seconds:6.1f} s  {alone / seconds:4.1f} times as fast")
        click.echo(
            f"With the kills: {outcome.lost} pieces lost, {outcome.twice} twice in the result, "
            f"{outcome.repeated} begun once more."
        )
        recovered = ", ".join(
            f"{one.text} after {one.milliseconds:.0f} ms" for one in outcome.recoveries
        )
        click.echo(
            f"Recovered: {recovered}.\n"
            f"Calls per second to another process: {outcome.sequential_calls_per_second:,.0f} one "
            f"after the other, {outcome.calls_per_second:,.0f} with 1,000 in flight.\n"
            f"The index has {outcome.identifiers} identifiers and {outcome.occurrences} "
            f"occurrences of {outcome.files} files; "
            f"the cluster's and the single process's: {comparison}"
        )

    def _clear(self) -> None:
        if self._bar:
            click.echo("\r\x1b[K", nl=False)
