"""Every path of a dashboard, who may ask, and what bad clients do to it: nothing."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import pytest
import trio

from actors import ChildSpec, SpawnOptions, Supervisor
from actors.errors import (
    ActorNotFoundError,
    CallTimeoutError,
    NodeUnreachableError,
    RemoteError,
    StoreUnavailableError,
)
from runtime import open_node
from runtime.dashboard.application import MOST_PAGES
from runtime.dashboard.questions import ClusterQuestions
from runtime.dashboard.sampler import LOST_SECONDS, Sampler
from runtime.dashboard.schedule import MOST_ACTORS, TOPICS
from runtime.environment import SystemEnvironment
from runtime.node import internals_of
from runtime.observation.followed_rows import AnsweredRows, Row
from runtime.observation.inspection_service import INSPECTION_SERVICE
from runtime.testing import Platform
from tests.dashboard.conftest import (
    SECRET,
    TOKEN,
    Clerk,
    Dashboard,
    World,
    dashboard_of,
    open_world,
)
from tests.failures.error_examples import check_answer
from tests.gateway.http_client import Connection
from tests.waiting import until

PATH = "/api/events?topic=cluster"
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}


class Events:
    """What a page is sent."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.text = b""
        self.now = 0.0
        """The time that the dashboard has said last."""

    async def next(self) -> Any:
        """The next message; comments are passed over, but for the time."""
        while True:
            part, found, rest = self.text.partition(b"\n\n")
            if found:
                self.text = rest
                if part.startswith(b"data: "):
                    return json.loads(part.removeprefix(b"data: "))
                self.now = float(part.removeprefix(b": now "))
                continue
            event = await self.connection.event()
            self.text += bytes(event.data)


@asynccontextmanager
async def page(dashboard: Dashboard, path: str = PATH) -> AsyncIterator[Events]:
    """An open page."""
    async with dashboard.http.connect() as connection:
        await connection.send("GET", path, headers=AUTHORIZATION)
        response = await connection.event()
        assert response.status_code == 200, response
        yield Events(connection)


class Addresses(HTMLParser):
    """What a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Note what has an address."""
        named = dict(attrs)
        if tag in ("script", "link"):
            self.found.append(named.get("src") or named["href"])


async def test_the_page_and_its_files_are_served_without_the_token_and_tell_nothing(
    world: World,
) -> None:
    index = await world.dashboard.http.ask("GET", "/")
    assert (index.status, index.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in index.headers["content-security-policy"]
    parser = Addresses()
    parser.feed(index.body.decode())
    assert len(parser.found) == 3
    for address in parser.found:
        assert "/" not in address, "relative: it works below any path"
        file = await world.dashboard.http.ask("GET", f"/{address}")
        assert file.status == 200
        tag = file.headers["etag"]
        again = await world.dashboard.http.ask("GET", f"/{address}", headers={"If-None-Match": tag})
        assert (again.status, again.body) == (304, b"")
    assert (await world.dashboard.http.ask("GET", "/healthz")).json == {"status": "ok"}
    for name in ("../server.py", "..%2fapplication.py", "application.py", "static/app.js", ""):
        found = await world.dashboard.http.ask("GET", f"/api/../{name}" if not name else f"/{name}")
        assert found.status in (401, 404), name


async def test_what_a_proxy_may_read_in_another_way_is_refused(world: World) -> None:
    head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    for lines, status in (("", 200), ("X: y\nZ: a\r\n", 400), ("X: y\r\n z\r\n", 400)):
        answer = await world.dashboard.http.raw(f"{head}{lines}\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("path", [PATH, "/api/snapshot?topic=cluster", "/api/x", "/api/actions"])
@pytest.mark.parametrize("token", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN])
async def test_nothing_is_answered_without_the_token(world: World, path: str, token: str) -> None:
    method = "POST" if path == "/api/actions" else "GET"
    answer = await world.dashboard.http.ask(method, path, headers={"Authorization": token})
    assert answer.status == 401
    assert b"shop" not in answer.body
    assert world.dashboard.sampler.asked == 0


@pytest.mark.parametrize("topic", TOPICS)
async def test_each_topic_has_an_answer(world: World, topic: str) -> None:
    sections = await world.dashboard.snapshot(topic)
    assert not sections.get("problems"), sections
    expected = {
        "cluster": ("nodes", "one"),
        "tree": ("branches", "shop"),
        "calls": ("totals", "calls"),
        "references": ("owners", "one"),
        "store": ("store", "store"),
        "jobs": ("totals", "jobs"),
        "logs": ("lines", None),
        "pools": ("pools", None),
    }
    name, key = expected[topic]
    assert key in sections[name] if key else name in sections


async def test_the_cluster_and_one_actor_are_shown_as_they_are(world: World) -> None:
    clerk = await world.node.lookup("shop/clerk", Clerk)
    for _ in range(3):
        await clerk.sell()
    sections = await world.dashboard.snapshot("cluster")
    assert sections["nodes"]["one"]["state"] == "up"
    assert sections["actors"]["shop/clerk"]["served"] == 3
    assert sections["actors"]["shop"]["supervises"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clerk.wait)
        facts = await until(
            lambda: world.dashboard.snapshot("actor/shop/clerk"),
            "the call is shown",
            lambda found: any(row["method"] == "wait" for row in found.get("calls", {}).values()),
        )
        assert facts["facts"]["shop/clerk"]["supervisor"] == "shop"
        assert facts["facts"]["shop/clerk"]["saved"] == {"bytes": None, "problem": ""}
        nursery.cancel_scope.cancel()
    missing = await world.dashboard.snapshot("actor/nobody")
    assert "no node that answers has an actor called 'nobody'" in str(missing["problems"])


class Ahead(SystemEnvironment):
    """Has a clock that is an hour ahead."""

    def wall_time(self) -> float:
        """See `Environment.wall_time`."""
        return super().wall_time() + 3600


async def test_a_node_whose_clock_is_ahead_is_shown_so_and_its_lines_are_in_their_place() -> None:
    platform = Platform(environment=Ahead())
    async with open_node("one", secret=SECRET, platform=platform) as node:
        logging.getLogger("understudy.of-these-tests").warning("a line of now")
        async with dashboard_of(node.address, node.cluster, SECRET.encode()) as dashboard:
            found = await dashboard.snapshot("cluster")
            assert 3590 < found["nodes"]["one"]["ahead"] <= 3600
            lines = (await dashboard.snapshot("logs"))["lines"].values()
    assert lines
    for line in lines:
        assert 3590 < line["time"] - line["at"] <= 3601


async def test_a_death_is_shown_with_its_traceback_as_text(world: World) -> None:
    clerk = await world.node.lookup("shop/clerk", Clerk)
    await clerk.fail()
    found = await until(
        lambda: world.dashboard.snapshot("tree"),
        "its supervisor has told of it",
        lambda told: any(row["supervisor"] for row in told["deaths"].values()),
    )
    [row] = found["deaths"].values()
    assert (row["name"], row["supervisor"]) == ("shop/clerk", "shop")
    assert "the till is <b>empty</b>" in row["text"]
    assert "_fail" in row["traceback"]


async def test_the_end_of_a_supervisor_that_gave_up_is_shown_and_those_of_its_children(
    world: World,
) -> None:
    spec = ChildSpec(id="till", actor=Clerk, options=SpawnOptions(name="till"))
    await world.node.options(name="alone").spawn(Supervisor, [spec], intensity=0)
    # A traceback of an actor without a supervisor, and of a child whose supervisor is gone.
    await (await world.node.options(name="free").spawn(Clerk)).fail()
    await (await world.node.lookup("till", Clerk)).fail()
    found = await until(
        lambda: world.dashboard.snapshot("tree"),
        "all three are there",
        lambda told: {"alone", "free", "till"} <= {row["name"] for row in told["deaths"].values()},
    )
    rows = {row["name"]: row for row in found["deaths"].values()}
    assert rows["alone"]["kind"] == "shutdown"
    assert rows["alone"]["text"].startswith("more than 0 restarts within 5 s")
    for name in ("free", "till"):
        assert "_fail" in rows[name]["traceback"]


async def test_events_are_a_snapshot_and_then_differences(world: World) -> None:
    async with page(world.dashboard) as events:
        first = await events.next()
        assert first["topic"] == "connection"
        assert first["sections"]["connection"]["cluster"]["state"] == "connected"
        second = await events.next()
        assert (second["topic"], "one" in second["sections"]["nodes"]) == ("cluster", True)
        clerk = await world.node.lookup("shop/clerk", Clerk)
        await clerk.sell()
        found: Any = {}
        with trio.fail_after(60):
            while "shop/clerk" not in found.get("changed", {}).get("actors", {}):
                found = await events.next()
        assert "class" not in found["changed"]["actors"]["shop/clerk"], "only what has changed"


async def test_a_page_is_told_the_time_whatever_the_age_of_what_it_is_shown(world: World) -> None:
    began = time.time()
    async with page(world.dashboard) as events:
        connection = await events.next()
        assert connection["at"] < began
        # It is said in milliseconds.
        assert began - 0.001 <= events.now <= time.time() + 0.001


async def test_a_page_after_a_time_without_any_does_not_call_the_cluster_lost(
    world: World,
) -> None:
    sampler = world.dashboard.sampler
    async with page(world.dashboard) as events:
        while (await events.next())["topic"] != "cluster":
            pass
    await until(lambda: sampler._schedule.wanted, "nothing is wanted", lambda found: not found)
    assert sampler.questions is not None
    sampler.questions.heard -= 2 * LOST_SECONDS
    async with page(world.dashboard) as events:
        first, second = await events.next(), await events.next()
        assert first["sections"]["connection"]["cluster"]["state"] == "connected"
        assert second["topic"] == "cluster", second


async def test_of_actors_a_node_tells_a_dashboard_what_has_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[dict[str, Any]] = []
    answer = AnsweredRows.answer

    def noted(self: AnsweredRows, rows: Sequence[Row], seen: int) -> dict[str, Any]:
        answers.append(answer(self, rows, seen))
        return answers[-1]

    monkeypatch.setattr(AnsweredRows, "answer", noted)
    clerk = await world.node.lookup("shop/clerk", Clerk)
    async with page(world.dashboard) as events:
        while len(answers) < 3:
            await events.next()
        await clerk.sell()
        await until(lambda: answers[-1]["rows"], "one actor has changed", bool)
    assert [len(one["rows"]) for one in answers[:3]] == [2, 0, 0]
    assert [row["name"] for row in answers[-1]["rows"]] == ["shop/clerk"]
    assert set((await world.dashboard.snapshot("cluster"))["actors"]) == {"shop", "shop/clerk"}


async def test_a_node_of_an_earlier_version_is_shown_as_well(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It knows no overview of changes.
    cell = internals_of(world.node).cells[INSPECTION_SERVICE]
    known = {name: one for name, one in cell.methods.items() if name != "overview_since"}
    monkeypatch.setattr(cell, "methods", known)
    sections = await world.dashboard.snapshot("cluster")
    assert sections["nodes"]["one"]["state"] == "up"
    assert set(sections["actors"]) == {"shop", "shop/clerk"}


async def test_fifty_pages_ask_as_often_as_one_and_none_asks_nothing(world: World) -> None:
    sampler = world.dashboard.sampler
    async with trio.open_nursery() as nursery:
        reading = trio.Event()
        count = 0

        async def read() -> None:
            nonlocal count
            async with page(world.dashboard) as events:
                for _ in range(5):
                    await events.next()
                count += 1
                if count == 50:
                    reading.set()
                await trio.sleep_forever()

        began = trio.current_time()
        for _ in range(50):
            nursery.start_soon(read)
        with trio.fail_after(60):
            await reading.wait()
        # One question each second, however many pages there are.
        assert sampler.asked <= trio.current_time() - began + 2
        nursery.cancel_scope.cancel()
    await until(lambda: world.dashboard.application.pages, "all are gone", lambda n: n == 0)
    await until(lambda: sampler._schedule.wanted, "nothing is wanted", lambda found: not found)
    asked = sampler.asked
    await trio.sleep(2.5)
    assert sampler.asked == asked


async def test_a_page_too_many_gets_the_answer_to_come_back(world: World) -> None:
    world.dashboard.application._pages = MOST_PAGES
    answer = await world.dashboard.get(PATH)
    assert (answer.status, answer.json["error"]) == (503, "TooManyPages")
    check_answer("TooManyPages", answer.json)
    assert answer.headers["retry-after"] == "5"
    world.dashboard.application._pages = 0


async def test_pages_look_at_a_bounded_number_of_actors(world: World) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(MOST_ACTORS):
            nursery.start_soon(world.dashboard.get, f"/api/events?topic=actor/{number}")
        await until(
            lambda: world.dashboard.application.pages, "all are open", lambda n: n == MOST_ACTORS
        )
        answer = await world.dashboard.get("/api/snapshot?topic=actor/more")
        assert (answer.status, answer.json["error"]) == (503, "TooManyActors")
        check_answer("TooManyActors", answer.json)
        nursery.cancel_scope.cancel()


async def test_a_client_that_stops_reading_is_cut_off_and_holds_up_nobody(world: World) -> None:
    async with world.dashboard.http.connect() as stalled:
        await stalled.send("GET", PATH, headers=AUTHORIZATION)
        application = world.dashboard.application
        await until(lambda: application.pages, "it is open", lambda count: count == 1)
        # More than the buffers of the sockets take: it is written for, and does not read.
        feed, view = world.dashboard.sampler._feed, "x" * 3_000_000
        assert feed.latest("connection") is not None
        async with page(world.dashboard) as events:
            for number in range(6):
                snapshot = feed.latest("connection")
                assert snapshot is not None
                row = {**snapshot.sections["connection"]["cluster"], "problem": f"{number}{view}"}
                changed = type(snapshot)(float(number), {"connection": {"cluster": row}})
                world.dashboard.sampler._publish("connection", changed)
                found: Any = {}
                while found.get("topic") != "connection" or found["at"] != number:
                    found = await events.next()
            await until(lambda: application.pages, "it is cut off", lambda count: count == 1)
            assert (await events.next())["topic"] == "cluster"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/api/events", "BadTopic"),
        ("/api/events?topic=nothing", "BadTopic"),
        ("/api/events?topic=_cluster", "BadTopic"),
        ("/api/events?topic=actor/", "BadTopic"),
        ("/api/snapshot?" + "&".join(f"topic=actor/{n}" for n in range(9)), "BadTopic"),
        ("/api/nothing", "PathNotFound"),
    ],
)
async def test_bad_questions_say_what_is_wrong(world: World, path: str, error: str) -> None:
    answer = await world.dashboard.get(path)
    assert (answer.json["error"], answer.status in (400, 404)) == (error, True)
    assert answer.json["next"]
    if path.endswith("topic=nothing"):
        check_answer("BadTopic", answer.json)


async def test_a_path_with_too_many_fields_is_refused(world: World) -> None:
    answer = await world.dashboard.get(
        "/api/events?" + "&".join("topic=cluster" for _ in range(99))
    )
    assert answer.status == 400


@pytest.mark.parametrize("base", ["/", "/watch/it/"])
async def test_below_a_base_path_whether_or_not_the_proxy_takes_it_away(base: str) -> None:
    async with open_world(base="/watch/it") as world:
        assert (await world.dashboard.http.ask("GET", base)).status == 200
        assert (await world.dashboard.http.ask("GET", f"{base}app.js")).status == 200
        answer = await world.dashboard.get(f"{base}api/snapshot?topic=cluster")
        assert answer.status == 200
        # Without the last slash its relative addresses would lead elsewhere.
        if base != "/":
            bare = await world.dashboard.http.ask("GET", base.rstrip("/"))
            assert (bare.status, bare.headers["location"]) == (307, "it/")


async def test_a_dashboard_that_only_shows_does_nothing(world: World) -> None:
    answer = await world.dashboard.act(action="drain-node", name="one")
    assert (answer.status, answer.json["error"]) == (403, "ReadOnly")
    check_answer("ReadOnly", answer.json)
    assert not world.node.asked_to_leave.is_set()


async def test_actions_where_they_are_allowed() -> None:
    async with open_world(actions=True) as world:
        dashboard = world.dashboard
        before = (await dashboard.snapshot("cluster"))["actors"]["shop/clerk"]["epoch"]
        stopped = await dashboard.act(action="stop-actor", name="shop/clerk", epoch=before)
        assert stopped.json == {"done": "shop/clerk was stopped"}
        row = await until(
            lambda: dashboard.snapshot("cluster"),
            "its supervisor has started it again",
            lambda found: found["actors"].get("shop/clerk", {}).get("epoch", 0) > before,
        )
        # The same once more is about an actor that is there no more.
        again = await dashboard.act(action="stop-actor", name="shop/clerk", epoch=before)
        assert again.json == stopped.json
        after = (await dashboard.snapshot("cluster"))["actors"]["shop/clerk"]["epoch"]
        assert after == row["actors"]["shop/clerk"]["epoch"]
        shop: Any = await world.node.lookup("shop")
        await shop.stop_child("clerk")
        with pytest.raises(ActorNotFoundError):
            await world.node.lookup("shop/clerk", Clerk)
        started = await dashboard.act(action="start-child", supervisor="shop", name="clerk")
        assert started.status == 200, started.body
        await world.node.lookup("shop/clerk", Clerk)
        assert (await dashboard.act(action="drain-node", name="one")).status == 200
        assert world.node.asked_to_leave.is_set()


class RaisedValueError(RemoteError, ValueError):
    """What a caller gets of a method that has raised a ValueError."""


async def test_a_stop_of_another_epoch_is_an_error_and_stops_nothing() -> None:
    async with open_world(actions=True) as world:
        clerk: Any = await world.node.lookup("shop/clerk", Clerk)
        epoch = clerk.address.epoch
        for wrong in (-5, epoch + 7):
            answer = await world.dashboard.act(action="stop-actor", name="shop/clerk", epoch=wrong)
            assert (answer.status, answer.json["error"]) == (400, "BadAction")
            assert answer.json["outcome"] == "not executed"
            assert f"no actor of this name with epoch {wrong}" in answer.json["detail"]
            assert answer.json["next"] == "reload the page"
        assert await clerk.sell() == 1
        # One that has failed meanwhile, and was started again.
        await clerk.fail()
        await until(
            lambda: world.dashboard.snapshot("cluster"),
            "its supervisor has started it again",
            lambda found: found["actors"].get("shop/clerk", {}).get("epoch", 0) > epoch,
        )
        answer = await world.dashboard.act(action="stop-actor", name="shop/clerk", epoch=epoch)
        assert (answer.status, answer.json["error"]) == (400, "BadAction")
        assert "had ended before" in answer.json["detail"]
        assert "the till is <b>empty</b>" in answer.json["detail"]


@pytest.mark.parametrize(
    ("action", "status", "error", "outcome"),
    [
        ({"supervisor": "nobody", "name": "x"}, 404, "ActorNotFoundError", "not executed"),
        ({"supervisor": "shop/clerk", "name": "x"}, 400, "BadAction", "not executed"),
        ({"supervisor": "shop", "name": "x"}, 422, "ChildNotFoundError", "raised"),
        ({"supervisor": "shop", "name": "clerk"}, 422, "ChildRunningError", "raised"),
    ],
)
async def test_the_status_of_an_action_that_fails_says_whether_it_was_done(
    action: dict[str, str], status: int, error: str, outcome: str
) -> None:
    async with open_world(actions=True) as world:
        answer = await world.dashboard.act(action="start-child", **action)
        found = answer.status, answer.json["error"], answer.json["outcome"]
        assert found == (status, error, outcome)


@pytest.mark.parametrize(
    ("failure", "status", "outcome"),
    [
        (NodeUnreachableError("no connection"), 503, "not executed"),
        (RaisedValueError("no"), 422, "raised"),
        (CallTimeoutError("no answer"), 504, "unknown"),
        (StoreUnavailableError("no store"), 504, "unknown"),
        (trio.TooSlowError(), 504, "unknown"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_action_that_may_have_been_done_is_504_and_no_other(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, status: int, outcome: str
) -> None:
    async def fail(*_: object) -> None:
        raise failure

    async with open_world(actions=True) as world:
        await world.dashboard.snapshot("cluster")
        monkeypatch.setattr(ClusterQuestions, "drain_node", fail)
        answer = await world.dashboard.act(action="drain-node", name="one")
        assert (answer.status, answer.json["outcome"]) == (status, outcome)
        assert answer.json["error"] == type(failure).__name__
        assert answer.headers.get("retry-after") == ("1" if status == 503 else None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"action": "format-disk", "name": "x"}',
        b'{"action": "stop-actor", "name": "nobody", "epoch": 1}',
        b'{"action": "stop-actor", "name": "shop/clerk", "epoch": "many"}',
        b'{"action": "drain-node", "name": "nobody"}',
        b'{"action": "start-child", "supervisor": "nobody", "name": "x"}',
        b"x" * 5000,
        b"\xff\xfe",
        # Deeper than Python reads it, and a number that is no integer.
        b"[" * 4000,
        b'{"action": "stop-actor", "name": "shop/clerk", "epoch": 1e999}',
    ],
)
async def test_actions_that_are_none_are_refused(body: bytes) -> None:
    async with open_world(actions=True) as world:
        headers = {**AUTHORIZATION, "Content-Type": "application/json"}
        answer = await world.dashboard.http.ask("POST", "/api/actions", body, headers=headers)
        assert answer.status in (400, 404, 413), answer.body
        assert (answer.json["error"] == "BadAction") == (answer.status == 400)
        assert answer.json["next"]
        if b"format-disk" in body:
            check_answer("BadAction", answer.json)
        wrong = await world.dashboard.http.ask("GET", "/api/actions", headers=headers)
        assert wrong.status == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ],
)
async def test_a_page_of_another_site_can_make_it_do_nothing(headers: dict[str, str]) -> None:
    async with open_world(actions=True) as world:
        given = {**AUTHORIZATION, "Content-Type": "application/json", **headers}
        body = b'{"action": "drain-node", "name": "one"}'
        answer = await world.dashboard.http.ask("POST", "/api/actions", body, headers=given)
        assert answer.status in (403, 415)
        assert not world.node.asked_to_leave.is_set()


async def test_actions_wait_for_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_world(actions=True) as world:
        monkeypatch.setattr(Sampler, "questions", None)
        answer = await world.dashboard.act(action="drain-node", name="one")
        assert (answer.status, answer.json["error"]) == (503, "ClusterLost")
        check_answer("ClusterLost", answer.json)
        assert not world.node.asked_to_leave.is_set()


async def test_a_failure_of_the_dashboard_is_an_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sampler, "page", None)
    answer = await world.dashboard.get("/api/snapshot?topic=cluster")
    assert (answer.status, answer.json["error"]) == (500, "DashboardFailure")
    check_answer("DashboardFailure", answer.json)
    assert answer.json["explain"] == "understudy explain DashboardFailure"


async def test_a_page_that_has_sent_more_and_goes_is_noticed(world: World) -> None:
    async with page(world.dashboard) as events:
        await events.next()
        await events.connection.stream.send_all(b"\r\n")
        # It goes on to read: no answer fails.
        await events.connection.stream.send_eof()
        pages = world.dashboard.application
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                while await events.connection.stream.receive_some(65536):
                    pass

            nursery.start_soon(read)
            await until(lambda: pages.pages, "it has gone", lambda count: count == 0)
