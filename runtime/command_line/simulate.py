"""`understudy simulate`: the runtime's promises under the faults of a seed, replayed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import attrs
import click

from runtime.command_line.interrupts import leave_at_interrupts, raise_interrupts
from runtime.command_line.system_errors import written_to
from runtime.command_line.units import Number, PathName
from runtime.printable import many
from runtime.processes.linux_processes import die_with_parent
from runtime.simulation.faults import KINDS, check_kinds
from runtime.simulation.first_contacts import first_contacts
from runtime.simulation.page import page
from runtime.simulation.report import Report, TraceEvent
from runtime.simulation.runs import simulate_once

DEFAULT_MINUTES = 0.5
"""Virtual minutes of faults in a run."""

MOST_MINUTES = 1_000_000
"""Two virtual years."""

QUIET_KINDS = {"call", "ok", "failed", "unknown", "log"}
"""Kinds of events that the time line shows only when asked for."""


@click.command(
    epilog="Example:  understudy simulate --seed 7 --nodes 10 --minutes 5 --html run.html"
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the run; with --seeds, of the first one.",
)
@click.option(
    "--seeds", type=click.IntRange(1), help="Run this many seeds, and show only broken promises."
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Processes that run seeds in parallel. Default: one for each core.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 200),
    default=3,
    show_default=True,
    help="Nodes of the simulated cluster.",
)
@click.option(
    "--minutes",
    type=Number(0, MOST_MINUTES, min_open=True),
    help=f"Virtual minutes of faults; {DEFAULT_MINUTES:g} by default. With --first-contacts: how "
    "long the nodes of each round live on, call each other now and then and lose connections; 0 by "
    "default.",
)
@click.option(
    "--faults",
    metavar="KIND,...",
    help=f"Faults to draw from; 'none' for none. All by default: {', '.join(KINDS)}.",
)
@click.option(
    "--first-contacts",
    "rounds",
    type=click.IntRange(1),
    metavar="ROUNDS",
    help="Run another scenario: all nodes call all others for the first time at once, in this "
    "many rounds, while connections break.",
)
@click.option(
    "--nodes-per-host",
    type=click.IntRange(1),
    metavar="COUNT",
    help="With --first-contacts: so many nodes share each host, dial each other at Unix sockets "
    "and ports, and lend each other memory. Default: 1.",
)
@click.option(
    "--html",
    type=PathName(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page with a time line for each node.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print trace hash, faults and check results as JSON."
)
@click.option(
    "--verbose",
    is_flag=True,
    help="Show calls and logs on the time line as well; with --seeds, a line for each seed, as on "
    "a terminal.",
)
def simulate(
    seed: int,
    seeds: int | None,
    jobs: int | None,
    nodes: int,
    minutes: float | None,
    faults: str | None,
    rounds: int | None,
    nodes_per_host: int | None,
    html: Path | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run a whole cluster in this process on a virtual clock, under the faults that a seed draws,
    and check the promises.

    The same seed gives the same run, down to the last byte on its network. If a check fails the
    exit status is 1.
    """
    kinds = _kinds(faults)
    if rounds and nodes < 2:
        raise click.UsageError("--first-contacts needs at least two nodes: give --nodes 2 or more.")
    if nodes_per_host is not None and not rounds:
        raise click.UsageError("--nodes-per-host goes with --first-contacts ROUNDS.")
    if minutes is None:
        minutes = 0.0 if rounds else DEFAULT_MINUTES
    if html is not None and seeds is not None:
        raise click.UsageError(
            "--html shows one run: leave --seeds out, and give the --seed to look at."
        )
    run = partial(
        _one,
        nodes=nodes,
        seconds=minutes * 60,
        kinds=kinds,
        rounds=rounds,
        nodes_of_host=nodes_per_host or 1,
    )
    # Nothing is open that must be closed, and the processes of `--seeds` end with this one. A
    # KeyboardInterrupt would come out of any task of a simulated node, which then is restarted.
    leave_at_interrupts()
    try:
        if seeds is None:
            holds = _run_seed(run, seed, html, as_json=as_json, verbose=verbose)
        else:
            scenario = _scenario(rounds, nodes_per_host, minutes)
            holds = _run_seeds(
                _side_by_side(range(seed, seed + seeds), jobs or os.cpu_count() or 1, run),
                lambda report: _show_wrong(report, nodes, scenario, faults),
                as_json=as_json,
                progress=verbose or sys.stderr.isatty(),
            )
    finally:
        raise_interrupts()
    raise SystemExit(0 if holds else 1)


def _run_seed(
    run: Callable[[int], Report], seed: int, html: Path | None, *, as_json: bool, verbose: bool
) -> bool:
    """Run one seed, and show all of it. True if no promise was broken."""
    report = run(seed)
    if html is not None:
        with written_to(html):
            html.write_text(page(report), encoding="utf-8")
    _show(report, as_json=as_json, verbose=verbose)
    return report.holds


def _run_seeds(
    reports: Iterable[Report],
    show_wrong: Callable[[Report], None],
    *,
    as_json: bool,
    progress: bool,
) -> bool:
    """Show what many seeds have broken. True if no promise was broken."""
    count = wrong = 0
    for report in reports:
        count += 1
        if progress:
            click.echo(_line_of_seed(report), err=True)
        if as_json:
            click.echo(json.dumps(_facts(report)))
        if not report.holds:
            wrong += 1
            if not as_json:
                show_wrong(report)
    if not as_json:
        click.echo(f"{count} seeds, {wrong} of them broke a promise")
    return not wrong


def _kinds(text: str | None) -> list[str] | None:
    if text is None:
        return None
    kinds = [] if text.strip() == "none" else [kind.strip() for kind in text.split(",")]
    try:
        check_kinds(kinds)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--faults") from None
    return kinds


def _side_by_side(
    seeds: Iterable[int], jobs: int, run: Callable[[int], Report]
) -> Iterator[Report]:
    """The reports in the order of their seeds, without the events of those in which all
    holds.
    """
    # Started anew rather than forked: what this process has done must not matter. Each does many
    # runs, for importing takes longest. One seed at a time: it may run for minutes.
    # They end with this process, also if it is killed: each would wait for seeds for ever.
    with ProcessPoolExecutor(
        jobs,
        mp_context=get_context("spawn"),
        initializer=die_with_parent,
        initargs=(signal.SIGKILL, os.getpid()),
    ) as pool:
        yield from pool.map(partial(_without_events, run=run), seeds)


def _one(
    seed: int,
    *,
    nodes: int,
    seconds: float,
    kinds: list[str] | None,
    rounds: int | None,
    nodes_of_host: int,
) -> Report:
    if rounds is not None:
        return first_contacts(
            seed,
            nodes=nodes,
            rounds=rounds,
            cuts=kinds is None or "cut" in kinds,
            seconds=seconds,
            nodes_of_host=nodes_of_host,
        )
    return simulate_once(seed, nodes=nodes, seconds=seconds, faults=kinds)


def _without_events(seed: int, *, run: Callable[[int], Report]) -> Report:
    return attrs.evolve(run(seed), events=())


def _show(report: Report, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        click.echo(json.dumps(_facts(report), indent=2))
        return
    for event in report.events:
        if verbose or event.kind not in QUIET_KINDS:
            click.echo(_line(event))
    click.echo("")
    drawn = ", ".join(f"{kind} every {often:g} s" for kind, often in report.faults.items())
    click.echo(
        f"seed {report.seed}, {many(len(report.nodes), 'node')}: {report.seconds:.1f} virtual "
        f"seconds in {report.took:.2f} s"
    )
    click.echo(f"faults drawn: {drawn or 'none'}")
    click.echo("calls: " + ", ".join(f"{count} {how}" for how, count in report.calls.items()))
    click.echo(f"trace hash: {report.trace_hash}")
    for result in report.check_results:
        mark = click.style("holds", fg="green") if result.holds else click.style("WRONG", fg="red")
        click.echo(f"  {mark}  {result.name}: {result.text}")


def _line_of_seed(report: Report) -> str:
    result = "all promises hold" if report.holds else f"{many(len(report.wrong), 'promise')} broken"
    return (
        f"seed {report.seed}: {many(sum(report.calls.values()), 'call')}, {report.seconds:.1f} "
        f"virtual seconds in {report.took:.1f} s, {result}"
    )


def _scenario(rounds: int | None, nodes_per_host: int | None, minutes: float) -> str:
    """The options that a seed needs to be the same run, beside those for its nodes and faults."""
    given = {
        "--first-contacts": rounds,
        "--nodes-per-host": nodes_per_host,
        "--minutes": minutes,
    }
    return " ".join(f"{option} {value:g}" for option, value in given.items() if value)


def _show_wrong(report: Report, nodes: int, scenario: str, faults: str | None) -> None:
    again = f"understudy simulate --seed {report.seed} --nodes {nodes} {scenario}"
    click.echo(
        f"seed {report.seed}: see it again with  {again}{f' --faults {faults!r}' if faults else ''}"
    )
    for result in report.wrong:
        click.echo(f"  {click.style('WRONG', fg='red')}  {result.name}: {result.text}")


def _line(event: TraceEvent) -> str:
    kind = click.style(event.kind.ljust(10), fg="red" if event.kind in ("wrong", "crash") else None)
    return (
        f"{event.at:9.3f} s  {event.node.ljust(9)} {kind} "
        f"{event.text.splitlines()[0] if event.text else ''}"
    )


def _facts(report: Report) -> dict[str, object]:
    facts = attrs.asdict(report, filter=lambda field, _: field.name != "events")
    return {**facts, "holds": report.holds}
