"""Keyed calls: at most once for calls that their clients identify by a key of their own, such as
the `Idempotency-Key` of HTTP.

No I/O and no clock. A key counts for one actor. The first call with it runs; a call with the same
key and the same request is attached to it while it runs, and gets its outcome after it has ended; a
call with the same key and another request is refused. A call that certainly did not run leaves
nothing behind: its repeat is as good as new.

Unlike the calls in `runtime.calls.dedup_table`, no client ever confirms these, so time and number
bound them. A record is kept for `LEAST_SECONDS` whatever happens: where there is no room for
another one, new keyed calls are refused. After that the oldest records make room for new ones. When
the answers take too many bytes, the oldest answers go and their records stay: a repeat is then
not run again, and its answer says that the call ran.

Each client has a share: it may have as many calls on record as there is room for more. One client
alone takes half of the table, the next one a quarter, and so on, so that there is room for others
however many calls one of them makes. Of a client whose answers take half of the bytes, its own go
first. Nodes have no share: they may do everything in any case.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Generic, TypeVar

import attrs

from actors.errors import KeyReusedError, MailboxFullError
from actors.messages import message
from actors.method import Address, MethodDefinition

R = TypeVar("R")

MOST_CALLS = 100_000
"""Of one table."""

MOST_BYTES = 64 * 1024 * 1024
"""Of the answers in one table."""

MOST_KEY = 255
"""Characters of a key. 100,000 of them, each as long as a message may be, would be 25 GB."""

LEAST_SECONDS = 60.0
"""For this long after its end a call is on record in any case."""

MOST_SECONDS = 24 * 3600.0
"""After this long it is forgotten in any case."""

ANSWER_DROPPED = {
    "type": "AnswerDroppedError",
    "message": "the call with this key was made before and has ended; its answer is not kept any "
    "more, and it is not run again",
}


@message
@attrs.frozen
class PlainOutcome:
    """The outcome of a call as plain data. `outcome`: "value", or that of a `CallError`. `body`:
    the value as CBOR. `error`: the fields of an error; see `described_error`.
    """

    outcome: str
    body: bytes = attrs.field(default=b"", repr=False)
    error: dict[str, object] = attrs.field(factory=dict)


class CallKey(tuple[str, str]):
    """The name of an actor and the key that a client gave to one call of it."""

    __slots__ = ()

    @property
    def life(self) -> str:
        """The key as it enters the identity of the call, see `RequestClient`."""
        return hashlib.sha256("\0".join(self).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def fingerprint(method: str, body: bytes) -> bytes:
    """Return a digest that differs for different requests with one key."""
    return hashlib.sha256(method.encode() + b"\0" + body).digest()


class KeyedCall(Generic[R]):
    """The record of one keyed call. `run`: the owner's object while it runs, None otherwise.
    `called`: the actor and the method, where the owner has to know them later. `client`: whose
    share it counts in; "" for none.
    """

    __slots__ = ("called", "client", "ended_at", "fingerprint", "key", "outcome", "run")

    def __init__(
        self,
        key: CallKey,
        fingerprint: bytes,
        run: R,
        called: tuple[Address, MethodDefinition] | None,
        client: str,
    ) -> None:
        self.key = key
        self.fingerprint = fingerprint
        self.called = called
        self.client = client
        self.run: R | None = run
        self.outcome: PlainOutcome | None = None
        """How it ended; None while it runs for the first time."""
        self.ended_at = 0.0


class _Share(Generic[R]):
    """What one client has on record: how many calls, and of which answers are kept, with how many
    bytes; the oldest first.
    """

    __slots__ = ("answers", "bytes", "calls")

    def __init__(self) -> None:
        self.calls = 0
        self.bytes = 0
        self.answers: dict[CallKey, KeyedCall[R]] = {}


class KeyedCalls(Generic[R]):
    """The keyed calls of one node, or of one gateway."""

    def __init__(
        self,
        *,
        most_calls: int = MOST_CALLS,
        most_bytes: int = MOST_BYTES,
        least_seconds: float = LEAST_SECONDS,
        most_seconds: float = MOST_SECONDS,
    ) -> None:
        self._most_calls = most_calls
        self._most_bytes = most_bytes
        self._least_seconds = least_seconds
        self._most_seconds = most_seconds
        self._calls: dict[CallKey, KeyedCall[R]] = {}
        self._ended: dict[CallKey, KeyedCall[R]] = {}
        """Those that have ended and do not run again, the oldest first."""
        self._answers: dict[CallKey, KeyedCall[R]] = {}
        """Those of which an answer is kept, the oldest first."""
        self._bytes = 0
        self._shares: dict[str, _Share[R]] = {}
        """Of each client that has a share, and calls on record."""

    def __len__(self) -> int:
        return len(self._calls)

    def find(self, key: CallKey, fingerprint: bytes, now: float) -> KeyedCall[R] | None:
        """The call with this key; None if there is none on record. Raises KeyReusedError if its
        request was another one.
        """
        self._forget_old(now)
        call = self._calls.get(key)
        if call is not None and call.fingerprint != fingerprint:
            raise KeyReusedError(
                f"the key {key[1]!r} was used before for another call of {key[0]}: another method "
                "or other arguments. That call stands, and this one was not run; use a new key for "
                "a new call",
                actor=key[0],
            )
        return call

    def begin(
        self,
        key: CallKey,
        fingerprint: bytes,
        run: R,
        now: float,
        called: tuple[Address, MethodDefinition] | None = None,
        client: str = "",
    ) -> KeyedCall[R]:
        """Record a call that is about to run for the first time; `client`: whose share it counts
        in, "" for none. Raises MailboxFullError if there is no room.
        """
        assert key not in self._calls, "a call that is on record does not begin"
        # Each turn forgets one call, so the loop ends; on average it has two turns for a call.
        while not self._has_room(client):
            if not self._evict_one(now):
                raise MailboxFullError(self._full(client), actor=key[0])
        call = self._calls[key] = KeyedCall(key, fingerprint, run, called, client)
        if client:
            self._shares.setdefault(client, _Share()).calls += 1
        return call

    def begin_again(self, call: KeyedCall[R], run: R) -> None:
        """A call whose outcome is unknown runs again, or is looked for elsewhere."""
        assert call.outcome is not None
        assert call.run is None
        call.run = run
        self._ended.pop(call.key, None)

    def on_ended(self, call: KeyedCall[R], outcome: PlainOutcome, now: float) -> None:
        """The call has ended; also after it was given up and its outcome has become known after
        all. One that was not executed is forgotten, unless it may have run before.
        """
        call.run = None
        if self._calls.get(call.key) is not call:
            return
        if outcome.outcome == "not executed":
            if call.outcome is None:
                self._forget(call)
                return
            outcome = call.outcome
        self._drop_answer(call)
        call.outcome = outcome
        call.ended_at = now
        self._ended.pop(call.key, None)
        self._ended[call.key] = call
        self._keep_answer(call)
        self._drop_oldest_answers(call.client)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every record: for tests."""
        assert len(self._calls) <= self._most_calls
        assert self._bytes == sum(
            _size(call.outcome) for call in self._answers.values() if call.outcome is not None
        )
        counts = Counter(call.client for call in self._calls.values() if call.client)
        assert {client: share.calls for client, share in self._shares.items()} == counts
        for client, share in self._shares.items():
            own = {key: call for key, call in self._answers.items() if call.client == client}
            assert list(share.answers) == list(own)
            assert share.bytes == sum(
                _size(call.outcome) for call in own.values() if call.outcome is not None
            )
        for key, call in self._calls.items():
            assert key == call.key
            assert (call.run is None) == (key in self._ended), "a call runs or has ended"
            assert call.run is not None or call.outcome is not None
        assert self._ended.keys() <= self._calls.keys()
        assert self._answers.keys() <= self._calls.keys()

    def _has_room(self, client: str) -> bool:
        free = self._most_calls - len(self._calls)
        return free > 0 and (not client or self._share(client).calls < free)

    def _full(self, client: str) -> str:
        calls, share = f"{len(self._calls)} calls with keys", ""
        if client:
            share = f", {self._share(client).calls} of them of this client, which has its share"
        return (
            f"{calls} are on record here, where {self._most_calls} is the limit{share}; each stays "
            f"for {self._least_seconds:g} s: send fewer, or repeat this one later"
        )

    def _share(self, client: str) -> _Share[R]:
        return self._shares.get(client) or _Share()

    def _drop_oldest_answers(self, client: str) -> None:
        """Drop the oldest answers until the others are within their limit of bytes, after one of
        `client` was added. What is left of a call is that it ran.
        """
        while self._bytes > self._most_bytes and self._answers:
            share = self._share(client)
            # One client's answers must not push all others out.
            own = 2 * share.bytes > self._most_bytes
            oldest = next(iter((share.answers if own else self._answers).values()))
            self._drop_answer(oldest)
            oldest.outcome = PlainOutcome("unknown", error=dict(ANSWER_DROPPED))

    def _evict_one(self, now: float) -> bool:
        oldest = next(iter(self._ended.values()), None)
        if oldest is None or now - oldest.ended_at < self._least_seconds:
            return False
        self._forget(oldest)
        return True

    def _forget_old(self, now: float) -> None:
        # Two for each arrival: more are forgotten than can arrive, and no arrival waits for many.
        for _ in range(2):
            oldest = next(iter(self._ended.values()), None)
            if oldest is None or now - oldest.ended_at < self._most_seconds:
                return
            self._forget(oldest)

    def _forget(self, call: KeyedCall[R]) -> None:
        self._drop_answer(call)
        self._ended.pop(call.key, None)
        del self._calls[call.key]
        if call.client:
            share = self._shares[call.client]
            share.calls -= 1
            if not share.calls:
                # Clients come and go.
                del self._shares[call.client]

    def _keep_answer(self, call: KeyedCall[R]) -> None:
        assert call.outcome is not None
        self._answers[call.key] = call
        self._bytes += _size(call.outcome)
        if call.client:
            self._shares[call.client].answers[call.key] = call
            self._shares[call.client].bytes += _size(call.outcome)

    def _drop_answer(self, call: KeyedCall[R]) -> None:
        if self._answers.pop(call.key, None) is None or call.outcome is None:
            return
        self._bytes -= _size(call.outcome)
        if call.client:
            del self._shares[call.client].answers[call.key]
            self._shares[call.client].bytes -= _size(call.outcome)


def _size(outcome: PlainOutcome) -> int:
    # What is said of an error is bounded where it is described.
    return len(outcome.body) + len(repr(outcome.error)) if outcome.error else len(outcome.body)
