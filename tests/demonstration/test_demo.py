"""The demo, whole, as `understudy demo` runs it: nodes are killed, and the index is the one of a
single process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from runtime.testing import open_etcd
from tests.etcd import needs_etcd

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "-P", "-m", "runtime.command_line", "demo"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a process that finds the product from anywhere, with a state directory of its own."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")}


def test_the_demo_ends_with_an_index_equal_to_the_single_process_one(
    environment: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [*DEMO, "--json"],
        cwd=tmp_path,
        env=environment,
        text=True,
        capture_output=True,
        timeout=100,
        check=False,
    )
    outcome = json.loads(done.stdout)
    assert done.returncode == 0
    assert outcome["equal"] is True
    assert [event["kind"] for event in outcome["timeline"]] == [
        *("started", "undisturbed", "joined", "killed", "detected", "rerun"),
        *("killed", "detected", "restarted", "left", "done"),
    ]
    assert (outcome["lost"], outcome["twice"]) == (0, 0)
    assert [recovery["text"] for recovery in outcome["recoveries"]] == [
        "worker-1's pieces",
        "the scheduler",
    ]


@needs_etcd
async def test_the_demo_ends_equal_while_a_member_of_its_etcd_is_killed(
    environment: dict[str, str],
) -> None:
    async with open_etcd(3) as etcd:
        process = await trio.lowlevel.open_process(
            [*DEMO, "--store", etcd.address], stdout=subprocess.PIPE, env=environment
        )
        assert process.stdout is not None
        printed = b""
        killed = False
        async for data in process.stdout:
            printed += data
            if b"joined" in printed and not killed:
                etcd.kill(0)
                killed = True
        assert await process.wait() == 0, printed.decode()
        assert killed
        assert b"single process's: equal" in printed
