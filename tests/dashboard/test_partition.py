"""Pages on a cluster that is being partitioned: nodes on hosts of their own, between which the
network fails.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from actors import ChildSpec, SpawnOptions, Supervisor
from runtime import open_node
from tests.chaos.hosts import Host, missing, open_network
from tests.dashboard.browser import needs_browser, open_browser
from tests.dashboard.conftest import Clerk
from tests.dashboard.test_browser import FITS, PAGES, dashboard_process, node_is, show

MISSING = missing()

pytestmark = [
    needs_browser,
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
    pytest.mark.long,
    pytest.mark.cluster,
]


@asynccontextmanager
async def node_on(host: Host, name: str, secret: Path, *options: str) -> AsyncIterator[str]:
    """A node on a host; its address."""
    command = [*host.prefix, sys.executable, "-m", "runtime.command_line", "node", "--json"]
    command += ["--name", name, "--listen", f"{host.address}:0", "--secret-file", str(secret)]
    process = await trio.lowlevel.open_process([*command, *options], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = b""
        with trio.fail_after(60):
            while not line.endswith(b"\n"):
                line += await process.stdout.receive_some()
        yield str(json.loads(line)["address"])
    finally:
        # The namespace of its processes ends with it.
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def test_pages_on_a_cluster_that_is_being_partitioned(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("5e" * 32)
    secret.chmod(0o600)
    async with open_network(3, secrets.token_hex(2)) as network, AsyncExitStack() as stack:
        one, two, three = network.hosts
        address = await stack.enter_async_context(node_on(one, "w1", secret))
        for host, name in ((two, "w2"), (three, "w3")):
            await stack.enter_async_context(node_on(host, name, secret, "--join", address))
        enter = stack.enter_async_context
        # A supervisor on one host watches its child on another: so these two have a link.
        where = f"{network.address}:0"
        async with open_node("own", join=address, listen=where, secret=secret) as own:
            await own.wait_for(4)
            child = ChildSpec(id="clerk", actor=Clerk, options=SpawnOptions(name="clerk", on="w3"))
            await own.options(name="shop", on="w2").spawn(Supervisor, [child])
        dashboard = await enter(dashboard_process(address, "--secret-file", str(secret)))
        browser = await enter(open_browser(tmp_path / "profile"))
        page = await browser.page()
        await page.open(dashboard.url)
        await page.until("document.querySelectorAll('.map .node.up').length === 3", "the map")
        is_live = partial(page.until, "document.querySelector('#live').innerText === 'Live'")
        # Two nodes lose each other. Both answer the dashboard, and each says so of the other.
        await network.deafen(two, three)
        await network.deafen(three, two)
        cut_off = "document.querySelectorAll('.map .node.up.unseen').length"
        await page.until(f"{cut_off} === 2", "both are drawn as cut off")
        await page.until("document.querySelectorAll('.map .broken').length", "the link")
        for what in ("cut off from w2", "2 cut off", "w2 and w3 have lost each other:"):
            await page.until(f"document.body.innerText.includes('{what}')", what)
        events = "document.querySelector('.events').innerText"
        await page.until(f"{events}.includes('w2 and w3 have lost each other')", "the event")
        await show(page, "nodes", "document.querySelector('tbody').innerText.includes('cut off')")
        for path in PAGES:
            await show(page, path, "document.querySelectorAll('.panel').length")
            await is_live(f"page {path!r} is live")
            assert await page.run(FITS), f"page {path!r} is wider than the window"
        await show(page, "node/w2", "document.body.innerText.includes('w3')")
        await network.restore(two, three)
        await network.restore(three, two)
        await show(page, "")
        await page.until(f"{cut_off} === 0", "they have found each other again")
        await page.until(f"{events}.includes('w2 and w3 have found each other again')", "an event")
        await page.until("!document.body.innerText.includes('lost each other:')", "it is over")
        # A node that stays away is silent, and then dead; the page goes on.
        await network.cut(three)
        await page.until(node_is("w3", "silent"), "the node is silent")
        await page.until(node_is("w3", "gone"), "its lease has ended")
        await is_live("it goes on")
        # The founder, which has the store, is cut off from all: the others go on to be asked.
        await network.cut(one)
        await page.until(node_is("w1", "silent"), "the founder is silent")
        await show(page, "store", "document.body.innerText.includes('store did not answer')")
        # What the page shows is never older than the last answers of the others.
        await page.until("/silent/.test(document.querySelector('#live').innerText)", "it says so")
        assert browser.errors == []
