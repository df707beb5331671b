"""The call context: what travels with a call beside its arguments.

It has a trace (W3C `traceparent` and `tracestate`), W3C `baggage`, and values of your own, such as
a tenant. The runtime hands it to the method, and from there to every call that the method makes.
It never becomes an argument, so methods do not have to pass it on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import MappingProxyType
from typing import Final, cast

from actors.short_repr import short_repr

MOST_BYTES = 8 * 1024
"""Bytes of UTF-8 that names and values of one call context may have together."""

MOST_TRACESTATE = 512
"""Characters. What W3C Trace Context asks everyone to carry at least."""

MOST_BAGGAGE = 8192
"""Characters. The limit of W3C Baggage."""

_MOST_MORE = 200
"""Characters that a `traceparent` of a later version may have after its four fields."""

MOST_TEXT = 16 + 55 + 1 + _MOST_MORE + MOST_TRACESTATE + MOST_BAGGAGE + 12 * (MOST_BYTES + 1)
"""Characters of a whole context as it travels, at the most. JSON may write a byte as six
characters, and has six more for each name with its value, of which all but one have a byte.
"""

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_LATER_TRACEPARENT = re.compile(_TRACEPARENT.pattern + rf"(-[\x21-\x7e]{{0,{_MOST_MORE}}})?")
_HEADER = re.compile(r"[\x20-\x7e]*")

_NOTHING: Mapping[str, str] = MappingProxyType({})

CURRENT: Final[ContextVar[CallContext | None]] = ContextVar("call_context", default=None)
"""The context of the code that runs; None for an empty one, so that a call looks once to know that
nothing travels with it. For the runtime; users have `call_context`.
"""


def valid_traceparent(text: object) -> str:
    """Return `text` if it is a W3C `traceparent`, else "": a malformed one is dropped, because a
    mistake of a caller's tracing must not end the caller's call.
    """
    if not isinstance(text, str):
        return ""
    # Version 00 has four fields; a later version may have more, which we carry on as they are.
    form = _TRACEPARENT if text.startswith("00") else _LATER_TRACEPARENT
    return text if form.fullmatch(text) else ""


def _header(text: object, most: int) -> str:
    return text if isinstance(text, str) and len(text) <= most and _HEADER.fullmatch(text) else ""


class CallContext(Mapping[str, str]):
    """One call context; it never changes. As a mapping, it has your own values by their names.

    `traceparent`, `tracestate` and `baggage` are W3C headers, "" where there is none. Made from
    what a peer has sent, it leaves out what is malformed or too large.
    """

    # Nothing is parsed before it is asked for: most methods only pass the context on.
    __slots__ = ("_checked", "_fields", "_text", "_values", "sent")

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._checked = not text
        """True once `_text` has nothing malformed."""
        self._fields: tuple[str, str, str] | None = None
        self._values: Mapping[str, str] | None = None
        self.sent: bytes = b""
        """The text as the runtime sends it, encoded once."""

    @classmethod
    def of(
        cls,
        values: Mapping[str, str] = _NOTHING,
        *,
        traceparent: str = "",
        tracestate: str = "",
        baggage: str = "",
    ) -> CallContext:
        """Make a context. Headers that are malformed or too large are left out.

        Raises TypeError or ValueError for values that are not texts, or larger than 8 KiB together.
        """
        made = cls()
        traceparent = valid_traceparent(traceparent)
        made._fields = (
            traceparent,
            # Without a trace its state says nothing.
            _header(tracestate, MOST_TRACESTATE) if traceparent else "",
            _header(baggage, MOST_BAGGAGE),
        )
        made._values = MappingProxyType(_checked(values)) if values else _NOTHING
        made._text = _written(made._fields, made._values)
        made._checked = True
        assert len(made._text) <= MOST_TEXT, "a receiver drops what is longer"
        return made

    @property
    def text(self) -> str:
        """The context as it travels: one line each for `traceparent`, `tracestate`, `baggage`, and
        a JSON object of your values. Empty lines at the end are left out; lines after these four
        are ignored. What is malformed is not passed on.
        """
        if not self._checked:
            # It came from a peer: written anew, so that its mistakes are not this node's.
            self._text = _written(self._headers(), self._own())
            self._checked = True
        return self._text

    @property
    def traceparent(self) -> str:
        """W3C `traceparent`, or ""."""
        return self._headers()[0]

    @property
    def tracestate(self) -> str:
        """W3C `tracestate`, or ""."""
        return self._headers()[1]

    @property
    def baggage(self) -> str:
        """W3C `baggage`, or ""."""
        return self._headers()[2]

    def with_values(self, values: Mapping[str, str | None]) -> CallContext:
        """Return a copy with these values besides; None takes a name away. Raises like `of`."""
        merged: dict[str, object] = {**self._own(), **values}
        headers = self._headers()
        return CallContext.of(
            cast(
                "dict[str, str]",
                {name: value for name, value in merged.items() if value is not None},
            ),
            traceparent=headers[0],
            tracestate=headers[1],
            baggage=headers[2],
        )

    def with_trace(self, traceparent: str, tracestate: str = "", baggage: str = "") -> CallContext:
        """Return a copy with these headers in place of its own, and the same values."""
        return CallContext.of(
            self._own(), traceparent=traceparent, tracestate=tracestate, baggage=baggage
        )

    def __getitem__(self, name: str) -> str:
        return self._own()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())

    def __repr__(self) -> str:
        # No values: they may be secrets, and contexts come into logs.
        return f"<call context with {len(self)} values, traceparent {self.traceparent or 'none'}>"

    def _headers(self) -> tuple[str, str, str]:
        fields = self._fields
        if fields is None:
            lines = self._lines()
            traceparent = valid_traceparent(lines[0])
            fields = self._fields = (
                traceparent,
                _header(lines[1], MOST_TRACESTATE) if traceparent else "",
                _header(lines[2], MOST_BAGGAGE),
            )
        return fields

    def _own(self) -> Mapping[str, str]:
        values = self._values
        if values is None:
            values = self._values = _read(self._lines()[3])
        return values

    def _lines(self) -> list[str]:
        # What is longer than any context that we make is not ours: nothing of it is kept.
        text = self._text if len(self._text) <= MOST_TEXT else ""
        return [*text.split("\n", 4), "", "", ""]


def _written(headers: tuple[str, str, str], values: Mapping[str, str]) -> str:
    own = json.dumps(dict(values), separators=(",", ":")) if values else ""
    return "\n".join((*headers, own)).rstrip("\n")


def _read(line: str) -> Mapping[str, str]:
    if not line:
        return _NOTHING
    try:
        parsed: object = json.loads(line)
        return MappingProxyType(_checked(cast("Mapping[str, str]", parsed)))
    except (ValueError, TypeError, RecursionError):
        # A peer's mistake costs its values, and not the call.
        return _NOTHING


def _checked(values: Mapping[str, str]) -> dict[str, str]:
    given: object = values
    if not isinstance(given, Mapping):
        raise TypeError(f"a call context takes a mapping of str to str, not {short_repr(given)}")
    size = 0
    for name, value in given.items():
        if type(name) is not str or type(value) is not str:
            raise TypeError(
                f"a call context maps str to str, and the value of {short_repr(name)} is a "
                f"{type(value).__name__}; convert it with str(...)"
            )
        try:
            size += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{short_repr(name)} of the call context cannot be sent: {error}"
            ) from None
    if size > MOST_BYTES:
        raise ValueError(
            f"the call context would have {size} bytes of names and values; at most {MOST_BYTES} "
            "travel with every call. Send larger values as arguments, or as references"
        )
    return dict(values)


EMPTY: Final = CallContext.of()


class CallContextVariable:
    """The call context of the code that runs. Use it as `actors.call_context`.

    Tasks that you start, and threads, have the context of the code that starts them.
    """

    def get(self) -> CallContext:
        """Return the current context; an empty one if none was set."""
        context = CURRENT.get()
        # Not by its truth: one that has only a trace is an empty mapping.
        return EMPTY if context is None else context

    def set(self, context: CallContext) -> Token[CallContext | None]:
        """Set the context for all calls from here on; `reset` takes it back. Inside a method it
        ends with the method in any case.
        """
        if not isinstance(context, CallContext):
            raise TypeError(f"call_context.set takes a CallContext, not {short_repr(context)}")
        return CURRENT.set(context if context.text else None)

    def reset(self, token: Token[CallContext | None]) -> None:
        """Go back to what the context was before that `set`."""
        CURRENT.reset(token)

    @contextmanager
    def having(self, **values: str | None) -> Iterator[CallContext]:
        """Add these values to the context within the block; None takes a name away.

        Raises TypeError or ValueError, before the block, for values that are not texts or that are,
        with those already there, larger than 8 KiB.
        """
        context = self.get().with_values(values)
        token = self.set(context)
        try:
            yield context
        finally:
            CURRENT.reset(token)


call_context: Final = CallContextVariable()
"""The call context of the code that runs; see `CallContextVariable`."""
