"""What every test may rely on: nothing leaks in from outside, hypothesis races no clock and prints
its seed, a hang ends.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from runtime.processes import warm_process
from tests.forked_python import ForkingSubprocess

if TYPE_CHECKING:
    from tests.authority import Authority

for name in [name for name in os.environ if name.startswith("UNDERSTUDY_")]:
    del os.environ[name]

# Hundreds of processes of these tests import the product. Where the environment forbids byte code,
# as container images do, each of them compiles it, which takes longer than all else that it does.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What a shell starts in the background ignores this signal, and so would the processes of all
# tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in each run, so that a failure is due to a change. `make long` draws new ones.
settings.register_profile(
    "understudy", deadline=None, print_blob=True, derandomize=True, max_examples=50
)
settings.register_profile("exploring", deadline=None, print_blob=True, max_examples=500)
settings.load_profile("understudy")

FINISHED = count(1)
"""The tests that have run in this process."""

pytest_plugins = ["tests.etcd", "tests.hangs", "tests.live_pair"]


def pytest_configure(config: pytest.Config) -> None:
    """Give each process of pytest a secret and a list of open local clusters of its own: commands
    without an address look for open clusters, and would find those of tests that run beside theirs.
    """
    place = tempfile.mkdtemp(prefix="understudy-tests-")
    os.environ["XDG_STATE_HOME"] = place
    config.add_cleanup(partial(shutil.rmtree, place, ignore_errors=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give the reason back to an async test that was skipped. In a nursery pytest's exception comes
    in a group; pytest-trio replaces that group by a skip without a reason, at a line of pytest's.
    """
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    if isinstance(error, pytest.skip.Exception) and not error.msg:
        group = error.__context__
        while isinstance(group, BaseExceptionGroup) and len(group.exceptions) == 1:
            group = group.exceptions[0]
        if isinstance(group, pytest.skip.Exception) and group.msg:
            path, line, _ = item.location
            report.longrepr = (str(item.config.rootpath / path), (line or 0) + 1, group.msg)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the rules of the house: they share a tree of the whole code, and what stands last
    is spread over all processes, each of which would parse all of it.
    """
    items.sort(key=lambda item: item.path.name != "test_house.py")


def pytest_collection() -> None:
    """Collect without the garbage collector, which would walk again and again over what stays: a
    tenth of the processor time of collecting, in each process.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    """Take what pytest has collected out of the garbage collector's sight. Nine thousand tests are
    some 400,000 objects, and each of hundreds of `gc.collect` in tests would walk over all of them:
    a quarter of a second of processor time each.
    """
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_runtest_logfinish() -> None:
    """Do so again from time to time: with what tests have imported it is 200,000 objects more."""
    if next(FINISHED) % 200 == 0:
        gc.collect()
        gc.freeze()


@pytest.fixture
def unexplained_assertions(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests whose assertions are meant to fail. In continuous integration, which pytest knows
    by these variables, it explains each failed comparison in full; `difflib` needs minutes for the
    difference of two dictionaries with some thousand keys that have changed places.
    """
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("BUILD_NUMBER", raising=False)


@pytest.fixture(autouse=True, scope="session")
def forked_fork_servers() -> Iterator[None]:
    """The warm processes of local clusters and isolated actors fork a Python that has loaded the
    product. Those of `tests/processes`, and of programs that tests start, begin as users' do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_process, "subprocess", ForkingSubprocess("subprocess"))
        yield


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A CA of the test's own."""
    # Here: it loads `cryptography`, which most tests do without.
    from tests.authority import Authority

    return Authority(tmp_path / "ca")
