"""The replays of the page on failures: simulated runs, as pages through which the reader scrubs.

Sphinx writes them into the site when it is built. `python docs/replays.py FOLDER` writes them as
well. The same code gives the same pages: a seed decides each run, and time is virtual.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import trio

from actors import ChildSpec, RetryPolicy, SpawnOptions, Supervisor
from examples.recovery import Ledger
from runtime.simulation.page import page
from runtime.simulation.runs import Scenario, Simulation, run_scenario

PATIENT = RetryPolicy(max_retries=50, repeat_unknown=True)
SEED = 2
"""Under this one the actor is not on the node that keeps the store."""

FOLDER = "failures/replays"
"""Where the pages stand in the site."""


async def supervised(simulation: Simulation) -> Ledger:
    """A ledger on one of the other nodes, whose supervisor lives where no fault hits it."""
    spec = ChildSpec(id="ledger", actor=Ledger, options=SpawnOptions(name="ledger"))
    await simulation.node.options(name="bank", on=simulation.node.name).spawn(Supervisor, [spec])
    return await simulation.node.lookup("ledger", Ledger)


async def add(simulation: Simulation, ledger: Ledger, amount: int) -> None:
    """Add to the ledger, and note when the call began and how it ended."""
    began = simulation.now()
    simulation.note(f"add({amount}) is called")
    total = await ledger.add.options(retry=PATIENT, timeout=60)(amount)
    took = simulation.now() - began
    simulation.note(f"add({amount}) is answered after {took:.2f} s: {total}")


async def killed(simulation: Simulation) -> None:
    """The process of a supervised actor is killed."""
    ledger = await supervised(simulation)
    await add(simulation, ledger, 100)
    home = await ledger.where()
    await trio.sleep(1)
    simulation.kill(home, restart_after=3)
    await add(simulation, ledger, 1)
    simulation.note(f"the ledger is on {await ledger.where()} now, and was on {home}")
    await trio.sleep(4)


async def cut(simulation: Simulation) -> None:
    """The network between a caller and an actor is cut for two seconds."""
    ledger = await simulation.node.options(name="ledger", on="node-2").spawn(Ledger)
    await add(simulation, ledger, 100)
    await trio.sleep(0.6)
    others = [name for name in (*simulation.nodes, simulation.node.name) if name != "node-2"]
    heal = simulation.partition(["node-2"], others)
    await trio.sleep(0.3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(add, simulation, ledger, 1)
        await trio.sleep(1.7)
        heal()
    await trio.sleep(1)
    await add(simulation, ledger, 1)
    await trio.sleep(0.4)


async def paused(simulation: Simulation) -> None:
    """A process is stopped for longer than its lease, and goes on afterwards."""
    ledger = await supervised(simulation)
    await add(simulation, ledger, 100)
    home = await ledger.where()
    simulation.pause(home)
    await add(simulation, ledger, 1)
    simulation.note(f"the ledger is on {await ledger.where()} now, and was on {home}")
    await trio.sleep(2)
    simulation.resume(home)
    await trio.sleep(2)
    await add(simulation, ledger, 1)


STORIES: dict[str, Scenario] = {"killed": killed, "cut": cut, "paused": paused}


def pages() -> Iterator[tuple[str, str]]:
    """The name of each file, and the page in it."""
    for name, story in STORIES.items():
        report = run_scenario(story, SEED, faults=())
        if not report.holds:
            raise RuntimeError(f"the replay {name}: {report.check_results}")
        # How long the machine took for it differs from run to run.
        yield f"{name}.html", page(attrs.evolve(report, took=0.0))


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (folder / name).write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx: write the replays when the other pages are written."""

    def finished(app: Any, error: Exception | None) -> None:
        if error is None and app.builder.format == "html":
            write(Path(app.outdir) / FOLDER)

    app.connect("build-finished", finished)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    write(Path(sys.argv[1]))
