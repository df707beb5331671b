"""The alerts and the dashboard in `ops/`: they name only metrics that exist, each alert fires and
keeps silent as its tests say, and a real Prometheus has them fire while nodes are killed.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from runtime import open_node
from tests.free_addresses import free_address
from tests.house import ROOT
from tests.live_pair import SECRET
from tests.metrics.prometheus import ask, command, needs_prometheus
from tests.metrics.scraping import families, get

ALERTS = ROOT / "ops/alerts.yml"
CASES = ROOT / "ops/alerts_test.yml"
DASHBOARD = ROOT / "ops/grafana.json"

NAMES = re.findall(r"- alert: (\w+)", ALERTS.read_text())

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def queries() -> list[str]:
    """All queries of the dashboard, with values for its variables."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    variables = {"$job": "understudy", "$instance": ".*", "$__rate_interval": "1m"}
    for name, value in variables.items():
        found = [query.replace(name, value) for query in found]
    assert len(found) > 40
    return found


def named(text: str) -> set[str]:
    """The metrics that a text with queries names."""
    found = set(re.findall(r"\b(?:understudy|rpc|process)_[a-z_]+", text))
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in found}


async def test_alerts_and_dashboard_name_only_metrics_that_exist() -> None:
    async with open_node("alone", secret=SECRET, metrics="0") as node:
        _, text = await get(node.metrics_address, "/metrics")
    known = set(families(text))
    expressions = re.sub(r"#.*|annotations:(\n {10}.*)*", "", ALERTS.read_text())
    assert len(named(expressions)) >= 10
    assert named(expressions) <= known
    assert named("\n".join(queries())) <= known


def test_there_are_fourteen_alerts_each_with_a_case_that_fires_and_one_that_does_not() -> None:
    assert len(set(NAMES)) == len(NAMES) == 14
    cases = CASES.read_text().split("  - interval:")[1:]
    for name in NAMES:
        own = [case for case in cases if f"alertname: {name}\n" in case]
        assert any("exp_alerts: []" in case for case in own), f"{name} has no quiet case"
        assert any("exp_labels:" in case for case in own), f"{name} has no case that fires"


@needs_promtool
@pytest.mark.parametrize(
    "command", [["check", "rules", str(ALERTS)], ["test", "rules", str(CASES)]], ids=str
)
def test_promtool_agrees(command: list[str]) -> None:
    done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.slow
@needs_promtool
def test_a_case_fails_when_its_alert_does_not_fire(tmp_path: Path) -> None:
    # The cases can fail: with any alert taken out, they do.
    (tmp_path / "alerts_test.yml").write_text(CASES.read_text())
    for name in NAMES:
        text = re.sub(rf"- alert: {name}\n", "- alert: Another\n", ALERTS.read_text())
        (tmp_path / "alerts.yml").write_text(text)
        done = subprocess.run(
            ["promtool", "test", "rules", str(tmp_path / "alerts_test.yml")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0, name


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process, which is killed at the end."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def node(secret: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A node with metrics in a process of its own, and what it says of itself."""
    command = ("-m", "runtime.command_line", "node", "--json", "--metrics", "0")
    with running(sys.executable, *command, "--secret-file", str(secret), *options) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("{"):
            assert line, "the node has ended"
        yield process, json.loads(line)


async def firing(place: str) -> set[str]:
    """The alerts that fire, by name."""
    found = await trio.to_thread.run_sync(ask, place, "alerts")
    alerts = found["alerts"] if found else []
    return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.cluster
@needs_prometheus
async def test_a_real_prometheus_sees_nodes_die(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("5e" * 32)
    secret.chmod(0o600)
    with (
        node(secret, "--name", "w1", "--listen", "127.0.0.1:0") as (_, first),
        node(secret, "--name", "w2", "--join", first["address"]) as (second, two),
        node(secret, "--name", "w3", "--join", first["address"]) as (third, three),
    ):
        places = [first["metrics"], two["metrics"], three["metrics"]]
        configuration = (
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: [{ALERTS}]\n"
            "scrape_configs:\n"
            "  - job_name: understudy\n"
            f"    static_configs: [{{targets: {json.dumps(places)}}}]\n"
        )
        place = free_address()
        with running(*command(tmp_path, configuration, place)):
            await until_true(place, "sum(up) == 3")
            await until_true(place, 'sum(understudy_nodes{state="up"}) == 9')
            assert await firing(place) == set()
            second.kill()
            await until_fires(place, {"UnderstudyNodeDown", "UnderstudyNodeDied"})
            # A stopped process answers no scrape either, and its lease ends.
            third.send_signal(signal.SIGSTOP)
            await until_true(place, 'sum(understudy_node_deaths_total{proof="lease"}) >= 1')
            await until_true(place, 'sum(understudy_nodes{state="up"}) == 1')
            for query in queries():
                # Prometheus answers a wrong query with 400, which is no data here.
                found = await trio.to_thread.run_sync(lambda q=query: ask(place, "query", query=q))  # type: ignore[misc]
                assert found is not None, query


async def until_true(place: str, query: str) -> None:
    """Wait until a query has a result."""
    with trio.fail_after(60):
        while True:
            found = await trio.to_thread.run_sync(lambda: ask(place, "query", query=query))
            if found and found["result"]:
                return
            await trio.sleep(0.3)


async def until_fires(place: str, wanted: set[str]) -> None:
    """Wait until all of these alerts fire."""
    with trio.fail_after(60):
        while True:
            if wanted <= await firing(place):
                return
            await trio.sleep(0.3)
