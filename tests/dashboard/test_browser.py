"""The dashboard as people see it: the real process, a real browser, and real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from actors import ChildSpec, SpawnOptions, Supervisor
from runtime import open_local_cluster
from runtime.cluster_processes import LocalCluster
from tests.dashboard.browser import BrowserPage, needs_browser, open_browser
from tests.dashboard.conftest import Clerk, open_world
from tests.started_programs import started
from tests.waiting import until

pytestmark = needs_browser

PAGES = [
    "nodes",
    "tree",
    "actors",
    "calls",
    "deaths",
    "links",
    "references",
    "pools",
    "store",
    "jobs",
    "logs",
]

FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@attrs.frozen
class DashboardProcess:
    """A dashboard in a process of its own."""

    url: str
    pid: int


@asynccontextmanager
async def dashboard_process(
    address: str, *options: str, prefix: Sequence[str] = ()
) -> AsyncIterator[DashboardProcess]:
    """`understudy dashboard`. `prefix`: the command that starts it, on another host."""
    command = [*prefix, sys.executable, "-m", "runtime.command_line", "dashboard", "--json"]
    async with started([*command, "--address", address, *options]) as (process, line):
        yield DashboardProcess(json.loads(line)["url"], process.pid)


async def show(page: BrowserPage, path: str, ready: str = "true") -> None:
    """Go to a page of the dashboard, and wait until it is drawn."""
    await page.run(f"location.hash = {json.dumps(f'#/{path}')}")
    await page.until(
        f"document.querySelector('#nav [aria-current]') && ({ready})", f"page {path!r} is there"
    )


async def test_every_page_is_drawn_without_an_error(tmp_path: Path) -> None:
    async with open_world() as world, open_browser(tmp_path) as browser:
        clerk = await world.node.lookup("shop/clerk", Clerk)
        await clerk.fail()
        page = await browser.page()
        await page.open(f"http://127.0.0.1:{world.dashboard.http.port}/#token=atokenofthetests1")
        await page.until("document.querySelectorAll('.map .node').length === 1", "the map")
        await page.until("document.querySelectorAll('.map .actor').length === 2", "its actors")
        assert await page.run("location.hash") == "#/", "the token does not stay in the address"
        for path in PAGES:
            await show(page, path, "document.querySelectorAll('.panel').length")
            await page.until("document.querySelector('#live').innerText === 'Live'", "it is live")
            assert await page.run(FITS), f"page {path!r} is wider than the window"
        await show(page, "deaths", "document.querySelectorAll('.deaths details').length")
        text = await page.run("document.querySelector('.deaths').innerText")
        assert "the till is <b>empty</b>" in text, "as text, and not as HTML"
        assert not await page.run("document.querySelector('.deaths b')")
        await show(page, "actor/shop%2Fclerk", "document.body.innerText.includes('Mailbox')")
        await show(page, "node/one", "document.body.innerText.includes('Incarnation')")
        # What is not there is not shown as idle.
        shown = (
            "[...document.querySelectorAll('.panel')].filter((one) => one.checkVisibility())"
            ".map((one) => one.innerText)"
        )
        await show(page, "actor/nobody", "document.body.innerText.includes('or have ended')")
        assert "Idle" not in str(await page.run(shown))
        await show(page, "node/nobody", "document.body.innerText.includes('No node called nobody')")
        assert await page.run(shown) == []
        # A page that is covered by another tab asks for nothing.
        other = await browser.page()
        await until(lambda: world.dashboard.application.pages, "none is open", lambda n: n == 0)
        await other.close()
        await page.send("Page.bringToFront")
        await until(lambda: world.dashboard.application.pages, "it is back", lambda n: n == 1)
        # By keyboard.
        for kind in ("keyDown", "keyUp"):
            await page.send("Input.dispatchKeyEvent", type=kind, key="3", text="3")
        await page.until("location.hash === '#/tree'", "key 3 opens the tree")
        assert browser.errors == []


@asynccontextmanager
async def shop() -> AsyncIterator[LocalCluster]:
    """Three workers, and a supervisor elsewhere with six clerks on them."""
    async with open_local_cluster(nodes=0) as cluster:
        for name in ("w1", "w2", "w3"):
            await cluster.start_node(name, labels={"role": "work"})
        specs = [
            ChildSpec(
                id=f"clerk-{number}",
                actor=Clerk,
                options=SpawnOptions(name=f"shop/clerk-{number}", labels={"role": "work"}),
            )
            for number in range(6)
        ]
        await cluster.node.options(name="shop").spawn(Supervisor, specs, intensity=1000)
        yield cluster


def node_is(name: str, state: str) -> str:
    """An expression: the map shows a node so."""
    return (
        f"[...document.querySelectorAll('.map .node.{state}')]"
        f".some((one) => one.getAttribute('href') === '#/node/{name}')"
    )


@pytest.mark.long
@pytest.mark.cluster
async def test_deaths_stops_and_the_end_of_the_cluster_are_seen(tmp_path: Path) -> None:
    async with shop() as cluster, open_browser(tmp_path) as browser:
        async with dashboard_process(cluster.node.address) as dashboard:
            page = await browser.page()
            await page.open(dashboard.url)
            await page.until("document.querySelectorAll('.map .node.up').length === 4", "the map")
            pids = {name: one.pid for name, one in cluster.processes.items()}
            os.kill(pids["w2"], signal.SIGKILL)
            await page.until(node_is("w2", "gone"), "the death")
            moved = "[...document.querySelectorAll('.map .actor:not(.supervises):not(.gone)')]"
            await page.until(f"{moved}.length === 6", "the clerks are placed elsewhere")
            await page.until("document.body.innerText.includes('after w2')", "the event is told")
            assert await page.run("document.querySelectorAll('.timeline .mark.gone').length") == 1
            # A node that is stopped is silent, with the age of what is shown, and comes back.
            os.kill(pids["w3"], signal.SIGSTOP)
            await page.until(node_is("w3", "silent"), "the silence")
            await page.until("document.querySelector('#live').innerText.includes('silent')", "told")
            await show(page, "node/w3", "/\\d s old/.test(document.body.innerText)")
            os.kill(pids["w3"], signal.SIGCONT)
            await show(page, "nodes")
            telephone = await browser.page(width=390, height=844)
            await telephone.open(dashboard.url)
            for path in ["", *PAGES]:
                await show(telephone, path, "document.querySelectorAll('.panel').length")
                assert await telephone.run(FITS), f"page {path!r} is wider than a telephone"
            await telephone.close()
            await page.send("Page.bringToFront")
            await page.until("document.querySelector('#live').innerText === 'Live'", "it goes on")
            # The dashboard ends: the page says so, and keeps what it has.
            os.kill(dashboard.pid, signal.SIGKILL)
            await page.until("!document.querySelector('#banner').hidden", "the banner")
            assert "does not answer" in await page.run(
                "document.querySelector('#banner').innerText"
            )
            assert await page.run("document.querySelectorAll('tbody tr').length") >= 2
        assert browser.errors == []


@pytest.mark.long
@pytest.mark.cluster
async def test_the_cluster_goes_and_comes_back(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runtime.command_line", "node", "--name", "one", "--json"]
    command += ["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    first = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert first.stdout is not None
    address = json.loads(await first.stdout.receive_some())["address"]
    async with open_browser(tmp_path / "profile") as browser, dashboard_process(address) as told:
        page = await browser.page(dark=True)
        await page.open(told.url)
        await page.until(node_is("one", "up"), "the node")
        first.kill()
        await first.wait()
        await page.until("document.querySelector('#live').innerText === 'Cluster lost'", "lost")
        banner = await page.run("document.querySelector('#banner').innerText")
        assert "s old" in banner
        assert address in banner
        command[command.index("127.0.0.1:0")] = address
        second = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        try:
            # Another process may have taken the port meanwhile: then the node ends and says so,
            # and the page would be waited for in vain.
            assert second.stdout is not None
            told_by_second = await second.stdout.receive_some()
            assert json.loads(told_by_second or b"{}").get("address") == address
            await page.until("document.querySelector('#live').innerText === 'Live'", "back")
            await page.until(node_is("one", "up"), "the node, as a new incarnation")
            assert await page.run("document.querySelector('#banner').hidden")
        finally:
            second.kill()
            with trio.CancelScope(shield=True), trio.move_on_after(10):
                await second.wait()
        assert browser.errors == []


async def test_a_store_that_is_away_is_reported_and_no_list_is_said_to_be_empty(
    tmp_path: Path,
) -> None:
    async with open_world() as world, open_browser(tmp_path) as browser:
        page = await browser.page()
        await page.open(f"http://127.0.0.1:{world.dashboard.http.port}/#token=atokenofthetests1")
        await page.until(node_is("one", "up"), "the map")
        problem = "[...document.querySelectorAll('.problems')].some((one) => one.checkVisibility())"
        assert not await page.run(problem)
        # As the node says it when it does not reach its store: later messages tell changes only.
        change = (
            "import('./feed.js').then((feed) => {"
            " feed.topics.get('cluster').sections.totals.cluster.store_away = 1;"
            " document.dispatchEvent(new Event('redraw')); })"
        )
        await page.run(change)
        await page.until("document.querySelector('#live').innerText === 'Store away'", "the word")
        await page.until(problem, "what it means")
        await show(page, "jobs", "document.body.innerText.includes('No elastic jobs')")
        change = (
            "import('./feed.js').then((feed) => {"
            " feed.topics.get('jobs').sections.problems = {a: {text: 'the store does not answer'}};"
            " document.dispatchEvent(new Event('redraw')); })"
        )
        await page.run(change)
        await page.until(problem, "why they are not known")
        assert "No elastic jobs" not in await page.run("document.querySelector('main').innerText")
        assert browser.errors == []


async def test_a_wrong_token_asks_for_the_right_one(tmp_path: Path) -> None:
    async with open_world() as world, open_browser(tmp_path) as browser:
        page = await browser.page()
        base = f"http://127.0.0.1:{world.dashboard.http.port}/"
        await page.open(f"{base}#token=wrongwrongwrong1")
        await page.until("document.querySelector('.admit input')", "it asks for a token")
        assert world.dashboard.sampler.asked == 0
        # The whole address may be given.
        address = json.dumps(f"{base}#token=atokenofthetests1")
        await page.run(f"document.querySelector('.admit input').value = {address}")
        await page.run("document.querySelector('.admit button').click()")
        await page.until("document.querySelectorAll('.map .node').length === 1", "the map")
        await until(lambda: world.dashboard.application.pages, "one page", lambda n: n == 1)
        await page.close()
        await until(lambda: world.dashboard.application.pages, "none", lambda n: n == 0)
