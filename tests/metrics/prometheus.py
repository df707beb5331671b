"""Real Prometheus processes, where the program is installed."""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.free_addresses import free_address
from tests.waiting import until

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)"
)


def command(folder: Path, configuration: str, address: str) -> list[str]:
    """The command of a Prometheus whose files are in the folder."""
    (folder / "prometheus.yml").write_text(configuration)
    return [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
        "--log.level=error",
    ]


def ask(address: str, path: str, **parameters: str) -> Any:
    """What Prometheus answers over HTTP; None while it does not."""
    url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


async def scraped(
    folder: Path, configuration: str, is_so: Callable[[dict[str, dict[str, Any]]], object]
) -> dict[str, dict[str, Any]]:
    """Run a Prometheus until its targets are so; returns them by their jobs."""
    address = free_address()

    def targets() -> dict[str, dict[str, Any]]:
        found = ask(address, "targets")
        return {one["labels"]["job"]: one for one in found["activeTargets"]} if found else {}

    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, command(folder, configuration, address), check=False)
        nursery.start_soon(run)
        seen = await until(lambda: trio.to_thread.run_sync(targets), "all were scraped", is_so)
        nursery.cancel_scope.cancel()
    return seen
