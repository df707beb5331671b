"""Classes of actors that cannot work are refused where they are written, with what to write."""

from __future__ import annotations

import abc
import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from actors import Actor, ChildSpec, SpawnOptions, method
from runtime import open_node


def logged(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    async def inner(*args: Any) -> Any:
        return await function(*args)

    return inner


def twice_logged(function: Callable[..., Any]) -> Any:
    return logged(logged(function))


@pytest.mark.parametrize("above", [staticmethod, classmethod, property, logged, twice_logged])
def test_a_decorator_above_the_mark_is_refused(above: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"Shop\.sell: a decorator above @method hides the mark"):

        class Shop(Actor):
            @above
            @method
            async def sell(self) -> None: ...


def test_a_decorator_above_the_mark_is_refused_in_a_mixin() -> None:
    class Sells:
        @logged
        @method
        async def sell(self) -> None: ...

    with pytest.raises(TypeError, match=r"Sells\.sell: a decorator above @method"):

        class Shop(Sells, Actor):
            pass


def test_decorators_below_the_mark_and_beside_it_are_the_users() -> None:
    class Endless:
        """It wraps itself."""

        def __init__(self) -> None:
            self.__wrapped__ = self

    class Shop(Actor):
        endless = Endless()

        @method
        @logged
        async def sell(self) -> None: ...

        @logged
        async def inside(self) -> None: ...

    assert list(Shop.__methods__) == ["sell"]


@pytest.mark.parametrize(
    ("decorator", "text"),
    [
        (staticmethod, r"sell is a staticmethod, which has no actor; take away @staticmethod"),
        (classmethod, r"sell is a classmethod, which has no actor; take away @classmethod"),
        (property, "take away @property"),
    ],
)
def test_the_mark_above_what_has_no_actor(decorator: Callable[..., Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):

        class Shop(Actor):
            @method
            @decorator
            def sell(self) -> None: ...


def test_the_mark_above_a_method_without_self() -> None:
    with pytest.raises(TypeError, match=r"sell takes no `self`.* write `self` as its first param"):

        class Shop(Actor):
            @method  # type: ignore[arg-type]
            async def sell() -> None: ...

    class Packed(Actor):
        @method
        async def sell(*arguments: object) -> int:
            return len(arguments)

    assert list(Packed.__methods__) == ["sell"]


@pytest.mark.parametrize("marked_first", [True, False])
def test_a_class_with_an_abstract_method_is_abstract(*, marked_first: bool) -> None:
    def sell(self: Any) -> None: ...

    marked = abc.abstractmethod(method(sell)) if marked_first else method(abc.abstractmethod(sell))
    kind = abc.ABCMeta("Shop", (Actor,), {"sell": marked})
    with pytest.raises(TypeError, match="abstract"):
        kind()
    assert abc.ABCMeta("Bakery", (kind,), {"sell": method(lambda self: None)})()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"isolation": "proces"}, "isolation must be one of 'none', 'process', not 'proces'"),
        ({"placement": "middle"}, "placement must be one of 'spread', 'pack', not 'middle'"),
        ({"mailbox_limit": "10"}, "mailbox_limit must be a whole number, not '10'"),
        ({"mailbox_limit": 0}, "mailbox_limit must be at least 1, not 0"),
        ({"idempotent": 1}, "idempotent must be True or False, not 1"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_line(changes: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        SpawnOptions(**changes)
    assert str(caught.value) == text


def test_a_spec_whose_options_are_none() -> None:
    given: Any = {"name": "shop"}
    with pytest.raises(TypeError) as caught:
        ChildSpec(id="shop", actor=Actor, options=given)
    assert str(caught.value).startswith("options must be SpawnOptions")


async def test_what_belongs_to_a_process_is_copied_as_itself_and_not_pickled() -> None:
    class Shop(Actor):
        @method
        async def sell(self) -> int:
            return 1

    async with open_node() as node:
        shop = await node.spawn(Shop)
        reference = await shop.sell.remote()
        for bound, text in (
            (shop, "pass it in a call, or pass its name"),
            (shop.sell, "connect to the cluster in the other process"),
            (reference, "fetch its value"),
            (node, "connect to the cluster"),
        ):
            found = copy.deepcopy({"it": [bound]})
            assert found["it"][0] is bound
            assert copy.copy(bound) is bound
            with pytest.raises(TypeError, match=text):
                pickle.dumps({"it": [bound]})
