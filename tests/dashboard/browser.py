"""A real browser for tests: Chromium, headless, driven over a pair of pipes (Chrome's DevTools
protocol), with a new profile each time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.waiting import until

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or ""

needs_browser = pytest.mark.skipif(
    not PROGRAM, reason="there is no chromium on PATH (Debian: apt-get install chromium)"
)

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1360,900",
)

SECONDS = 60.0


class BrowserPage:
    """One page of the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    async def send(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol."""
        return await self._browser.send(method, parameters, self._session)

    async def open(self, address: str) -> None:
        """Go to an address."""
        await self.send("Page.navigate", url=address)

    async def run(self, script: str) -> Any:
        """The value of an expression of JavaScript. Raises AssertionError with what it raised."""
        told = await self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, script: str, what: str) -> None:
        """Wait until an expression is true."""

        async def ask() -> tuple[bool, str]:
            # An element is an object without values of its own.
            true = await self.run(f"Boolean({script})")
            # A page that has just been opened has no body yet.
            return true, "" if true else await self.run("document.body?.innerText ?? ''")

        await until(ask, what, lambda found: found[0], every=0.05)

    async def close(self) -> None:
        """Close it."""
        await self.send("Page.close")


class Browser:
    """A running browser."""

    def __init__(self, commands: trio.lowlevel.FdStream, answers: trio.lowlevel.FdStream) -> None:
        self._commands = commands
        self._answers = answers
        self._number = 0
        self._waiting: dict[int, tuple[trio.Event, list[Any]]] = {}
        self.errors: list[str] = []
        """What went wrong in pages: exceptions, errors on the console, refusals of the policy."""

    async def send(self, method: str, parameters: Any = None, session: str = "") -> Any:
        """One command, and its answer."""
        self._number += 1
        done, answer = trio.Event(), list[Any]()
        self._waiting[self._number] = (done, answer)
        command = {"id": self._number, "method": method, "params": parameters or {}}
        if session:
            command["sessionId"] = session
        await self._commands.send_all(json.dumps(command).encode() + b"\0")
        with trio.fail_after(SECONDS):
            await done.wait()
        assert "error" not in answer[0], (method, answer[0])
        return answer[0]["result"]

    async def read(self) -> None:
        """Take in answers and events until the browser ends."""
        text = b""
        while part := await self._answers.receive_some(65536):
            *messages, text = (text + part).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    done, answer = self._waiting.pop(message["id"])
                    answer.append(message)
                    done.set()
                elif message["method"] == "Runtime.exceptionThrown":
                    self.errors.append(json.dumps(message["params"])[:1000])
                elif message["method"] == "Log.entryAdded":
                    entry = message["params"]["entry"]
                    if entry["level"] == "error" and "net::ERR" not in entry["text"]:
                        self.errors.append(f"{entry['text']} {entry.get('url', '')}")
                elif message["params"].get("type") == "error":
                    self.errors.append(json.dumps(message["params"])[:1000])

    async def page(
        self, *, width: int = 1360, height: int = 900, dark: bool = False
    ) -> BrowserPage:
        """A new page."""
        target = (await self.send("Target.createTarget", {"url": "about:blank"}))["targetId"]
        attached = await self.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = BrowserPage(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            await page.send(f"{domain}.enable")
        await page.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 700,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await page.send("Emulation.setEmulatedMedia", features=[scheme])
        return page


@asynccontextmanager
async def open_browser(profile: Path) -> AsyncIterator[Browser]:
    """A browser with a new profile in this directory."""
    commands_read, commands_write = os.pipe()
    answers_read, answers_write = os.pipe()
    # The protocol is on descriptors 3 and 4.
    script = f'exec "$0" "$@" 3<&{commands_read} 4>&{answers_write}'
    arguments = [*FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
    process = await trio.lowlevel.open_process(
        ["bash", "-c", script, PROGRAM, *arguments],
        pass_fds=(commands_read, answers_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(commands_read)
    os.close(answers_write)
    try:
        async with (
            trio.lowlevel.FdStream(commands_write) as commands,
            trio.lowlevel.FdStream(answers_read) as answers,
            trio.open_nursery() as nursery,
        ):
            browser = Browser(commands, answers)
            nursery.start_soon(browser.read)
            yield browser
            nursery.cancel_scope.cancel()
    finally:
        # With the processes that it has started: they are a session of their own.
        os.killpg(process.pid, 9)
        with trio.CancelScope(shield=True):
            await process.wait()
