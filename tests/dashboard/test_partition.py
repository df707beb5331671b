"""Pages on a cluster that is being partitioned: nodes on hosts of their own, between which the
network fails.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from actors import ChildSpec, SpawnOptions, Supervisor
from runtime import open_node
from tests.chaos.hosts import Host, missing, open_network
from tests.dashboard.browser import BrowserPage, needs_browser, open_browser
from tests.dashboard.conftest import Clerk, Customer
from tests.dashboard.test_browser import FITS, PAGES, dashboard_process, node_is, show
from tests.started_programs import started
from tests.waiting import until

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
    # The namespace of its processes ends with it.
    async with started([*command, *options]) as (_, line):
        yield str(json.loads(line)["address"])


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


async def served(page: BrowserPage, actor: str) -> int:
    """How many calls an actor has served, as the page has it."""
    rows = "import('./feed.js').then((feed) => feed.section('cluster', 'actors'))"
    found: int = (await page.run(rows))[actor]["served"]
    return found


async def is_called(page: BrowserPage, actor: str) -> None:
    """Wait until the page shows that calls of an actor go on."""
    before = await served(page, actor)
    what = f"{actor} serves more than {before} calls"
    await until(partial(served, page, actor), what, lambda count: count > before)


async def test_each_side_of_a_partition_says_what_it_cannot_see(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("5e" * 32)
    secret.chmod(0o600)
    async with open_network(3, secrets.token_hex(2)) as network, AsyncExitStack() as stack:
        enter, (one, two, three) = stack.enter_async_context, network.hosts
        # The store is on the first host; the third will be alone.
        first = await enter(node_on(one, "w1", secret))
        await enter(node_on(two, "w2", secret, "--join", first))
        third = await enter(node_on(three, "w3", secret, "--join", first))
        listen = f"{network.address}:0"
        async with open_node("own", join=first, listen=listen, secret=secret) as own:
            await own.wait_for(4)
            named = await own.options(name="till", on="w2").spawn(Clerk)
            await own.options(on="w1").spawn(Customer, named)
            alone = await own.options(on="w3").spawn(Clerk)
            await own.options(on="w3").spawn(Customer, alone)
            await own.options(name="till-3", on="w3").spawn(Clerk)
            name = alone.address.name
        options = ("--secret-file", str(secret), "--listen")
        browser = await enter(open_browser(tmp_path / "profile"))
        pages: list[BrowserPage] = []
        for host, address in ((one, first), (three, third)):
            there = (*options, f"{host.address}:0")
            dashboard = await enter(dashboard_process(address, *there, prefix=host.prefix))
            pages.append(await browser.page())
            await pages[-1].open(dashboard.url)
            await pages[-1].until("document.querySelectorAll('.map .node.up').length === 3", "all")
        many, few = pages
        for host in (one, two):
            await network.deafen(host, three)
            await network.deafen(three, host)
        # From the side without the store: who does not answer and since when, and what that means.
        for silent in ("w1", "w2"):
            await few.until(node_is(silent, "silent"), f"{silent} is silent")
            event = f"document.querySelector('.events').innerText.includes('{silent} does not')"
            await few.until(event, "the event")
        await few.until("/no answer for [1-9]/.test(document.body.innerText)", "since when")
        await few.until(node_is("w3", "up"), "its own side answers")
        await few.until("document.querySelector('#live').innerText === 'Store away'", "no store")
        what = "2 of 3 nodes do not answer here either"
        await few.until(f"document.body.innerText.includes('{what}')", what)
        await is_called(few, name)
        await show(few, "nodes", "/does not answer for [1-9]/.test(document.body.innerText)")
        await show(few, "actor/till-3", "document.body.innerText.includes('in doubt')")
        await show(few, "store", "document.body.innerText.includes('store did not answer')")
        await show(few, "")
        # The other side: the node dies, and calls go on.
        await many.send("Page.bringToFront")
        await many.until(node_is("w3", "gone"), "its lease has ended")
        await is_called(many, "till")
        await many.until("document.querySelector('#live').innerText === 'Live'", "it is live")
        # A page that nobody has seen for a while takes up where it was.
        await few.send("Page.bringToFront")
        await is_called(few, name)
        await few.until("document.querySelector('#live').innerText === 'Store away'", "no store")
        for host in (one, two):
            await network.restore(host, three)
            await network.restore(three, host)
        await few.until(node_is("w1", "up"), "it is found again")
        await few.until(node_is("w3", "gone"), "the node that was alone has lost its lease")
        await is_called(few, "till")
        assert browser.errors == []
