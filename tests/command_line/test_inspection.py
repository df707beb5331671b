"""`stack`, `inspect`, `list`, `top` and `why` as a user meets them: real node processes, one of
them stopped, and wrong input.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.errors import CallTimeoutError, NodeUnreachableError
from runtime.command_line.debug import obstacles
from runtime.command_line.node_answers import Answers, why
from runtime.command_line.tables import ordered, table
from runtime.command_line.why import WaitSubject, wait_lines
from runtime.observation.open_calls import OpenCall, WaitStep
from tests.command_line.shell import LONG_LEASES, Cluster, Shell, check_mistake
from tests.observation.test_timeline import check_trace

CREW = """
import trio
from actors import Actor, ChildSpec, Supervisor, method
from threading import Event

class Waiter(Actor):
    async def on_start(self) -> None:
        if self.name in ("asker", "waiter"):
            await self.join("a/b")
        if self.name == "asker":
            await self.save({"sold": 3})

    @method
    async def double(self, item: int) -> int:
        return 2 * item

    @method
    async def ask(self, other: str) -> None:
        await (await self.node.lookup(other, Waiter)).wait()

    @method
    async def wait(self) -> None:
        await trio.sleep_forever()  # the line that waits

    @method
    def compute(self) -> None:
        Event().wait()

    @method
    async def fail(self) -> None:
        raise SystemExit("it fails")
"""

SCRIPT = """
import sys, trio
from crew import Waiter
from actors import ChildSpec, Supervisor
from runtime import open_node

async def main() -> None:
    async with open_node("script", join=sys.argv[1]) as node, trio.open_nursery() as nursery:
        asker = await node.options(name="asker", on="first").spawn(Waiter)
        waiter = await node.options(name="waiter", on="w1").spawn(Waiter)
        thread = await node.options(name="thread", on="w1").spawn(Waiter)
        spec = ChildSpec.of("child", Waiter).changed(name="child")
        await node.options(name="boss", on="first").spawn(Supervisor, [spec])
        try:
            await (await node.lookup("child", Waiter)).fail()
        except Exception:
            pass
        pool = await node.pool("doubles", Waiter, size=2)
        await pool.ready(2)
        for journal in ("kept", "other"):
            async for _ in pool.map(Waiter.double, range(20), journal=journal):
                pass
        nursery.start_soon(asker.ask, "waiter")
        nursery.start_soon(thread.compute)
        await trio.sleep(0.3)
        for _ in range(3):
            nursery.start_soon(waiter.wait)
        print("ready", flush=True)

if __name__ == "__main__":
    trio.run(main)
"""


class WaitingCluster(Cluster):
    """A script whose calls wait on both nodes."""

    def __init__(self, shell: Shell) -> None:
        (shell.place / "crew.py").write_text(CREW)
        super().__init__(shell, command=LONG_LEASES)
        self.script, _ = shell.start_script(SCRIPT, self.address)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WaitingCluster]:
    shell = Shell(tmp_path_factory.mktemp("inspection"))
    yield WaitingCluster(shell)
    shell.close()


@pytest.mark.cluster
def test_stack_names_the_line_of_a_method_that_waits_and_of_one_that_computes(
    cluster: WaitingCluster,
) -> None:
    line = CREW.splitlines().index("        await trio.sleep_forever()  # the line that waits") + 1
    file = cluster.shell.place / "crew.py"
    done = cluster.run("stack", "waiter")
    assert done.returncode == 0, done
    assert "waiter.wait, for " in done.stdout
    assert f"{file}:{line} in Waiter.wait" in done.stdout
    assert "asker" not in done.stdout
    assert "compute" not in done.stdout
    of_thread = cluster.run("stack", "thread").stdout
    assert "thread.compute, for " in of_thread
    assert "Event().wait()" in of_thread
    of_node = cluster.run("stack", "w1").stdout
    assert f"{file}:{line} in Waiter.wait" in of_node
    assert "Event().wait()" in of_node
    assert "tasks of the runtime are not shown" in of_node
    assert "tasks of the runtime" not in cluster.run("stack", "w1", "--all").stdout
    assert {task["actor"] for task in cluster.facts("stack", "w1")["tasks"]} >= {"waiter", "thread"}


@pytest.mark.cluster
def test_inspect_and_list_say_how_earlier_epochs_of_an_actor_ended(cluster: WaitingCluster) -> None:
    facts = cluster.facts("inspect", "child")
    assert [end["name"] for end in facts["ends"]] == ["child"]
    assert "SystemExit: it fails" in facts["ends"][0]["traceback"]
    assert facts["ends"][0]["epoch"] < facts["epoch"]
    assert "raised: SystemExit: it fails" in cluster.run("inspect", "child").stdout
    assert facts["saved_bytes"] is None
    # Of its supervisor's memory and its node's, once.
    deaths = cluster.facts("list", "deaths", "--filter", "name=child")["deaths"]
    assert len(deaths) == 1
    assert deaths[0]["supervisor"] == "boss"


@pytest.mark.cluster
def test_inspect_says_where_an_actor_is_what_it_runs_and_what_waits(
    cluster: WaitingCluster,
) -> None:
    lines = cluster.run("inspect", "waiter").stdout.splitlines()
    assert lines[0] == "waiter: crew:Waiter"
    assert "node        w1" in lines[1]
    text = "\n".join(lines)
    assert "mailbox     3 of 10,000 calls, the oldest waits for " in text
    assert "called by asker.ask" in text
    assert text.count("  waits ") == 3
    facts = cluster.facts("inspect", "waiter")
    assert (facts["served"], facts["waiting"], facts["node"]) == (1, 3, "w1")
    assert "saved       " in cluster.run("inspect", "asker").stdout
    facts = cluster.facts("inspect", "asker")
    assert facts["saved_bytes"] > 0
    # An observer may not read states, but is told their size.
    observed = cluster.facts("inspect", "asker", "--role", "observer")
    assert observed["saved_bytes"] == facts["saved_bytes"]
    assert (observed["saved_problem"], observed["node"]) == ("", "first")


@pytest.mark.cluster
def test_list_filters_sorts_and_says_what_it_leaves_out(cluster: WaitingCluster) -> None:
    calls = cluster.facts("list", "calls", "--filter", "actor=waiter", "--filter", "state=wait*")
    assert [call["method"] for call in calls["calls"]] == ["wait"] * 3
    assert calls["left_out"] == 0
    some = cluster.run("list", "calls", "--limit", "2").stdout.splitlines()
    assert len(some) == 4
    count = len(cluster.facts("list", "calls")["calls"])
    assert some[-1] == f"{count - 2} more are left out: --limit shows more"
    actors = cluster.facts("list", "actors", "--sort", "-name", "--filter", "waiting>=1")
    assert [actor["name"] for actor in actors["actors"]] == ["waiter"]
    nodes = cluster.facts("list", "nodes")["nodes"]
    assert [node["name"] for node in nodes] == ["first", "script", "w1"]
    assert {"first", "w1"} <= {link["peer"] for link in cluster.facts("list", "links")["links"]}
    (death,) = cluster.facts("list", "deaths")["deaths"]
    assert (death["name"], death["supervisor"]) == ("child", "boss")
    (group,) = cluster.facts("list", "groups", "--filter", "members>=2")["groups"]
    assert group == {"name": "a/b", "members": 2, "nodes": "first 1, w1 1", "class": "crew:Waiter"}


@pytest.mark.cluster
def test_pools_are_shown_with_their_members(cluster: WaitingCluster) -> None:
    (pool,) = cluster.facts("pools")["pools"]
    assert (pool["name"], pool["what"], pool["members"]) == ("doubles", "crew:Waiter", 2)
    assert pool["nodes"] == "first 1, w1 1"
    assert "doubles" in cluster.run("pools").stdout
    assert cluster.facts("list", "pools", "--filter", "name=x")["pools"] == []


@pytest.mark.cluster
def test_journals_are_shown_and_removed(cluster: WaitingCluster) -> None:
    kept, other = cluster.facts("pools", "--journals")["journals"]
    assert (kept["name"], kept["items"], other["driver"]) == ("kept", 20, None)
    shown = cluster.run("pools", "--journals", "--older-than", "1d", "--prune")
    assert shown.stdout == "no journals were removed: none is that old\n"
    done = cluster.run("pools", "--journals", "--remove", "kept")
    assert done.stdout == "journal kept was removed\n"
    again = cluster.run("pools", "--journals", "--remove", "kept")
    check_mistake(again, "journal kept was not removed: there is no journal of this name")
    pruned = cluster.facts("pools", "--journals", "--older-than", "0s", "--prune", "--yes")
    assert pruned == {"removed": ["other"], "left": {}}
    assert cluster.run("pools", "--journals").stdout == "no journals are kept\n"


@pytest.mark.cluster
def test_top_shows_who_has_most_to_do(cluster: WaitingCluster) -> None:
    rows = cluster.facts("top", "--seconds", "0.1")["actors"]
    assert rows[0]["name"] == "waiter"
    assert rows[0]["waiting"] == 3
    assert rows[0]["wait"] > 0
    assert rows[0]["rate"] == 0
    by_turn = cluster.facts("top", "--seconds", "0.1", "--sort", "turn", "--limit", "1")
    assert by_turn["actors"][0]["turn"] > 0
    assert by_turn["left_out"] >= 3
    assert {row["restarts"] for row in rows} == {0}
    assert cluster.facts("top", "--seconds", "0.1", "--sort", "restarts")["actors"] == []


@pytest.mark.cluster
def test_a_timeline_of_all_nodes_is_written(cluster: WaitingCluster) -> None:
    facts = cluster.facts("timeline", "--seconds", "0.2", "-o", "run.json")
    assert facts["file"] == "run.json"
    assert sorted(facts["nodes"]) == ["first", "script", "w1"]
    assert all(0 <= node["clock_error_seconds"] < 1 for node in facts["nodes"].values())
    assert facts["silent"] == {}
    trace = json.loads((cluster.shell.place / "run.json").read_text())
    check_trace(trace)
    # Pauses of event loops, which a busy machine makes, are of no actor.
    turns = {event["args"].get("actor") for event in trace["traceEvents"] if event["ph"] == "X"}
    assert {"asker", "waiter", "thread"} <= turns
    check_mistake(
        cluster.run("timeline", "--seconds", "0.1", "-o", "no/such/place"),
        *("no/such/place", "No such file or directory"),
    )
    check_mistake(cluster.run("timeline", "--seconds", "61"), "61", status=2)


@pytest.mark.cluster
def test_why_follows_a_call_over_nodes(cluster: WaitingCluster) -> None:
    done = cluster.run("why", "asker")
    assert done.returncode == 0
    assert "and awaits waiter.wait, which runs on w1" in done.stdout
    assert "`understudy stack waiter`" in done.stdout
    steps = cluster.facts("why", "asker.ask")["steps"]
    assert [step["running"]["method"] for step in steps] == ["ask", "wait"]
    none = cluster.run("why", "waiter.double").stdout
    assert none == "waiter has no call of double: none runs, and none waits\n"
    assert cluster.run("why").stdout == "no actors wait for each other in a cycle\n"
    assert cluster.run("why", "boss").stdout == "boss runs nothing: it waits for calls\n"
    mistyped = cluster.run("why", "waiter.dubble")
    check_mistake(
        *(mistyped, "waiter has no @method 'dubble'; it offers: ask, ", "; did you mean 'double'?")
    )
    assert cluster.facts("inspect", "waiter")["methods"] == [
        *("ask", "compute", "double", "fail", "wait"),
    ]


@pytest.mark.cluster
def test_wrong_input_is_one_line(cluster: WaitingCluster) -> None:
    for command in ("stack", "inspect", "why"):
        check_mistake(cluster.run(command, "waitr"), "waitr", "did you mean 'waiter'?")
    for words in (
        ("--filter", "nope=1"),
        ("--filter", "name"),
        ("--filter", "waiting>x"),
        ("--sort", "nope"),
        ("--limit", "0"),
    ):
        check_mistake(cluster.run("list", "actors", *words), words[1].partition("=")[0], status=2)
    check_mistake(cluster.run("top", "--seconds", "nan"), "nan", status=2)


@pytest.mark.cluster
def test_a_stopped_node_is_named_and_delays_nothing_else(cluster: WaitingCluster) -> None:
    cluster.worker.send_signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(5) as threads:
            commands = (
                *(["list", "actors"], ["list", "deaths"]),
                *(["inspect", "nobody"], ["stack", "waiter"], ["inspect", "waiter"]),
            )
            listed, deaths, unknown, *others = threads.map(
                lambda words: cluster.run(*words), commands
            )
    finally:
        cluster.worker.send_signal(signal.SIGCONT)
    assert listed.returncode == 1, listed
    assert "asker" in listed.stdout
    assert "node w1 did not answer: " in listed.stderr
    assert "Traceback" not in listed.stderr
    assert deaths.returncode == 1, deaths
    assert deaths.stderr.count("w1") == 1, "it is named once"
    assert "node w1 does not answer: " in deaths.stderr
    # It has no name that the store knows: a node that does not answer may have it.
    check_mistake(unknown, "no actor called 'nobody'", "; it may be on w1, which did not answer")
    for done in others:
        check_mistake(done, "node w1", "did not answer")


@pytest.mark.cluster
def test_with_a_stopped_store_each_command_says_what_did_not_answer(
    cluster: WaitingCluster,
) -> None:
    # That each waits once is tested on a virtual clock: `test_silent_store.py`.
    def run(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return cluster.shell.run(*words, "--address", cluster.worker_address)

    unknown = [("inspect", "nobody"), ("why", "nobody"), ("logs", "nobody"), ("stack", "nobody")]
    cluster.founder.send_signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(run, [*unknown, ("inspect", "waiter")]))
    finally:
        cluster.founder.send_signal(signal.SIGCONT)
    *missing, found = answers
    for done in missing:
        check_mistake(
            done,
            "'nobody' is on a node that answers",
            "it may be on first, which did not answer, and neither did the store",
        )
    assert found.returncode == 0, found


def test_the_cause_of_an_end_is_not_cut_off_and_what_is_cut_is_said_to_be() -> None:
    reason = "start failed: render/member-10 did not start on worker-2: ConnectionError: no licence"
    rows = [{"name": "render", "reason": reason}]
    assert reason in table(("name", "reason"), rows)[1]
    assert len(table(("name", "reason"), rows)) == 2
    cut = table(("name",), [{"name": "n" * 300}])
    assert cut[1].endswith("n…")
    assert "--json" in cut[2]


def test_rows_without_a_value_come_last_and_names_cannot_move_the_cursor() -> None:
    rows = [{"name": "a\x1b[2J\nb", "x": None}, {"name": "c", "x": 2.0}, {"name": "d", "x": 3.0}]
    for column, names in (("x", "cda"), ("-x", "dca")):
        assert [row["name"][0] for row in ordered(rows, column)] == list(names)  # type: ignore[arg-type]
    lines = table(("name", "x"), rows)  # type: ignore[arg-type]
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


def test_who_was_silent_and_who_left_something_out_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = Answers({"w1": {}}, {"w2": "it was stopped"}, {"w1": 3}, notes=["there is more"])
    answers.warn()
    assert capsys.readouterr().err.splitlines() == [
        "node w2 did not answer: it was stopped",
        "node w1 left out 3 more calls",
        "there is more",
    ]
    assert answers.status == Answers(problems=["no store"]).status == 1
    assert Answers(left_out={"w1": 3}, notes=["there is more"]).status == 0


def test_a_node_without_a_connection_is_named_in_plain_words() -> None:
    attempts = NodeUnreachableError("@inspection.actors was not executed in any of its 8 attempts")
    assert why(attempts).startswith("no connection to it could be made; its process may be stopped")
    assert why(CallTimeoutError("late"), 20.0).startswith("nothing came within 20 s; ")


def test_what_an_actor_on_a_silent_node_waits_for_is_not_known() -> None:
    lines = wait_lines(WaitSubject("bob", "", "w2"), [], [], [], {"w2"})
    assert lines == ["what bob runs is not known: it is on node w2, which did not answer"]
    [none] = wait_lines(None, [], [], [], {"w2"})
    assert none == (
        "no actors wait for each other in a cycle, as far as the nodes that answered know"
    )


def test_a_paused_actor_is_not_said_to_wait_for_calls() -> None:
    (line,) = wait_lines(WaitSubject("shop", "", "w1", paused=True), [], [], [], set())
    assert line == ("shop is paused: the lease of its node w1 is in doubt, see `understudy status`")


def test_a_call_to_a_node_that_does_not_answer_is_named_as_its_caller_knows_it() -> None:
    runs = OpenCall("w1", "shop", "order", "running", 2.0, None, None, "")
    sent = OpenCall("w2", "stock", "take", "sent", None, None, ("shop", "order"), "w1")
    subject = WaitSubject("shop", "", "w1")
    first, second = wait_lines(subject, [], [WaitStep(runs, sent)], [], {"w2"})
    assert first == "shop.order on w1 runs, for 2.0 s"
    assert second == (
        "  and awaits stock.take on w2, which did not answer: `understudy stack w2` shows what "
        "blocks it"
    )
    _, second = wait_lines(subject, [], [WaitStep(runs, sent)], [], set())
    assert "awaits stock.take on w2, which reports no such call" in second
    assert "understudy list links" in second
    # Of an actor in a process of its own its node does not know what it awaits.
    _, second = wait_lines(subject, [], [WaitStep(runs, None)], [], {"w2"})
    assert "awaits no call that a node which answered knows of" in second


def test_why_there_is_nothing_to_debug_is_said_once_for_all_nodes() -> None:
    answers = Answers(
        {f"w{number}": {"problem": "not --debuggable"} for number in range(1, 8)},
        {"w8": "it was stopped"},
    )
    assert obstacles(answers) == [
        "w1, w2, w3, w4, w5 and 2 more: not --debuggable",
        "w8: did not answer: it was stopped",
    ]
