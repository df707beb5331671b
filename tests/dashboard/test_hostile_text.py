"""What a cluster says is text on every page, in a real browser, whatever it says: it makes no
element, runs no script, and is no name that JavaScript itself knows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import trio

from actors import ChildSpec, Supervisor, method
from actors.errors import CallError
from runtime import Node, open_node
from runtime.gateway import application
from runtime.gateway.server import ServerLimits, serve
from tests import villain
from tests.dashboard.browser import BrowserPage, needs_browser, open_browser
from tests.dashboard.conftest import SECRET, TOKEN, dashboard_of
from tests.dashboard.test_browser import PAGES, show

pytestmark = needs_browser

EVIL = (
    "x'\"></a></td></title></textarea><img src=/e data-evil onerror=evil()><script>evil()</script>"
)
KNOWN_TO_JAVASCRIPT = ("__proto__", "constructor", "toString", "hasOwnProperty")


class Villain(villain.Villain):
    """<script>evil()</script><img data-evil src=/e onerror=evil()>"""

    evil = EVIL

    @method(http=True)
    async def log(self, word: str = EVIL) -> str:
        """<script>evil()</script><img data-evil src=/e onerror=evil()>"""
        logging.getLogger("villain").warning("%s", EVIL)
        return word

    async def on_inspect(self) -> object:
        return {EVIL: EVIL}


async def no_harm(page: BrowserPage) -> None:
    """Nothing of the text has become an element, and no name has become a part of all objects."""
    assert await page.run("document.querySelectorAll('[data-evil], main script').length") == 0
    assert await page.run("Object.keys(Object.prototype).length") == 0


@asynccontextmanager
async def villains(node: Node) -> AsyncIterator[None]:
    """Actors with such names, calls, logs, deaths, references and stacks; and a pool."""
    villain = await node.options(name=EVIL).spawn(Villain)
    for other in KNOWN_TO_JAVASCRIPT:
        await node.options(name=other).spawn(Villain)
    await node.options(name="boss").spawn(
        Supervisor, [ChildSpec.of(EVIL, Villain).changed(name="child")], intensity=1000
    )
    async with (
        await node.pool(f"pool {EVIL}".replace("/", "|"), Villain, size=1),
        trio.open_nursery() as nursery,
    ):
        await villain.log()
        kept = await villain.keep()
        child = await node.lookup("child", Villain)
        with pytest.raises(CallError):
            await child.crash()
        nursery.start_soon(villain.stand)
        await villain.begin()
        yield
        nursery.cancel_scope.cancel()
        del kept


async def test_no_page_of_the_dashboard_takes_text_for_anything_else(tmp_path: Path) -> None:
    async with (
        open_node("one", secret=SECRET, trace_references=True, labels={EVIL: EVIL}) as node,
        dashboard_of(node.address, node.cluster, SECRET.encode()) as dashboard,
        open_browser(tmp_path) as browser,
    ):
        page = await browser.page()
        # The page is open before what it is to show is there: it reads differences, too.
        await page.open(f"http://127.0.0.1:{dashboard.http.port}/#token={TOKEN}")
        await page.until("document.querySelectorAll('.map .node').length === 1", "the map")
        async with villains(node), open_node("constructor", join=node.address, secret=SECRET):
            await page.until("document.querySelectorAll('.map .node').length === 2", "the second")
            names = [quote(one, safe="") for one in (EVIL, *KNOWN_TO_JAVASCRIPT)]
            for path in (
                *PAGES,
                *(f"actor/{name}" for name in names),
                *(f"node/{name}" for name in ("one", *names)),
            ):
                await show(page, path)
                await page.until("document.querySelector('#live').innerText === 'Live'", "live")
                await no_harm(page)
            await show(page, "actors")
            for name in (EVIL, *KNOWN_TO_JAVASCRIPT):
                shown = f"document.body.innerText.includes({json.dumps(name)})"
                await page.until(shown, f"actor {name!r} is shown")
            await show(page, "deaths")
            await page.until(f"document.body.innerText.includes({json.dumps(EVIL)})", "a death")
            await show(page, "actor/__proto__", "document.body.innerText.includes('Mailbox')")
        assert browser.errors == []


async def test_the_page_of_a_gateway_takes_no_text_for_anything_else(tmp_path: Path) -> None:
    stop = trio.Event()
    async with (
        open_node("one", secret=SECRET) as node,
        villains(node),
        trio.open_nursery() as nursery,
        open_browser(tmp_path) as browser,
    ):
        gateway = application(node)
        where = await nursery.start(serve, gateway, "127.0.0.1:0", ServerLimits(), stop)
        page = await browser.page()
        await page.open(f"http://{where}/")
        await page.until("document.querySelectorAll('#methods summary b').length >= 5", "methods")
        assert "<script>" in await page.run("document.querySelector('#methods').textContent")
        await no_harm(page)
        await page.run("document.querySelector('#methods button').click()")
        await page.until("document.querySelector('#methods pre').textContent.includes('200')", "it")
        await no_harm(page)
        assert browser.errors == []
        stop.set()
