"""The gateway as an ASGI application: one request to one call, its outcome in the status."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Collection
from contextlib import aclosing
from functools import partial
from importlib import resources
from urllib.parse import parse_qs

import trio

from actors.call_context import call_context
from actors.errors import CallError, DecodeError, UnderstudyError
from actors.own_logger import own_logger
from runtime.gateway.calls import GatewayCalls, HttpCall, SilentNodesError
from runtime.gateway.descriptions import Descriptions, Names
from runtime.gateway.media import (
    CBOR,
    EVENTS,
    JSON,
    STREAMS,
    answer_of,
    body_of,
    chosen,
    json_of,
    names_any,
)
from runtime.gateway.openapi import json_of_parts, openapi_of
from runtime.gateway.problems import (
    NOT_EXECUTED,
    RETRY_HEADERS,
    Problem,
    ProblemError,
    problem_of,
)
from runtime.gateway.requests import (
    Access,
    ClientGoneError,
    Message,
    Receive,
    RequestHead,
    RequestLimits,
    Scope,
    Send,
    body_of_request,
    known_hosts,
)
from runtime.gateway.responses import ResponseWriter
from runtime.limited_log import LimitedLog
from runtime.node import Node, internals_of
from runtime.plain_calls.keyed_calls import PlainOutcome
from runtime.plain_calls.plain_values import decoded
from runtime.plain_calls.service import IS_STREAM, LARGE_BODY
from runtime.user_errors import summary_of

KEEP_ALIVE_SECONDS = 15.0
"""Seconds after which a stream without new items sends a sign of life: proxies cut silent
connections.
"""

READERS = 2
"""Threads for large bodies."""

WRITERS = 1
"""Threads for descriptions. They have no use for more: Python runs one at a time."""

logger = own_logger("understudy.gateway")


# The page that a gateway serves: it reads the OpenAPI description and lets you call methods. It
# needs nothing from elsewhere. Data of the cluster enters it as text, never as HTML; the policy
# forbids all other scripts and all other hosts.

_STATIC = resources.files("runtime.gateway") / "static"

_STYLE = (_STATIC / "page.css").read_text("utf-8")

_SCRIPT = (_STATIC / "page.js").read_text("utf-8")

PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Actors of this cluster</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Actors of this cluster</h1>
<p>Call their methods. The description is at <a href="v1/openapi.json">v1/openapi.json</a>.</p>
<label>Token, where the gateway wants one
<input id="token" type="password" autocomplete="off"></label>
<button id="load">Load</button>
<p id="state" class="bad"></p>
<div id="methods"></div>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


PAGE_POLICY = (
    f"default-src 'none'; style-src {_digest(_STYLE)}; script-src {_digest(_SCRIPT)}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: what the page itself has, and nothing else."""


def application(
    node: Node,
    *,
    allow: Collection[str] = (),
    token: str | None = None,
    hosts: Collection[str] = (),
    limits: RequestLimits | None = None,
) -> HttpGateway:
    """An ASGI application that calls the actors of the node's cluster; for servers on trio, such as
    hypercorn's, in the loop of the node.

    `allow`: patterns of `ACTOR.METHOD` (`*` and `?`) that may be called without
    `@method(http=True)`. `token`: what clients must send as `Authorization: Bearer`; with None,
    only requests to this machine's own names are answered, or to `hosts`.
    """
    for pattern in allow:
        if "." not in pattern:
            raise ValueError(f"{pattern!r} allows nothing: a pattern is ACTOR.METHOD")
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable()):
        raise ValueError("a token is at least 16 printable characters of ASCII")
    return HttpGateway(
        node,
        GatewayCalls(node, tuple(allow)),
        Access(token, known_hosts(hosts)),
        limits or RequestLimits(),
    )


class HttpGateway:
    """The application; make it with `application`."""

    def __init__(
        self, node: Node, calls: GatewayCalls, access: Access, limits: RequestLimits
    ) -> None:
        self._node = node
        self._calls = calls
        self._access = access
        self._limits = limits
        self._descriptions = Descriptions(self._describe, internals_of(node).environment.now)
        self._readers = trio.CapacityLimiter(READERS)
        self._writers = trio.CapacityLimiter(WRITERS)
        self._in_flight = 0
        self._log = LimitedLog(logger, trio.current_time)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = ResponseWriter(send)
        try:
            head = RequestHead.of(scope)
            # Before the body is read: what is refused takes no memory.
            if self._in_flight >= self._limits.most_requests:
                raise ProblemError(
                    503,
                    "TooManyRequests",
                    f"{self._in_flight} requests are in flight, the limit of this gateway",
                    "repeat the request",
                    headers=(("retry-after", "1"),),
                )
            self._in_flight += 1
            try:
                await self._route(head, receive, answer)
            finally:
                self._in_flight -= 1
        except ProblemError as error:
            await answer.problem(error.problem, None)
        except ClientGoneError:
            return
        except Exception as error:
            # A mistake of the gateway's own: the answer says that it is no outcome of the call.
            # Other requests go on.
            self._log.log(logging.ERROR, "a request failed: %s", summary_of(error), error=error)
            await answer.problem(_failure(), None)

    async def _route(self, head: RequestHead, receive: Receive, answer: ResponseWriter) -> None:
        path = head.path
        if path in (("",), ("docs",)):
            self._access.check(head, open_to_all=True)
            _allow(head, "GET")
            policy = ("content-security-policy", PAGE_POLICY)
            await answer.whole(200, "text/html; charset=utf-8", PAGE.encode(), (policy,))
        elif path == ("healthz",):
            self._access.check(head, open_to_all=True)
            _allow(head, "GET")
            await answer.whole(200, JSON, json_of({"status": "ok"}))
        elif path == ("v1", "openapi.json"):
            self._access.check(head)
            _allow(head, "GET")
            await answer.whole(200, JSON, await self._description(head))
        elif len(path) == 4 and path[:2] == ("v1", "actors"):
            self._access.check(head)
            _allow(head, "POST")
            token = call_context.set(head.context)
            try:
                await self._call(head, path[2], path[3], receive, answer)
            finally:
                call_context.reset(token)
        else:
            self._access.check(head)
            raise ProblemError(
                404,
                "PathNotFound",
                "there is nothing at this path",
                "POST to /v1/actors/NAME/METHOD, or GET /v1/openapi.json",
            )

    async def _call(
        self, head: RequestHead, name: str, method: str, receive: Receive, answer: ResponseWriter
    ) -> None:
        key, seconds, media_type = head.key, head.seconds, head.media_type
        accept = head.header("accept")
        streams = names_any(accept, STREAMS)
        wanted = chosen(accept, STREAMS if streams else (JSON, CBOR, *STREAMS))
        if wanted is None:
            raise _not_acceptable("an answer has another media type than those")
        if media_type == CBOR and accept is None:
            wanted = CBOR
        data = await body_of_request(head, receive, self._limits)
        call = HttpCall(name, method, await self._read(data, media_type), seconds, key)
        if streams:
            if key:
                raise _key_of_stream()
            await self._stream(call, wanted, receive, answer)
            return
        outcome = await self._outcome(call, receive)
        if outcome is None:
            return
        if outcome.error.get("type") == IS_STREAM and outcome.outcome == "not executed":
            wanted = chosen(accept, STREAMS)
            if key:
                raise _key_of_stream()
            if wanted is not None:
                await self._stream(call, wanted, receive, answer)
                return
        if outcome.outcome != "value":
            await answer.problem(problem_of(outcome, name, method), accept)
        elif wanted not in (JSON, CBOR):
            raise _not_acceptable("the method gives one value, and no stream")
        else:
            await answer.whole(200, wanted, await self._written(outcome.body, wanted))

    async def _read(self, data: bytes, media_type: str) -> bytes:
        """The body as CBOR in plain values; a large one is converted in a thread, beside the loop.
        Raises ProblemError.
        """
        read = partial(body_of, data, media_type)
        try:
            if len(data) <= LARGE_BODY:
                return read()
            return await trio.to_thread.run_sync(read, limiter=self._readers)
        except DecodeError as error:
            raise ProblemError(
                400, "BadBody", str(error), "send arguments as JSON or CBOR, see the docs"
            ) from None

    async def _written(self, body: bytes, media_type: str) -> bytes:
        write = partial(answer_of, body, media_type)
        if len(body) <= LARGE_BODY or media_type == CBOR:
            return write()
        return await trio.to_thread.run_sync(write, limiter=self._readers)

    async def _outcome(self, call: HttpCall, receive: Receive) -> PlainOutcome | None:
        """Make the call; None if the client has gone. Without a key that cancels the call."""
        outcome: PlainOutcome | None = None
        gone = trio.Event()
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await _gone(receive)
                gone.set()
                # A call with a key is not cancelled: its client may ask for the outcome again.
                if not call.key:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            if call.key:
                outcome = await self._calls.keyed(call, gone)
            else:
                outcome = await self._calls.once(call)
            nursery.cancel_scope.cancel()
        return None if gone.is_set() else outcome

    async def _stream(
        self, call: HttpCall, media_type: str, receive: Receive, answer: ResponseWriter
    ) -> None:
        """Send the items as they come; the reader of the connection holds them up, and ends them
        when it goes.
        """
        # No buffer: an item is taken from the actor when the one before has been sent.
        put, take = trio.open_memory_channel[PlainOutcome](0)
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await _gone(receive)
                nursery.cancel_scope.cancel()

            async def read() -> None:
                async with put, aclosing(self._calls.stream(call)) as items:
                    async for item in items:
                        await put.send(item)

            nursery.start_soon(watch)
            nursery.start_soon(read)
            async with take:
                await self._send_items(call, media_type, take, answer)
            # The last item is sent; `watch` would wait until the client disconnects.
            nursery.cancel_scope.cancel()

    async def _send_items(
        self,
        call: HttpCall,
        media_type: str,
        items: trio.MemoryReceiveChannel[PlainOutcome],
        answer: ResponseWriter,
    ) -> None:
        try:
            first: PlainOutcome | None = await items.receive()
        except trio.EndOfChannel:
            first = None
        if first is not None and first.outcome != "value":
            # Before the first item the status can still say how it ended.
            await answer.problem(problem_of(first, call.name, call.method), None)
            return
        await answer.begin(200, media_type, (("cache-control", "no-store"),))
        item = first
        while item is not None and item.outcome == "value":
            await answer.part(_item(item.body, media_type))
            item = await _next(items, media_type, answer)
        if item is not None:
            await answer.part(_last(problem_of(item, call.name, call.method), media_type))
        else:
            await answer.part(_last(None, media_type))
        await answer.end()

    async def _description(self, head: RequestHead) -> bytes:
        names = parse_qs(head.query).get("actor")
        made = await self._descriptions.of(None if names is None else frozenset(names))
        if isinstance(made, Problem):
            raise ProblemError.of(made)
        return made

    async def _describe(self, names: Names) -> bytes | Problem:
        try:
            described = await self._calls.described(names)
        except SilentNodesError as error:
            step = "repeat the request; ?actor=NAME asks only the node of that actor"
            return Problem(
                503, "NodesSilent", str(error), NOT_EXECUTED, step, headers=RETRY_HEADERS
            )
        except (CallError, UnderstudyError) as error:
            return Problem(
                503,
                type(error).__name__,
                f"the actors could not be listed: {error}",
                NOT_EXECUTED,
                "repeat the request",
                headers=RETRY_HEADERS,
            )
        secured = self._access.token is not None

        def write() -> bytes:
            return json_of_parts(openapi_of(described, self._calls.is_allowed, secured=secured))

        # Beside the loop: a thousand actors have 16 MB.
        return await trio.to_thread.run_sync(write, limiter=self._writers)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message: Message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _gone(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _next(
    items: trio.MemoryReceiveChannel[PlainOutcome], media_type: str, answer: ResponseWriter
) -> PlainOutcome | None:
    """The next item, None at the end. While none comes, a sign of life is sent every
    `KEEP_ALIVE_SECONDS`.
    """
    while True:
        # No item is lost by the time-out: a receive that is cancelled has taken none.
        with trio.move_on_after(KEEP_ALIVE_SECONDS):
            try:
                return await items.receive()
            except trio.EndOfChannel:
                return None
        # A comment to a reader of events, a blank line to one of lines.
        await answer.part(b": still running\n\n" if media_type == EVENTS else b"\n")


def _item(body: bytes, media_type: str) -> bytes:
    value = decoded(body)
    if media_type == EVENTS:
        # One line: JSON has no line breaks of its own.
        return b"data: " + json_of(value) + b"\n\n"
    return json_of({"item": value}) + b"\n"


def _last(problem: Problem | None, media_type: str) -> bytes:
    """Return the last bytes of a stream, by which clients tell its end from a connection that
    broke.
    """
    if media_type == EVENTS:
        if problem is None:
            return b"event: end\ndata: {}\n\n"
        return b"event: error\ndata: " + json_of(problem.plain()) + b"\n\n"
    return json_of({"end": True} if problem is None else {"error": problem.plain()}) + b"\n"


def _allow(head: RequestHead, method: str) -> None:
    if head.method != method and not (method == "GET" and head.method == "HEAD"):
        raise ProblemError(
            405,
            "RequestMethod",
            f"{head.method} is not for this path",
            f"use {method}",
            headers=(("allow", method),),
        )


def _not_acceptable(detail: str) -> ProblemError:
    return ProblemError(
        406,
        "NotAcceptable",
        detail,
        f"accept {JSON} or {CBOR}, and for streams {' or '.join((STREAMS[0], EVENTS))}",
    )


def _key_of_stream() -> ProblemError:
    return ProblemError(
        400,
        "KeyOfStream",
        "a stream is never repeated, so it takes no Idempotency-Key",
        "leave the key out; give the place to go on from as an argument",
    )


def _failure() -> Problem:
    return Problem(
        504,
        "GatewayFailure",
        "the gateway failed while it handled the request; its log says where",
        "unknown",
        "the call may have run: read the state, then decide",
    )
