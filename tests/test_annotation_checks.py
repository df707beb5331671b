"""What services are told is checked against their annotations: a peer may say anything, and it goes
on to what serves the whole node.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import attrs
import pytest

from actors import Actor, SpawnOptions
from actors.messages import message_type
from actors.method import Address
from actors.supervision import ExitReason
from runtime.annotation_checks import ArgumentTypes, check_arguments, check_of, fits_answer
from runtime.hosting.node_service import NodeService
from runtime.isolation.child import ControlService, StackService
from runtime.isolation.node_api import IsolationService
from runtime.membership.remote_store import StoreService
from runtime.references.service import ReferenceService
from runtime.store.interface import Compare, Delete, Put
from runtime.watching.watcher import WatchingService

SERVICES: list[type[Actor]] = [
    NodeService,
    WatchingService,
    ReferenceService,
    IsolationService,
    StoreService,
    ControlService,
    StackService,
]
HERE = Address("a", "there", 3)
T = TypeVar("T")


@attrs.frozen
class Box(Generic[T]):
    """Holds a value of any type."""

    value: T


@pytest.mark.parametrize("service", SERVICES)
def test_the_annotations_of_a_service_can_be_checked(service: type[Actor]) -> None:
    for definition in service.__methods__.values():
        hints = typing.get_type_hints(definition.function, include_extras=True)
        returned = hints.pop("return")
        assert hints or definition.arity == (0, 0)
        if not definition.stream:
            check_of(returned)
        for hint in hints.values():
            check_of(hint)
            for part in (hint, *typing.get_args(hint)):
                if isinstance(part, type) and message_type(part) is not None:
                    assert attrs.has(part), part
                    for field in typing.get_type_hints(part).values():
                        check_of(field)


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        (str, ["", "x"], [b"x", None, 1]),
        (int, [0, -1, 2**70], [True, 1.0, "1", None]),
        (bool, [True], [1, None]),
        (float, [1, 1.5, float("inf")], [True, "1", None]),
        (bytes, [b""], ["", bytearray()]),
        (float | Literal["kill"] | None, [None, 2.5, "kill"], ["kills", b"kill", [1]]),
        (Literal["kill", 1], ["kill", 1], [True, 1.0, [], {}, None]),
        (int | str | None, [None, 1, ""], [True, 1.0, b"", []]),
        (list[int] | None, [None, [], [1]], [[True], [None], 1]),
        (list[int], [[], [1], (1,)], [["x"], 5, {1}, None]),
        (
            Sequence[tuple[str, int, int]],
            [[], [("a", 1, 2)], (["a", 1, 2],)],
            [[("a", 1)], [("a", 1, "2")], ["abc"], "abc"],
        ),
        (tuple[object, ...], [(), (1, "x"), [None]], [{}, "x", None]),
        (Mapping[str, object], [{}, {"a": None}], [{1: 2}, [], None]),
        (dict[str, Any], [{"a": 1}], [[("a", 1)]]),
        (Any, [None, 1], []),
        (Address, [HERE], ["there", None, ExitReason("normal")]),
        (
            ExitReason,
            [ExitReason("normal", "x")],
            [ExitReason("normal", 5), ExitReason("normal", "x", None), "normal"],  # type: ignore[arg-type]
        ),
        (SpawnOptions, [SpawnOptions(name="x", timeout=1.5)], [HERE]),
        (Box[int], [Box(1), Box("x")], [1, None, HERE]),
        (
            Annotated[list[Any], ArgumentTypes.of(str, int)],
            [["a", 1], ("a", 1)],
            [[], ["a"], ["a", "1"], ["a", 1, 2], "ab", None],
        ),
        (
            list[Annotated[list[Any], ArgumentTypes.of(str)] | None],
            [[], [None, ["a"]]],
            [["a"], [[1]], None],
        ),
        (
            Sequence[Put | Delete],
            [[Put("a", b"x"), Delete("b")]],
            [[Compare("a", "version", 1)], [None]],
        ),
    ],
)
def test_a_value_is_what_its_annotation_says(
    annotation: Any, right: list[object], wrong: list[object]
) -> None:
    check = check_of(annotation)
    assert [value for value in right if not check(value)] == []
    assert [value for value in wrong if check(value)] == []


def test_a_wrong_argument_is_named() -> None:
    ask = WatchingService.__methods__["ask"].function
    check_arguments(ask, ("a", 1, "there", 3, 1), {"before": False})
    with pytest.raises(TypeError, match=r"ask\(\) was given a node of another type"):
        check_arguments(ask, ("a", 1, 5, 3, 1, False), {})
    with pytest.raises(TypeError, match=r"ask\(\) was given a before of another type"):
        check_arguments(ask, ("a", 1, "there", 3, 1), {"before": None})


def test_an_answer_is_what_a_method_returns() -> None:
    methods = WatchingService.__methods__
    assert fits_answer(methods["ask"].function, None)
    assert fits_answer(methods["ask"].function, ExitReason("normal"))
    assert not fits_answer(methods["ask"].function, 5)
    assert fits_answer(methods["tell"].function, None)
    assert not fits_answer(methods["tell"].function, ())
