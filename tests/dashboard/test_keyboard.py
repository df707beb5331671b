"""The pages without a mouse: what Tab reaches, what Enter and Escape do, and what is read aloud."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

from runtime import open_node
from tests.dashboard.browser import BrowserPage, needs_browser, open_browser
from tests.dashboard.conftest import SECRET, Clerk, World, open_world
from tests.dashboard.test_browser import FITS, PAGES, show

pytestmark = needs_browser

KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowRight": 39,
    "ArrowDown": 40,
}

MOST_STOPS = 100
"""More than any page of these tests has."""

FOCUSED = """
(() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const drawn = one.matches(".map .node") ? getComputedStyle(one.querySelector(".disc")) : null;
  const style = getComputedStyle(one), box = one.getBoundingClientRect();
  const name = one.getAttribute("aria-label") ?? one.textContent;
  one.dataset.reached = "1";
  return {
    what: `${one.tagName} ${name.trim().slice(0, 60)}`,
    framed: drawn ? parseFloat(drawn.strokeWidth) >= 3
      : style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    shown: box.width > 0 && box.bottom > 0 && box.top < innerHeight,
  };
})()
"""

MISSED = """
[...document.querySelectorAll("a[href], button, input, select, summary, [tabindex]")]
  .filter((one) => one.checkVisibility() && one.tabIndex >= 0)
  .filter((one) => !one.closest("dialog") && !one.dataset.reached)
  .map((one) => one.outerHTML.slice(0, 120))
"""

FORGET = """
document.querySelectorAll("[data-reached]").forEach((one) => { delete one.dataset.reached; })
"""

LONG_HEADER = """
document.querySelector('#live .word').textContent = '123 of 300 nodes silent',
document.querySelector('#live .late').textContent = '12 s',
document.querySelector('#cluster').textContent = 'a-cluster-with-a-long-name'
"""

CUT = """
[...document.querySelectorAll(".panel td, .panel th, .facts dd, .tile b")].filter((one) =>
  one.checkVisibility() && one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)
"""


async def press(page: BrowserPage, key: str, *, shift: bool = False) -> None:
    """Press a key, and let it go."""
    given = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS.get(key, ord(key[0]))}
    # Enter has a text: without it a link is not followed.
    text = {"text": "\r"} if key == "Enter" else {"text": key} if key not in KEYS else {}
    modifiers = 8 if shift else 0
    await page.send("Input.dispatchKeyEvent", type="keyDown", modifiers=modifiers, **given, **text)
    await page.send("Input.dispatchKeyEvent", type="keyUp", modifiers=modifiers, **given)


async def opened(world: World, page: BrowserPage) -> None:
    """Open the dashboard, and wait for the map."""
    await page.open(f"http://127.0.0.1:{world.dashboard.http.port}/#token=atokenofthetests1")
    await page.until("document.querySelectorAll('.map .actor').length >= 2", "the map")


@pytest.mark.long
async def test_tab_reaches_all_that_can_be_used_and_shows_where_it_is(tmp_path: Path) -> None:
    async with open_world(actions=True) as world, open_browser(tmp_path) as browser:
        await (await world.node.lookup("shop/clerk", Clerk)).fail()
        page = await browser.page()
        await opened(world, page)
        for path in ["", *PAGES, "actor/shop%2Fclerk", "node/one"]:
            await show(page, path, "document.querySelectorAll('.panel').length")
            await page.until("document.querySelector('#live').innerText === 'Live'", path)
            await page.run("document.activeElement.blur()")
            for _ in range(MOST_STOPS):
                await press(page, "Tab")
                found = await page.run(FOCUSED)
                if found is None:
                    # The end of the page: the browser's own, and then the top.
                    continue
                assert found["framed"], f"{path}: one does not see that {found['what']} is focused"
                assert found["shown"], f"{path}: {found['what']} is not in view"
                if not await page.run(MISSED):
                    break
            assert await page.run(MISSED) == [], path
            await page.run(FORGET)
            # Backwards as well: nothing holds the focus.
            before = await page.run("document.activeElement.outerHTML")
            await press(page, "Tab", shift=True)
            assert await page.run("document.activeElement.outerHTML") != before, path


async def test_keys_open_fold_filter_and_sort(tmp_path: Path) -> None:
    async with open_world() as world, open_browser(tmp_path) as browser:
        page = await browser.page()
        await opened(world, page)
        await show(page, "tree", "document.querySelectorAll('.tree li').length === 2")
        top = "document.querySelector('.tree li')"
        await page.run(f"{top}.focus()")
        await press(page, "ArrowLeft")
        await page.until(f"{top}.getAttribute('aria-expanded') === 'false'", "it is folded")
        await page.until("document.querySelectorAll('.tree li:not([hidden])').length === 1", "its")
        await press(page, "ArrowLeft")
        assert await page.run(f"{top}.getAttribute('aria-expanded')") == "false"
        await press(page, "ArrowRight")
        await page.until("document.querySelectorAll('.tree li:not([hidden])').length === 2", "open")
        await press(page, "ArrowDown")
        await press(page, "Enter")
        await page.until("location.hash === '#/actor/shop%2Fclerk'", "Enter opens the actor")
        await show(page, "actors", "document.querySelectorAll('tbody a').length >= 2")
        await press(page, "/")
        await page.until("document.activeElement.type === 'search'", "/ leads to the filter")
        rows = "[...document.querySelectorAll('[aria-label=Actors] tbody th')]"
        names = f"{rows}.map((one) => one.innerText)"
        await page.send("Input.insertText", text="clerk")
        await page.until(f"{names}.join() === 'shop/clerk'", "what the filter shows")
        await press(page, "Escape")
        await page.until(f"{names}.length === 2", "Escape clears the filter")
        assert await page.run("document.activeElement === document.body"), "and leaves it"
        await page.run("document.querySelector('[aria-label=Actors] th button').focus()")
        for order in ("ascending", "descending"):
            await press(page, "Enter")
            sort = "document.querySelector('[aria-label=Actors] th').getAttribute('aria-sort')"
            await page.until(f"{sort} === '{order}'", order)
        await press(page, "?")
        await page.until("document.querySelector('dialog').open", "? shows the keys")
        await press(page, "Escape")
        await page.until("!document.querySelector('dialog').open", "Escape closes them")
        assert browser.errors == []


async def test_many_log_lines_are_one_row_for_the_tab_key(tmp_path: Path) -> None:
    async with open_world() as world, open_browser(tmp_path) as browser:
        page = await browser.page()
        await opened(world, page)
        for number in range(300):
            logging.getLogger("users").warning("line %d", number)
        rows = "document.querySelectorAll('.lines li')"
        await show(page, "logs", f"{rows}.length >= 300")
        stops = (
            "[...document.querySelectorAll('.lines, .lines *')]"
            ".filter((one) => one.tabIndex >= 0).length"
        )
        assert await page.run(stops) <= 3
        for place in (0, 1, 2):
            await press(page, "Tab") if place else await page.run(f"{rows}[0].focus()")
            assert await page.run(f"{rows}[0].contains(document.activeElement)") is (place < 2)
        await page.run(f"{rows}[0].focus()")
        await press(page, "ArrowDown")
        assert await page.run(f"document.activeElement === {rows}[1]")
        assert await page.run(stops) <= 3
        await press(page, "End")
        assert await page.run(f"document.activeElement === {rows}[{rows}.length - 1]")
        assert browser.errors == []


async def test_many_rows_of_a_table_are_one_row_for_the_tab_key(tmp_path: Path) -> None:
    async with open_world() as world, open_browser(tmp_path) as browser:
        page = await browser.page()
        await opened(world, page)
        names = [f"actor-{number}" for number in range(40)]
        await world.node.spawn_many(Clerk, [()] * len(names), names=names)
        table = "document.querySelector('[aria-label=Actors]')"
        rows = f"{table}.tBodies[0].rows"
        await show(page, "actors", f"{table} && {rows}.length >= 42")
        stops = f"[...{table}.tBodies[0].querySelectorAll('a')].filter((one) => one.tabIndex >= 0)"
        in_row = f"{rows}[0].querySelectorAll('a').length"
        await page.until(f"{stops}.length === {in_row} && {in_row} > 0", "the first row's links")
        await page.run(f"{rows}[0].querySelector('a').focus()")
        await press(page, "ArrowDown")
        assert await page.run(f"{rows}[1].querySelector('a') === document.activeElement")
        assert await page.run(f"{stops}.every((one) => {rows}[1].contains(one))")
        await press(page, "End")
        last = f"{rows}[{rows}.length - 1]"
        assert await page.run(f"{last}.contains(document.activeElement)")
        await press(page, "Home")
        assert await page.run(f"{rows}[0].contains(document.activeElement)")
        # What is filtered away is no stop, and the first of the others is one.
        await press(page, "/")
        await page.send("Input.insertText", text="actor-39")
        await page.until(f"{rows}.length === 1 && {stops}.length === {in_row}", "one is left")
        assert browser.errors == []


@pytest.mark.parametrize("width", [390, 1280])
async def test_no_value_is_cut_and_pictures_say_in_words_what_they_show(
    width: int, tmp_path: Path
) -> None:
    async with (
        open_world() as world,
        # For the page of links.
        open_node("another", join=world.node.address, secret=SECRET),
        open_browser(tmp_path) as browser,
    ):
        clerk = await world.node.lookup("shop/clerk", Clerk)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clerk.wait)
            page = await browser.page(width=width)
            await opened(world, page)
            await show(page, "links", "document.querySelectorAll('.panel').length")
            await page.until("document.querySelectorAll('tbody tr').length >= 2", "the links")
            for path in ["", *PAGES, "actor/shop%2Fclerk", "node/one"]:
                await show(page, path, "document.querySelectorAll('.panel').length")
                await page.until("document.querySelector('#live').innerText === 'Live'", path)
                assert await page.run(CUT) == [], path
                nameless = (
                    "[...document.querySelectorAll('svg[role=img], .map .node')]"
                    ".filter((one) => one.checkVisibility() && !one.getAttribute('aria-label'))"
                )
                await page.until(f"{nameless}.length === 0", f"{path}: pictures have names")
            # In one expression: the page writes both each second.
            assert await page.run(f"{LONG_HEADER}, {FITS}"), "the header is wider than the page"
            nursery.cancel_scope.cancel()
        assert browser.errors == []
