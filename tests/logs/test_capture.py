"""Which actor and call a log record is from, in real nodes; and that `logging` stays the user's."""

from __future__ import annotations

import io
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from actors import Actor, method
from actors.call_context import CURRENT, CallContext
from runtime import LogFilter, Node, open_node
from runtime.logs.capture import RecordFactory
from runtime.logs.formats import JsonFormatter
from runtime.logs.ring import LINE_BYTES
from runtime.logs.service import logs_of
from runtime.node import internals_of

SECRET = "a secret of these tests"

log = logging.getLogger("users")


class Hostile:
    def __str__(self) -> str:
        raise ValueError("no text")


class Talker(Actor):
    def __init__(self) -> None:
        log.warning("constructed")

    async def on_start(self) -> None:
        log.warning("starts")

    @method
    async def say(self, text: str) -> None:
        log.warning("%s", text)
        await trio.lowlevel.checkpoint()
        log.warning("again %s", text, extra={"actor": "my own", "node": 5})

    @method
    def plain(self) -> None:
        log.warning("in a thread")

    @method(concurrent=True)
    def beside(self) -> None:
        log.warning("beside in a thread")

    @method
    async def spread(self) -> None:
        async def inner() -> None:
            log.warning("in a nursery")

        async with trio.open_nursery() as nursery:  # noqa: ASYNC112
            nursery.start_soon(inner)

    @method
    async def own(self) -> None:
        done = trio.Event()

        async def inner() -> None:
            log.warning("in its own nursery")
            done.set()

        self.nursery.start_soon(inner)
        await done.wait()

    @method
    async def odd(self) -> None:
        log.warning("%s", Hostile())
        log.warning("%s %s", "too few")
        log.warning("x" * (10 * 2**20))
        log.warning("half of a pair: %s", "\udcff")
        logging.getLogger("users").log(10**30, "very urgent")
        logging.getLogger("users.\ud800").warning("of an odd name")


class Prepared(Actor):
    """Runs a plain method of its own when it starts."""

    async def on_start(self) -> None:
        await self.prepare()

    @method
    def prepare(self) -> None:
        log.warning("prepares in a thread")


class Parent(Actor):
    @method
    async def start(self) -> None:
        await self.node.options(name="child").spawn(Prepared)


@asynccontextmanager
async def opened(name: str = "here", **options: Any) -> AsyncIterator[Node]:
    async with open_node(name, listen="127.0.0.1:0", secret=SECRET, **options) as node:
        yield node


async def lines(node: Node, actor: str = "") -> list[dict[str, Any]]:
    service = logs_of(internals_of(node).endpoint, node.name, node.incarnation)
    answer = await service.read(actor=actor)
    return [line for line in answer["lines"] if line["logger"] == "users"]


async def test_each_line_names_the_actor_and_method_wherever_it_is_logged() -> None:
    async with opened() as node:
        talker = await node.options(name="talker").spawn(Talker)
        await talker.say("hello")
        await talker.plain()
        await talker.beside()
        await talker.spread()
        await talker.own()
        log.warning("outside")
        found = [(one["text"], one["actor"], one["method"]) for one in await lines(node)]
        assert found == [
            ("constructed", "talker", "on_start"),
            ("starts", "talker", "on_start"),
            ("hello", "talker", "say"),
            ("again hello", "talker", "say"),
            ("in a thread", "talker", "plain"),
            ("beside in a thread", "talker", "beside"),
            ("in a nursery", "talker", "spread"),
            ("in its own nursery", "talker", ""),
            ("outside", "", ""),
        ]
        of_actor = await lines(node, "talker")
        assert len(of_actor) == 8
        assert {one["epoch"] for one in of_actor} == {talker.address.epoch}
        calls = [one["call"] for one in of_actor[2:4]]
        assert calls[0] == calls[1] != ""


async def test_a_line_of_a_start_is_the_started_actors_and_not_of_the_method_that_starts_it() -> (
    None
):
    async with opened() as node:
        parent = await node.options(name="parent").spawn(Parent)
        await parent.start()
        found = [(one["text"], one["actor"], one["method"]) for one in await lines(node)]
        assert found == [("prepares in a thread", "child", "on_start")]


async def test_a_line_has_the_trace_of_the_call_also_in_a_thread() -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    async with opened() as node:
        talker = await node.options(name="talker").spawn(Talker)
        token = CURRENT.set(CallContext.of(traceparent=parent))
        try:
            await talker.say("traced")
            await talker.plain()
        finally:
            CURRENT.reset(token)
        await talker.say("without")
        found = [(one["text"], one["trace_id"], one["span_id"]) for one in await lines(node)]
    assert ("traced", "a" * 32, "b" * 16) in found
    assert ("in a thread", "a" * 32, "b" * 16) in found
    assert ("without", "", "") in found


async def test_nodes_of_one_process_each_have_the_lines_of_their_own_actors() -> None:
    async with opened("a") as a, opened("b", join=a.address) as b:
        await (await a.options(name="x", on="a").spawn(Talker)).plain()
        await (await a.options(name="y", on="b").spawn(Talker)).say("there")
        log.warning("of neither")
        assert {one["actor"] for one in await lines(a)} == {"x", ""}
        assert {one["actor"] for one in await lines(b)} == {"y", ""}


async def test_text_that_cannot_be_made_or_is_huge_ends_nothing() -> None:
    handlers, raises = logging.root.handlers, logging.raiseExceptions
    logging.root.handlers, logging.raiseExceptions = [logging.NullHandler()], False
    try:
        async with opened() as node:
            await (await node.spawn(Talker)).odd()
            texts = [one["text"] for one in await lines(node)][2:]
            service = logs_of(internals_of(node).endpoint, node.name, node.incarnation)
            names = [one["logger"] for one in (await service.read())["lines"]]
    finally:
        logging.root.handlers, logging.raiseExceptions = handlers, raises
    assert texts[0].endswith("[its arguments do not make a text: ValueError]")
    assert texts[1].endswith("[its arguments do not make a text: TypeError]")
    assert len(texts[2]) < LINE_BYTES + 100
    assert "more characters are left out" in texts[2]
    # One line that cannot be sent would hide all others of the node.
    assert texts[3] == "half of a pair: \\udcff"
    assert texts[4] == "very urgent"
    assert "users.\\ud800" in names


async def test_who_follows_learns_how_many_lines_were_dropped_before_they_were_read() -> None:
    async with opened(log_memory=20_000) as node:
        service = logs_of(internals_of(node).endpoint, node.name, node.incarnation)
        before = (await service.read())["last"]
        for number in range(1000):
            log.warning("line %d", number)
        answer = await service.read(before, wait=True)
        kept, dropped = len(answer["lines"]) + answer["left_out"], answer["dropped"]
        assert dropped > 500
        assert kept + dropped >= 1000
        # Nothing was dropped unseen while it waited for a line that is wanted.
        after = answer["last"]
        async with trio.open_nursery() as nursery:
            found: list[dict[str, Any]] = []

            async def follow() -> None:
                found.append(await service.read(after, logging.ERROR, wait=True))

            nursery.start_soon(follow)
            for number in range(1000):
                log.warning("line %d", number)
                if not number % 10:
                    await trio.testing.wait_all_tasks_blocked()
            log.error("wanted")
        (told,) = found
        assert [line["text"] for line in told["lines"]] == ["wanted"]
        assert told["dropped"] == 0


async def test_the_factory_of_the_user_goes_on_and_ours_goes_with_the_last_node() -> None:
    before = logging.getLogRecordFactory()
    made: list[str] = []

    def users(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        made.append(record.getMessage())
        return record

    logging.setLogRecordFactory(users)
    try:
        async with opened("a") as a:
            async with opened("b", join=a.address):
                log.warning("both")
            assert isinstance(logging.getLogRecordFactory(), RecordFactory)
            log.warning("one")
        assert logging.getLogRecordFactory() is users
        log.warning("none")
    finally:
        logging.setLogRecordFactory(before)
    assert [text for text in made if text in ("both", "one", "none")] == ["both", "one", "none"]


async def test_a_factory_that_a_user_sets_around_ours_stays() -> None:
    before = logging.getLogRecordFactory()
    try:
        async with opened() as node:
            ours = logging.getLogRecordFactory()

            def users(*args: Any, **kwargs: Any) -> logging.LogRecord:
                return ours(*args, **kwargs)

            logging.setLogRecordFactory(users)
            log.warning("through both")
            assert [one["text"] for one in await lines(node)] == ["through both"]
        assert logging.getLogRecordFactory() is users
        log.warning("afterwards")
    finally:
        logging.setLogRecordFactory(before)


async def test_a_node_without_memory_keeps_nothing_and_still_names_the_actor() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(node)s %(actor)s %(epoch)s %(method)s"))
    handler.addFilter(LogFilter())
    log.addHandler(handler)
    try:
        async with opened(log_memory=0) as node:
            talker = await node.options(name="talker").spawn(Talker)
            stream.truncate(0)
            await talker.say("hello")
            assert await lines(node) == []
            epoch = talker.address.epoch
        log.warning("without a node")
    finally:
        log.removeHandler(handler)
    # A user's own fields of these names stay, as the second line shows.
    assert stream.getvalue().strip("\0").splitlines() == [
        f"here talker {epoch} say",
        f"5 my own {epoch} say",
        "  0 ",
    ]


async def test_a_record_can_be_pickled_and_written_as_json_by_others() -> None:
    records: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keeping()
    log.addHandler(handler)
    try:
        async with opened() as node:
            await (await node.options(name="talker").spawn(Talker)).say("hello")
    finally:
        log.removeHandler(handler)
    for record in records:
        assert json.loads(json.dumps(record.__dict__))["understudy"]["actor"] == "talker"
        assert b"runtime" not in pickle.dumps(record.__dict__["understudy"])


def test_json_lines_are_one_line_each_whatever_is_in_them() -> None:
    formatter = JsonFormatter()
    try:
        raise ValueError("with\nlines")
    except ValueError:
        record = logging.LogRecord("n", 40, "f", 1, "a\n\ud800 %s", ("b",), sys.exc_info())
    text = formatter.format(record)
    assert "\n" not in text
    told = json.loads(text)
    assert told["message"] == "a\n\ud800 b"
    assert "ValueError: with\nlines" in told["exception"]
    assert "actor" not in told


def test_a_program_without_configuration_still_prints_warnings_and_may_configure() -> None:
    """What a handler on the root logger would have taken away."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import logging, trio\n"
            "from runtime import open_node\n"
            "async def main():\n"
            "    async with open_node(listen='127.0.0.1:0'):\n"
            "        logging.getLogger('x').warning('first')\n"
            "        logging.basicConfig(format='configured %(message)s')\n"
            "        logging.getLogger('x').warning('second')\n"
            "trio.run(main)\n",
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert done.stderr == "first\nconfigured second\n"


@pytest.mark.parametrize("text", ["", "yesterday", "10 parsecs", "1e400", "-5m"])
def test_a_wrong_age_is_a_mistake_in_one_line(text: str) -> None:
    from click.testing import CliRunner

    from runtime.command_line.logs import logs

    done = CliRunner().invoke(logs, ["--since", text])
    assert done.exit_code == 2
    assert "is neither an age such as 30s" in done.output
