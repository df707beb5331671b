"""Notebooks: the example as its reader runs it, and a real kernel that is interrupted, forks, and
makes mistakes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.blocking import BlockingLocalCluster
from tests.actors.test_html import Tags
from tests.doors.actors_used import Counter
from tests.needed import skip_module_without
from tests.waiting import until_blocking

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "notebook.ipynb"
PATIENCE = 110

skip_module_without(
    *("nbclient", "ipykernel", "nbformat"),
    reason="a notebook needs {0}, which is not installed: `make test` installs it",
)

DRIVER = """
import json, sys
import nbformat
from nbclient import NotebookClient

path, place = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)
nbformat.validate(notebook)
NotebookClient(notebook, timeout=90, resources={"metadata": {"path": place}}).execute()
json.dump(notebook, sys.stdout)
"""

Outputs = list[list[dict[str, Any]]]


def executed(notebook: Path, place: Path) -> Outputs:
    """The outputs of each code cell. In a process of its own: nbclient warns of what it does, and
    leaves an event loop behind.
    """
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, notebook, place],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout)["cells"]
    return [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]


def texts(outputs: list[dict[str, Any]]) -> str:
    """What a cell shows to one who reads text."""
    return "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        if output["output_type"] != "error"
        else f"{output['ename']}: {output['evalue']}"
        for output in outputs
    )


def pages(outputs: list[dict[str, Any]]) -> str:
    """The text of the HTML that a cell shows."""
    found = [output["data"]["text/html"] for output in outputs if "data" in output]
    return "".join(Tags(markup).text for markup in found)


def test_the_page_shows_the_cells_of_the_example() -> None:
    page = (ROOT / "docs" / "how-to" / "notebook.md").read_text()
    cells = json.loads(EXAMPLE.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert re.findall(r"^```text\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL) == code


def test_the_example_runs_from_its_first_cell_to_its_last() -> None:
    source = json.loads(EXAMPLE.read_text())
    code = [cell for cell in source["cells"] if cell["cell_type"] == "code"]
    # What a run leaves in a notebook is of the machine that ran it.
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)
    opened, spawned, added, tree, status, reference, fetched, closed = executed(
        EXAMPLE, EXAMPLE.parent
    )
    assert "worker-2" in pages(opened)
    assert "counter:Counter" in pages(spawned)
    assert texts(added) == "15"
    assert "till" in pages(tree)
    assert "one-for-one" in texts(tree)
    assert "counter:Counter" in pages(status)
    assert "kept byworker-1" in pages(reference)
    assert texts(fetched) == "16"
    assert closed == []


# Each is a cell, and what a reader must find below it.
CELLS = [
    ("%load_ext runtime.notebook\n%load_ext runtime.notebook", ""),
    ("%understudy", "%understudy connect"),
    ("%understudy status", "UsageError: %understudy status: no variable `cluster`"),
    ("%understudy turn round", "UsageError: %understudy turn: the commands are connect"),
    ("%understudy connect 127.0.0.1:1", "UsageError: %understudy connect: "),
    ("%understudy connect {address}\ncluster", "<blocking cluster local by"),
    # The connection before has left, which the new one may not have seen yet.
    (
        "import time\n%understudy connect {address}\n"
        "while len(cluster.members()) > 3:\n    time.sleep(0.01)\n"
        "len(cluster.members())",
        "3",
    ),
    ("%understudy status", "tests.doors.actors_used:Counter"),
    (
        "import os, signal, threading\n"
        "from tests.doors.actors_used import Counter\n"
        "from actors.errors import ForkedProcessError\n"
        "counter = cluster.lookup('counter', Counter)\n"
        "def interrupt(word):\n"
        "    counter.wait_for(f'{{word}} begun')\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "def soon(word):\n"
        "    threading.Thread(target=interrupt, args=[word]).start()",
        "",
    ),
    ("soon('left')\ncounter.hang('left')", "KeyboardInterrupt"),
    ("counter.wait_for('left cancelled'), counter.add(1)", "(True, 1)"),
    ("async def wait(): counter.add(1)\nawait wait()", "WrongDoorError"),
    ("import trio\n%understudy tree", "no supervisors"),
    (
        "pid = os.fork()\n"
        "if not pid:\n"
        "    try:\n"
        "        counter.add(1)\n"
        "    except ForkedProcessError:\n"
        "        assert 'fork' in cluster._repr_html_()\n"
        "        os._exit(7)\n"
        "    os._exit(1)\n"
        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), counter.add(1)",
        "(7, 2)",
    ),
    (
        "from actors import Actor\nclass Local(Actor): pass\n"
        "cluster.options(on='worker-1').spawn(Local)",
        "move them into a module",
    ),
    ("mine = cluster\n%unload_ext runtime.notebook\nmine.members()", "NotAMemberError"),
    ("%understudy status", "UsageError"),
    # A connection that nothing closes is closed in order when the kernel is shut down.
    (
        "from runtime.blocking import connect\nconnect('{address}', name='left-open').name",
        "left-open",
    ),
]


def test_a_kernel_survives_interrupts_forks_and_mistakes(
    cluster: BlockingLocalCluster, tmp_path: Path
) -> None:
    cluster.options(name="counter", on="worker-1").spawn(Counter)
    cells = [  # type: ignore[var-annotated]
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{number}",
            "metadata": {"tags": ["raises-exception"]},
            "outputs": [],
            "source": text.format(address=cluster.address),
        }
        for number, (text, _) in enumerate(CELLS)
    ]
    notebook = tmp_path / "bad.ipynb"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.write_text(
        json.dumps(
            {
                "cells": cells,
                "metadata": {"kernelspec": kernel},
                "nbformat": 4,
                "nbformat_minor": 5,
            }
        )
    )
    for (text, told), outputs in zip(CELLS, executed(notebook, tmp_path), strict=True):
        shown = texts(outputs)
        assert told in shown, (text, outputs)
        if told.startswith("UsageError"):
            # A mistake is one line, and no traceback of ours.
            assert "Traceback" not in json.dumps(outputs), outputs
    until_blocking(
        lambda: {member.name for member in cluster.members()},
        "the kernel's connections have left",
        lambda names: names == {"driver", "worker-1"},
    )
