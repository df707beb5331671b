"""`open_node(authorize=...)` judges every call of an actor on its node, however it is made and
travels; and a batch of items gives no right that its items have not.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import attrs
import cbor2
import pytest
import trio

from actors import Actor, Call, RetryPolicy, method
from actors.errors import NotAllowedError, RemoteError
from actors.method import Address, BoundMethod
from actors.options import NO_CALL_OPTIONS
from runtime import open_node
from runtime.calls.rights import PLAIN_SERVICE
from runtime.hosting.item_batches import BATCH_METHODS, JUDGED_AT_ONCE
from runtime.hosting.loop_watch import remedy, running_code
from runtime.node import Node, internals_of
from runtime.plain_calls.service import PlainCallService, PlainTarget
from tests.authority import Authority
from tests.live_pair import SECRET
from tests.node.test_false_sessions import raw
from tests.node.test_roles import Vault, client, vault_on_node


class Ledger(Actor):
    """Notes what has run."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    @method
    async def count(self) -> int:
        return len(self.entries)

    @method(http=True)
    async def note(self, text: str) -> str:
        self.entries.append(text)
        return text

    @method(http=True, idempotent=True)
    async def note_again(self, text: str) -> str:
        self.entries.append(text)
        return text

    @method(concurrent=True)
    async def note_beside(self, text: str) -> str:
        self.entries.append(text)
        return text

    @method
    def note_in_thread(self, text: str) -> str:
        self.entries.append(text)
        return text

    @method(http=True)
    async def notes(self, text: str) -> AsyncIterator[str]:
        self.entries.append(text)
        yield text


class Asker(Actor):
    """Calls another actor from its methods."""

    @method
    async def ask(self, ledger: Ledger, text: str) -> str:
        return await ledger.note(text)


class IsolatedAsker(Asker):
    """The same in a process of its own."""


@attrs.frozen
class Caller:
    """Where a call is made; and the node of the actor, which judges it."""

    node: Node
    owner: Node
    ledger: Ledger


Route = Callable[[Caller, str], Awaitable[object]]


async def repeated(caller: Caller, text: str) -> object:
    retry = RetryPolicy(max_retries=3, repeat_unknown=True)
    return await caller.ledger.note.options(retry=retry)(text)


async def first_item(caller: Caller, text: str) -> object:
    return await anext(caller.ledger.notes(text))


async def one_way(caller: Caller, text: str) -> object:
    await caller.ledger.note.send(text)
    # In order behind it.
    ran = await caller.ledger.note("fine")
    assert ran == "fine"
    return text


async def kept(caller: Caller, text: str) -> object:
    return await (await caller.ledger.note.remote(text)).fetch()


async def kept_again(caller: Caller, text: str) -> object:
    return await (await caller.ledger.note_again.remote(text)).fetch()


async def batch(caller: Caller, text: str) -> object:
    _, outcomes = await items_of(caller)("note", "key", [[text]])
    return outcomes[0][1]


async def batch_in_thread(caller: Caller, text: str) -> object:
    _, outcomes = await items_of(caller)("note_in_thread", "key", [["fine"], [text]])
    return outcomes[1][1]


def items_of(caller: Caller) -> Any:
    """The method of batches, as pools call it."""
    return BoundMethod[..., Any](
        internals_of(caller.node).endpoint.caller,
        Address("ledger", caller.owner.name, caller.owner.incarnation),
        BATCH_METHODS["@items"],
        NO_CALL_OPTIONS,
    )


async def by_actor(caller: Caller, text: str) -> object:
    asker = await caller.node.options(name="asker").get_or_spawn(Asker)
    return await _unwrapped(asker.ask(caller.ledger, text))


async def by_process(caller: Caller, text: str) -> object:
    asker = await caller.node.options(name="apart", isolation="process").get_or_spawn(IsolatedAsker)
    return await _unwrapped(asker.ask(caller.ledger, text))


async def _unwrapped(call: Awaitable[object]) -> object:
    try:
        return await call
    except RemoteError as error:
        told = str(error)
        if "NotAllowedError" not in told:
            raise
        raise NotAllowedError("as the actor was told") from error


def plain(called: str, *, key: str = "", stream: bool = False) -> Route:
    async def route(caller: Caller, text: str) -> object:
        service: Any = internals_of(caller.node).endpoint.system_handle(
            PlainCallService, PLAIN_SERVICE, caller.owner.name, caller.owner.incarnation
        )
        target, body = PlainTarget("ledger", 0, called, True), cbor2.dumps({"text": text})
        if stream:
            answer = await anext(service.stream(target, body, None))
        elif key:
            answer = await service.call_keyed(target, body, None, f"{key} {text}", False)
        else:
            answer = await service.call(target, body, None)
        if answer.error:
            assert answer.error["type"] == "NotAllowedError", answer.error
            raise NotAllowedError("as the service says")
        return cbor2.loads(answer.body)

    return route


ROUTES: dict[str, Route] = {
    "call": lambda caller, text: caller.ledger.note(text),
    "by keyword": lambda caller, text: caller.ledger.note(text=text),
    "repeatable": repeated,
    "idempotent": lambda caller, text: caller.ledger.note_again(text),
    "concurrent": lambda caller, text: caller.ledger.note_beside(text),
    "in a thread": lambda caller, text: caller.ledger.note_in_thread(text),
    "stream": first_item,
    "one way": one_way,
    "reference": kept,
    "idempotent reference": kept_again,
    "batch": batch,
    "batch in a thread": batch_in_thread,
    "by an actor": by_actor,
    "by an isolated actor": by_process,
    "gateway": plain("note"),
    "gateway with a key": plain("note", key="key"),
    "gateway, stream": plain("notes", stream=True),
}


@pytest.mark.parametrize("where", ["own node", "another node"])
async def test_every_way_of_a_call_is_judged(where: str) -> None:
    asked: list[str] = []

    def authorize(call: Call) -> bool:
        assert not call.method.startswith("@"), "how calls travel is not the application's matter"
        text = (*call.args, *call.kwargs.values())[-1]
        asked.append(str(text))
        return text != "bad"

    async with (
        open_node("here", secret=SECRET, authorize=authorize) as here,
        open_node("there", secret=SECRET, join=here.address) as there,
    ):
        await here.options(name="ledger").spawn(Ledger)
        node = here if where == "own node" else there
        caller = Caller(node, here, await node.lookup("ledger", Ledger))
        entries = internals_of(here).cells["ledger"].instance.entries  # type: ignore[attr-defined]
        for name, route in ROUTES.items():
            asked.clear()
            assert await route(caller, "good") == "good", name
            assert asked.count("good") >= 1, name
            assert entries[-1] in ("good", "fine"), name
            entries.clear()
            if route is one_way:
                await route(caller, "bad")
            else:
                with pytest.raises(NotAllowedError):
                    await route(caller, "bad")
            assert "bad" in asked, name
            assert "bad" not in entries, name


async def test_items_of_a_map_are_judged_one_by_one() -> None:
    def authorize(call: Call) -> bool:
        return not call.method.startswith("note") or call.args[0] not in ("3", "7")

    async with open_node("here", secret=SECRET, authorize=authorize) as here:
        pool = await here.pool("ledgers", Ledger, size=2)
        for called in (Ledger.note, Ledger.note_in_thread, Ledger.note_again):
            bound: Any = called
            name = bound.definition.name
            results = pool.map(bound, map(str, range(10)), on_error="return", batch=5)
            found = [one async for one in results]
            refused = [place for place, one in enumerate(found) if isinstance(one, NotAllowedError)]
            assert refused == [3, 7]
            assert all(f".{name}: authorize" in str(found[place]) for place in refused)
            assert found[:3] == ["0", "1", "2"]


@pytest.mark.parametrize("called", ["note", "note_in_thread"])
@pytest.mark.parametrize("isolation", ["none", "process"])
async def test_the_items_of_a_large_batch_are_judged_in_parts(
    called: str, isolation: Literal["none", "process"]
) -> None:
    turn, asked = 0, Counter[int]()

    def authorize(call: Call) -> bool:
        if call.method == called:
            asked[turn] += 1
        return call.args[:1] != ("bad",)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await trio.lowlevel.checkpoint()

    rows = [[str(number)] for number in range(5 * JUDGED_AT_ONCE)]
    async with (
        open_node("here", secret=SECRET, authorize=authorize) as here,
        trio.open_nursery() as nursery,
    ):
        ledger = await here.options(name="ledger", isolation=isolation).spawn(Ledger)
        items = items_of(Caller(here, here, ledger))
        nursery.start_soon(count_turns)
        _, outcomes = await items(called, "key", rows)
        assert [value for _, value in outcomes] == [text for (text,) in rows]
        assert sum(asked.values()) == len(rows), "each once"
        assert max(asked.values()) <= 2 * JUDGED_AT_ONCE, "others have their turn meanwhile"
        with pytest.raises(NotAllowedError, match=f"call ledger.{called}: authorize did not"):
            await items(called, "another key", [*rows, ["bad"]])
        # Nothing of it has run.
        assert await ledger.count() == len(rows)
        nursery.cancel_scope.cancel()


async def test_an_authorize_that_blocks_the_loop_is_reported_by_its_name() -> None:
    seen: list[tuple[str, str]] = []

    def authorize(call: Call) -> bool:
        frame = sys._getframe()
        who, _ = running_code(frame)
        seen.append((who, remedy(frame, who)))
        return True

    async with open_node("here", secret=SECRET, authorize=authorize) as here:
        ledger = await here.options(name="ledger").spawn(Ledger)
        await ledger.note("text")
    who, advice = seen[-1]
    assert who.startswith("authorize, asked about ledger.note (")
    assert "authorize" in advice


@pytest.mark.parametrize("role", ["client", "observer"])
async def test_a_batch_gives_no_right_that_its_items_have_not(
    authority: Authority, no_secret: None, role: str
) -> None:
    def authorize(call: Call) -> bool:
        return call.method != "look"

    async with (
        vault_on_node(authority, authorize=authorize) as (node, _),
        client(authority, node, role) as peer,
    ):
        items: Any = raw(peer, node, "vault", "@items")
        words = ("method", "batch", "rows")
        for called, split in itertools.product(("open", "melt", "look"), range(4)):
            values: list[Any] = [called, "key", [[]]]
            named = dict(zip(words[split:], values[split:], strict=True))
            with pytest.raises(NotAllowedError):
                await items(*values[:split], **named)
        mistakes: tuple[tuple[Any, ...], ...] = (
            (),
            ("look",),
            ("look", "key", [5]),
            ("look", "key", [[]], 1),
            (5, "key", []),
        )
        for wrong in mistakes:
            with pytest.raises(Exception, match=r"arguments|@method|may not|items|fit"):
                await items(*wrong)
        plain_calls: Any = peer.endpoint.system_handle(
            PlainCallService, PLAIN_SERVICE, "here", node.incarnation
        )
        if role == "client":
            body = cbor2.dumps({"method": "open", "batch": "key", "rows": [[]]})
            target = PlainTarget("vault", 0, "@items", True)
            assert (await plain_calls.call(target, body, None)).error
            assert (await plain_calls.call_keyed(target, body, None, "key", False)).error
        instance: Any = internals_of(node).cells["vault"].instance
        assert isinstance(instance, Vault)
        assert instance.opened == []


@pytest.mark.parametrize("answer", [1, "yes", None, [True], object()])
async def test_only_true_allows(answer: object) -> None:
    def wrong(call: Call) -> Any:
        return answer

    async with open_node("here", secret=SECRET, authorize=wrong) as here:
        ledger = await here.spawn(Ledger)
        with pytest.raises(NotAllowedError, match="did not return True"):
            await ledger.note("text")


async def test_a_repeat_with_a_key_is_judged_by_the_rules_of_now() -> None:
    allowed = True

    async with open_node(
        "here", secret=SECRET, authorize=lambda call: call.actor != "ledger" or allowed
    ) as here:
        caller = Caller(here, here, await here.options(name="ledger").spawn(Ledger))
        repeat, other = plain("note", key="key"), plain("note", key="another key")
        assert await repeat(caller, "text") == "text"
        allowed = False
        with pytest.raises(AssertionError, match="OutcomeUnknownError"):
            await repeat(caller, "text")
        with pytest.raises(NotAllowedError):
            await other(caller, "text")
