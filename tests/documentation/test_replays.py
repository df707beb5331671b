"""The replays of the site are runs that hold, the same each time, and a reader can scrub through
them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.dashboard.browser import needs_browser, open_browser
from tests.documentation.test_made_files import command
from tests.house import ROOT

PAGE = (ROOT / "docs" / "failures" / "replays.md").read_text()
REPLAYS = command("replays")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("replays")
    REPLAYS.write(folder)
    return folder


def test_the_page_shows_each_replay(folder: Path) -> None:
    files = sorted(path.name for path in folder.iterdir())
    assert sorted(re.findall(r'<iframe src="replays/([\w.]+)"', PAGE)) == files
    assert all(len((folder / name).read_bytes()) < 100_000 for name in files)


def test_a_replay_is_the_same_each_time(folder: Path) -> None:
    name, text = next(REPLAYS.pages())
    assert text == (folder / name).read_text()


def test_callers_see_what_the_page_says(folder: Path) -> None:
    seen = {
        path.stem: re.findall(r"<td>note</td><td>(.+?)<", path.read_text())
        for path in folder.iterdir()
    }
    assert re.fullmatch(r"add\(1\) is answered after 1\.\d+ s: 101", seen["cut"][3])
    for name in ("killed", "paused"):
        assert "the ledger is on node-3 now, and was on node-2" in seen[name]
    assert seen["killed"][3].endswith(": 101")
    assert seen["paused"][-1].endswith(": 102")


@needs_browser
async def test_a_reader_scrubs_through_a_replay(folder: Path, tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        page = await browser.page()
        await page.open((folder / "killed.html").as_uri())
        last = "document.querySelector('#until li:last-child').innerText"
        await page.until("document.querySelector('#until')?.children.length === 5", "it is drawn")
        assert await page.run("document.querySelector('#future').getAttribute('width')") == "0%"
        to = "(at => { const slider = document.querySelector('#at'); slider.value = at;"
        to += "slider.dispatchEvent(new Event('input')); })"
        crash = (await page.run("document.body.textContent")).partition("crash")
        assert crash[1]
        for share, present in ((0, False), (150, True)):
            await page.run(f"{to}({share})")
            shown = await page.run("document.querySelector('#until').innerText")
            assert ("crash" in shown) is present, shown
        assert await page.run(last)
        assert browser.errors == []
