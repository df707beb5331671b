"""`understudy tree`: the trees of supervisors and their children, with states and restarts."""

from __future__ import annotations

import json
import os
import shutil
import sys
from datetime import UTC, datetime
from typing import Any

import click
import trio

from actors.errors import UnderstudyError
from actors.identifiers import NodeId
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.units import Number, Text
from runtime.environment import SystemEnvironment, unwrap
from runtime.observation.node_queries import ask_for_tree
from runtime.observation.tree import GONE, SILENT, Tree, draw_deaths, draw_tree, lines_for

REDRAW = "\x1b[H\x1b[J"
"""To the first line of the terminal, and clear what is there."""

_COLOURS: dict[str, str] = {
    "running": "green",
    "restarting": "yellow",
    "starting": "yellow",
    "stopping": "yellow",
    SILENT: "red",
    GONE: "red",
}


@click.command(epilog="Example:  understudy tree pipeline --watch --interval 0.5")
@click.argument("name", required=False, type=Text())
@click.option(
    "--deaths",
    is_flag=True,
    help="Show the recorded ends of children, with tracebacks.",
)
@click.option("--watch", is_flag=True, help="Redraw the tree until Ctrl-C.")
@click.option(
    "--interval",
    type=Number(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between redraws, with --watch.",
)
@cluster_options
def tree(
    name: str | None,
    deaths: bool,
    watch: bool,
    interval: float,
    chosen: ChosenCluster,
    as_json: bool,
) -> None:
    """Show the supervisors of a cluster and their children; with NAME only what is below that
    supervisor.

    A supervisor that does not answer within a second is shown with the children that the store has
    by their names, and the exit status is 1.
    """
    display = _TreeDisplay(name, deaths=deaths, as_json=as_json, watch=watch)
    if watch:
        trio.run(_watch, display, interval, chosen)
    else:
        shown = trio.run(_ask, display, chosen)
        click.echo(display.text(shown))
        raise SystemExit(0 if shown.answers else 1)


async def _ask(display: _TreeDisplay, chosen: ChosenCluster) -> Tree:
    async with connect(chosen, "observer") as client:
        members = [
            NodeId(member["name"], member["incarnation"]) for member in client.status["members"]
        ]
        found = await ask_for_tree(client.endpoint, client.names, members, chosen.name)
    return display.chosen(found)


async def _watch(display: _TreeDisplay, interval: float, chosen: ChosenCluster) -> None:
    """Each drawing by a client of its own, so that none is the last one because a connection was
    lost. Raises what the first one does.
    """
    begun = False
    while True:
        next_at = trio.current_time() + interval
        try:
            text = display.text(await _ask(display, chosen))
        except* (UnderstudyError, OSError) as group:
            if not begun:
                raise
            text = display.trouble(unwrap(group))
        try:
            display.show(text)
        except BrokenPipeError:
            # The reader has closed the pipe. What is still buffered must not fail once more when
            # the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        begun = True
        await trio.sleep_until(next_at)


class _TreeDisplay:
    """What to show, and how: on a terminal in place and in colour, otherwise one after another."""

    def __init__(self, name: str | None, *, deaths: bool, as_json: bool, watch: bool) -> None:
        self._name = name
        self._deaths = deaths
        self._as_json = as_json
        self._watch = watch
        self._clock = SystemEnvironment().wall_time
        self._in_place = watch and not as_json and sys.stdout.isatty()
        self._lines = lines_for(sys.stdout.encoding)

    def chosen(self, found: Tree) -> Tree:
        return found if self._name is None else found.below(self._name)

    def text(self, found: Tree) -> str:
        if self._as_json:
            facts: dict[str, Any] = {"time": self._clock(), **found.facts()}
            return json.dumps(facts, indent=None if self._watch else 2)
        size = shutil.get_terminal_size()
        drawn = draw_tree(
            found, lines=self._lines, width=size.columns if self._in_place else None, paint=_paint
        )
        if self._deaths:
            drawn += "\n\n" + draw_deaths(found, _time)
        if self._watch:
            drawn = f"cluster {found.cluster} at {_time(self._clock())}\n{drawn}"
        lines = drawn.splitlines()
        if self._in_place and len(lines) >= size.lines:
            kept = max(1, size.lines - 2)
            lines[kept:] = [
                f"... and {len(lines) - kept} more lines: make the window higher, or give the "
                "NAME of one supervisor"
            ]
        return "\n".join(lines)

    def trouble(self, error: BaseException) -> str:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return (
            json.dumps({"time": self._clock(), "error": line})
            if self._as_json
            else f"{_time(self._clock())}  {line}; trying again"
        )

    def show(self, text: str) -> None:
        click.echo(f"{REDRAW if self._in_place else ''}{text}")
        sys.stdout.flush()


def _paint(state: str, text: str) -> str:
    # `click` leaves the colours out by itself where the output is no terminal.
    colour = _COLOURS.get(state)
    return (
        click.style(text, fg=colour)
        if colour is not None and not os.environ.get("NO_COLOR")
        else text
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
