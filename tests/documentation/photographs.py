"""Photographs of the site: each page in light and dark, at the width of a screen and of a phone.

`make photographs`, or `python -m tests.documentation.photographs FOLDER` after `make docs`. Prints
each page that is wider than its window, has text that stands out too little from what is behind it,
has text or a picture that is not shown, or raises an error in the browser; ends with 1 if there is
one.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

import trio

from tests.dashboard.browser import BrowserPage, open_browser
from tests.house import ROOT

SITE = ROOT / "docs" / "_build" / "html"
WIDTHS = {"wide": 1360, "narrow": 420}
TALLEST = 6000
"""Pixels of a page that are photographed."""

PAINTED = (
    "new Promise(done => requestAnimationFrame(() => requestAnimationFrame("
    "() => setTimeout(done, 500))))"
)
"""Resolves when what has come into the window has been painted. A frame from a file is of another
origin, so nobody can look whether it is.
"""

WINDOW = 900
"""Pixels of the window's height, as long as no frame has to be in it."""

DRAWN = "document.readyState === 'complete' && document.fonts.status === 'loaded'"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

LEAST_CONTRAST = 4.5
"""Between text and what is behind it: level AA of WCAG 2.1, section 1.4.3."""

UNREADABLE = (
    """(least => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const over = (above, below) => {
    const share = above.length > 3 ? above[3] : 1;
    return [0, 1, 2].map(i => above[i] * share + below[i] * (1 - share));
  };
  const style = element => getComputedStyle(element);
  const behind = element => element === null ? [255, 255, 255]
    : over(channels(style(element).backgroundColor), behind(element.parentElement));
  const luminance = colour => colour.map(value => value / 255)
    .map(value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = element => {
    const below = behind(element), text = over(channels(style(element).color), below);
    const [dark, light] = [luminance(text), luminance(below)].sort((one, other) => one - other);
    return (light + 0.05) / (dark + 0.05);
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
    if (!text || element.closest('svg, script, style') || !element.getClientRects().length
        || style(element).visibility === 'hidden') continue;
    const there = contrast(element);
    if (there < least) found.push(`contrast of ${there.toFixed(2)}: ${text.slice(0, 40)}`);
  }
  for (const element of document.querySelectorAll('article *:not(svg, svg *)')) {
    if (['hidden', 'clip'].includes(style(element).overflowX) && element.clientWidth
        && element.scrollWidth > element.clientWidth + 1)
      found.push(`cut off: ${element.textContent.trim().slice(0, 40)}`);
  }
  for (const picture of document.images)
    if (!picture.naturalWidth) found.push(`no picture: ${picture.src}`);
  return [...new Set(found)];
})("""
    f"{LEAST_CONTRAST})"
)
"""What of a page cannot be read: pale text, text that is cut off, pictures that are not there."""


def pages(site: Path) -> list[Path]:
    """The pages that people read, without those that Sphinx adds."""
    made = {"genindex.html", "search.html", "py-modindex.html"}
    return [
        page
        for page in sorted(site.rglob("*.html"))
        if page.name not in made and "_" not in page.relative_to(site).parts[0][0]
    ]


async def photograph(site: Path, folder: Path) -> list[str]:
    """Write the pictures into the folder; return what is wrong."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as profile:
        async with open_browser(Path(profile)) as browser:
            for dark in (False, True):
                for name, width in WIDTHS.items():
                    page = await browser.page(width=width, dark=dark)
                    for path in pages(site):
                        await page.open(path.as_uri())
                        await page.until(
                            f"location.href.startsWith({path.as_uri()!r}) && {DRAWN}", path.name
                        )
                        place = "-".join(path.relative_to(site).with_suffix("").parts)
                        scheme = "dark" if dark else "light"
                        picture = folder / f"{place}-{name}-{scheme}.png"
                        picture.write_bytes(await whole(page, width))
                        if (more := await page.run(OVERFLOW)) > 0:
                            wrong.append(f"{picture.stem}: {more} pixels wider than the window")
                        wrong += [f"{picture.stem}: {one}" for one in await page.run(UNREADABLE)]
                    await page.close()
            return [*wrong, *browser.errors]


async def whole(page: BrowserPage, width: int) -> bytes:
    """The page from its top, up to TALLEST."""
    height = min(await page.run("document.documentElement.scrollHeight"), TALLEST)
    frames = await page.run("document.querySelector('iframe') !== null")
    if frames:
        # Frames that are out of the window are not painted.
        await resize(page, width, height)
        await page.run(PAINTED)
    clip = {
        "x": 0,
        "y": 0,
        "width": await page.run("document.documentElement.clientWidth"),
        "height": height,
        "scale": 1,
    }
    told = await page.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    if frames:
        await resize(page, width, WINDOW)
    return base64.b64decode(told["data"])


async def resize(page: BrowserPage, width: int, height: int) -> None:
    """Give the page's window another size."""
    await page.send(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=height,
        deviceScaleFactor=1,
        mobile=width < 700,
    )


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = trio.run(photograph, SITE, FOLDER)
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.stdout.write(f"{len(list(FOLDER.glob('*.png')))} photographs in {FOLDER}\n")
    sys.exit(1 if found else 0)
