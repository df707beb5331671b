"""Names that belong to the runtime: an actor neither sets nor hides them, and its hooks take what
the runtime passes.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import attrs
import pytest

from actors import Actor, Supervisor, method
from actors.keywords import unknown_keyword
from actors.supervision import ExitReason

FACTS = ["name", "node", "address", "epoch", "handle", "nursery"]


@pytest.mark.parametrize("name", FACTS)
def test_a_constructor_that_sets_what_the_runtime_says_names_the_attribute(name: str) -> None:
    class Room(Actor):
        def __init__(self) -> None:
            setattr(self, name, "lobby")

    with pytest.raises(AttributeError, match=rf"Room\.{name} belongs to the runtime"):
        Room()


@pytest.mark.parametrize("name", FACTS)
def test_a_class_that_hides_what_the_runtime_says_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=rf"Room\.{name}: this name belongs to the runtime"):
        type("Room", (Actor,), {name: "lobby"})


def test_a_field_of_such_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Room\.name: this name belongs to the runtime"):

        @attrs.define
        class Room(Actor):  # pyright: ignore[reportUnusedClass]
            name: str  # pyright: ignore[reportIncompatibleVariableOverride]


@pytest.mark.parametrize("name", ["on_stop", "on_ended"])
def test_a_hook_without_the_parameter_that_the_runtime_passes_is_refused(name: str) -> None:
    async def hook(self: Actor) -> None: ...

    with pytest.raises(TypeError, match=rf"Room\.{name} must take self, (reason|notice)"):
        type("Room", (Actor,), {name: hook})


def test_a_hook_with_a_parameter_that_the_runtime_does_not_pass_is_refused() -> None:
    async def on_start(self: Actor, size: int) -> None: ...

    with pytest.raises(TypeError, match=r"Room\.on_start must take self: the runtime"):
        type("Room", (Actor,), {"on_start": on_start})


def test_hooks_that_can_be_called_are_accepted_in_every_form() -> None:
    def adding(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def hook(self: object, reason: ExitReason) -> None:
            await function(self)

        return hook

    class Room(Actor):
        def on_start(self, size: int = 3) -> None:
            pass

        @adding
        async def on_stop(self) -> None:
            pass

        async def on_ended(self, *args: object, **kwargs: object) -> None:
            pass

    assert Room()


@pytest.mark.parametrize("name", ["on_start", "on_stop", "on_ended", "on_inspect"])
@pytest.mark.parametrize("base", [Actor, Supervisor])
def test_a_hook_that_is_a_generator_is_refused(name: str, base: type[Actor]) -> None:
    async def stream(self: Actor, *given: object) -> AsyncIterator[int]:
        yield 1

    def items(self: Actor, *given: object) -> Iterator[int]:
        yield 1

    for hook in (stream, items):
        with pytest.raises(TypeError, match=rf"Room\.{name} is a generator, because it has a `yi"):
            type("Room", (base,), {name: hook})


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("on_started", "on_start"),
        ("on_startup", "on_start"),
        ("onStart", "on_start"),
        ("_on_start", "on_start"),
        ("on_stopped", "on_stop"),
        ("on_shutdown", "on_stop"),
        ("on_end", "on_ended"),
        ("on_inspected", "on_inspect"),
    ],
)
def test_a_method_that_looks_like_a_hook_and_is_none_is_warned_of_where_it_is_defined(
    name: str, hook: str
) -> None:
    async def never_called(self: Actor) -> None: ...

    with pytest.warns(UserWarning, match=rf"Room\.{name} is never .*: the hook is {hook};") as seen:
        type("Room", (Actor,), {name: never_called})
    assert [one.filename for one in seen] == [__file__]


@pytest.mark.filterwarnings("error")
def test_names_of_ones_own_are_not_taken_for_hooks() -> None:
    class Listener:
        def on_shutdown(self) -> None: ...

    class Room(Actor, Listener):
        on_end = 3

        async def on_start(self) -> None:
            await self.on_started()

        async def on_started(self) -> None: ...

        def on_step(self) -> None: ...

        def on_store(self) -> None: ...

        def on_message(self) -> None: ...

        def on_shutdown(self) -> None: ...

        @method
        async def on_stopped(self) -> None: ...

    assert Room()


def test_options_of_a_class_say_that_the_node_takes_those_of_a_new_actor() -> None:
    cls: Any = Actor
    with pytest.raises(TypeError, match=r"node\.options\(name=\.\.\.\)\.spawn\(MyActor"):
        cls.options(name="c")


def test_a_keyword_of_another_library_is_answered_with_what_to_write() -> None:
    error = unknown_keyword("options(...)", "num_gpus", ["name", "resources"])
    assert 'write resources={"gpus": ...}' in str(error)
    error = unknown_keyword("options(...)", "args", ["name", "resources"])
    assert "arguments follow the class, as in spawn(Counter, 10)" in str(error)
