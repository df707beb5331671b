"""Simulations of one's own actors: what a scenario may do, how it fails, and how the failure is
seen again.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from actors import Actor, UnderstudyError, method
from runtime.simulation import Simulation, SimulationError, run_scenario, simulate


class Echo(Actor):
    """Gives back what it is given, from wherever it is."""

    @method(idempotent=True)
    async def say(self, text: str) -> str:
        return f"{text} from {self.node.name}"

    @method
    def compute(self, number: int) -> int:
        return number * number

    @method
    async def twice(self, number: int) -> int:
        return await self.compute(number) * 2


async def calls(simulation: Simulation) -> None:
    assert simulation.nodes == ("node-1", "node-2", "node-3")
    for name in simulation.nodes:
        echo = await simulation.node.options(on=name).spawn(Echo)
        assert await echo.say("hello") == f"hello from {name}"
        assert await echo.compute(7) == 49
        assert await echo.twice(7) == 98


def test_a_scenario_calls_actors_on_all_nodes_and_plain_methods_run_without_threads() -> None:
    simulate(calls, seeds=range(5), faults=())


def test_virtual_minutes_pass_faster_than_real_ones() -> None:
    async def wait(simulation: Simulation) -> None:
        await trio.sleep(120)

    report = run_scenario(wait, 1, faults=())
    assert report.holds
    assert report.seconds > 120
    assert report.took < report.seconds


async def killed(simulation: Simulation) -> None:
    echo = await simulation.node.options(on="node-2").spawn(Echo)
    assert await echo.say("a") == "a from node-2"
    simulation.kill("node-2")
    with pytest.raises(UnderstudyError):
        await echo.say.options(timeout=20)("b")
    simulation.pause("node-3")
    simulation.note("node-3 is stopped")
    with pytest.raises(TimeoutError):
        raise TimeoutError
    heal = simulation.partition(["node-1"], ["node-2", "node-3"])
    await trio.sleep(1)
    heal()
    simulation.resume("node-3")
    await simulation.calm()
    again = await simulation.node.options(on="node-2").spawn(Echo)
    assert await again.say("c") == "c from node-2"


def test_a_scenario_may_kill_pause_and_cut_off_at_moments_of_its_choice() -> None:
    simulate(killed, seeds=range(10), faults=())


async def unlucky(simulation: Simulation) -> None:
    await trio.sleep(5)
    assert simulation.random.random() < 0.7, "out of luck"


def test_a_failure_names_its_seed_and_is_the_same_every_time() -> None:
    with pytest.raises(
        SimulationError, match=r"seed (\d+) fails: AssertionError: out of luck"
    ) as caught:
        simulate(unlucky, seeds=range(50))
    report = caught.value.report
    assert f"simulate(unlucky, seeds=[{report.seed}], nodes=3)" in str(caught.value)
    again = run_scenario(unlucky, report.seed)
    assert not again.holds
    assert again.trace_hash == report.trace_hash
    assert any(event.kind == "wrong" for event in report.events)


def test_a_scenario_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.simulation.runs.LIMIT_SECONDS", 100.0)

    async def wait(simulation: Simulation) -> None:
        await trio.sleep_forever()

    with pytest.raises(SimulationError, match="had not ended after 100 virtual seconds"):
        simulate(wait, seeds=[0], faults=())


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'crash'"):
        simulate(calls, faults=["crsh"])
    for nodes in (0, "3", 1.5):
        with pytest.raises(ValueError, match="one node at least"):
            simulate(calls, nodes=nodes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nothing would be tried"):
        simulate(calls, seeds=range(0))
    for seeds in (5, "5", ["a"], [1.5]):
        with pytest.raises(ValueError, match=r"seeds are numbers|a seed is a whole number"):
            simulate(calls, seeds=seeds)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"such as \['crash'\]"):
        simulate(calls, faults="crash")

    async def lost(simulation: Simulation) -> None:
        simulation.kill("node-9")

    with pytest.raises(
        SimulationError,
        match="there is no node 'node-9' in this simulation; there are: node-1, node-2",
    ):
        simulate(lost, seeds=[0], faults=(), nodes=2)


def test_seeds_may_go_on_without_end_until_one_fails() -> None:
    async def fails_late(simulation: Simulation) -> None:
        assert simulation.seed < 2, "two is wrong"

    with pytest.raises(SimulationError, match="seed 2 fails"):
        simulate(fails_late, seeds=itertools.count(), faults=())


@pytest.mark.parametrize("fault", ["kill", "pause", "block"])
def test_the_node_of_the_scenario_is_spared_from_what_it_could_not_survive(fault: str) -> None:
    async def itself(simulation: Simulation) -> None:
        with pytest.raises(ValueError, match="spared from this fault"):
            getattr(simulation, fault)("scenario")

    simulate(itself, seeds=[0], faults=())


def test_faults_that_make_no_sense_are_refused_and_end_no_node() -> None:
    async def wrong(simulation: Simulation) -> None:
        for seconds in (-1.0, math.nan, math.inf, "1", True):
            with pytest.raises(ValueError, match="restart_after is a finite number of seconds"):
                simulation.kill("node-1", seconds)  # type: ignore[arg-type]
        for sides in ([], [["node-1"]], [["node-1"], ["node-1"]]):
            with pytest.raises(ValueError, match="separates no nodes"):
                simulation.partition(*sides)
        with pytest.raises(ValueError, match="names of nodes in a list"):
            simulation.partition("node-1", "node-2")
        # As of a random division.
        simulation.partition(["node-1"], [])()
        # One that is on both sides reaches both.
        simulation.partition(["node-1", "node-2"], ["node-2", "node-3"])()
        await calls(simulation)

    simulate(wrong, seeds=[0], faults=())


class Odd(BaseException):
    """What is no `Exception`."""


def test_what_is_no_exception_is_raised_itself_with_its_seed() -> None:
    async def odd(simulation: Simulation) -> None:
        raise Odd("why")

    with pytest.raises(Odd) as caught:
        simulate(odd, seeds=[4], faults=())
    assert caught.value.__notes__ == [
        "simulated with seed 4; to see it again: simulate(odd, seeds=[4], nodes=3)"
    ]


TEST = """
import trio
from runtime.simulation import Simulation

async def scenario(simulation: Simulation) -> None:
    await trio.sleep(1)
    assert simulation.seed != 3, "three is wrong"

def test_scenario(simulated):
    simulated(scenario, seeds=5)
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param([], 1, marks=pytest.mark.long),
        (["--simulation-seeds=3"], 0),
        (["--simulation-seed=3"], 1),
    ],
)
def test_the_fixture_runs_a_scenario_under_seeds_that_the_command_line_may_choose(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("seed 3 fails: AssertionError: three is wrong" in done.stdout) == bool(code)
