"""Draw the pictures of the documentation from runs of the runtime: `python docs/pictures.py`.

Each run is on a virtual clock. What it showed is kept in pictures.json, and the pictures are drawn
from that file, so they can be drawn anew without a run: `python docs/pictures.py --draw`. They
follow the reader's colour scheme.
"""

from __future__ import annotations

import html
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import replays
import trio
import trio.testing

from actors import ChildSpec, SpawnOptions, Supervisor
from examples.recovery import Ledger
from runtime.environment import SystemEnvironment
from runtime.observation.tree import Branch
from runtime.rendezvous.handler import StoreHandler
from runtime.rendezvous.parameters import AgentSettings, RendezvousParameters
from runtime.simulation.runs import Simulation, run_scenario
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import Store

DOCS = Path(__file__).resolve().parent
DATA = DOCS / "pictures.json"
FILES = {
    "tree": DOCS / "how-to" / "tree.svg",
    "link": DOCS / "failures" / "link.svg",
    "rendezvous": DOCS / "how-to" / "round.svg",
}

STYLE = """
.paper { fill: #ffffff }
text { font: 14px system-ui, sans-serif; fill: #24292f }
.dim, .time { fill: #57606a } .small { font-size: 12px }
.title { font-weight: 600 } .middle { text-anchor: middle }
.box { fill: #f6f8fa; stroke: #8c959f } .edge { stroke: #8c959f; fill: none }
.life { fill: #b9d3ee; stroke: #3f76b0 } .kept { stroke-dasharray: 3 3 }
.band { fill: #cf222e; opacity: .12 } .bad { fill: #cf222e } .good { fill: #1a7f37 }
.call { stroke: #24292f; stroke-width: 1.5 } .mark { fill: #24292f }
.dead { stroke: #cf222e } .new { stroke: #1a7f37; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #131416 }
  text { fill: #e6edf3 } .dim, .time { fill: #8d96a0 }
  .box { fill: #161b22; stroke: #6e7681 } .edge { stroke: #6e7681 }
  .life { fill: #2c4a6b; stroke: #7fb2e8 }
  .band { fill: #f85149; opacity: .16 } .bad { fill: #f85149 } .good { fill: #3fb950 }
  .call { stroke: #e6edf3 } .mark { fill: #e6edf3 }
  .dead { stroke: #f85149 } .new { stroke: #3fb950 }
}
"""


# What the runs show


def branches(branch: Branch) -> list[dict[str, Any]]:
    """A supervisor and its children, as far as the picture shows them."""
    return [
        {"id": one.id, "node": one.node, "state": one.state, "restarts": one.restarts}
        for one in (branch, *branch.children)
    ]


def _whole(tree: list[dict[str, Any]], killed: str) -> bool:
    return all(one["state"] == "running" and one["node"] != killed for one in tree[1:])


def tree() -> dict[str, Any]:
    """The tree of a supervisor with three children, before its node-2 is killed and after."""
    seen: dict[str, Any] = {}

    async def story(simulation: Simulation) -> None:
        node = simulation.node
        specs = [
            ChildSpec(id=name, actor=Ledger, options=SpawnOptions(name=name))
            for name in ("orders", "stock", "till")
        ]
        await node.options(name="shop", on=node.name).spawn(Supervisor, specs)
        seen["before"] = branches((await node.tree()).roots[0])
        seen["killed"] = seen["before"][1]["node"]
        simulation.kill(seen["killed"], restart_after=60)
        began = simulation.now()
        while not _whole(branches((await node.tree()).roots[0]), seen["killed"]):  # noqa: ASYNC110
            await trio.sleep(0.1)
        seen["after"] = branches((await node.tree()).roots[0])
        seen["seconds"] = round(simulation.now() - began, 1)

    assert run_scenario(story, replays.SEED, faults=()).holds
    return seen


def link() -> dict[str, Any]:
    """When the caller of the replay called, when the network was cut and healed, when its call was
    answered.
    """
    report = run_scenario(replays.cut, replays.SEED, faults=())
    assert report.holds
    (cut,) = [event.at for event in report.events if event.kind == "partition"]
    notes = [
        {"at": round(event.at - cut, 2), "text": event.text}
        for event in report.events
        if event.kind == "note"
    ]
    (healed,) = [event.at for event in report.events if event.kind == "heal"]
    return {"notes": notes, "healed": round(healed - cut, 2)}


def rendezvous() -> dict[str, Any]:
    """Three agents that start after each other; one of them dies."""
    told: list[dict[str, Any]] = []

    async def agent(store: Store, name: str, life: float, start: float) -> None:
        @asynccontextmanager
        async def open_store() -> AsyncIterator[Store]:
            yield store

        settings = AgentSettings.of(
            RendezvousParameters("file", "nowhere", "job", 2, 3, last_call_timeout=1)
        )

        def tell(kind: str, text: str) -> None:
            at = round(trio.current_time() - start, 1)
            told.append({"at": at, "agent": name, "kind": kind, "text": text})

        tell("joins", "joins")
        with trio.move_on_after(life):
            async with StoreHandler(settings, SystemEnvironment(), open_store) as handler:
                while True:
                    info = await handler.next_rendezvous()
                    tell("rank", f"round {info.round}: rank {info.rank} of {info.world_size}")
                    change = await handler.wait_change(info.round)
                    tell("change", "an agent left" if change.left else "an agent waits")
        if life < 30:
            tell("leaves", "leaves")

    async def job() -> None:
        store = EmbeddedStore(SystemEnvironment())
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            nursery.start_soon(agent, store, "a", 30.0, start)
            await trio.sleep(1)
            nursery.start_soon(agent, store, "b", 6.5, start)
            await trio.sleep(3)
            nursery.start_soon(agent, store, "c", 30.0, start)
            await trio.sleep(8)
            nursery.cancel_scope.cancel()

    trio.run(job, clock=trio.testing.MockClock(autojump_threshold=0.01))
    return {"events": told}


# The drawings


def svg(width: int, height: int, label: str, parts: list[str]) -> str:
    """A whole picture."""
    # With a ground of its own: a page may have another scheme than the reader's system.
    inner = "\n".join([f'<rect class="paper" width="{width}" height="{height}" rx="8"/>', *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(label)}">\n<style>{STYLE}</style>\n{inner}\n</svg>\n'
    )


def text(x: float, y: float, what: str, style: str = "") -> str:
    """A line of text."""
    return f'<text class="{style}" x="{x:g}" y="{y:g}">{html.escape(what)}</text>'


def box(x: float, y: float, one: dict[str, Any], style: str) -> str:
    """An actor: its name, and below it where it lives."""
    where = one["node"] or "nowhere"
    restarts = one["restarts"]
    more = f", restarts: {restarts}" if restarts else ""
    return (
        f'<rect class="box {style}" x="{x:g}" y="{y:g}" width="150" height="50" rx="6"/>'
        + text(x + 75, y + 21, one["id"], "middle title")
        + text(x + 75, y + 39, where + more, "middle small dim")
    )


def half(top: float, title: str, tree: list[dict[str, Any]], style: dict[str, str]) -> list[str]:
    """One of the two trees."""
    root, *children = tree
    parts = [text(16, top + 18, title, "title"), box(265, top + 34, root, "")]
    for place, child in enumerate(children):
        x = 65 + 200 * place
        parts.append(
            f'<path class="edge" d="M340 {top + 84:g}V{top + 100:g}H{x + 75}V{top + 116:g}"/>'
        )
        parts.append(box(x, top + 116, child, style.get(child["id"], "")))
    return parts


def draw_tree(seen: dict[str, Any]) -> str:
    """Two trees, one below the other."""
    lost = {one["id"] for one in seen["before"][1:] if one["node"] == seen["killed"]}
    return svg(
        680,
        390,
        "A supervision tree before and after a node is killed",
        [
            *half(
                0, f"before {seen['killed']} is killed", seen["before"], dict.fromkeys(lost, "dead")
            ),
            *half(200, f"{seen['seconds']:g} s later", seen["after"], dict.fromkeys(lost, "new")),
        ],
    )


def draw_link(seen: dict[str, Any]) -> str:
    """Two lanes along the time, and the calls between them."""
    last = max(note["at"] for note in seen["notes"])
    first = min(note["at"] for note in seen["notes"])

    def x(at: float) -> float:
        return 110 + (at - first + 0.2) / (last - first + 1.2) * 560

    caller, actor = 84, 184
    parts = [
        f'<rect class="band" x="{x(0):g}" y="40" '
        f'width="{x(seen["healed"]) - x(0):g}" height="190"/>',
        text(
            (x(0) + x(seen["healed"])) / 2,
            34,
            f"no byte passes for {seen['healed']:g} s",
            "middle small bad",
        ),
    ]
    for y, name in ((caller, "caller"), (actor, "actor")):
        parts.append(text(16, y + 5, name, "title"))
        parts.append(f'<rect class="life" x="110" y="{y - 8}" width="560" height="16" rx="3"/>')
    calls = zip(seen["notes"][::2], seen["notes"][1::2], strict=True)
    for called, answered in calls:
        there, back = x(called["at"]), x(answered["at"])
        reaches = (there + back) / 2
        if 0 <= called["at"] < seen["healed"]:
            # The call is sent again on the next connection, with the same number.
            reaches = (x(seen["healed"]) + back) / 2
            parts.append(f'<path class="edge call kept" d="M{there:g} {caller}l14 46"/>')
            parts.append(text(there + 22, caller + 52, "kept, and sent again", "small dim"))
            there = x(seen["healed"])
        parts.append(
            f'<path class="edge call" d="M{there:g} {caller}L{reaches:g} {actor}'
            f'L{back:g} {caller}"/>'
        )
        parts.append(f'<circle class="mark" cx="{x(called["at"]):g}" cy="{caller}" r="4"/>')
        parts.append(f'<circle class="mark" cx="{reaches:g}" cy="{actor}" r="4"/>')
        name = called["text"].removesuffix(" is called")
        parts.append(text(x(called["at"]) - 4, caller - 16, name, "small"))
        said = answered["text"].rpartition(" is answered ")[2]
        parts.append(text(back + 8, caller + 28, said, "small good"))
    return svg(690, 246, "A call over a connection that breaks", parts)


def draw_rendezvous(seen: dict[str, Any]) -> str:
    """A lane for each agent."""
    events = seen["events"]
    end = max(event["at"] for event in events) + 2.2

    def x(at: float) -> float:
        return 90 + at / end * 580

    parts = [text(x(at), 22, f"{at} s", "middle small time") for at in range(0, int(end), 2)]
    names = sorted({event["agent"] for event in events})
    for lane, name in enumerate(names):
        y = 62 + 88 * lane
        mine = [event for event in events if event["agent"] == name]
        gone = [event["at"] for event in mine if event["kind"] == "leaves"]
        start, stop = x(mine[0]["at"]), x(gone[0] if gone else end)
        parts.append(text(16, y + 5, f"agent {name}", "title"))
        parts.append(
            f'<rect class="life" x="{start:g}" y="{y - 7}" width="{stop - start:g}" '
            f'height="14" rx="3"/>'
        )
        for event in mine:
            style = {"rank": "good", "leaves": "bad", "change": "dim"}.get(event["kind"], "")
            place = y - 14 if event["kind"] in ("joins", "change", "leaves") else y + 24
            parts.append(f'<circle class="mark {style}" cx="{x(event["at"]):g}" cy="{y}" r="4"/>')
            for line, words in enumerate(event["text"].split(": ")):
                parts.append(text(x(event["at"]) - 4, place + 15 * line, words, f"small {style}"))
    return svg(690, 56 + 88 * len(names), "Rounds of a rendezvous", parts)


RUNS = {"tree": tree, "link": link, "rendezvous": rendezvous}
DRAWINGS = {"tree": draw_tree, "link": draw_link, "rendezvous": draw_rendezvous}


def pictures() -> dict[Path, str]:
    """Each file, and what is drawn in it."""
    seen = json.loads(DATA.read_text())
    return {file: DRAWINGS[name](seen[name]) for name, file in FILES.items()}


if __name__ == "__main__":
    if "--draw" not in sys.argv:
        DATA.write_text(json.dumps({name: run() for name, run in RUNS.items()}, indent=2) + "\n")
    for file, drawn in pictures().items():
        file.write_text(drawn)
