"""The web service, run by a real uvicorn as its reader runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime.blocking import open_local_cluster
from tests.needed import skip_module_without

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE = 60.0
PAGE = EXAMPLES.parent / "docs" / "how-to" / "fastapi.md"
ON_THE_PAGE = [
    (asked.replace("/clicks", "/shown"), printed)
    for asked, printed in re.findall(r'^\$ curl -X POST "(\S+)"\n(.+)$', PAGE.read_text(), re.M)
]
"""What the page types, of a counter that no other test uses, and what it prints."""
WHY = (
    "the web service needs {0}, which is not installed: `make test` installs it, or pip install {0}"
)

skip_module_without("fastapi", "uvicorn", reason=WHY)


@contextmanager
def served(more: dict[str, str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The service at a free port; killed at the end of the block if it still runs."""
    service = subprocess.Popen(
        [sys.executable, "-W", "always", "-m", "uvicorn", "web_service:app", "--port", "0"],
        cwd=EXAMPLES,
        env={**os.environ, **more},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with service:
        try:
            assert service.stderr is not None
            lines: list[str] = []
            for line in service.stderr:
                lines.append(line)
                if found := re.search(r"running on (http://\S+)", line):
                    yield found[1], service
                    break
            else:
                pytest.fail("".join(lines))
        finally:
            if service.poll() is None:
                service.kill()


def post(url: str) -> tuple[int, object]:
    """Status and body."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, method="POST"), timeout=PATIENCE
        ) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def ended(service: subprocess.Popen[str]) -> str:
    """What it still prints, once Ctrl-C has ended it in order."""
    service.send_signal(signal.SIGINT)
    _, text = service.communicate(timeout=PATIENCE)
    # uvicorn hands the signal on once it has shut down.
    assert service.returncode in (0, -signal.SIGINT), text
    assert "Application shutdown complete" in text
    assert "Traceback" not in text.partition("Application shutdown complete")[0]
    assert "Warning" not in text
    return text


def test_the_service_with_a_cluster_of_its_own() -> None:
    with served({}) as (url, service):
        with ThreadPoolExecutor(8) as threads:
            sums = list(threads.map(post, [f"{url}/counters/clicks?amount=1"] * 40))
        assert sorted(sums) == [(200, number) for number in range(1, 41)]
        assert post(f"{url}/counters/clicks?amount=-1") == (
            422,
            {"detail": "a counter only grows"},
        )
        assert post(f"{url}/counters/others?amount=2") == (200, 2)
        for asked, printed in ON_THE_PAGE:
            assert post(asked.replace("http://127.0.0.1:8000", url))[1] == json.loads(printed)
        ended(service)


def test_the_service_in_a_cluster_that_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    # The nodes import the class by the name of its module: one is in this process.
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    with open_local_cluster(1) as cluster:
        with served({"CLUSTER_ADDRESS": cluster.address}) as (url, service):
            assert post(f"{url}/counters/clicks?amount=1") == (200, 1)
            assert cluster.lookup("counter/clicks").add(1) == 2
            assert post(f"{url}/counters/clicks?amount=1") == (200, 3)
            ended(service)
        assert {member.name for member in cluster.members()} == {"driver", "worker-1"}
        assert cluster.lookup("counter/clicks").add(1) == 4
