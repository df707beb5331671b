"""`help()` of what users call says everything: no docstring of the public face only refers to
another one, and each option has its line.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import get_type_hints

import pytest

from actors import CallOptions, RetryPolicy, SpawnOptions, method
from actors.actor import NodeInterface, Spawner
from actors.documentation import documented_as
from actors.groups import Group
from actors.handle import Handle
from actors.method import BoundMethod, BoundStream, Marked, Method
from actors.options import CallChanges, SpawnChanges
from actors.pools import MapChanges, PoolInterface
from actors.reference import Reference
from runtime import Node, aio, blocking, open_local_cluster, open_node
from runtime.doors.asyncio_pools import AioPool
from runtime.pools.pool import Pool
from runtime.testing import VirtualCluster
from tests.documentation.test_reading import MEAN_WORDS, MOST_WORDS, RETIRED, sentences, words

MODULES = (
    "actors",
    "actors.errors",
    "runtime",
    "runtime.blocking",
    "runtime.aio",
    "runtime.testing",
    "runtime.simulation",
)

BEYOND = (NodeInterface, Spawner, Group, BoundMethod, BoundStream, Method, PoolInterface)
"""What users hold without having imported it, beside the exported names."""

OURS = ("actors", "runtime")
ONLY_REFERS = re.compile(r"\s*(?:[Ss]ee|As) `[^`]*`[^.;]*\.?\s*\Z|\s*See\b")


def members(cls: type) -> Iterator[tuple[str, object]]:
    """The public functions and properties of a class and its bases, unwrapped."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] not in OURS:
            continue
        for name, value in vars(base).items():
            function = value.definition.function if isinstance(value, Marked) else value
            if isinstance(function, classmethod | staticmethod):
                function = function.__func__
            if not name.startswith("_") and (
                inspect.isfunction(function) or type(value) is property
            ):
                yield f"{base.__name__}.{name}", function


def public_face() -> dict[str, object]:
    """Everything that has a docstring which users may read, by its name."""
    found: dict[str, object] = {}
    for cls in (*BEYOND, Pool, Reference, Handle):
        found |= dict(members(cls)) | {cls.__name__: cls}
    for place in MODULES:
        module = importlib.import_module(place)
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            ours = getattr(value, "__module__", "") or ""
            if name.startswith("_") or str(ours).partition(".")[0] not in OURS:
                continue
            if inspect.isclass(value):
                found |= dict(members(value))
            if inspect.isclass(value) or inspect.isfunction(value):
                found[f"{place}.{name}"] = value
    return found


FACE = public_face()


def test_no_public_docstring_only_refers_to_another() -> None:
    assert len(FACE) > 400
    assert [name for name, value in FACE.items() if not value.__doc__] == []
    assert [name for name, value in FACE.items() if ONLY_REFERS.match(value.__doc__ or "")] == []


def test_the_sentences_of_public_docstrings_are_short_and_have_no_retired_word() -> None:
    texts = {name: inspect.getdoc(value) or "" for name, value in FACE.items()}
    long = [
        (name, one)
        for name, text in texts.items()
        for one in sentences(text)
        if words(one) > MOST_WORDS
    ]
    assert long == []
    whole = [words(one) for text in texts.values() for one in sentences(text) if one.endswith(".")]
    assert sum(whole) <= MEAN_WORDS * len(whole)
    assert [name for name, text in texts.items() if RETIRED.search(text)] == []


def test_what_only_refers_is_known_as_such() -> None:
    for text in ("See `Spawner.spawn`.", "See `x`; always True.", "As `Node.lookup`."):
        assert ONLY_REFERS.match(text)
    assert not ONLY_REFERS.match("Return the handle; see `Node.lookup`.")


SPAWNING = tuple(get_type_hints(SpawnChanges))
CALLING = tuple(get_type_hints(CallChanges))
MAPPING = tuple(get_type_hints(MapChanges))
POOLING = ("size", "per_node", "min", "max", "kwargs")


def parameters(function: Callable[..., object]) -> tuple[str, ...]:
    """The names of its optional parameters."""
    found = inspect.signature(function).parameters.values()
    return tuple(each.name for each in found if each.kind is each.KEYWORD_ONLY)


@pytest.mark.parametrize(
    ("documented", "options"),
    [
        (open_node, ("name", *parameters(open_node))),
        (open_local_cluster, ("nodes", *parameters(open_local_cluster))),
        (blocking.connect, parameters(blocking.connect)),
        (aio.connect, parameters(aio.connect)),
        (blocking.open_local_cluster, ("nodes", *parameters(blocking.open_local_cluster))),
        (aio.open_local_cluster, ("nodes", *parameters(aio.open_local_cluster))),
        (Node.options, SPAWNING),
        (blocking.BlockingCluster.options, SPAWNING),
        (aio.AioCluster.options, SPAWNING),
        (VirtualCluster.options, SPAWNING),
        (SpawnOptions, SPAWNING),
        (CallOptions, CALLING),
        (BoundMethod.options, CALLING),
        (Group.options, CALLING),
        (Handle.options, CALLING),
        (RetryPolicy, parameters(RetryPolicy)),
        (NodeInterface.pool, POOLING),
        (Node.pool, POOLING),
        (blocking.BlockingCluster.pool, POOLING),
        (aio.AioCluster.pool, POOLING),
        (PoolInterface.map, MAPPING),
        (Pool.map, MAPPING),
        (blocking.BlockingPool.map, MAPPING),
        (AioPool.map, MAPPING),
        (method, (*CALLING, "idempotent", "concurrent", "reentrant", "http", "allow")),
    ],
)
def test_each_option_has_its_line(documented: object, options: tuple[str, ...]) -> None:
    text = inspect.getdoc(documented) or ""
    assert sorted(re.findall(r"^- `(\w+)`: ", text, re.MULTILINE)) == sorted(options)


def test_a_shared_text_follows_what_is_particular() -> None:
    def spawn() -> None:
        """Start an actor there."""

    def other() -> None: ...

    text = inspect.getdoc(Spawner.spawn)
    assert inspect.getdoc(documented_as(Spawner.spawn)(spawn)) == f"Start an actor there.\n\n{text}"
    assert inspect.getdoc(documented_as(Spawner.spawn)(other)) == text
