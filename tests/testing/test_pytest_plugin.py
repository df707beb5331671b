"""The plug-in for pytest, as its users have it: each test runs pytest in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.etcd import needs_etcd
from tests.testing.pytest_runs import ROOT, run_pytest

FACES = """
async def test_async(cluster, faults):
    counter = await cluster.options(name="counter", on="worker-1").spawn(Counter)
    assert await counter.wait(30) >= 30
    faults.kill("worker-1")
    with pytest.raises(errors.CallError):
        await counter.add.options(timeout=20)(1)
    await cluster.start_node("worker-1")
    again = await cluster.options(name="counter").get_or_spawn(Counter)
    assert await (await cluster.lookup("counter", Counter)).add(1) == 1

def test_plain(cluster, faults):
    counter = cluster.options(name="counter", on="worker-1").spawn(Counter)
    assert counter.wait(30) >= 30
    faults.kill("worker-1")
    with pytest.raises(errors.CallError):
        counter.add.options(timeout=20)(1)
    cluster.start_node("worker-1")
    again = cluster.options(name="counter").get_or_spawn(Counter)
    assert cluster.lookup("counter", Counter).add(1) == 1

async def test_local_async(local_cluster, faults):
    counter = await local_cluster.options(name="counter", on="worker-1").spawn(Counter)
    assert await counter.add(1) == 1
    faults.kill("worker-1")
    with pytest.raises(errors.CallError):
        await counter.add.options(timeout=20)(1)

@pytest.mark.parametrize("again", [1, 2])
def test_local_plain(local_cluster, faults, again):
    assert {each.name for each in local_cluster.members()} == {"driver", "worker-1", "worker-2"}
    counter = local_cluster.options(name="counter").spawn(Counter)
    assert counter.add(1) == 1
    assert counter.where().startswith("worker-")
    faults.pause("worker-1")
    faults.kill("worker-2")

placed = pytest.mark.understudy(
    nodes=2, labels={"worker-1": {"disk": "fast"}}, resources={"worker-2": {"gpus": 1}}
)

@placed
async def test_placed(cluster, faults):
    fast = await cluster.options(labels={"disk": "fast"}).spawn(Counter)
    assert await fast.where() == "worker-1"
    for _ in range(2):
        holder = await cluster.options(name="holder", resources={"gpus": 1}).spawn(Counter)
        assert await holder.where() == "worker-2"
        with pytest.raises(errors.NoPlacementError):
            await cluster.options(name="other", resources={"gpus": 1}).spawn(Counter)
        faults.kill("worker-2")
        await cluster.start_node("worker-2")

@placed
def test_placed_local(local_cluster):
    assert local_cluster.options(labels={"disk": "fast"}).spawn(Counter).where() == "worker-1"
    gpus = local_cluster.options(name="holder", resources={"gpus": 1})
    assert gpus.spawn(Counter).where() == "worker-2"
    local_cluster.start_node(resources={"gpus": 1})
    more = local_cluster.options(name="more", resources={"gpus": 1})
    assert more.spawn(Counter).where() == "worker-3"
"""


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("plugins", [(), pytest.param(("trio", "anyio"), marks=pytest.mark.long)])
def test_every_kind_of_test_gets_its_face_with_other_plug_ins_and_without(
    tmp_path: Path, plugins: tuple[str, ...]
) -> None:
    done = run_pytest(tmp_path, FACES, "--strict-markers", "-W", "error", plugins=plugins)
    assert done.code == 0, done.output
    assert set(done.outcomes.values()) == {"PASSED"}
    assert len(done.outcomes) == 7


LOOPS = """
import asyncio
import sniffio

pytestmark = pytest.mark.anyio

async def test_simulated(cluster, anyio_backend_name):
    assert sniffio.current_async_library() == "trio"
    await trio.sleep(30)
    counter = await cluster.spawn(Counter)
    assert await counter.add(1) == 1

async def test_local(local_cluster, anyio_backend_name):
    counter = await local_cluster.spawn(Counter)
    assert await counter.add(1) == 1
    if anyio_backend_name == "trio":
        with trio.move_on_after(0.05) as scope:
            await counter.wait(60)
        assert scope.cancelled_caught
    else:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await counter.wait(60)
    assert await counter.add(1) == 2
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_under_asyncio_a_virtual_clock_is_refused_and_real_processes_are_not(
    tmp_path: Path,
) -> None:
    done = run_pytest(tmp_path, LOOPS, plugins=("anyio",))
    assert done.outcomes == {
        "test_simulated[asyncio]": "ERROR",
        "test_simulated[trio]": "PASSED",
        "test_local[asyncio]": "PASSED",
        "test_local[trio]": "PASSED",
    }, done.output
    said = done.section("test_simulated[asyncio]")
    assert "`cluster` has a virtual clock" in said
    assert "use `local_cluster`" in said
    assert "Traceback" not in done.output
    assert "pytest_plugin.py" not in done.output


PYTEST_ASYNCIO = """
@pytest.mark.asyncio
async def test_marked(cluster):
    pass

async def test_not_marked(cluster):
    pass

async def test_local(local_cluster):
    counter = await local_cluster.spawn(Counter)
    assert await counter.add(1) == 1

def test_plain(cluster):
    assert cluster.spawn(Counter).add(1) == 1
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.skipif(find_spec("pytest_asyncio") is None, reason="pytest-asyncio is not installed")
def test_pytest_asyncio_runs_its_tests_on_real_processes(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, PYTEST_ASYNCIO, "--asyncio-mode=auto", plugins=("asyncio",))
    assert done.outcomes == {
        "test_marked": "ERROR",
        "test_not_marked": "ERROR",
        "test_local": "PASSED",
        "test_plain": "PASSED",
    }, done.output
    assert "use `local_cluster`" in done.section("test_marked")
    assert "use `local_cluster`" in done.section("test_not_marked")


FIXTURES = """
@pytest.fixture
async def counter(cluster):
    yield await cluster.options(name="counter").spawn(Counter)
    # The cluster is still there.
    assert await (await cluster.lookup("counter", Counter)).add(0) == 1

async def test_it(cluster, counter):
    assert await counter.add(1) == 1
"""


def test_async_fixtures_of_pytest_trio_run_inside_of_the_simulation(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, FIXTURES, "-W", "error", plugins=("trio",))
    assert done.outcomes == {"test_it": "PASSED"}, done.output


FAILING = """
@pytest.mark.understudy(seed=17)
async def test_async(cluster, faults):
    counter = await cluster.options(on="worker-1").spawn(Counter)
    faults.kill("worker-1")
    found = {"value": 1}
    assert found == {"value": 2}

@pytest.mark.understudy(seed=18)
def test_plain(cluster, faults):
    faults.kill("worker-1")
    found = {"value": 1}
    assert found == {"value": 2}

@pytest.mark.understudy(limit=5.0)
async def test_endless(cluster):
    counter = await cluster.spawn(Counter)
    await counter.wait(1e9)  # here

@pytest.mark.understudy(limit=5.0)
def test_endless_plain(cluster):
    cluster.spawn(Counter).wait(1e9)

async def test_skipped(cluster):
    pytest.skip("no reason")

def test_after(cluster):
    assert cluster.spawn(Counter).add(1) == 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("plugins", [(), pytest.param(("trio",), marks=pytest.mark.long)])
def test_a_failure_shows_the_assertion_the_seed_and_what_had_happened(
    tmp_path: Path, plugins: tuple[str, ...]
) -> None:
    done = run_pytest(tmp_path, FAILING, plugins=plugins)
    assert {name: outcome for name, outcome in done.outcomes.items() if outcome == "FAILED"} == (
        dict.fromkeys(("test_async", "test_plain", "test_endless", "test_endless_plain"), "FAILED")
    ), done.output
    assert done.outcomes["test_after"] == "PASSED"
    assert re.search(r"4 failed, 1 passed, 1 skipped in", done.output), done.output
    for name, seed in (("test_async", 17), ("test_plain", 18)):
        said = done.section(name)
        # What pytest tells of an assertion, and nothing of what runs the test.
        assert "assert {'value': 1} == {'value': 2}" in said
        assert f"pytest test_it.py::{name} --understudy-seed={seed}" in said
        assert "crash" in said
        assert "Traceback" not in said
        assert ".py" not in said.replace("test_it.py", "")
    said = done.section("test_endless")
    assert "had not ended after 5 virtual seconds" in said
    line = next(
        number
        for number, text in enumerate((tmp_path / "test_it.py").read_text().splitlines(), 1)
        if "# here" in text
    )
    assert f"test_it.py:{line}" in said
    assert "had not ended after 5 virtual seconds" in done.section("test_endless_plain")


LIMITS = """
import unittest

pytestmark = pytest.mark.understudy(limit=5.0, seed=19)

def test_caught(cluster):
    with pytest.raises(errors.OutcomeUnknownError):
        cluster.spawn(Counter).wait(1e9)  # caught here

def test_asked_for_while_it_runs(request):
    request.getfixturevalue("cluster").spawn(Counter).wait(1e9)  # asked here

@pytest.fixture
def before(cluster):
    cluster.spawn(Counter).wait(1e9)  # before here

def test_before(before):
    pass

@pytest.fixture
def after(cluster):
    counter = cluster.spawn(Counter)
    yield
    counter.wait(1e9)  # after here

def test_after(after):
    pass

@pytest.fixture
def caught_after(cluster):
    yield
    with pytest.raises(errors.OutcomeUnknownError):
        cluster.spawn(Counter).wait(1e9)

def test_caught_after(caught_after):
    pass

class TestOfUnittest(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def use(self, cluster):
        self.cluster = cluster

    def test_unittest(self):
        self.assertEqual(self.cluster.spawn(Counter).add(1), 2)

@pytest.fixture
def fails(cluster):
    assert cluster.spawn(Counter).add(1) == 2

def test_fails(fails):
    pass
"""


@pytest.mark.slow
def test_a_test_or_fixture_that_takes_too_long_fails_says_where_and_names_its_seed(
    tmp_path: Path,
) -> None:
    done = run_pytest(tmp_path, LIMITS)
    assert done.code == 1, done.output
    lines = (tmp_path / "test_it.py").read_text().splitlines()
    for name, place in {
        "test_caught": "caught",
        "test_asked_for_while_it_runs": "asked",
        "test_before": "before",
        "test_after": "after",
        "test_caught_after": "",
        "test_fails": "",
    }.items():
        assert done.outcomes[name] in ("FAILED", "ERROR"), done.output
        said = done.section(name)
        assert f"pytest test_it.py::{name} --understudy-seed=19" in said
        if name != "test_fails":
            assert "had not ended after 5 virtual seconds" in said
            assert "More: understudy explain" not in said
        if place:
            line = next(n for n, text in enumerate(lines, 1) if f"# {place} here" in text)
            assert f"test_it.py:{line}" in said
    again = "pytest test_it.py::TestOfUnittest::test_unittest --understudy-seed=19"
    assert again in done.section("TestOfUnittest.test_unittest")
    assert re.search(r"3 failed, 2 passed, 4 errors in", done.output), done.output


ASYNC = """
async def test_etcd(etcd):
    assert trio.lowlevel.in_trio_run()

async def scenario(simulation):
    raise AssertionError("never")

async def test_simulated(simulated):
    simulated(scenario)

@pytest.fixture
def etcd():
    pass

async def test_not_ours(etcd):
    pass
"""


def test_async_tests_with_a_fixture_that_is_no_cluster_run_on_trio_or_say_why_not(
    tmp_path: Path,
) -> None:
    ours, theirs = ASYNC.split("@pytest.fixture")
    done = run_pytest(tmp_path, ours)
    assert "make the test a plain `def`" in done.section("test_simulated")
    assert done.outcomes["test_etcd"] in ("PASSED", "SKIPPED"), done.output
    done = run_pytest(tmp_path, "@pytest.fixture" + theirs)
    assert "async def functions are not natively supported" in done.section("test_not_ours")


SCENARIOS = """
class Own(BaseException):
    pass

async def misses(simulation):
    with pytest.raises(KeyError):
        pass

async def skips(simulation):
    async with trio.open_nursery():
        await trio.sleep(1)
    pytest.skip("not today")

async def own(simulation):
    raise Own("a reason")

@pytest.mark.parametrize("scenario", [misses, skips, own])
def test_it(simulated, scenario):
    simulated(scenario, seeds=3, faults=())

@pytest.mark.parametrize("seeds", [0, -1, "3", 1.5])
def test_nothing(simulated, seeds):
    simulated(own, seeds=seeds)
"""


def test_what_a_scenario_raises_that_is_no_exception_is_shown_as_it_is_with_its_seed(
    tmp_path: Path,
) -> None:
    done = run_pytest(tmp_path, SCENARIOS)
    assert "seeds=[0], nodes=3)" in done.section("test_it[misses]")
    assert "DID NOT RAISE KeyError" in done.section("test_it[misses]")
    assert "Exception Group" not in done.output
    assert "SKIPPED [1] test_it.py" in done.output, done.output
    assert "not today\n" in done.output
    said = done.section("test_it[own]")
    assert "Own: a reason" in said
    assert "seeds=[0], nodes=3)" in said
    for seeds in ("0", "-1", "3", "1.5"):
        assert "a number from 1 on" in done.section(f"test_nothing[{seeds}]")


def test_a_count_of_seeds_that_is_none_is_refused_at_the_command_line(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "", "--simulation-seeds=0")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert "'0' is not a number from 1 on" in done.output


INTERRUPTED = """
import os, signal

async def waits(simulation):
    os.kill(os.getpid(), signal.SIGINT)
    await trio.sleep_forever()

async def waits_in_a_nursery(simulation):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await waits(simulation)

async def computes(simulation):
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass

@pytest.mark.parametrize("scenario", [waits, computes])
def test_simulated(simulated, scenario):
    simulated(scenario, seeds=3, faults=())

async def test_virtual(cluster):
    await waits_in_a_nursery(cluster)

async def test_virtual_computes(cluster):
    async with trio.open_nursery():
        await computes(cluster)

async def test_local(local_cluster):
    await waits_in_a_nursery(local_cluster)

def test_next():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "plugins"),
    [
        ("test_simulated[waits]", ()),
        ("test_simulated[computes]", ()),
        ("test_virtual", ()),
        pytest.param("test_virtual", ("trio",), marks=pytest.mark.long),
        ("test_virtual_computes", ("trio",)),
        ("test_local", ()),
        pytest.param("test_local", ("trio",), marks=pytest.mark.long),
    ],
)
def test_ctrl_c_ends_the_session_whatever_runs_the_test(
    tmp_path: Path, name: str, plugins: tuple[str, ...]
) -> None:
    chosen = f"{name.partition('[')[2].rstrip(']') or name} or test_next"
    done = run_pytest(tmp_path, INTERRUPTED, "-k", chosen, plugins=plugins)
    assert done.code == pytest.ExitCode.INTERRUPTED, done.output
    assert "test_next" not in done.outcomes, done.output
    assert "! KeyboardInterrupt !" in done.output


WRONG = """
@pytest.mark.understudy(nodse=3)
def test_unknown_argument(cluster):
    pass

@pytest.mark.understudy(3)
def test_by_position(cluster):
    pass

@pytest.mark.understudy(nodes=0)
async def test_no_nodes(cluster):
    pass

@pytest.mark.understudy(seed="x", nodes=2)
def test_no_seed(cluster):
    pass

@pytest.mark.understudy(limit=0)
def test_no_time(cluster):
    pass

@pytest.mark.understudy(labels={"disk": "fast"})
def test_no_labels(cluster):
    pass

@pytest.mark.understudy(resources={"worker-4": {"gpus": 1}})
def test_no_such_worker(cluster):
    pass

@pytest.mark.understudy(resources={"worker-1": {"gpus": "two"}})
def test_no_resources(local_cluster):
    pass

def test_both(cluster, local_cluster):
    pass

def test_faults_of_nothing(faults):
    pass

async def test_too_late(request):
    request.getfixturevalue("cluster")

def test_no_faults_at_all(cluster, faults):
    for wrong in (
        lambda: faults.cut("worker-1", "worker-1"),
        lambda: faults.partition(["worker-1"]),
        lambda: faults.partition(["worker-1"], ["worker-1"]),
        lambda: faults.partition("worker-1", "worker-2"),
        lambda: faults.delay("worker-1", "worker-1", 1),
        lambda: faults.delay("worker-1", "worker-2", float("inf")),
        lambda: faults.delay("worker-1", "worker-2", "1"),
        lambda: faults.reset("worker-1", "worker-1"),
        lambda: faults.kill("worker-1", restart_after=-1),
        lambda: faults.kill("worker-1", restart_after=float("nan")),
        lambda: faults.kill("worker-1", restart_after="1"),
    ):
        with pytest.raises(ValueError):
            wrong()
    assert len(cluster.members()) == 4

def test_no_such_node(cluster, faults):
    with pytest.raises(ValueError, match="there are: worker-1, worker-2, worker-3"):
        faults.kill("worker-9")
    with pytest.raises(ValueError, match="there are: worker-1"):
        faults.kill("driver")
    with pytest.raises(ValueError, match="seconds above 0"):
        faults.delay("worker-1", "worker-2", -1)

async def test_outlived(cluster):
    KEPT.append(cluster)

def test_the_last_ones_cluster():
    from runtime.testing import VirtualClusterError
    with pytest.raises(VirtualClusterError, match="has ended with its test"):
        KEPT[0].node

KEPT = []
"""


@pytest.mark.slow
def test_wrong_use_is_a_sentence_and_no_traceback_of_ours(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, WRONG, "-o", "trio_mode=true", plugins=("trio",))
    expected = {
        "test_unknown_argument": "has no argument 'nodse'; it has nodes, labels, resources, seed",
        "test_no_labels": "labels are given for each node by its name, such as",
        "test_no_such_worker": "the nodes are worker-1, worker-2, worker-3",
        "test_no_resources": "resources map names to numbers, not 'gpus': 'two'",
        "test_by_position": "takes its arguments by name, such as nodes=3, not 3",
        "test_no_nodes": "nodes is a number from 1 on, not 0",
        "test_no_seed": "seed is a whole number, not 'x'",
        "test_no_time": "limit is virtual seconds above 0, not 0",
        "test_both": "but not both",
        "test_faults_of_nothing": "ask for `cluster` or `local_cluster` as well",
        "test_too_late": "request.getfixturevalue comes too late",
    }
    for name, text in expected.items():
        assert done.outcomes[name] in ("ERROR", "FAILED"), done.output
        assert text in done.section(name), done.output
    # Once each: what begins before a fixture also ends.
    assert "ERROR at teardown" not in done.output, done.output
    # The nursery of pytest-trio shows its tracebacks whole.
    assert "runtime/pytest_plugin" not in done.output.replace(done.section("test_too_late"), "")
    for name in (
        "test_no_faults_at_all",
        "test_no_such_node",
        "test_outlived",
        "test_the_last_ones_cluster",
    ):
        assert done.outcomes[name] == "PASSED", done.output


def test_a_seed_that_is_none_is_refused_at_the_command_line(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "", "--understudy-seed=seven")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert "'seven' is neither a number nor 'random'" in done.output


SEEDS = """
@pytest.mark.understudy(seed=3)
@pytest.mark.parametrize("again", [1, 2])
def test_seed(cluster, again):
    print("seed", cluster.seed)
"""


@pytest.mark.parametrize("seed", ["5", pytest.param("random", marks=pytest.mark.long)])
def test_the_command_line_chooses_the_seed(tmp_path: Path, seed: str) -> None:
    done = run_pytest(tmp_path, SEEDS, f"--understudy-seed={seed}")
    seeds = re.findall(r"^seed (\d+)$", done.output, flags=re.MULTILINE)
    assert len(seeds) == 2
    if seed == "random":
        assert seeds[0] != seeds[1]
    else:
        assert seeds == ["5", "5"]


LEFT = """
import runtime.blocking

def test_call_left(local_cluster):
    local_cluster.spawn(Counter).wait.future(1000)

def test_connection_left(local_cluster):
    KEPT.append(runtime.blocking.connect(local_cluster.address))

def test_they_are_gone(local_cluster):
    assert len(local_cluster.members()) == 3
    with pytest.raises(errors.NotAMemberError):
        KEPT[0].members()

def test_closed(local_cluster):
    with local_cluster as same:
        assert same.spawn(Counter).add(1) == 1

def test_virtual_call_left(cluster):
    cluster.spawn(Counter).wait.future(1000)

async def test_task_left(cluster):
    trio.lowlevel.spawn_system_task(trio.sleep_forever, name="forgotten")

@pytest.mark.filterwarnings("error::runtime.pytest_plugin.LeftoverWarning")
def test_refused(local_cluster):
    local_cluster.spawn(Counter).wait.future(1000)

async def test_nothing_left(cluster):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 1)

KEPT = []
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_what_a_test_leaves_behind_is_ended_and_named(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, LEFT)
    assert set(done.outcomes.values()) == {"PASSED", "ERROR"}, done.output
    assert done.outcomes["test_refused"] == "ERROR"
    left = dict(re.findall(r"LeftoverWarning: test_it.py::(\S+) has left behind (.+)", done.output))
    assert set(left) == {
        "test_call_left",
        "test_refused",
        "test_connection_left",
        "test_virtual_call_left",
        "test_task_left",
    }
    assert "still under way" in left["test_call_left"]
    assert "the connection to 127.0.0.1" in left["test_connection_left"]
    assert "still under way" in left["test_virtual_call_left"]
    assert left["test_task_left"] == "the system task forgotten"


OTHERS = """
def test_theirs(cluster):
    assert cluster == "theirs"

async def test_both(wrapped):
    assert await (await wrapped.spawn(Counter)).add(1) == 1
"""

CONFTEST = """
import pytest

@pytest.fixture
def cluster():
    return "theirs"
"""


def test_a_fixture_of_the_users_own_takes_the_place_of_the_plug_ins(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, OTHERS, "-k", "theirs", conftest=CONFTEST)
    assert done.outcomes == {"test_theirs": "PASSED"}, done.output


def test_the_plug_in_can_be_left_out_and_is_found_by_its_entry_point(tmp_path: Path) -> None:
    source = "def test_it(cluster): pass\n"
    done = run_pytest(tmp_path, source, "-p", "no:understudy", plugins=None)
    assert "fixture 'cluster' not found" in done.output
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"understudy": "runtime.pytest_plugin"}


PRELOADED = """
import sys

class Importer(Actor):
    @method
    async def has(self, name: str) -> bool:
        return name in sys.modules

def test_it(local_cluster):
    importer = local_cluster.options(on="worker-1").spawn(Importer)
    assert importer.has("takes_long")
"""


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(
    "module", ["takes_long", pytest.param("takes_lng", marks=pytest.mark.long)]
)
def test_modules_are_imported_once_for_all_processes(tmp_path: Path, module: str) -> None:
    done = run_pytest(tmp_path, PRELOADED, "-o", f"understudy_preload={module}", takes_long="")
    if module == "takes_long":
        assert done.outcomes == {"test_it": "PASSED"}, done.output
    else:
        assert "No module named 'takes_lng'" in done.section("test_it")
        assert "runtime/pytest_plugin" not in done.output


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_workers_of_xdist_have_clusters_of_their_own(tmp_path: Path) -> None:
    source = """
@pytest.mark.parametrize("number", range(3))
def test_local(local_cluster, number):
    counter = local_cluster.options(name="counter").spawn(Counter)
    assert counter.add(1) == 1

@pytest.mark.parametrize("number", range(2))
async def test_simulated(cluster, number):
    assert await (await cluster.options(name="counter").spawn(Counter)).add(1) == 1
"""
    done = run_pytest(tmp_path, source, "-n", "2", plugins=("xdist",))
    assert list(done.outcomes.values()) == ["PASSED"] * 5, done.output


def test_etcd_is_skipped_with_the_reason_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run_pytest(tmp_path, "def test_it(etcd): pass\n")
    assert done.code == 0
    assert "etcd is not installed: apt-get install etcd-server" in done.output


ETCD = """
from runtime import open_node
from runtime.blocking import open_local_cluster

async def test_kept(etcd):
    async with open_node(store=etcd.address) as node:
        await node.options(name="counter").spawn(Counter)
        etcd.pause()
        etcd.resume()
        assert (await node.lookup("counter", Counter)).name == "counter"
    etcd.kill()

async def test_fresh(etcd):
    async with open_node(store=etcd.address) as node:
        assert len(node.members()) == 1
        with pytest.raises(errors.ActorNotFoundError):
            await node.lookup("counter", Counter)
    etcd.pause()

def test_together(etcd, cluster):
    assert cluster.spawn(Counter).add(1) == 1
"""


@needs_etcd
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.cluster
def test_each_test_has_its_own_part_of_one_etcd(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ETCD, "-o", "trio_mode=true", plugins=("trio",))
    assert set(done.outcomes.values()) == {"PASSED"}, done.output
    assert len(done.outcomes) == 3


def test_a_run_that_uses_none_of_it_imports_neither_trio_nor_the_runtime(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    script = (
        "import pytest, sys; "
        "code = pytest.main(['-q', '-p', 'runtime.pytest_plugin', '-p', 'no:cacheprovider']); "
        "loaded = {name.partition('.')[0] for name in sys.modules}; "
        "mine = sorted(each for each in sys.modules if each.split('.')[0] in ('runtime', 'actors'))"
        "; print(code, loaded & {'trio', 'attrs', 'attr', 'cbor2', 'asyncio', 'actors'}, mine)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        done.stdout.splitlines()[-1] == "0 set() ['runtime', 'runtime.pytest_plugin', "
        "'runtime.version']"
    )


@pytest.mark.slow
@pytest.mark.cluster
def test_the_example_passes_as_it_is(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        "from test_counter import *\n",
        "-W",
        "error",
        test_counter=(ROOT / "examples" / "test_counter.py").read_text(),
    )
    assert done.code == 0, done.output
    assert len(done.outcomes) == 4
