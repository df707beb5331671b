"""Classes of actors whose metaclass, descriptors, `__new__` or names are hostile: the spawn says
what is wrong, or works, and nothing that they raise reaches more.
"""

from __future__ import annotations

from typing import Any

import pytest

from actors import Actor, method
from actors.errors import ActorClassError, ActorStartError, SpawnManyError, UnderstudyError
from tests.live_pair import Pair

ARMED: list[bool] = []


@pytest.fixture(autouse=True)
def disarmed() -> Any:
    """The classes raise from within the test on only: they must be made, and found by pytest."""
    yield
    ARMED.clear()


class Plain(Actor):
    """The base of the others."""

    @method
    async def ping(self) -> str:
        return "pong"


class Booby(type):
    """Raises SystemExit for the attributes that a class lists as traps."""

    def __getattribute__(cls, name: str) -> Any:
        if ARMED and name in type.__getattribute__(cls, "traps"):
            raise SystemExit(f"the trap {name}")
        return super().__getattribute__(name)


class TrappedName(Plain, metaclass=Booby):
    """Its names cannot be read."""

    traps = ("__name__", "__qualname__", "__module__")


class TrappedDict(Plain, metaclass=Booby):
    """What it has cannot be read."""

    traps = ("__dict__", "__init__")


class TrappedMethods(Plain, metaclass=Booby):
    """What the runtime keeps of it cannot be read."""

    traps = ("__methods__", "supervises", "handles_exits")


class Trap:
    """A descriptor that raises."""

    def __get__(self, instance: object, owner: type) -> object:
        if ARMED:
            raise SystemExit("the trap of a descriptor")
        return Actor.on_start


class TrappedHook(Plain):
    """A hook that cannot be read."""

    on_start: Any = Trap()


async def spawned(pair: Pair, how: str, where: str, cls: type[Plain]) -> Plain:
    # The node that calls it is a candidate for the singleton, and may not be another one than `on`.
    node = pair.there if how == "singleton" and where == "there" else pair.here
    options = node.options(on=where, name=f"{where} {how}")
    if how == "spawn_many":
        return (await pair.here.options(on=where).spawn_many(cls, [()]))[0]
    spawn: Any = getattr(options, how)
    handle: Plain = await spawn(cls)
    return handle


@pytest.mark.parametrize("how", ["spawn", "get_or_spawn", "singleton", "spawn_many"])
async def test_names_of_classes_are_read_without_their_metaclass(
    pair: Pair, where: str, how: str
) -> None:
    ARMED.append(True)
    handle = await spawned(pair, how, where, TrappedName)
    assert await handle.ping() == "pong"


@pytest.mark.parametrize("how", ["spawn", "get_or_spawn", "singleton", "spawn_many"])
@pytest.mark.parametrize("cls", [TrappedDict, TrappedMethods, TrappedHook])
async def test_a_class_that_cannot_be_read_is_refused_with_a_sentence(
    pair: Pair, where: str, how: str, cls: type[Plain]
) -> None:
    ARMED.append(True)
    with pytest.raises(
        ActorClassError, match=r"^Trapped\w+ was not started: reading an attribute .* SystemExit: "
    ):
        await spawned(pair, how, where, cls)


class NotMade(Plain):
    """Its `__new__` returns what the test says."""

    made: Any = None

    def __new__(cls) -> Any:
        return cls.made


@pytest.mark.parametrize(
    ("isolation", "made"),
    # A process of its own has the class as it is written.
    [("process", None), ("none", None), ("none", 5), ("none", object()), ("none", Plain())],
    ids=["process", "None", "5", "object", "Plain"],
)
async def test_what_new_returns_must_be_an_instance_of_the_class(
    pair: Pair, where: str, isolation: Any, made: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NotMade, "made", made)
    with pytest.raises(
        ActorStartError,
        match=rf"TypeError: NotMade\.__new__ returned an object of class {type(made).__name__}, "
        r"which is no instance of NotMade; return super\(\)\.__new__\(cls\)",
    ):
        await pair.here.options(on=where, isolation=isolation).spawn(NotMade)


class AlwaysTheSame(Plain):
    """Its `__new__` returns one instance for all."""

    one: Any = None

    def __new__(cls) -> Any:
        if cls.one is None:
            cls.one = super().__new__(cls)
        return cls.one


async def test_one_instance_is_one_actor(
    pair: Pair, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AlwaysTheSame, "one", None)
    first = await pair.here.options(on=where).spawn(AlwaysTheSame)
    with pytest.raises(ActorStartError, match="returned an instance that is an actor already"):
        await pair.here.options(on=where).spawn(AlwaysTheSame)
    assert await first.ping() == "pong"


class Loud(Plain):
    """Its name is no text for a terminal."""


Loud.__name__ = "red\x1b[31m\n" + 200 * "x"


async def test_a_generated_name_has_no_control_characters_of_its_class(
    pair: Pair, where: str
) -> None:
    handle = await pair.here.options(on=where).spawn(Loud)
    name: str = handle.name
    assert name.startswith(r"red\x1b[31m\nxxx")
    assert name.isprintable()
    assert len(name) < 150


async def test_a_group_of_errors_of_a_hostile_class_is_one_error(pair: Pair) -> None:
    with pytest.raises(SpawnManyError, match="2 of 2 actors of class NotMade did not start") as all:
        await pair.here.spawn_many(NotMade, [(), ()])
    assert all.value.errors.keys() == {0, 1}
    assert isinstance(all.value, UnderstudyError)
