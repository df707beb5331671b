"""The command line as a user meets it: real processes, right and wrong input, exit statuses, one
line for each mistake.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from runtime.command_line.main import main
from runtime.store.data_mark import MARK_NAME
from runtime.store.file import FILE_NAME, StoreFile
from tests import forked_python
from tests.command_line.shell import FIRST, UNDERSTUDY, Cluster, Shell, check_mistake
from tests.free_addresses import free_address
from tests.waiting import until_blocking

pytestmark = pytest.mark.cluster

SPAWN = """
import sys, trio
from app import Counter
from runtime import open_node
async def main():
    async with open_node("script", join=sys.argv[1]) as node:
        await node.options(name="counter", on="w1").spawn(Counter, 10)
trio.run(main)
"""


def test_nodes_join_and_are_shown_called_and_stopped(shell: Shell) -> None:
    address = shell.found()
    assert ": 1 node, store embedded" in shell.run("status", "--address", address).stdout
    worker, _ = shell.start_node("--name", "w1", "--join", address, "--label", "disk=fast")
    shell.run_program(SPAWN, address)

    called = shell.run("call", "counter", "add", "5", "--address", address)
    assert (called.returncode, called.stdout) == (0, "15\n")
    assert shell.run("call", "counter", "add", "1", "--address", address, "--json").stdout == "16\n"
    for words in (["-5"], ["5"], ["-k", "amount=-3"], ["--", "3"]):
        negative = shell.run("call", "--address", address, "counter", "add", *words)
        assert negative.returncode == 0, negative.stderr
    assert negative.stdout == "16\n"

    status = json.loads(shell.run("status", "--address", address, "--json").stdout)
    nodes = {node["node"]: node for node in status["nodes"]}
    assert set(nodes) == {"first", "w1"}
    assert nodes["w1"]["labels"] == {"disk": "fast"}
    assert [actor["name"] for actor in nodes["w1"]["actors"]] == ["counter"]
    assert "counter" in shell.run("status", "--address", address).stdout

    check_mistake(
        shell.run("call", "countre", "add", "5", "--address", address),
        "countre",
        "did you mean 'counter'?",
    )
    check_mistake(
        shell.run("call", "counter", "addd", "5", "--address", address),
        "addd",
        "did you mean 'add'?",
    )
    check_mistake(shell.run("call", "counter", "add", "--address", address), "add")
    check_mistake(shell.run("call", "counter", "fail", "--address", address), "on purpose")
    named = shell.run("call", "counter", "add", "-k", "amount=0", "--address", address)
    assert (named.returncode, named.stdout) == (0, "16\n")
    items = shell.run("call", "counter", "count", "-k", "most=3", "--address", address)
    assert (items.returncode, items.stdout) == (0, "0\n1\n2\n")
    check_mistake(
        shell.run("call", "counter", "count", "3", "--address", address),
        "too many positional arguments",
    )
    check_mistake(
        shell.run("stop", "frist", "--address", address), "frist", "did you mean 'first'?"
    )
    check_mistake(shell.run("stop", "counter", "--address", address), "give --actor counter")
    nothing = shell.run("call", "counter", "nothing", "--address", address)
    assert (nothing.returncode, nothing.stdout) == (0, "None\n")

    stopped = shell.run("stop", "--actor", "counter", "--address", address)
    assert (stopped.returncode, stopped.stdout) == (0, "actor counter has stopped\n")
    check_mistake(
        shell.run("call", "counter", "add", "5", "--address", address), "no actor called 'counter'"
    )
    left = shell.run("stop", "w1", "--address", address)
    assert (left.returncode, left.stdout) == (0, "node w1 has left the cluster\n")
    assert worker.wait(timeout=60) == 0
    # The last one takes the store with it.
    left = shell.run("stop", "first", "--json", "--address", address)
    assert json.loads(left.stdout) == {"stopped": "first", "kind": "node", "ended": True}


STAYS = """
import sys, trio
from runtime import open_node

async def main(address):
    async with open_node("stays", join=address) as node:
        print("up", flush=True)
        await trio.sleep_forever()

trio.run(main, sys.argv[1])
"""


def test_a_node_that_does_not_leave_is_not_said_to_have_stopped(shell: Shell) -> None:
    address = shell.found()
    process, _ = shell.start_script(STAYS, address)
    asked = shell.run("stop", "stays", "--timeout", "0", "--address", address)
    assert (asked.returncode, asked.stdout) == (0, "node stays was asked to stop\n")
    check_mistake(
        shell.run("stop", "stays", "--timeout", "0.5", "--address", address),
        "node stays was asked to stop, and has not left the cluster within 0.5 s",
        "`understudy stack stays`",
        "`node.asked_to_leave`",
    )
    waiting = shell.start([*UNDERSTUDY, "stop", "stays", "--json", "--address", address])

    def links_of_clients() -> int:
        listed = shell.run("list", "links", "--json", "--address", address)
        links = json.loads(listed.stdout)["links"]
        return sum(one["node"] == "stays" and one["peer"].startswith("client-") for one in links)

    # Its own, and that of the command that looks. Before, it would find no node to be stopped.
    until_blocking(lambda: links_of_clients() >= 2, "the command waits for the node")
    # It sees the end of one that is killed meanwhile, before its lease has ended.
    process.kill()
    assert json.loads(waiting.communicate(timeout=50)[0])["ended"]


def test_an_actor_has_some_time_to_stop_in() -> None:
    done = CliRunner().invoke(main, ["stop", "--actor", "counter", "--timeout", "0"])
    assert (
        done.exit_code,
        "a stop of an actor is always waited for; give more than 0 seconds" in done.output,
    ) == (2, True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["counter", "add", "-5", "--tiemout", "3"], "No such option '--tiemout'"),
        (["counter", "add", "-x"], "No such option '-x'"),
        (["counter", "add", "--timeout", "-5"], "-5"),
    ],
)
def test_what_is_no_negative_number_is_an_option(words: list[str], text: str) -> None:
    done = CliRunner().invoke(main, ["call", *words])
    assert (done.exit_code, text in done.output) == (2, True), done.output
    assert "\0" not in done.output


def test_a_node_limits_the_calls_of_its_actors_that_have_no_timeout(shell: Shell) -> None:
    address = shell.found("--call-timeout", "0.2")
    for name in ("silent", "asker"):
        shell.run_program(
            SPAWN.replace('name="counter", on="w1"', f'name="{name}", on="first"'), address
        )
    check_mistake(
        shell.run("call", "asker", "wait_for", "silent", "--address", address), "CallTimeoutError"
    )


@pytest.mark.parametrize(
    ("words", "mistake"),
    [(["amount"], "'amount' is not NAME=VALUE"), (["a=1", "-k", "a=2"], "a is given twice")],
)
def test_an_argument_by_name_is_checked_before_the_cluster_is_asked(
    words: list[str], mistake: str
) -> None:
    done = CliRunner().invoke(main, ["call", "counter", "add", "-k", *words])
    assert (done.exit_code, mistake in done.output) == (2, True)


@pytest.mark.parametrize("words", [["explain"], ["--version"], ["explain", "--help"]])
def test_a_reader_that_has_gone_ends_a_command_without_a_line(
    shell: Shell, words: list[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = forked_python.run(
            [*UNDERSTUDY, *words],
            env=shell.environment,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=50,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["explain"], ["--version"], ["--help"]])
def test_what_cannot_be_printed_is_one_line(
    shell: Shell, words: list[str], unbuffered: str
) -> None:
    with open("/dev/full", "wb") as full:
        done = forked_python.run(
            [*UNDERSTUDY, *words],
            env={**shell.environment, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=50,
            check=False,
        )
    check_mistake(done, "error: stdout: No space left on device; make room there")


def test_a_command_is_started_without_one_of_its_standard_files(shell: Shell) -> None:
    _, facts = shell.start_node("--name", "w1", "--listen", "127.0.0.1:0")
    tree = ["tree", "--address", facts["address"]]
    for sign, words, status in (
        ("0<", tree, 0),
        ("1>", tree, 0),
        ("2>", tree, 0),
        ("2>", ["nope"], 2),
    ):
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {sign}&-', "sh", *UNDERSTUDY, *words],
            env=shell.environment,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert (done.returncode, done.stderr) == (status, ""), done
        assert bool(done.stdout) == (sign != "1>" and not status)


MENU = """
import attrs
from actors import message
@message
@attrs.frozen
class Dish:
    name: str
@message
class BurntError(Exception):
    pass
"""

KITCHEN = """
from actors import Actor, method
class Cook(Actor):
    @method
    async def take(self, dish: object) -> str:
        return repr(dish)
    @method
    async def give(self) -> object:
        import menu
        return menu.Dish("soup")
    @method
    async def burn(self) -> None:
        import menu
        raise ExceptionGroup("both", [menu.BurntError("soup"), ValueError("value")])
"""

WAITER = """
import sys, trio
import menu
from kitchen import Cook
from runtime import open_node
async def main():
    async with open_node("waiter", join=sys.argv[1]) as node:
        cook = await node.options(name="cook", on=sys.argv[2]).spawn(Cook)
        print(await cook.take(menu.Dish("soup")))
trio.run(main)
"""

GUEST = """
import sys, trio
from kitchen import Cook
from runtime import open_node
async def main():
    async with open_node("guest", join=sys.argv[1]) as node:
        cook = await node.lookup("cook", Cook)
        for ask in (cook.give, cook.burn):
            try:
                await ask()
            except Exception as error:
                print(type(error).__name__, error, *(note for one in getattr(error, "exceptions", ()) for note in one.__notes__))
trio.run(main)
"""


def test_modules_of_messages_are_imported_by_option_and_missing_ones_are_reported(
    shell: Shell,
) -> None:
    for name, text in {"menu": MENU, "kitchen": KITCHEN, "waiter": WAITER, "guest": GUEST}.items():
        (shell.place / f"{name}.py").write_text(text)

    address = shell.found()
    told = (
        "menu:Dish is not known to the process that was to read it: it has not imported menu, "
        "and what peers send imports nothing. "
    )
    done = shell.run_python("waiter.py", address, "first")
    assert done.returncode == 1
    assert (
        f"BadArgumentsError: cook.take was not called: node first cannot read argument dish: {told}"
        "Import menu in the program that opens its node" in done.stderr
    )
    assert "`understudy node --import menu`" in done.stderr

    shell.start_node(
        "--name", "second", "--join", address, "--import", "menu", "--import", "json.decoder"
    )
    assert shell.run("stop", "--actor", "cook", "--address", address).returncode == 0
    done = shell.run_python("waiter.py", address, "second")
    assert (done.returncode, done.stdout) == (0, "Dish(name='soup')\n"), done.stderr

    # Nobody has imported it where the answer arrives.
    done = shell.run_python("guest.py", address)
    assert (
        f"ReplyDecodeError cook.give ran, but its result cannot be read here: {told}" in done.stdout
    )
    assert "ExceptionGroup both" in done.stdout
    assert "It is no BurntError here: menu:BurntError is not known to the process" in done.stdout
    check_mistake(shell.run("call", "cook", "give", "--address", address), told, "--import menu")
    called = shell.run("call", "cook", "give", "--address", address, "--import", "menu")
    assert (called.returncode, called.stdout) == (0, "Dish(name='soup')\n"), called.stderr


def test_a_module_that_cannot_be_imported_is_one_line(shell: Shell) -> None:
    (shell.place / "ends.py").write_text("raise SystemExit('the end')")
    for module, words in {
        "no_such_module": ("ModuleNotFoundError", "no_such_module"),
        "ends": ("SystemExit: the end",),
        "app.py": ("app.py", "ModuleNotFoundError"),
        "./app": ("not the name of a module",),
        "": ("not the name of a module",),
    }.items():
        for command in (("node", "--listen", "127.0.0.1:0"), ("call", "cook", "give")):
            check_mistake(shell.run(*command, "--import", module), *words)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_makes_a_node_drain_and_leave(shell: Shell, signum: signal.Signals) -> None:
    cluster = Cluster(shell)
    worker = cluster.worker
    worker.send_signal(signum)
    assert worker.wait(timeout=60) == 0
    status = cluster.facts("status")
    assert [node["node"] for node in status["nodes"]] == ["first"]


def test_a_script_spawns_its_own_classes_on_nodes_that_can_import_its_file(shell: Shell) -> None:
    """The example of the design, with nothing in it but the address changed."""
    address = shell.found()
    shell.start_node("--name", "worker-1", "--join", address)
    (shell.place / "script.py").write_text(DESIGN_EXAMPLE.replace("127.0.0.1:7400", address))
    done = shell.run_python("script.py")
    assert (done.returncode, done.stdout) == (0, "17\n"), done.stderr
    assert shell.run("call", "counter", "read", "--address", address).stdout == "17\n"


DESIGN_EXAMPLE = """
import trio
from actors import Actor, RetryPolicy, method
from runtime import open_node

class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method(idempotent=True)
    async def read(self) -> int:
        return self.value

async def main() -> None:
    async with open_node(join="127.0.0.1:7400") as node:         # no join= : found a new cluster
        counter = await node.options(name="counter", on="worker-1").spawn(Counter, 10)
        await counter.add(5)                                      # typed: int
        with trio.fail_after(0.5):                                # the deadline travels
            await counter.add(1)
        await counter.read.options(retry=RetryPolicy(max_retries=5))()
        await counter.add.send(1)                                 # one way; waits only for room in the window
        ref = await counter.read.remote()                         # the result stays with its owner
        print(await ref.fetch())
        same = await node.lookup("counter", Counter)              # by name, from any node

if __name__ == "__main__":
    trio.run(main)
"""

LOCAL = """
import sys, trio
from app import Counter
from runtime import open_local_cluster
async def main():
    async with open_local_cluster(nodes=1) as cluster:
        await cluster.node.options(name="counter", on="worker-1").spawn(Counter, int(sys.argv[1]))
        print(cluster.address, flush=True)
        await trio.sleep_forever()
if __name__ == "__main__":
    trio.run(main)
"""


def test_commands_enter_a_local_cluster_that_a_script_has_open(shell: Shell) -> None:
    first, address = shell.start_script(LOCAL, "10")
    assert shell.run("call", "counter", "add", "5", "--address", address).stdout == "15\n"
    # A secret for other clusters is not meant for this one.
    done = shell.run(
        "status", "--address", address, "--json", UNDERSTUDY_SECRET="of another cluster"
    )
    assert json.loads(done.stdout)["cluster"] == "local", done.stderr
    shell.start_node("--name", "more", "--join", address)
    assert "more" in shell.run("status", "--address", address).stdout
    with socket.socket() as probe:
        is_free = probe.connect_ex(("127.0.0.1", 7400)) != 0
    if is_free:
        # Which is what is looked for first.
        assert shell.run("call", "counter", "add", "1").stdout == "16\n"
        second, other = shell.start_script(LOCAL, "20")
        check_mistake(
            shell.run("status"),
            "2 local clusters are open; say which with --address",
            f"{other} (script.py)",
        )
        # One that was killed is not open any more.
        second.kill()
        second.wait()
        assert shell.run("call", "counter", "add", "1").stdout == "17\n"
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert list((shell.place / "state" / "understudy" / "open").iterdir()) == []


def test_a_local_cluster_is_entered_at_each_address_that_it_shows(shell: Shell) -> None:
    """As `status` lists them, and as a node that has joined says where others join."""
    _, address = shell.start_script(LOCAL, "0")
    more = shell.start([*UNDERSTUDY, "node", "--name", "more", "--join", address], {})
    assert more.stdout is not None
    assert "node more of cluster local listens on" in more.stdout.readline()
    hint = more.stdout.readline().split("others join with: understudy ")[1].split()
    assert shell.start_node(*hint[1:], "--name", "third")[1]["cluster"] == "local"
    answered = json.loads(shell.run("status", "--address", address, "--json").stdout)
    addresses = [node["address"] for node in answered["nodes"]]
    assert len(addresses) == 4
    port = address.rpartition(":")[2]
    for number, one in enumerate([*addresses, f"localhost:{port}"], start=1):
        done = shell.run("call", "counter", "add", "1", "--address", one)
        assert done.stdout == f"{number}\n", done.stderr
        assert shell.run("status", "--cluster", "local", "--address", one).returncode == 0


WAIT = """
import sys, trio
from app import Counter
from runtime import open_node
async def main():
    async with open_node("script", join=sys.argv[1]) as node:
        counter = await node.options(on="w1").spawn(Counter)
        print("asking", flush=True)
        await counter.wait()
trio.run(main)
"""


def test_a_second_signal_stops_a_node_that_still_drains_at_once(shell: Shell) -> None:
    cluster = Cluster(shell)
    worker = cluster.worker
    script, told = shell.start_script(WAIT, cluster.address)
    assert told == "asking"
    while cluster.facts("status")["nodes"][2]["actors"][0]["running"] != 1:
        pass
    worker.send_signal(signal.SIGTERM)
    while cluster.facts("status")["nodes"][2]["state"] != "draining":
        pass
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=60) == -signal.SIGTERM
    # The method was running when its process ended: the caller is told so.
    assert "NodeDiedError" in script.communicate(timeout=60)[1]


@pytest.mark.slow
def test_a_node_that_the_cluster_gave_up_exits_with_1_and_says_why_in_one_line(
    shell: Shell,
) -> None:
    cluster = Cluster(shell)
    worker = cluster.worker
    worker.send_signal(signal.SIGSTOP)
    until_blocking(
        lambda: cluster.facts("status")["nodes"],
        "the stopped node is given up",
        lambda nodes: len(nodes) == 1,
        every=0.2,
    )
    worker.send_signal(signal.SIGCONT)
    _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert [line for line in errors.splitlines() if line.startswith("error: ")] == [
        errors.splitlines()[-1]
    ]
    assert "error: the cluster counts node w1 as dead: its lease of 5 s has ended" in errors
    assert "Traceback" not in errors


def test_a_second_node_of_one_name_is_refused(shell: Shell) -> None:
    done = shell.run("node", "--name", "first", "--join", shell.found())
    check_mistake(done, "'first'", "choose another name")


def test_a_wrong_secret_is_named_and_the_cluster_goes_on(shell: Shell) -> None:
    address = shell.found(UNDERSTUDY_SECRET="right")
    check_mistake(
        shell.run("status", "--address", address, UNDERSTUDY_SECRET="wrong"),
        "secret",
        address,
    )
    check_mistake(shell.run("node", "--join", address, UNDERSTUDY_SECRET="wrong"), "secret")
    check_mistake(
        shell.run(
            *("status", "--address", address, "--cluster", "other"), UNDERSTUDY_SECRET="right"
        ),
        "cluster",
    )
    assert shell.run("status", "--address", address, UNDERSTUDY_SECRET="right").returncode == 0


def test_an_address_without_a_listener_is_named_with_the_next_step(shell: Shell) -> None:
    address = free_address()
    check_mistake(shell.run("status", "--address", address), address, "understudy node")
    check_mistake(shell.run("node", "--join", address), address, "understudy node")
    check_mistake(shell.run("status", "--address", "nonsense"), "nonsense", "HOST:PORT")


def test_a_node_that_others_can_reach_needs_a_secret(shell: Shell) -> None:
    check_mistake(shell.run("node", "--listen", "0.0.0.0:0"), "UNDERSTUDY_SECRET", "--secret-file")


def test_an_address_in_use_and_an_empty_secret_file_are_one_line_each(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_mistake(
            shell.run("node", "--listen", f"127.0.0.1:{server.getsockname()[1]}"), "cannot listen"
        )
    (shell.place / "empty").write_text("")
    check_mistake(shell.run("node", "--secret-file", "empty"), "empty")


def test_unknown_words_are_answered_with_the_nearest_known_ones(shell: Shell) -> None:
    check_mistake(shell.run("stauts"), "stauts", "status", status=2)
    check_mistake(shell.run("ps"), "list actors", status=2)
    check_mistake(shell.run("spawn"), "shell", status=2)
    check_mistake(shell.run("status", "--jsno"), "--jsno", "--json", status=2)
    assert shell.run("node", "--label", "nonsense").returncode == 2
    for words in (("list", "methods", "--filter"), ("tls", "cert", "--name"), ("node", "--name")):
        *command, option = words
        path = " ".join(one for one in command if one != "methods")
        check_mistake(
            shell.run(*words), f"{option!r} requires", f"(more: understudy {path} --help)", status=2
        )


def test_version_help_and_doctor_answer(shell: Shell) -> None:
    assert shell.run("--version").stdout.startswith("understudy, version ")
    for command in ("node", "demo", "status", "call", "stop", "doctor"):
        done = shell.run(command, "--help")
        assert done.returncode == 0
        assert "Example" in done.stdout
    findings = json.loads(shell.run("doctor", "--json").stdout)
    assert all(finding["well"] for finding in findings), findings
    (shell.place / "actors.py").write_text("")
    done = shell.run("doctor")
    assert done.returncode == 1
    assert "hides our package" in done.stdout


def test_doctor_reports_the_other_project_of_this_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "understudy-0.6.0.dist-info" / "METADATA"
    facts.parent.mkdir()
    facts.write_text("Metadata-Version: 2.1\nName: understudy\nVersion: 0.6.0\nAuthor: Another\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 1
    assert "look packages" in done.output
    assert "(0.6.0)" in done.output
    assert "pip uninstall understudy" in done.output


def test_doctor_reports_another_system_than_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 1
    assert done.output.startswith("look system")


def test_doctor_reports_a_secret_and_a_store_that_others_can_read(shell: Shell) -> None:
    def finding(check: str, *words: str) -> tuple[bool, str]:
        findings = json.loads(shell.run("doctor", "--json", *words).stdout)
        return next((found["well"], found["text"]) for found in findings if found["check"] == check)

    assert finding("secret")[0]
    shared = shell.place / "state" / "understudy" / "secret"
    assert shared.stat().st_mode & 0o777 == 0o600
    shared.chmod(0o640)
    well, text = finding("secret")
    assert not well
    assert f"`chmod go= {shared}`" in text
    own = shell.place / "own secret"
    own.write_text("something that is long enough")
    own.chmod(0o604)
    refused = f"others can read the secret file {own} (mode 604): chmod 600 '{own}'"
    assert finding("secret", "--secret-file", str(own)) == (False, refused)
    for words in (("node", "--listen", "127.0.0.1:0"), ("status",)):
        done = shell.run(*words, "--secret-file", str(own))
        assert (done.returncode, done.stderr) == (1, f"error: {refused}\n")
    own.chmod(0o400)
    assert finding("secret", "--secret-file", str(own)) == (True, f"{own} holds one")
    own.chmod(0o600)
    own.write_text("short")
    well, text = finding("secret", "--secret-file", str(own))
    assert not well
    assert text.startswith(f"{own} has a secret of 5 bytes, which can be guessed")

    founder, _ = shell.start_node(*FIRST, "--data-dir", "data")
    founder.terminate()
    assert founder.wait(timeout=60) == 0
    assert finding("store's rights", "--data-dir", "data")[0]
    (shell.place / "data").chmod(0o755)
    (shell.place / "data" / "store.sqlite3").chmod(0o644)
    well, text = finding("store's rights", "--data-dir", "data")
    assert not well
    assert "data (755), data/store.sqlite3 (644)" in text


def test_doctor_says_no_store_only_of_a_directory_without_any_part_of_one(tmp_path: Path) -> None:
    def finding() -> tuple[bool, str]:
        output = CliRunner().invoke(main, ["doctor", "--json", "--data-dir", str(tmp_path)]).stdout
        return next(
            (one["well"], one["text"]) for one in json.loads(output) if one["check"] == "store"
        )

    assert finding() == (True, f"{tmp_path} has no store yet; a founder will begin one there")
    StoreFile(tmp_path).close()
    assert "is sound" in finding()[1]
    path = tmp_path / FILE_NAME
    path.rename(tmp_path / "elsewhere")
    (tmp_path / f"{FILE_NAME}-wal").touch()
    for rest in (f"log {FILE_NAME}-wal", f"mark {MARK_NAME}"):
        well, text = finding()
        assert not well
        assert f"{path} is damaged (it is gone, and its {rest} is there)" in text
        assert not path.exists()
        (tmp_path / rest.split()[1]).unlink()
    assert "has no store yet" in finding()[1]


def test_a_founder_whose_log_is_gone_says_so_and_does_not_begin_anew(shell: Shell) -> None:
    founder, facts = shell.start_node(*FIRST, "--data-dir", "data")
    shell.start_node("--name", "w1", "--join", facts["address"])
    founder.kill()
    founder.wait()
    (shell.place / "data" / "store.sqlite3-wal").unlink()
    check_mistake(
        shell.run("node", "--data-dir", "data", "--listen", "127.0.0.1:0"),
        "its log store.sqlite3-wal is gone",
        "are missing",
    )


ODD = """
import trio
from collections.abc import AsyncIterator, Sequence
from actors import Actor, method
from runtime import open_node

class Odd(Actor):
    @method
    async def take(self, one: object) -> None: ...

    @method
    async def empty(self) -> None:
        raise RuntimeError

    @method
    async def lines(self) -> None:
        raise ValueError("first line\\nsecond line")

    @method
    async def items(self) -> AsyncIterator[int]:
        yield 1

    @method
    async def blank(self) -> str:
        return ""

    @method
    async def red(self) -> str:
        return "\\x1b[31mred"

    @method
    async def nothings(self) -> AsyncIterator[None]:
        yield None
        yield None

    @method
    async def keyed(self) -> object:
        return {(1, 2): float("nan"), 3: b"bytes"}

    @method
    async def wait(self) -> None:
        await trio.sleep_forever()

async def main():
    async with open_node("odd", cluster="odd") as node:
        await node.options(name="odd").spawn(Odd)
        print(node.address, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""

EMPTY_NAMES = ("debug", "inspect", "profile", "stack", "stop", "tree", "why")
"""Commands whose argument is a name, which an unset variable of a shell leaves empty."""

MISTAKES: list[tuple[str, list[str], int, str]] = [
    ("call", ["odd", "__init__"], 1, "no @method '__init__'"),
    ("call", ["odd", "_hosted"], 1, "no @method '_hosted'"),
    ("call", ["odd", "name"], 1, "no @method 'name'; it offers: blank, empty"),
    ("call", ["odd", "options"], 1, "no @method 'options'"),
    ("call", ["odd", ""], 2, "an empty text names nothing"),
    *((one, [""], 2, "an empty text names nothing") for one in EMPTY_NAMES),
    ("expel", [""], 2, "an empty text names nothing"),
    ("expel", ["--readmit", ""], 2, "an empty text names nothing"),
    ("logs", [""], 2, "an empty text names nothing"),
    ("pools", ["--journals", "--remove", ""], 2, "an empty text names nothing"),
    ("pools", ["--journals", "--remove", "nosuch"], 1, "error: journal nosuch was not removed"),
    ("call", ["odd", "a\nb"], 1, "no @method"),
    (
        "call",
        ["odd", "take"],
        1,
        "odd.take was not called: missing a required argument: 'one'; it takes (one)",
    ),
    ("call", ["odd", "take", "1", "2"], 1, "too many positional arguments; it takes (one)"),
    ("call", ["odd", "take", "1", "-k", "ones=2"], 1, "argument 'ones'; did you mean 'one'?"),
    ("call", ["odd", "take", "\udcff"], 2, r"'\xff' is no text in"),
    ("call", ["odd", "empty"], 1, "odd.empty raised RuntimeError"),
    ("call", ["odd", "lines"], 1, "odd.lines raised ValueError: first line"),
    ("call", ["odd", "items", "1"], 1, "too many positional arguments; it takes ()"),
    ("call", ["--timeout", "0.1", "odd", "wait"], 1, "odd.wait "),
    ("call", ["--timeout", "nan", "odd", "take", "1"], 2, "is not a finite number"),
    ("call", ["--timeout", "0", "odd", "take", "1"], 2, "is not in the range"),
    ("call", ["--secret-file", "/dev/zero", "odd", "take", "1"], 1, "more than 65536 bytes"),
    ("call", ["nobody", "take"], 1, "no actor called 'nobody'"),
    ("call", ["odd"], 2, "Missing argument"),
    ("stop", ["--actor", "nobody"], 1, "no actor called 'nobody'"),
    ("tree", ["nobody"], 1, "no supervisor called 'nobody'"),
    ("tree", ["--watch", "--interval", "nan"], 2, "is not a finite number"),
    ("refs", ["--node", "nobody"], 1, "no node called 'nobody'"),
    ("status", ["too many"], 2, "unexpected extra argument"),
]

ALONE: list[tuple[list[str], int, str]] = [
    (["simulate", "--minutes", "inf"], 2, "is not a finite number"),
    (["simulate", "--minutes", "nan"], 2, "is not a finite number"),
    (["simulate", "--minutes", "1e300"], 2, "is not in the range 0<x<=1000000"),
    (["simulate", "--minutes", "0"], 2, "is not in the range"),
    (["simulate", "--minutes", "-1"], 2, "is not in the range"),
    (["node", "--blocked-limit", "nan"], 2, "is not a finite number"),
    (["run", "--shutdown-timeout", "1e300", "script.py"], 2, "is too large"),
    (["simulate", "--faults", "nonsense"], 2, "there is no fault 'nonsense'. There are"),
    (
        ["simulate", "--minutes", "0.001", "--nodes", "1", "--html", "/nonexistent/page.html"],
        1,
        "/nonexistent/page.html: No such file",
    ),
    (["node", "--listen", "nowhere"], 1, "'nowhere' is not an address"),
    (["node", "--store", "nowhere"], 1, "a store's address is etcd://"),
    (["node", "--call-timeout", "0"], 2, "is not in the range x>0"),
    (["node", "--call-timeout", "inf"], 2, "is not a finite number"),
    (["node", "--resource", "a=nan"], 2, "--resource takes KEY=NUMBER"),
    (["node", "--resource", "a=1", "--resource", "a=2"], 2, "--resource: a is given twice"),
    (["node", "--label", "a=1", "--label", "a=2"], 2, "--label: a is given twice"),
    (["node", "--label", "a=\x1b[31m"], 1, "no control characters"),
    (["node", "--data-dir", ""], 2, "an empty text names no file or directory"),
    (["node", "--reference-directory", ""], 2, "an empty text names no file or directory"),
    (["doctor", "--data-dir", ""], 2, "an empty text names no file or directory"),
    (["status", "--secret-file", ""], 2, "an empty text names no file or directory"),
    (["run", "--shutdown-timeout", "nan", "script.py"], 2, "is not a finite number"),
    (["run", "--restart-window", "nan", "script.py"], 2, "is not a finite number"),
    (["run", "nonexistent.py"], 2, "there is no script 'nonexistent.py'"),
    (["demo", "--store", "nowhere"], 1, "a store's address is etcd://"),
    (["reopen", "--rdzv-endpoint", "nowhere", "--rdzv-id", "x"], 2, "'nowhere' is not an address"),
    *(
        (["node", option, ""], 2, "an empty text names nothing")
        for option in ("--listen", "--join", "--advertise", "--name", "--cluster", "--metrics")
    ),
    *(
        (
            [*words, "a..b:7400"],
            status,
            "'a..b:7400' is not an address: its host has nothing before",
        )
        for words, status in (
            (["node", "--listen"], 1),
            (["node", "--join"], 1),
            (["node", "--advertise"], 1),
            (["node", "--metrics"], 2),
            (["status", "--address"], 1),
            (["dashboard", "--listen"], 2),
            (["gateway", "--listen"], 2),
            (["reopen", "--rdzv-id", "x", "--rdzv-endpoint"], 2),
        )
    ),
    (
        ["run", "--rdzv-id", "x", "--rdzv-endpoint", "a..b:7400", "--no-python", "true"],
        2,
        "'a..b:7400' is not an address: its host has nothing before",
    ),
    (["node", "--store", "etcd://a..b:7400"], 1, "its host has nothing before a dot"),
    (["status", "--address", ""], 2, "an empty text names nothing"),
    (["status", "--cluster", ""], 2, "an empty text names nothing"),
    (["status", "--tls-ca", ""], 2, "an empty text names no file"),
    (
        ["simulate", "--minutes", "0.001", "--nodes", "1", "--html", "/dev/full"],
        1,
        "/dev/full: No space left on device; make room there",
    ),
    (["status", "--address", "::::"], 1, "'::::' is not an address"),
    (["status", "--address", "[::1"], 1, "'[::1' is not an address"),
    (["status", "--address", "[]:7400"], 1, "'[]:7400' is not an address"),
    (["status", "--address", "127.0.0.1:" + "9" * 5000], 1, "is not an address"),
]


def check_one_line(words: list[str], status: int, said: str) -> None:
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, words) == (status, words)
    assert said in done.stderr, (words, done.stderr)
    assert "Traceback" not in done.output
    assert "this should not happen" not in done.output
    assert len(done.stderr.strip().splitlines()) == 1, (words, done.stderr)


def test_odd_input_to_any_command_is_one_line_and_the_right_exit_status(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", shell.environment["XDG_STATE_HOME"])
    _, address = shell.start_script(ODD)
    for command, words, status, said in MISTAKES:
        check_one_line([command, "--address", address, "--cluster", "odd", *words], status, said)
    keyed = CliRunner().invoke(
        main, ["call", "--address", address, "--cluster", "odd", "--json", "odd", "keyed"]
    )
    assert json.loads(keyed.stdout) == {"(1, 2)": "nan", "3": "b'bytes'"}
    for method, plain, as_json in (
        ("take", "None\n", "null\n"),
        ("blank", "\n", '""\n'),
        ("red", "\x1b[31mred\n", '"\\u001b[31mred"\n'),
        ("nothings", "None\nNone\n", "null\nnull\n"),
    ):
        given = ["1"] if method == "take" else []
        for option, expected in (([], plain), (["--json"], as_json)):
            words = ["call", "--address", address, "--cluster", "odd", *option, "odd", method]
            done = CliRunner().invoke(main, [*words, *given])
            assert (done.stdout, done.exit_code) == (expected, 0), (words, done.output)
    deep = CliRunner().invoke(
        main, ["call", "--address", address, "--cluster", "odd", "odd", "take", "[" * 60_000]
    )
    assert (deep.exit_code, deep.stderr) == (0, "")
    for words, status, said in ALONE:
        check_one_line(words, status, said)


def test_what_should_not_happen_is_one_line_too_and_debug_shows_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*words: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr("runtime.command_line.doctor._python", broken)
    done = CliRunner().invoke(main, ["doctor"])
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert (
        "KeyError: 'a mistake of ours'; this should not happen: `understudy --debug`" in done.stderr
    )
    assert isinstance(CliRunner().invoke(main, ["--debug", "doctor"]).exception, KeyError)


def commands_of(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    """The command and all below it, by what one types."""
    yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands_of(found, *path, name)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e300"])
def test_each_option_that_takes_a_number_refuses_what_would_never_end(text: str) -> None:
    options = [
        (name, option)
        for name, command in commands_of(main)
        for option in command.params
        if isinstance(option.type, click.types.FloatParamType)
    ]
    assert len(options) >= 10
    for name, option in options:
        with pytest.raises(click.BadParameter) as refused:
            option.type.convert(text, option, None)
        assert "\n" not in refused.value.message, (name, option.name)
