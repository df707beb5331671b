"""The examples, run as a reader runs them, and the README's copies of them."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.simulation import SimulationError, simulate
from tests.failures.error_examples import check_shown, said

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()

OUTPUTS = {
    "blocking_script.py": "15\n36\n37 fetched\n[2, 1, 0]\n",
    "counter.py": "15\n16\n16\n17 kept by worker-1\n17\n",
    "first.py": "15\n16\n",
    "functions.py": "168\n303\n[4, 25, 168]\n",
    "map.py": "<pool primes of __main__:Primes, 3>\n300 results, as of a loop: True\n",
    "stream.py": "9\n16\n25\n36\ngenerators closed: 1\n",
    "recovery.py": "added: 100\nkilled its process; added: 101\nelsewhere now: True\n",
}


PIPELINE = """\
before:
name               state    strategy      restarts
pipeline           running  one-for-one          -
├─ crawler         running                       0
├─ parsers         running  dynamic              0
│  ├─ parser-14-1  running                       0
│  └─ parser-14-2  running                       0
└─ storage         running  rest-for-one         0
   ├─ index        running                       0
   └─ sink         running                       0

after:
name               state    strategy      restarts
pipeline           running  one-for-one          -
├─ crawler         running                       0
├─ parsers         running  dynamic              0
│  ├─ parser-14-1  running                       1
│  └─ parser-14-2  running                       1
└─ storage         running  rest-for-one         1
   ├─ index        running                       0
   └─ sink         running                       0

as in a single process: True
"""

BY_REFERENCE = r"""text     +\d+\.\d MB, kept by worker-1
letters  +\d+\.\d MB, kept by worker-2
pairs    +\d+\.\d MB, kept by worker-3
the driver received [\d,]{2,6} bytes
the most common pairs:( [a-z]{2}){5}
as in a single process: True
"""
"""The sizes are those of the library of this Python. Six characters are less than 100 kB."""

PATTERNS = {
    # The number between is the epoch of the parsers' supervisor.
    "pipeline.py": re.escape(PIPELINE).replace(r"\-14\-", r"\-\d\d\-"),
    "pipeline_by_reference.py": BY_REFERENCE,
    "bank.py": r"careless: seed \d+ fails: AssertionError: the balances are \[.+\]\ncareful:  20 "
    r"seeds, and no money was made or lost\n",
}
"""What is not the same each time: the bank's seed depends on the version of Python."""


ELSEWHERE = {
    "elastic_training.py",
    "errors.py",
    "patterns.py",
    "wrong_patterns.py",
    "test_counter.py",
    "tracing.py",
    "web_service.py",
}
"""Those that need more than a plain install with its extras: tests/pytorch has the first,
tests/testing that of the counter, test_web_service the last. What errors.py has is used on the page
about errors, and run by tests/documentation. Of traces the order differs, and of patterns the
figures: tests/documentation has them.
"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.name, marks=[pytest.mark.long] if path.name == "bank.py" else [])
        for path in sorted((ROOT / "examples").glob("*.py"))
        if path.name not in ELSEWHERE
    ],
)
def test_an_example_prints_what_it_promises(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always", ROOT / "examples" / name],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    # No warnings, not even of Python itself.
    assert (done.returncode, done.stderr) == (0, "")
    if name in PATTERNS:
        assert re.fullmatch(PATTERNS[name], done.stdout), done.stdout
    else:
        assert done.stdout == OUTPUTS[name]


def test_the_bank_loses_money_and_does_not_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer seeds than the example itself tries."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    bank = importlib.import_module("bank")
    # First the one that found it when it was last looked for; it depends on the version of Python.
    with pytest.raises(SimulationError, match="the balances are") as caught:
        simulate(bank.careless, seeds=[22, *range(200)])
    check_shown("SimulationError", said(caught.value))
    simulate(bank.careful, seeds=range(3))


def test_an_example_that_needs_an_extra_says_what_to_install_where_it_is_missing(
    tmp_path: Path,
) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('as if it were not installed')\n")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "pipeline_by_reference.py"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == "this example computes with numpy: pip install 'understudy-actors[numpy]'\n"
    )


def test_the_docs_on_references_show_what_the_pipeline_by_reference_prints() -> None:
    assert re.search(BY_REFERENCE, (ROOT / "docs" / "how-to" / "references.md").read_text())


def test_the_readme_shows_the_first_example_and_its_output() -> None:
    source = (ROOT / "examples" / "first.py").read_text().split('"""', 2)[2].strip()
    blocks = [
        block.strip() for block in re.findall(r"```(?:python)?\n(.*?)```", README, flags=re.DOTALL)
    ]
    assert source in blocks
    assert OUTPUTS["first.py"].strip() in blocks


def test_the_example_of_traces_shows_the_spans_of_all_processes() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "tracing.py"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    # Each process prints when its spans end, in any order.
    assert sorted((done.stdout + done.stderr).splitlines()) == [
        "CLIENT Shop/order",
        "[worker-1] CLIENT Stock/reserve, 2 attempts",
        "[worker-1] SERVER Shop/order",
        "[worker-2] SERVER Stock/reserve",
        "[worker-2] SERVER Stock/reserve",
        "[worker-2] [stock] SERVER Stock/reserve",
        "[worker-2] [stock] SERVER Stock/reserve",
        "a lamp for acme",
    ], done.stderr


def test_the_lines_of_the_readme_on_recovery_are_those_of_the_example() -> None:
    source = (ROOT / "examples" / "recovery.py").read_text()
    shown = (
        README.split("## Kill it and watch it recover")[1].split("```python\n")[1].split("```")[0]
    )
    words = [
        line
        for line in shown.splitlines()
        if "spec =" in line or "Supervisor, [spec]" in line or "lookup" in line or "add(" in line
    ]
    assert len(words) == 5
    assert all(line in source for line in words)
    printed = OUTPUTS["recovery.py"].rpartition("elsewhere")[0]
    assert f"```\n{printed}```" in README


def test_the_docs_on_simulation_show_what_the_bank_prints() -> None:
    assert re.search(PATTERNS["bank.py"], (ROOT / "docs" / "how-to" / "simulation.md").read_text())


def test_the_docs_on_supervision_show_what_the_pipeline_prints() -> None:
    assert PIPELINE in (ROOT / "docs" / "how-to" / "supervision.md").read_text()
