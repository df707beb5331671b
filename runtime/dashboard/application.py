"""The dashboard as an ASGI application: one page, its files, events, and actions where allowed.

Written against ASGI itself, as the gateway is: there are five paths, and a framework would be one
more dependency without a line less.
"""

from __future__ import annotations

import hashlib
import json
import logging
from importlib import resources
from typing import Any
from urllib.parse import parse_qs

import attrs
import trio

from actors.errors import CallError, RemoteError, UnderstudyError, outcome_of
from actors.own_logger import own_logger
from runtime.dashboard.sampler import Sampler, TooManyActorsError
from runtime.dashboard.schedule import MOST_ACTORS, is_topic
from runtime.gateway.media import EVENTS, JSON, json_of
from runtime.gateway.problems import (
    NOT_EXECUTED,
    RETRY_HEADERS,
    Problem,
    ProblemError,
    status_of,
)
from runtime.gateway.requests import (
    Access,
    ClientGoneError,
    Receive,
    RequestHead,
    RequestLimits,
    Scope,
    Send,
    body_of_request,
)
from runtime.gateway.responses import Headers, ResponseWriter
from runtime.limited_log import LimitedLog
from runtime.user_errors import summary_of

MOST_PAGES = 100
"""Pages that are open at once; further ones get an answer to come back later."""

MOST_TOPICS = 8
MAX_BODY = 4096

IDLE_SECONDS = 10.0
"""An open page hears so often that the dashboard lives: proxies cut silent connections."""

FIRST_SECONDS = 10.0
"""Seconds in which `api/snapshot` is to have an answer."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: what the dashboard itself serves, and nothing from elsewhere."""

TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
NEXT = {
    NOT_EXECUTED: "reload the page",
    "raised": "look at the page what has happened",
    "unknown": "look at the page what has happened",
}
"""What to do after an action that has failed, by its outcome."""

MISTAKE = Problem(
    500,
    "DashboardFailure",
    "the dashboard made a mistake; its log says where",
    "unknown",
    "load the page again",
)

logger = own_logger("understudy.dashboard")


@attrs.frozen
class PageFile:
    """A file of the page, read once."""

    data: bytes
    media_type: str
    tag: str


def page_files() -> dict[str, PageFile]:
    """The files of the page, by their names."""
    found: dict[str, PageFile] = {}
    for one in (resources.files("runtime.dashboard") / "static").iterdir():
        kind = TYPES.get(one.name.rpartition(".")[2])
        if kind is not None:
            data = one.read_bytes()
            found[one.name] = PageFile(data, kind, f'"{hashlib.sha256(data).hexdigest()[:20]}"')
    return found


class DashboardApplication:
    """The application. `base`: the path below which a proxy serves it, "" for none; `token`: what
    pages must send.
    """

    def __init__(self, sampler: Sampler, token: str, *, base: str = "", actions: bool) -> None:
        self._sampler = sampler
        self._access = Access(token)
        self._base = tuple(part for part in base.split("/") if part)
        self._actions = actions
        self._files = page_files()
        self._pages = 0
        self._log = LimitedLog(logger, trio.current_time)

    @property
    def pages(self) -> int:
        """How many pages are open."""
        return self._pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return
        answer = ResponseWriter(send)
        try:
            head = RequestHead.of(scope)
            if self._base and head.path == self._base and not scope["path"].endswith("/"):
                # Without its last slash the page's relative addresses would lead elsewhere.
                await answer.whole(307, JSON, b"", (("location", f"{self._base[-1]}/"),))
                return
            await self._route(head, receive, answer)
        except ProblemError as error:
            await answer.problem(error.problem, None)
        except ClientGoneError:
            return
        except Exception as error:
            self._log.log(logging.ERROR, "a request failed: %s", summary_of(error), error=error)
            await answer.problem(MISTAKE, None)

    async def _route(self, head: RequestHead, receive: Receive, answer: ResponseWriter) -> None:
        path = head.path
        if self._base and path[: len(self._base)] == self._base:
            # A proxy may pass the base path on, or take it away.
            path = path[len(self._base) :] or ("",)
        if path == ("api", "actions"):
            self._access.check(head)
            _only(head, "POST")
            await self._act(head, receive, answer)
            return
        _only(head, "GET")
        if path[0] == "api":
            self._access.check(head)
            if path == ("api", "events"):
                await self._events(_topics(head), receive, answer)
                return
            if path == ("api", "snapshot"):
                await self._snapshot(_topics(head), answer)
                return
        elif path == ("healthz",):
            await answer.whole(200, JSON, json_of({"status": "ok"}))
            return
        elif len(path) == 1:
            found = self._files.get(path[0] or "index.html")
            if found is not None:
                await self._file(head, found, answer)
                return
        raise ProblemError(
            404,
            "PathNotFound",
            "there is nothing at this path",
            "open the address that was printed",
        )

    async def _file(self, head: RequestHead, file: PageFile, answer: ResponseWriter) -> None:
        # Without the token: the page itself tells nothing of the cluster.
        headers: Headers = (("etag", file.tag), ("cache-control", "no-cache"))
        if head.header("if-none-match") == file.tag:
            await answer.whole(304, file.media_type, b"", headers)
            return
        headers = (*headers, ("content-security-policy", POLICY))
        await answer.whole(200, file.media_type, file.data, headers)

    async def _events(self, topics: list[str], receive: Receive, answer: ResponseWriter) -> None:
        if self._pages >= MOST_PAGES:
            raise ProblemError(
                503,
                "TooManyPages",
                f"{MOST_PAGES} pages are open, the limit of this dashboard",
                "close some; this page tries again by itself",
                headers=(("retry-after", "5"),),
            )
        self._pages += 1
        try:
            with self._sampler.page(topics) as page:
                async with trio.open_nursery() as nursery:

                    async def watch() -> None:
                        while (await receive())["type"] != "http.disconnect":
                            pass
                        nursery.cancel_scope.cancel()

                    nursery.start_soon(watch)
                    await answer.begin(200, EVENTS, (("x-accel-buffering", "no"),))
                    while True:
                        messages = await self._sampler.messages(page, IDLE_SECONDS)
                        # Waits for a slow reader; what is new meanwhile is one difference later.
                        # What is sent may be old: by this line a page knows how old it is. To other
                        # readers of events it is a comment.
                        now = b": now %.3f\n\n" % self._sampler.wall_time()
                        await answer.part(
                            now + b"".join(b"data: " + one + b"\n\n" for one in messages)
                        )
        except TooManyActorsError:
            raise _too_many_actors() from None
        finally:
            self._pages -= 1

    async def _snapshot(self, topics: list[str], answer: ResponseWriter) -> None:
        """One snapshot of each topic, for programs."""
        found: dict[str, Any] = {}
        try:
            with self._sampler.page(topics) as page, trio.move_on_after(FIRST_SECONDS):
                while not all(topic in found for topic in topics):
                    messages = await self._sampler.messages(page, IDLE_SECONDS)
                    for one in map(json.loads, messages):
                        found.setdefault(one["topic"], one)
        except TooManyActorsError:
            raise _too_many_actors() from None
        await answer.whole(200, JSON, json_of(found))

    async def _act(self, head: RequestHead, receive: Receive, answer: ResponseWriter) -> None:
        if not self._actions:
            raise ProblemError(
                403,
                "ReadOnly",
                "this dashboard only shows",
                "start it with --allow-actions to stop, start and drain from it",
            )
        # A page of another site cannot send this type without asking first, which is refused.
        if head.header("content-type") != JSON:
            raise ProblemError(415, "MediaType", "an action is JSON", f"send it as {JSON}")
        limits = RequestLimits(max_body=MAX_BODY, body_seconds=5.0)
        questions = self._sampler.questions
        if questions is None:
            raise ProblemError(
                503, "ClusterLost", "no node of the cluster answers", "try again when one does"
            )
        try:
            asked = json.loads(await body_of_request(head, receive, limits))
            name = str(asked["name"])
            match str(asked["action"]):
                case "stop-actor":
                    text = await questions.stop_actor(name, int(asked["epoch"]))
                case "start-child":
                    text = await questions.restart_child(str(asked["supervisor"]), name)
                case "drain-node":
                    text = await questions.drain_node(name)
                case _:
                    raise ValueError("there is no such action")
        except CallError as error:
            # First: what a supervisor has raised may be a ValueError as well.
            raise ProblemError.of(_failed(error)) from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            # JSON may nest deeper than Python reads it, and its numbers may be infinite.
            raise ProblemError(400, "BadAction", summary_of(error), "reload the page") from None
        except (UnderstudyError, trio.TooSlowError) as error:
            raise ProblemError.of(_failed(error)) from None
        logger.warning("an action of a page: %s", text)
        await answer.whole(200, JSON, json_of({"done": text}))


def _failed(error: UnderstudyError | trio.TooSlowError) -> Problem:
    """The answer to an action that has failed. Its status says whether it may have been done."""
    # An error that is not of a call says nothing of that.
    outcome = outcome_of(error) if isinstance(error, CallError) else "unknown"
    kind = type(error).__name__
    if isinstance(error, RemoteError):
        kind = error.remote_type.rpartition(":")[2] or kind
    status = status_of(outcome, kind)
    return Problem(
        status,
        kind,
        summary_of(error),
        outcome,
        NEXT[outcome] if status != 503 else "try again",
        headers=RETRY_HEADERS if status == 503 else (),
    )


def _topics(head: RequestHead) -> list[str]:
    try:
        given = parse_qs(head.query, max_num_fields=2 * MOST_TOPICS).get("topic", [])
    except ValueError:
        given = []
    topics = list(dict.fromkeys(given))
    wrong = [topic for topic in topics if not is_topic(topic)]
    if not topics or wrong or len(topics) > MOST_TOPICS:
        what = (
            f"there is no topic {wrong[0][:100]!r}"
            if wrong
            else f"a request is about 1 to {MOST_TOPICS} topics"
        )
        raise ProblemError(400, "BadTopic", what, "ask for example for ?topic=cluster")
    return topics


def _too_many_actors() -> ProblemError:
    return ProblemError(
        503,
        "TooManyActors",
        f"pages look at {MOST_ACTORS} actors already, the limit of this dashboard",
        "close one of them",
        headers=(("retry-after", "5"),),
    )


def _only(head: RequestHead, method: str) -> None:
    if head.method != method:
        raise ProblemError(
            405,
            "RequestMethod",
            f"{head.method[:20]} is not possible here",
            f"use {method}",
            headers=(("allow", method),),
        )
