"""Photograph the dashboard for the pages Watch and Debug: `make pictures`, with Chromium.

A cluster of three workers is called, two of its actors wait for each other, and a worker is killed.
"""

from __future__ import annotations

import base64
import os
import signal
import tempfile
from pathlib import Path

import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from actors.errors import CallError
from runtime import open_local_cluster
from runtime.cluster_processes import LocalCluster
from tests.dashboard.browser import BrowserPage, open_browser
from tests.dashboard.test_browser import dashboard_process, node_is, show
from tests.house import ROOT

PLACE = ROOT / "docs/operate"
WIDTH = 1180
BELOW = 24
"""Pixels below the last panel of a picture."""
WORKERS = ("worker-1", "worker-2", "worker-3")
CLERKS = 9
SEEN_SECONDS = 20.0
"""For how long it is called before it is photographed, so that the lines show something."""


class Clerk(Actor):
    """Sells, and may ask another clerk for a price."""

    @method
    async def sell(self) -> int:
        """Take a short time."""
        await trio.sleep(0.002)
        return 1

    @method
    async def ask_price(self, other: str) -> None:
        """Ask the other, which asks as well: neither can go on."""
        await trio.sleep(0.5)
        await (await self.node.lookup(other, Clerk)).ask_price(self.name)


async def call(cluster: LocalCluster, name: str) -> None:
    """Call a clerk again and again, also while it is placed elsewhere."""
    while True:
        try:
            await (await cluster.node.lookup(name, Clerk)).options(timeout=1.0).sell()
        except CallError:
            # Its node was killed: the next call finds it elsewhere.
            await trio.sleep(0.1)
        await trio.sleep(0.01)


async def photograph(page: BrowserPage, name: str, last: str) -> None:
    """Write two pictures of the page, light and dark, down to the panel that has this title."""
    bottom = (
        "[...document.querySelectorAll('.panel')]"
        f".find((one) => one.innerText.startsWith('{last}'))"
        ".getBoundingClientRect().bottom + scrollY"
    )
    # Without the place of the scroll bar.
    width = await page.run("document.querySelector('header').getBoundingClientRect().right")
    height = await page.run(bottom) + BELOW
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    for scheme, ending in (("light", ""), ("dark", "-dark")):
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        await page.send("Emulation.setEmulatedMedia", features=media)
        # Colours of the map change over some hundred milliseconds.
        await trio.sleep(1.0)
        taken = await page.send(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        (PLACE / f"{name}{ending}.png").write_bytes(base64.b64decode(taken["data"]))


async def main(profile: Path) -> None:
    """Run the cluster, and write the pictures."""
    async with open_local_cluster(nodes=0) as cluster, open_browser(profile) as browser:
        for name in WORKERS:
            await cluster.start_node(name, labels={"role": "work"})
        options = [
            SpawnOptions(name=f"shop/clerk-{number}", labels={"role": "work"})
            for number in range(CLERKS)
        ]
        specs = [ChildSpec(id=one.name or "", actor=Clerk, options=one) for one in options]
        await cluster.node.options(name="shop").spawn(Supervisor, specs, intensity=100)
        buyers = [
            await cluster.node.options(name=f"buyer-{number}").spawn(Clerk) for number in (1, 2)
        ]
        async with (
            dashboard_process(cluster.node.address) as dashboard,
            trio.open_nursery() as nursery,
        ):
            for one in options:
                nursery.start_soon(call, cluster, one.name or "")
            page = await browser.page(width=WIDTH, height=1000)
            await page.send("Emulation.setScrollbarsHidden", hidden=True)
            await page.open(dashboard.url)
            await page.until(node_is("worker-3", "up"), "the map")
            await trio.sleep(SEEN_SECONDS)
            os.kill(cluster.processes["worker-2"].pid, signal.SIGKILL)
            await page.until(node_is("worker-2", "gone"), "the death")
            await page.until("document.body.innerText.includes('after worker-2')", "the moves")
            await trio.sleep(3.0)
            await photograph(page, "watch", "Last five minutes")
            # Both at once. If one asked within the call of the other, that would be an error.
            nursery.start_soon(buyers[0].ask_price, "buyer-2")
            nursery.start_soon(buyers[1].ask_price, "buyer-1")
            await show(page, "calls", "document.body.innerText.includes('buyer-2')")
            await trio.sleep(6.0)
            await photograph(page, "debug", "Open calls")
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        trio.run(main, Path(temporary))
