"""For pytest, which finds this by its entry point: clusters for tests, as fixtures.

    async def test_it_counts(cluster):
        counter = await cluster.spawn(Counter)
        assert await counter.add(5) == 5

    @pytest.mark.understudy(nodes=3, seed=17)
    def test_it_survives(cluster, faults):
        ...

`cluster` is simulated, `local_cluster` has real processes, `faults` act on either, `etcd` is a real
one, `simulated` runs a scenario under many seeds. What they need is imported by the first test that
uses one of them: pytest loads this in every run of everyone who has Understudy installed.

PYTEST_DONT_REWRITE: what it asserts is nothing that pytest should explain.
"""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import pytest

if TYPE_CHECKING:
    from runtime.blocking import BlockingLocalCluster
    from runtime.doors.loop_thread import OpenBlock
    from runtime.simulation.runs import Scenario
    from runtime.testing.cluster_faults import ProcessFaults, VirtualFaults
    from runtime.testing.etcd_namespace import EtcdNamespace, SessionEtcd
    from runtime.testing.process_cluster import AsyncLocalCluster, ProcessCluster, WarmProcess
    from runtime.testing.virtual_cluster import VirtualCluster, VirtualRun
    from runtime.testing.virtual_thread import BlockingVirtualCluster, VirtualThread

T = TypeVar("T")

Kind = Literal["plain", "async"]
Runner = Literal["pytest-trio", "anyio", "this plug-in"]

NODES = 3
LOCAL_NODES = 2
MARK = (
    "understudy(nodes=3, labels={'worker-1': {...}}, resources={'worker-1': {...}}, seed=0, "
    "limit=900.0): the nodes of the fixtures `cluster` and `local_cluster`, with their labels and "
    "resources; the seed of `cluster`, and the virtual seconds that its test may take"
)

PLAN: pytest.StashKey[Plan] = pytest.StashKey()


class LeftoverWarning(pytest.PytestWarning):
    """A test has left something behind: a call, a task, a connection or a cluster."""


# Options


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("understudy", "clusters of Understudy")
    group.addoption(
        "--understudy-seed",
        type=_seed,
        default=None,
        metavar="N",
        help="the seed of every simulated cluster, or 'random'",
    )
    group.addoption(
        "--simulation-seeds",
        type=_count,
        default=None,
        metavar="N",
        help="seeds that each simulation tries",
    )
    group.addoption(
        "--simulation-seed",
        type=int,
        default=None,
        metavar="S",
        help="the only seed that each simulation tries",
    )
    parser.addini(
        "understudy_preload",
        type="args",
        default=[],
        help="modules that the processes of `local_cluster` have imported when they start",
    )


def _seed(text: str) -> int | str:
    if text == "random":
        return text
    try:
        return int(text)
    except ValueError:
        import argparse

        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor 'random'") from None


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        import argparse

        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return count


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, for --strict-markers and --markers."""
    config.addinivalue_line("markers", MARK)
    config.pluginmanager.register(SetupFailures(), "understudy setup failures")


# What a test asks for


class Plan:
    """The cluster of one test, as its fixtures ask for it."""

    def __init__(self, item: pytest.Item, fixture: str, kind: Kind, runner: Runner | None) -> None:
        self.item = item
        self.fixture = fixture
        self.kind = kind
        self.runner = runner
        self.marked = _marked(item)
        self.run: VirtualRun | None = None
        self.thread: VirtualThread | None = None
        self.processes: ProcessCluster | None = None
        self.said_expired = False
        """Whether a failure says that the test has taken too long."""
        self.open_before: Mapping[int, OpenBlock[Any]] = {}
        if fixture == "cluster":
            self.run = self._virtual_run()

    def _virtual_run(self) -> VirtualRun:
        from runtime.testing.virtual_cluster import LIMIT_SECONDS, VirtualRun

        seed: Any = self.item.config.getoption("understudy_seed")
        if seed == "random":
            from runtime.environment import SystemEnvironment

            seed = int.from_bytes(SystemEnvironment().token(4), "big")
        elif seed is None:
            seed = self.marked.get("seed", 0)
        nodes = self.marked.get("nodes", NODES)
        limit = self.marked.get("limit", LIMIT_SECONDS)
        return VirtualRun(nodes, seed, limit, self.labels(nodes), self.resources(nodes))

    @property
    def nodes(self) -> int:
        """How many node processes the test asks for."""
        return int(self.marked.get("nodes", LOCAL_NODES))

    def labels(self, nodes: int) -> dict[str, dict[str, str]]:
        """The labels of the workers, of which there are so many. Fails for what makes no sense."""
        from actors.options import checked_labels

        return self._of_workers("labels", nodes, checked_labels)

    def resources(self, nodes: int) -> dict[str, dict[str, float]]:
        """The resources of the workers, likewise."""
        from actors.options import checked_resources

        return self._of_workers("resources", nodes, checked_resources)

    def _of_workers(
        self, argument: str, nodes: int, check: Callable[[Any], dict[str, T]]
    ) -> dict[str, dict[str, T]]:
        given = self.marked.get(argument, {})
        workers = [f"worker-{number}" for number in range(1, nodes + 1)]
        if not isinstance(given, Mapping) or not set(given) <= set(workers):
            _fail(
                f"@pytest.mark.understudy: {argument} are given for each node by its name, such as "
                f"{{{workers[0]!r}: {{...}}}}, not as {given!r}; the nodes are {', '.join(workers)}"
            )
        try:
            return {name: check(one) for name, one in given.items()}
        except (TypeError, ValueError) as error:
            _fail(f"@pytest.mark.understudy: {error}")

    def simulate(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Run `function(*args)` in the simulation; has the parameters of `trio.run`."""
        __tracebackhide__ = _has_more_to_show
        from runtime.environment import unwrap
        from runtime.testing.virtual_cluster import VirtualClusterError

        run = self.run
        assert run is not None
        if options.get("clock") is not None:
            _fail("the fixture `cluster` has a virtual clock of its own: leave out the other clock")
        failure: BaseException | None = None
        try:
            run.run(partial(function, *args))
        except VirtualClusterError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        except BaseExceptionGroup as group:
            # The nursery of pytest-trio around the test. It would hide the assertion.
            if self.runner != "pytest-trio" or len(group.exceptions) != 1:
                raise
            failure = unwrap(group, lambda file: "pytest_trio" in file)
        if failure is not None:
            # Only here, where it keeps the cause and the context that it came with.
            raise failure
        _fail_if_unexpected(run)


def _has_more_to_show(information: pytest.ExceptionInfo[BaseException]) -> bool:
    """Return whether to hide our frames: not for a failure that shows no frames, because pytest
    says so where all of them are hidden.
    """
    error = information.value
    return not (isinstance(error, pytest.fail.Exception) and not error.pytrace)


def _fail(text: str) -> NoReturn:
    pytest.fail(text, pytrace=False)


def _fail_if_unexpected(run: VirtualRun) -> None:
    if run.unexpected:
        _fail(
            "a simulated node has ended by an error that is none of a user's: "
            + "; ".join(run.unexpected)
        )


def _marked(item: pytest.Item) -> dict[str, Any]:
    """The arguments of the mark, those closest to the test. Fails for what makes no sense."""
    found: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers("understudy"))):
        if mark.args:
            _fail(
                f"@pytest.mark.understudy takes its arguments by name, such as nodes=3, not "
                f"{mark.args[0]!r}"
            )
        found.update(mark.kwargs)
    for name, value in found.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name == "nodes":
            if type(value) is not int or value < 1:
                _fail(f"@pytest.mark.understudy: nodes is a number from 1 on, not {value!r}")
        elif name == "seed":
            if type(value) is not int:
                _fail(f"@pytest.mark.understudy: seed is a whole number, not {value!r}")
        elif name == "limit":
            if not number or not value > 0:
                _fail(f"@pytest.mark.understudy: limit is virtual seconds above 0, not {value!r}")
        elif name not in ("labels", "resources"):
            _fail(
                f"@pytest.mark.understudy has no argument {name!r}; it has nodes, labels, "
                "resources, seed and limit"
            )
    return found


def _uses(item: pytest.Item, name: str) -> bool:
    """True if a test asks for our fixture of this name, not for one that has taken its place."""
    information: Any = getattr(item, "_fixtureinfo", None)
    definitions = list(information.name2fixturedefs.get(name, ())) if information else []
    while definitions:
        definition = definitions.pop()
        if definition.func.__module__ == __name__:
            return True
        if name not in definition.argnames:
            return False
    return False


def _kind(item: pytest.Item) -> Kind:
    function: Any = getattr(item, "obj", None)
    return "async" if inspect.iscoroutinefunction(function) else "plain"


def _is_async_hypothesis(item: pytest.Item) -> bool:
    hypothesis = getattr(getattr(item, "obj", None), "hypothesis", None)
    return inspect.iscoroutinefunction(getattr(hypothesis, "inner_test", None))


def _runner(item: pytest.Item) -> Runner | Literal["asyncio"]:
    """Return the plug-in that runs a test that is `async def`."""
    plugins = item.config.pluginmanager
    # By its entry point's name, or loaded with -p by the module's.
    has_pytest_trio = plugins.has_plugin("trio") or plugins.has_plugin("pytest_trio.plugin")
    if item.get_closest_marker("trio") is not None and has_pytest_trio:
        return "pytest-trio"
    if "anyio_backend" in getattr(item, "fixturenames", ()):
        parameters: Any = getattr(getattr(item, "callspec", None), "params", {})
        backend = parameters.get("anyio_backend", "asyncio")
        name = backend[0] if isinstance(backend, tuple) else backend
        return "anyio" if name == "trio" else "asyncio"
    if item.get_closest_marker("asyncio") is not None or type(item).__module__.startswith(
        "pytest_asyncio"
    ):
        return "asyncio"
    return "pytest-trio" if has_pytest_trio else "this plug-in"


class SetupFailures:
    """The other half of `pytest_runtest_setup`, around that of all others."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """What a failure of a fixture is about."""
        __tracebackhide__ = _has_more_to_show
        try:
            return (yield)
        except BaseException as error:
            _explain(item, error, "setup")
            raise


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture is made: what the test asks for, and who runs it.

    Not around the other plug-ins, as what comes after is: if it fails before those are entered, as
    those of pytest's own log, their ends fail at the end of the test.
    """
    names = getattr(item, "fixturenames", ())
    if "cluster" not in names and "local_cluster" not in names:
        return
    used = [name for name in ("cluster", "local_cluster") if _uses(item, name)]
    if not used:
        return
    if len(used) > 1:
        _fail(
            "a test has `cluster`, whose time is virtual, or `local_cluster`, whose processes are "
            "real, but not both: make two tests of it"
        )
    _prepare(item, used[0])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """What a failure of a fixture at its end is about."""
    __tracebackhide__ = _has_more_to_show
    try:
        outcome = yield
    except BaseException as error:
        _explain(item, error, "teardown")
        raise
    _fail_if_expired(item)
    return outcome


def _prepare(item: pytest.Item, fixture: str) -> None:
    """Note what a test has. Fails where it cannot have it."""
    kind = _kind(item)
    runner: Runner | None = None
    if fixture == "cluster" and _is_async_hypothesis(item):
        _fail(
            "`cluster` is one cluster a test, and @given runs an `async def` many times: use "
            "`simulated`, or a plain `def`"
        )
    if kind == "async":
        found = _runner(item)
        if found == "asyncio":
            if fixture == "cluster":
                _fail(
                    "this test runs on asyncio, and `cluster` has a virtual clock, which is "
                    "trio's: use `local_cluster`, whose processes are real, or make the test a "
                    "plain `def`, whose calls block, or run it on trio"
                )
        else:
            runner = found
    plan = Plan(item, fixture, kind, runner)
    item.stash[PLAN] = plan
    if runner == "pytest-trio":
        # Its own runner makes the async fixtures of the test; in a simulation it runs in ours.
        mark = pytest.mark.trio(run=plan.simulate) if fixture == "cluster" else pytest.mark.trio
        if fixture == "cluster" or item.get_closest_marker("trio") is None:
            item.add_marker(mark, append=False)


def _in_event_loop() -> bool:
    """True if an `async def` test runs at this moment. Where its library is not imported, it does
    not.
    """
    trio, asyncio = sys.modules.get("trio"), sys.modules.get("asyncio")
    return (trio is not None and trio.lowlevel.in_trio_run()) or (
        asyncio is not None and asyncio._get_running_loop() is not None
    )


def _plan(request: pytest.FixtureRequest, fixture: str) -> Plan:
    """The plan of the test; for one that asks while it runs, a new one."""
    item: Any = request.node
    found = item.stash.get(PLAN, None)
    if found is None:
        if fixture == "cluster" and _in_event_loop():
            _fail(
                "an `async def` test runs inside the simulation of `cluster`, and so must name it "
                "as a parameter; request.getfixturevalue comes too late"
            )
        kind: Kind = "async" if _in_event_loop() else "plain"
        found = item.stash[PLAN] = Plan(item, fixture, kind, None)
    elif found.fixture != fixture:
        _fail(f"this test has `{found.fixture}` already, and cannot have `{fixture}` as well")
    plan: Plan = found
    return plan


# Running tests


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run tests that are `async def` where no other plug-in does, and say what a test has left."""
    __tracebackhide__ = _has_more_to_show
    plan = pyfuncitem.stash.get(PLAN, None)
    original = pyfuncitem.obj
    if plan is None:
        if _is_unclaimed(pyfuncitem):
            import trio

            pyfuncitem.obj = _in_plain_function(trio.run, original)
    elif plan.kind == "async" and plan.runner is not None:
        if plan.fixture == "cluster" and plan.runner != "pytest-trio":
            pyfuncitem.obj = _in_plain_function(plan.simulate, original)
        elif plan.runner == "this plug-in":
            import trio

            pyfuncitem.obj = _in_plain_function(trio.run, original)
    if plan is not None and plan.fixture == "local_cluster":
        from runtime.testing.process_cluster import opened_blocks

        plan.open_before = opened_blocks()
    try:
        outcome = yield
    except BaseException as error:
        if plan is not None or pyfuncitem.obj is not original:
            _raise_interrupt(error)
        _explain(pyfuncitem, error, "call")
        raise
    finally:
        pyfuncitem.obj = original
        if plan is not None:
            _look_for_leftovers(plan)
    _fail_if_expired(pyfuncitem)
    return outcome


def _is_unclaimed(item: pytest.Item) -> bool:
    """True for an `async def` test without a cluster, with another fixture of ours, that no other
    plug-in runs.
    """
    used = [name for name in ("etcd", "simulated") if name in getattr(item, "fixturenames", ())]
    return (
        _kind(item) == "async"
        and any(_uses(item, name) for name in used)
        and _runner(item) == "this plug-in"
    )


def _in_plain_function(run: Callable[..., Any], test: Callable[..., Any]) -> Callable[..., None]:
    """A plain function that runs the test."""

    @wraps(test)
    def plain(**arguments: Any) -> None:
        __tracebackhide__ = True
        run(partial(test, **arguments))

    return plain


def _explain(item: pytest.Item, error: BaseException, when: str) -> None:
    """Say with the failure of a simulated test how to see it again, and what had happened. Raises
    what has to take the place of the error.
    """
    plan = item.stash.get(PLAN, None)
    if plan is None or isinstance(error, pytest.skip.Exception | pytest.xfail.Exception):
        return
    run = plan.run
    if run is None or not run.has_begun or isinstance(error, KeyboardInterrupt):
        return
    text = _seen_again(plan, run)
    error.add_note(text)
    item.add_report_section(when, "simulation", "\n".join([text, *run.events()]))
    said, plan.said_expired = plan.said_expired, plan.said_expired or bool(run.expired)
    says = isinstance(error, pytest.fail.Exception) and run.expired in str(error)
    if run.expired and not said and not says:
        # The error with which a blocked call was ended says less.
        raise pytest.fail.Exception(f"{run.expired}\n{text}", pytrace=False) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say it as well with failures of a unittest.TestCase, which pytest takes down by itself."""
    report = yield
    plan = item.stash.get(PLAN, None)
    if plan is None or plan.run is None or not plan.run.has_begun or not report.failed:
        return report
    if not any("simulation" in name for name, _ in report.sections):
        text = "\n".join([_seen_again(plan, plan.run), *plan.run.events()])
        report.sections.append((f"Captured simulation {call.when}", text))
    return report


def _seen_again(plan: Plan, run: VirtualRun) -> str:
    again = f"pytest {shlex.quote(plan.item.nodeid)} --understudy-seed={run.seed}"
    return f"simulated with seed {run.seed}; to see it again: {again}"


def _raise_interrupt(error: BaseException) -> None:
    """Raise Ctrl-C that is in groups, those of nurseries, alone: pytest would take it for a failure
    of the test, and go on with the next.
    """
    if isinstance(error, BaseExceptionGroup):
        from runtime.user_errors import is_interrupt

        if is_interrupt(error):
            raise KeyboardInterrupt from error


def _fail_if_expired(item: pytest.Item) -> None:
    """A test whose time was over may have caught the error of the call that was ended by it, as the
    one that it expects.
    """
    plan = item.stash.get(PLAN, None)
    if plan is None or plan.run is None or not plan.run.expired or plan.said_expired:
        return
    plan.said_expired = True
    _fail(f"{plan.run.expired}\n{_seen_again(plan, plan.run)}")


def _look_for_leftovers(plan: Plan) -> None:
    left: list[str] = []
    if plan.run is not None:
        left += plan.run.left
    if plan.processes is not None:
        from runtime.testing.process_cluster import close_forgotten

        left += close_forgotten(plan.open_before)
    _tell_leftovers(plan, left)


def _tell_leftovers(plan: Plan, left: list[str]) -> None:
    if left:
        plan.item.warn(LeftoverWarning(f"{plan.item.nodeid} has left behind {', '.join(left)}"))


# Fixtures


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest,
) -> Iterator[VirtualCluster | BlockingVirtualCluster]:
    """A simulated cluster: a `VirtualCluster` for tests that are `async def`, which run inside of
    it on trio, and a `BlockingVirtualCluster` for plain ones.
    """
    plan = _plan(request, "cluster")
    assert plan.run is not None
    if plan.kind == "async":
        from runtime.testing.virtual_cluster import VirtualCluster

        yield VirtualCluster(plan.run)
        return
    from runtime.testing.virtual_cluster import VirtualClusterError
    from runtime.testing.virtual_thread import VirtualThread

    plan.thread = VirtualThread(plan.run)
    plan.thread.open()
    yield plan.thread.cluster
    try:
        plan.thread.close()
    except VirtualClusterError:
        # It took too long: the failure of the test, or of the fixture that waited, says so.
        return
    _tell_leftovers(plan, plan.run.left)
    _fail_if_unexpected(plan.run)


@pytest.fixture(scope="session")
def _understudy_warm_process(request: pytest.FixtureRequest) -> Iterator[WarmProcess]:
    from runtime.processes import ForkServerStartError
    from runtime.testing.process_cluster import WarmProcess

    warm = WarmProcess(request.config.getini("understudy_preload"))
    try:
        warm.open()
    except ForkServerStartError as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        _fail(f"the processes of `local_cluster` cannot start: {error}\n{notes}")
    yield warm
    warm.close()


@pytest.fixture
def local_cluster(
    request: pytest.FixtureRequest, _understudy_warm_process: WarmProcess
) -> Iterator[AsyncLocalCluster | BlockingLocalCluster]:
    """A new cluster of real processes: an `AsyncLocalCluster` for tests that are `async def`, on
    trio or asyncio, and a `BlockingLocalCluster` for plain ones.
    """
    from runtime.testing.process_cluster import ProcessCluster

    plan = _plan(request, "local_cluster")
    plan.processes = ProcessCluster(
        _understudy_warm_process,
        plan.nodes,
        labels=plan.labels(plan.nodes),
        resources=plan.resources(plan.nodes),
    )
    plan.processes.open()
    yield plan.processes.awaited() if plan.kind == "async" else plan.processes.blocking()
    _tell_leftovers(plan, plan.processes.close())


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Iterator[VirtualFaults | ProcessFaults]:
    """Faults of the cluster that the test has: `VirtualFaults` of `cluster`, `ProcessFaults` of
    `local_cluster`.
    """
    names = [name for name in ("cluster", "local_cluster") if name in request.fixturenames]
    if not names:
        _fail("`faults` act on a cluster: ask for `cluster` or `local_cluster` as well")
    request.getfixturevalue(names[0])
    item: Any = request.node
    plan: Plan | None = item.stash.get(PLAN, None)
    if plan is None:
        _fail(f"`faults` are for the fixture `{names[0]}` of Understudy, which this test has not")
    if plan.processes is not None:
        made = plan.processes.faults()
        yield made
        made.heal()
        return
    from runtime.testing.cluster_faults import VirtualFaults

    assert plan.run is not None
    yield VirtualFaults(plan.run, _call if plan.thread is None else plan.thread.do)


def _call(function: Callable[[], T]) -> T:
    return function()


@pytest.fixture(scope="session")
def _understudy_etcd() -> Iterator[SessionEtcd]:
    from shutil import which

    from actors.errors import StoreError
    from runtime.testing.etcd_namespace import SessionEtcd

    if which("etcd") is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    server = SessionEtcd()
    try:
        server.open()
    except StoreError as error:
        _fail(f"etcd does not start: {error}")
    yield server
    server.close()


@pytest.fixture
def etcd(_understudy_etcd: SessionEtcd) -> Iterator[EtcdNamespace]:
    """A real etcd, of which each test has a part of its own: `open_node(store=etcd.address)`. Skips
    the test where etcd is not installed.
    """
    _understudy_etcd.start()
    namespace = _understudy_etcd.namespace()
    yield namespace
    # Whatever the test has done to it.
    _understudy_etcd.start()
    _understudy_etcd.clear(namespace.prefix)


class Simulated:
    """Runs scenarios under seeds."""

    def __init__(self, count: int | None, only: int | None) -> None:
        self._count = count
        self._only = only

    def __call__(
        self,
        scenario: Scenario,
        *,
        seeds: int = 20,
        nodes: int = 3,
        faults: Iterable[str] | None = None,
    ) -> None:
        """Run the scenario on simulated clusters, under `seeds` different seeds. Raises
        `SimulationError` with the first seed that breaks a promise.
        """
        from runtime.simulation.runs import simulate

        if _in_event_loop():
            _fail("`simulated` has event loops of its own: make the test a plain `def`")
        if type(seeds) is not int or seeds < 1:
            raise ValueError(f"seeds is how many to try, a number from 1 on, not {seeds!r}")
        chosen = (
            [self._only]
            if self._only is not None
            else range(seeds if self._count is None else self._count)
        )
        try:
            simulate(scenario, seeds=chosen, nodes=nodes, faults=faults)
        except (pytest.skip.Exception, pytest.xfail.Exception) as error:
            # They would be a part of the reason.
            error.__notes__ = []
            raise


@pytest.fixture
def simulated(request: pytest.FixtureRequest) -> Simulated:
    """Runs a scenario on simulated clusters, one for each seed."""
    return Simulated(
        request.config.getoption("simulation_seeds"), request.config.getoption("simulation_seed")
    )
