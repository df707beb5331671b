"""Maps and pools with input that makes no sense, as tables: each door must refuse them with the
same error. Maps end before the first result (`given` is empty), or midway.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import attrs

from actors.errors import ActorStartError, BadArgumentsError, EncodeError, RemoteError
from tests.pools.actors_used import Squares, Unstartable


class NoClass:
    """What it says of its class is the user's code, which raises."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise LookupError("no class")


class NoItems:
    """Its iterator is the user's code, which raises."""

    def __iter__(self) -> Iterator[int]:
        raise LookupError("no iterator")


def dry() -> Iterator[int]:
    """A source that raises after two items."""
    yield 1
    yield 2
    raise LookupError("dry")


async def dry_later() -> AsyncIterator[int]:
    """The same, for doors that have async sources."""
    for item in dry():
        yield item


class WrongEnd:
    """A plain iterator that ends as an async one does."""

    def __init__(self) -> None:
        self._given = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self._given += 1
        if self._given == 3:
            raise StopAsyncIteration
        return self._given


@attrs.frozen(kw_only=True)
class BadMap:
    """`says` is part of the text of the error; `given` are the results before it."""

    id: str
    error: type[Exception]
    says: str
    method: Any = Squares.square
    items: Callable[[], Any] = lambda: [1, 2, 3]
    options: Mapping[str, Any] = attrs.field(factory=dict)
    given: tuple[int, ...] = ()
    spread: bool = False
    is_async: bool = False

    def check(self, given: list[Any], error: Exception | None) -> None:
        """Assert that this was how it ended."""
        assert isinstance(error, self.error), (self.id, repr(error))
        assert self.says in str(error), (self.id, str(error))
        assert tuple(given) == self.given, self.id


def _option(error: type[Exception], says: str, **options: Any) -> BadMap:
    return BadMap(id=f"{options}"[:60], error=error, says=says, options=options)


BAD_OPTIONS = (
    _option(
        ValueError, 'on_error is "raise", "return" or "skip", not \'ignore\'', on_error="ignore"
    ),
    _option(ValueError, "not None", on_error=None),
    _option(ValueError, "batch must be at least 1, not 0", batch=0),
    _option(ValueError, "batch must be at least 1, not -1", batch=-1),
    _option(TypeError, "batch must be a whole number or None, not True", batch=True),
    _option(ValueError, "window must be at least 1, not 0", window=0),
    _option(TypeError, "window must be a whole number or None, not 1.5", window=1.5),
    _option(ValueError, "timeout must be a positive number of seconds, not -1", timeout=-1),
    _option(
        ValueError, "timeout must be a positive number of seconds, not nan", timeout=float("nan")
    ),
    _option(TypeError, "timeout must be a number of seconds or None, not '3'", timeout="3"),
    _option(TypeError, "retry must be a RetryPolicy or None, not 3", retry=3),
    _option(TypeError, "keep must be True or False, not 'yes'", keep="yes"),
    _option(TypeError, "ordered must be True or False, not 'no'", ordered="no"),
    _option(TypeError, "progress must be True or False, not 1", progress=1),
    _option(ValueError, "1 to 200 printable characters and no '/', unlike ''", journal=""),
    _option(ValueError, "unlike 'a/b'", journal="a/b"),
    _option(ValueError, "unlike 'a\\nb'", journal="a\nb"),
    _option(ValueError, "unlike 'xxx", journal="x" * 201),
    _option(TypeError, "journal must be a name, not 3", journal=3),
    _option(ValueError, "keep=True and journal= do not go together", journal="job", keep=True),
    _option(TypeError, "map(...) takes no 'bach'; did you mean 'batch'", bach=3),
)

_NOT_ITS_OWN = "as in pool.map(Squares.add, items), and not"

BAD_METHODS = (
    BadMap(id="a lambda", error=TypeError, says=_NOT_ITS_OWN, method=lambda item: item),
    BadMap(id="a name", error=TypeError, says="and not 'square'", method="square"),
    BadMap(id="the class", error=TypeError, says=_NOT_ITS_OWN, method=Squares),
    BadMap(id="another class's", error=TypeError, says=_NOT_ITS_OWN, method=Unstartable.run),
    BadMap(id="no method", error=TypeError, says=_NOT_ITS_OWN, method=Squares.__init__),
)

BAD_SOURCES = (
    BadMap(id="a number", error=TypeError, says="iterable, not 3", items=lambda: 3),
    BadMap(id="nothing", error=TypeError, says="iterable, not None", items=lambda: None),
    BadMap(id="raises midway", error=LookupError, says="dry", items=dry, given=(1, 4)),
    BadMap(
        id="ends wrongly",
        error=RuntimeError,
        says="raised StopAsyncIteration",
        items=WrongEnd,
        given=(1, 4),
    ),
    BadMap(id="has no iterator", error=LookupError, says="no iterator", items=NoItems),
    BadMap(
        id="raises midway, async",
        error=LookupError,
        says="dry",
        items=dry_later,
        given=(1, 4),
        is_async=True,
    ),
)

BAD_ITEMS = (
    BadMap(
        id="a lock",
        error=EncodeError,
        says="item 1 cannot be sent: square was not called: argument item is a _thread.lock",
        items=lambda: [1, threading.Lock(), 3],
        given=(1,),
    ),
    BadMap(
        id="a class that raises",
        error=EncodeError,
        says="item 1 cannot be sent",
        items=lambda: [1, NoClass(), 3],
        given=(1,),
    ),
    BadMap(
        id="too few arguments",
        error=BadArgumentsError,
        says="missing a required argument: 'other'",
        method=Squares.add,
        items=lambda: [(1, 2), (3,), (4, 5)],
        given=(3,),
        spread=True,
    ),
    BadMap(
        id="no tuple",
        error=TypeError,
        says="'int' object is not iterable",
        method=Squares.add,
        items=lambda: [(1, 2), 3],
        given=(3,),
        spread=True,
    ),
)

BAD_RESULTS = tuple(
    BadMap(
        id=f"{name}, {batch}",
        error=RemoteError,
        says=f"item 1 has raised {name}, which would end the loop over the results",
        method=run,
        options={"batch": batch},
        given=(1,),
    )
    for name, run in (
        ("StopIteration", Squares.exhausted),
        ("StopAsyncIteration", Squares.exhausted_later),
    )
    for batch in (1, 3)
)
"""Errors that a loop over the results would take for their end."""

BAD_MAPS = (*BAD_OPTIONS, *BAD_METHODS, *BAD_SOURCES, *BAD_ITEMS, *BAD_RESULTS)


@attrs.frozen
class BadPool:
    """A pool that cannot be opened. `says` is part of the text of the error."""

    error: type[Exception]
    says: str
    actor: Any = Squares
    sizes: Mapping[str, int] = attrs.field(factory=lambda: {"size": 1})

    def check(self, error: Exception | None) -> None:
        """Assert that this was how it ended."""
        assert isinstance(error, self.error), (self, repr(error))
        assert self.says in str(error), (self, str(error))


def _size(says: str, **sizes: int) -> BadPool:
    return BadPool(ValueError, says, sizes=sizes)


BAD_POOLS = (
    _size("a pool has one size"),
    _size("pool without members", size=0),
    _size("pool without members", per_node=0),
    _size("pool without members", min=0, max=0),
    _size("size must be at least 0, not -1", size=-1),
    _size("min must not be above max", min=3, max=2),
    _size("size must be at most 100,000, not 100001", size=100_001),
    _size("per_node must be at most 100,000, not 100001", per_node=100_001),
    _size("min must be at most 100,000, not 100001", min=100_001, max=200_000),
    BadPool(TypeError, "is a lambda", lambda item: item),
    BadPool(TypeError, "a class of actors or of a plain function", functools.partial(max, 1)),
    BadPool(TypeError, "is a generator, which has no one result", dry),
    BadPool(TypeError, "subclass of actors.Actor", int),
    BadPool(ActorStartError, "LookupError: no licence", Unstartable),
)
