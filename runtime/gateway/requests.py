"""What is read of an HTTP request before anything is done: who may ask, what for, and the body,
within bounds.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes, urlsplit

import attrs
import trio

from actors.call_context import CallContext
from runtime.gateway.media import CBOR, JSON, media_type_of
from runtime.gateway.problems import ProblemError
from runtime.http_hosts import host_name, leads_here, split_target
from runtime.links.transports import is_loopback

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY = 8 * 1024 * 1024
BODY_SECONDS = 30.0
"""How long the body of a request may take to arrive: slow senders hold no place for longer."""

MOST_REQUESTS = 256

_SINGLE = (
    "accept",
    "authorization",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "idempotency-key",
    "origin",
    "sec-fetch-site",
    "understudy-timeout",
)
"""Headers that a request may have only once: of two, the gateway might obey one, and a proxy before
it the other.
"""

_SECONDS = re.compile(r"\d{1,7}(\.\d{1,6})?")
_KEY = re.compile(r"[!-~]([ -~]{0,253}[!-~])?")


class ClientGoneError(Exception):
    """The client has closed its connection before its request was complete. It gets no answer."""


@attrs.frozen(kw_only=True)
class RequestLimits:
    """Bounds of a gateway. `max_body`: bytes of a request's body; `body_seconds`: for all of it to
    arrive; `most_requests`: in flight at once.
    """

    max_body: int = attrs.field(default=MAX_BODY, validator=attrs.validators.ge(0))
    body_seconds: float = attrs.field(default=BODY_SECONDS, validator=attrs.validators.gt(0))
    most_requests: int = attrs.field(default=MOST_REQUESTS, validator=attrs.validators.ge(1))


@attrs.frozen
class Access:
    """Decides which requests are admitted. `token`: None for no token; then only names of this
    machine are accepted as Host, so that no web page can reach the gateway under a name of its own.
    `hosts`: further names.
    """

    token: str | None = attrs.field(repr=False)
    hosts: frozenset[str] = frozenset()

    def check(self, head: RequestHead, *, open_to_all: bool = False) -> None:
        """Raises ProblemError. `open_to_all`: the answer says nothing about the cluster."""
        self._check_host(head)
        self._check_origin(head)
        if self.token is not None and not open_to_all:
            self._check_token(head, self.token)

    def _check_host(self, head: RequestHead) -> None:
        if self.token is not None:
            return
        name = host_name(head.header("host") or "")
        if not (name in self.hosts or leads_here(name)):
            raise ProblemError(
                403,
                "HostRefused",
                f"the gateway does not answer as {name[:100]!r}",
                "ask it as localhost, or start it with --host NAME",
            )

    def _check_origin(self, head: RequestHead) -> None:
        origin = head.header("origin")
        site = head.header("sec-fetch-site")
        if origin is None:
            allowed = head.method == "GET" or site in (None, "none", "same-origin")
        else:
            page = _site_of(origin)
            allowed = page is not None and page == head.header("host")
        if not allowed:
            raise ProblemError(
                403,
                "OriginRefused",
                "the request comes from a page of another site",
                "ask from a program, or from the page that the server has itself",
            )

    def _check_token(self, head: RequestHead, token: str) -> None:
        scheme, _, given = (head.header("authorization") or "").partition(" ")
        # Hashes, so that the time of the comparison tells not even the length.
        same = hmac.compare_digest(_digest(given.strip()), _digest(token))
        if scheme.lower() != "bearer" or not same:
            raise ProblemError(
                401,
                "TokenRequired",
                "the request has no token, or not that of this server",
                "send the header Authorization: Bearer TOKEN",
                headers=(("www-authenticate", "Bearer"),),
            )


@attrs.frozen
class RequestHead:
    """The line and headers of a request. `path`: the parts of its path, each decoded."""

    method: str
    path: tuple[str, ...]
    query: str
    headers: dict[str, list[str]] = attrs.field(repr=False)

    @classmethod
    def of(cls, scope: Scope) -> RequestHead:
        """Raises ProblemError for a header that is there twice and must not be, and for a path that
        is no text. The request may name its address in full.
        """
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        for name in _SINGLE:
            if len(headers.get(name, ())) > 1:
                _refuse(400, "HeaderTwice", f"the header {name} is there twice", "send it once")
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy before the gateway may obey the other of the two headers, and take what
            # follows for a request of another client. So nothing more is read (RFC 9112, section
            # 6.1).
            _refuse(
                400,
                "HeaderTwice",
                "the length of the body is there twice, as content-length and transfer-encoding",
                "send one of the two",
                close=True,
            )
        target: bytes = scope.get("raw_path") or scope["path"].encode()
        path = target.partition(b"?")[0].decode("latin-1")
        try:
            path, host = split_target(path, None)
        except ValueError as error:
            _refuse(400, "BadPath", str(error), "ask for a path")
        if host is not None:
            headers["host"] = [host]
        return cls(
            scope["method"].upper(),
            _parts(path, scope.get("root_path", "")),
            scope.get("query_string", b"").decode("latin-1"),
            headers,
        )

    def header(self, name: str) -> str | None:
        """The value of a header that is there at most once."""
        values = self.headers.get(name)
        return values[0].strip() if values else None

    @property
    def context(self) -> CallContext:
        """Return the context in the headers of W3C Trace Context and Baggage; an empty one if they
        are malformed, because a mistake of the client's tracing must not cost it the call.
        """
        parents = self.headers.get("traceparent", ())
        return CallContext.of(
            traceparent=parents[0].strip() if len(parents) == 1 else "",
            # These may be there more than once, and are one list then.
            tracestate=",".join(self.headers.get("tracestate", ())),
            baggage=",".join(self.headers.get("baggage", ())),
        )

    @property
    def key(self) -> str:
        """The `Idempotency-Key`; "" if there is none. Raises ProblemError for one that is none."""
        given = self.header("idempotency-key")
        if given is None:
            return ""
        # The draft standard has it in quotation marks, most clients send it bare.
        key = given[1:-1] if len(given) >= 2 and given[0] == given[-1] == '"' else given
        if not _KEY.fullmatch(key):
            _refuse(
                400,
                "BadHeader",
                "Idempotency-Key is 1 to 255 printable characters of ASCII",
                "send for example a UUID",
            )
        return key

    @property
    def seconds(self) -> float | None:
        """The `Understudy-Timeout`; None if there is none. Raises ProblemError for no number."""
        given = self.header("understudy-timeout")
        if given is None:
            return None
        seconds = float(given) if _SECONDS.fullmatch(given) else math.nan
        if not seconds > 0:
            _refuse(
                400,
                "BadHeader",
                f"Understudy-Timeout is a number of seconds above zero, not {given[:40]!r}",
                "send for example Understudy-Timeout: 2.5",
            )
        return seconds

    @property
    def media_type(self) -> str:
        """Return the media type of the body. Raises ProblemError for a type that calls cannot have.

        The browser lets a page of another site send these types only after it has asked the gateway
        (CORS), which refuses.
        """
        given = self.header("content-type")
        if self.header("content-encoding") not in (None, "identity"):
            _refuse(415, "MediaType", "the body is compressed", "send it as it is")
        others = (self.header("transfer-encoding"), self.header("origin"))
        if given is None and self.header("content-length") in (None, "0") and not any(others):
            # No body and no page: a method without parameters, called by a program.
            return JSON
        found = media_type_of(given or "")
        if found not in (JSON, CBOR):
            _refuse(
                415,
                "MediaType",
                f"the body is {found[:100]!r}",
                f"send it as {JSON} or {CBOR}, and say so in Content-Type",
            )
        return found


async def body_of_request(head: RequestHead, receive: Receive, limits: RequestLimits) -> bytes:
    """Read the body. Raises ProblemError where it is too large or too slow, and ClientGoneError."""
    announced = head.header("content-length")
    if announced is not None and (not announced.isdecimal() or _is_above(announced, limits)):
        _too_large(limits)
    parts: list[bytes] = []
    size = 0
    with trio.move_on_after(limits.body_seconds):
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGoneError
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limits.max_body:
                _too_large(limits)
            if part:
                parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)
    _refuse(
        408,
        "BodyTooSlow",
        f"the body did not arrive within {limits.body_seconds:g} s",
        "send it again",
        close=True,
    )


def _site_of(origin: str) -> str | None:
    """The host and port in an Origin header; None if it names no site of HTTP."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        # Brackets that hold no address.
        return None
    return (parts.netloc or None) if parts.scheme in ("http", "https") else None


def _is_above(announced: str, limits: RequestLimits) -> bool:
    # Thousands of digits are not made a number.
    return len(announced) > 15 or int(announced) > limits.max_body


def _too_large(limits: RequestLimits) -> NoReturn:
    _refuse(
        413,
        "BodyTooLarge",
        f"the body has more than {limits.max_body} bytes",
        "send less, or start the gateway with a larger --max-body",
        close=True,
    )


def _parts(path: str, root: str) -> tuple[str, ...]:
    # Split into parts before they are decoded: the name of an actor may have a slash.
    if root and path.startswith(root):
        path = path[len(root) :]
    try:
        return tuple(unquote_to_bytes(part).decode() for part in path.strip("/").split("/"))
    except UnicodeDecodeError:
        _refuse(400, "BadPath", "the path is not UTF-8", "percent-encode the name as UTF-8")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _refuse(
    status: int, error: str, detail: str, next_step: str, *, close: bool = False
) -> NoReturn:
    headers = (("connection", "close"),) if close else ()
    raise ProblemError(status, error, detail, next_step, headers=headers)


def check_exposure(listen: str, token: str | None) -> None:
    """Raises ValueError for an address that other machines reach, without a token."""
    if token is None and not is_loopback(listen):
        raise ValueError(
            f"{listen} can be reached from other machines, so the gateway needs a token there: "
            "give it a file with --token-file, or UNDERSTUDY_GATEWAY_TOKEN"
        )


def known_hosts(names: Iterable[str]) -> frozenset[str]:
    """Names as they are compared with that in a Host header."""
    return frozenset(host_name(name) for name in names)
