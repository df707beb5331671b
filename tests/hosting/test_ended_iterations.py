"""`StopIteration` and `StopAsyncIteration` that come out of a method: the caller learns where."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import trio

from actors import Actor
from actors.errors import RemoteError
from runtime import open_node
from tests.hosting import iterations_used as used
from tests.live_pair import Pair

KINDS = {
    "look": "StopIteration with the value 3",
    "look_in_thread": "StopIteration with the value 3",
    "look_beside": "StopIteration with the value 3",
    "look_in_thread_beside": "StopIteration with the value 3",
    "all": "StopIteration with the value 3",
    "all_later": "StopAsyncIteration",
}


async def _error_of(actor: Any, name: str) -> RemoteError:
    with trio.fail_after(60), pytest.raises(RemoteError) as caught:
        await _ask(actor, name)
    return caught.value


async def _ask(actor: Any, name: str) -> None:
    if name.startswith("all"):
        async for item in getattr(actor, name)():
            assert item == 1
    else:
        await getattr(actor, name)()


def _is_clear(error: RemoteError, what: str, kind: str, function: str) -> None:
    text = str(error)
    assert text.startswith(f"{what} raised {kind} at "), text
    assert f"iterations_used.py:{_line_of(function)}, in {function}: " in text
    step = "anext" if "Async" in kind else "next"
    assert f" Use {step}(iterator, default)" in text
    assert isinstance(error, RuntimeError)
    assert not isinstance(error, StopIteration | StopAsyncIteration)
    # Where it has come from is in the traceback.
    assert kind.partition(" ")[0] in error.remote_traceback


def _line_of(method: str) -> int:
    """The line at which the method of `Shelf` raises."""
    lines = inspect.getsource(used).splitlines()
    begin = next(at for at, line in enumerate(lines) if f"def {method}(" in line)
    return next(at for at in range(begin, len(lines)) if "next(" in lines[at]) + 1


@pytest.mark.parametrize("name", KINDS)
async def test_the_text_names_method_line_and_value(pair: Pair, where: str, name: str) -> None:
    shelf = await pair.here.options(on=where).spawn(used.Shelf)
    error = await _error_of(shelf, name)
    _is_clear(error, f"Shelf.{name}", KINDS[name], name)
    assert error.method == name


async def test_results_that_are_fetched_later_say_it_too(pair: Pair, where: str) -> None:
    shelf = await pair.here.options(on=where).spawn(used.Shelf)
    result = await shelf.look.remote()
    with trio.fail_after(60), pytest.raises(RemoteError, match="raised StopIteration") as caught:
        await result.fetch()
    _is_clear(caught.value, "Shelf.look", KINDS["look"], "look")


async def test_an_error_of_the_users_with_such_a_text_stays_as_it_is(
    pair: Pair, where: str
) -> None:
    shelf = await pair.here.options(on=where).spawn(used.Shelf)
    assert str(await _error_of(shelf, "own")) == "coroutine raised StopIteration"


@pytest.mark.parametrize("name", ["look", "all"])
async def test_actors_under_asyncio_say_it_too(pair: Pair, name: str) -> None:
    shelf = await pair.here.spawn(used.AsyncioShelf)
    text = str(await _error_of(shelf, name))
    assert text.startswith(f"AsyncioShelf.{name} raised StopIteration with the value 3 at ")
    assert f"in {name}: " in text


@pytest.mark.cluster
async def test_isolated_actors_and_functions_say_it_too() -> None:
    async with open_node("alone", secret="a secret of these tests") as node:
        shelf: Actor = await node.options(isolation="process").spawn(used.Shelf)
        for name in ("look", "look_in_thread", "all"):
            _is_clear(await _error_of(shelf, name), f"Shelf.{name}", KINDS[name], name)
        for function in (used.look, used.look_in_thread):
            with trio.fail_after(60), pytest.raises(RemoteError) as caught:
                await node.run(function)
            path = f"tests.hosting.iterations_used:{function.__name__}"
            kind = "StopIteration with the value 3"
            assert str(caught.value).startswith(f"{path} raised {kind} at "), str(caught.value)
