"""What other libraries have and this one has not: an error that says what to write here.

Ray, Dask, Celery, torch and Erlang call by other names what nodes, handles and references do.
Python's own error for `reference.result()` names the class and stops there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn


def names_for_references(wait: str) -> Mapping[str, str]:
    """What to write for the names that references have elsewhere. `wait`: what stands before a call
    that waits, `await ` or nothing.
    """
    fetch = f"{wait}reference.fetch() waits for the value and gives a copy of it"
    return {
        **dict.fromkeys(("compute", "get", "result", "to_here", "value", "wait"), fetch),
        "done": f"{wait}reference.ready() says whether there is an outcome",
    }


def names_for_methods(wait: str) -> Mapping[str, str]:
    """What to write for the names that methods of actors have elsewhere."""
    later = (
        f"{wait}handle.method.send(...) calls one way, and {wait}handle.method.remote(...) gives "
        "a reference to the result"
    )
    return {
        **dict.fromkeys(("apply_async", "cast", "delay"), later),
        "call": f"call the method itself, {wait}handle.method(...)",
        "future": "start a task that awaits the call, as in nursery.start_soon(handle.method, ...)",
    }


def names_for_streams(loop: str) -> Mapping[str, str]:
    """What to write for the names that methods have, and streams do not. `loop`: what begins to
    read one.
    """
    read = f"the method is a stream: {loop} item in handle.method(...) reads its items"
    return dict.fromkeys(("apply_async", "call", "cast", "delay", "future", "remote", "send"), read)


def names_for_clusters(it: str, wait: str, mapped: str) -> Mapping[str, str]:
    """What to write for the names that clusters and their clients have elsewhere. `it`: what the
    object is called in the advice; `mapped`: what maps a function over items.
    """
    members = f"{it}.members() gives the nodes"
    return {
        "gather": f"wait_all(...) from `actors` waits for references, {wait}reference.fetch() "
        "gives the value of one",
        "get": f"{wait}reference.fetch() gives the value of a reference",
        "get_actor": f"{wait}{it}.lookup(name, Class) finds an actor",
        "kill": f"{wait}{it}.stop(handle) stops an actor",
        "map": mapped,
        "nodes": members,
        "remote": f"{wait}{it}.run(function, ...) runs a function",
        "scatter": f"{wait}{it}.put(value) makes a reference",
        "submit": f"{wait}{it}.run(function, ...) runs a function"
        + ("" if wait else f", {it}.future(function, ...) starts one"),
        "wait": "wait_any(...) and wait_all(...) from `actors` wait for references",
        "workers": members,
    }


def names_for_processes(wait: str) -> Mapping[str, str]:
    """What to write for the names that processes have in Python's own libraries."""
    leave = (
        f"{wait}process.leave() lets its node leave in order and waits for that, and "
        "`kill` ends it at once"
    )
    ended = f"process.running is False once it has ended; {wait}process.wait() gives the status"
    return {
        **dict.fromkeys(("close", "send_signal", "shutdown", "stop", "terminate"), leave),
        **dict.fromkeys(("exitcode", "is_alive", "join", "poll", "returncode"), ended),
    }


class HasForeignNames:
    """The base of classes whose users know other names from other libraries."""

    __slots__ = ()

    _foreign_names: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:
        # To a type checker a name that is not there is a mistake.

        def __getattr__(self, name: str) -> NoReturn:
            # Python comes here also when a property has raised an AttributeError: that one is
            # raised again, as is the plain error for all other names.
            if name in type(self)._foreign_names:
                raise AttributeError(missing(self, name))
            return object.__getattribute__(self, name)


class StartsElsewhere:
    """A name by which other libraries start an actor from its class, as in `Counter.remote()`.

    The name stays free for subclasses and for their other bases, and to `hasattr` it is not there.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type) -> object:
        # A base that comes behind, as in `class Worker(Actor, Thread)`, may have that name.
        behind: Any = super(self._owner, owner if instance is None else instance)
        try:
            return getattr(behind, self._name)
        except AttributeError:
            cls = owner.__qualname__
            raise AttributeError(
                f"{cls} has no attribute {self._name!r}: await node.spawn({cls}, ...) starts an "
                "actor"
            ) from None


class NotAwaited:
    """The base of methods that a program may await without calling them: a TypeError says what to
    write. Handles and references, which functions return, have it not: `inspect.isawaitable` is
    True with it, and much code awaits what is awaitable.
    """

    __slots__ = ()

    _awaited_instead: ClassVar[str] = ""

    if not TYPE_CHECKING:
        # To a type checker none of them is awaitable.

        def __await__(self) -> NoReturn:
            raise TypeError(self._awaited_instead)


def missing(owner: object, name: str) -> str:
    """The text of the error for an attribute that `owner` does not have, with advice if its class
    has any.
    """
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    names: Mapping[str, str] = getattr(type(owner), "_foreign_names", {})
    return f"{text}: {names[name]}" if name in names else text
