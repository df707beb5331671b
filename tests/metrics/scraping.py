"""What the tests of metrics share: requests over real connections, beside the loop that answers."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable
from typing import Any

import trio
from prometheus_client.parser import text_string_to_metric_families


async def get(
    address: str,
    path: str,
    method: str = "GET",
    after: Callable[[], object] = lambda: None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, str]:
    """Status and body of one request, which is made, by a thread, after `after` has returned; over
    TLS if there is a `context`.
    """

    def ask() -> tuple[int, str]:
        after()
        connection = (
            http.client.HTTPConnection(address, timeout=20)
            if context is None
            else http.client.HTTPSConnection(address, timeout=20, context=context)
        )
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    return await trio.to_thread.run_sync(ask)


async def get_json(address: str, path: str) -> tuple[int, dict[str, Any]]:
    """Status and fields of one answer in JSON."""
    status, text = await get(address, path)
    return status, json.loads(text)


async def scrape(address: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The samples of a scrape by name and labels, as Prometheus' own parser reads them."""
    status, text = await get(address, "/metrics")
    assert status == 200, text
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def families(text: str) -> dict[str, str]:
    """The kinds of all metrics of a scrape, by name; counters as they are called in queries."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in text_string_to_metric_families(text)
    }
