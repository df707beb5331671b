"""Handles: what a caller holds instead of an actor.

A handle is an address and call options. It survives restarts and moves of its actor, can be sent
inside messages, and two handles of one actor are equal. To a type checker a handle of a `Counter`
is a `Counter`; at run time it offers that class's `@method`s and the few names below, and nothing
of the actor's state.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from actors.documentation import documented_as
from actors.html import card
from actors.keywords import names_keywords
from actors.method import (
    Address,
    BoundMethod,
    BoundStream,
    Caller,
    MethodDefinition,
    unknown_method,
)
from actors.options import NO_CALL_OPTIONS, CallChanges, CallOptions
from actors.process_bound import ProcessBound

_OF_NODES = {
    **dict.fromkeys(
        ("remote", "send"), "; methods have it: await handle.method.remote(...) or .send(...)"
    ),
    **dict.fromkeys(
        ("close", "exit", "kill", "stop", "terminate"),
        "; stop(handle) of a node or cluster stops an actor",
    ),
    **dict.fromkeys(
        ("join", "monitor", "watch"),
        "; wait_ended(handle) of a node or cluster waits for the end of an actor",
    ),
}
"""What nodes and methods do, and handles of other libraries do themselves."""


class Handle(ProcessBound):
    """The address of an actor, with call options; get one from `spawn`, `lookup` or a message."""

    _elsewhere = "pass it in a call, or pass its name and look that up in the other process"
    _caller: Caller
    _address: Address
    _methods: Mapping[str, MethodDefinition] | None
    _options: CallOptions

    def __init__(
        self,
        caller: Caller,
        address: Address,
        methods: Mapping[str, MethodDefinition] | None,
        options: CallOptions = NO_CALL_OPTIONS,
    ) -> None:
        # Not by assignment, which a handle refuses.
        self.__dict__.update(_caller=caller, _address=address, _methods=methods, _options=options)

    @property
    def name(self) -> str:
        """The actor's name, unique in the cluster."""
        return self._address.name

    @property
    def epoch(self) -> int:
        """The actor's epoch when this handle was made."""
        return self._address.epoch

    @property
    def address(self) -> Address:
        """The actor's address when this handle was made: its name, node, epoch and class."""
        return self._address

    @documented_as(CallOptions)
    @names_keywords
    def options(self, **changes: Unpack[CallChanges]) -> Handle:
        """Return a handle of the same actor whose calls have these options, unless the method or
        the call overrides them.
        """
        return Handle(
            self._caller, self._address, self._methods, CallOptions(**changes).over(self._options)
        )

    # Any: what a method returns is awaited, or read as a stream, and it is not known which.
    def __getattr__(self, attribute: str) -> Any:
        # `copy`, `pickle` and debuggers ask for such names, also of handles without their fields.
        if attribute.startswith("_"):
            raise AttributeError(
                f"a handle has no {attribute!r}: what begins with an underscore is the actor's own"
            )
        definition = self._definition(attribute)
        kind: Any = BoundStream if definition.stream else BoundMethod
        bound = kind(
            self._caller, self._address, definition, definition.options.over(self._options)
        )
        # The next access finds it without coming here.
        self.__dict__[attribute] = bound
        return bound

    def __setattr__(self, attribute: str, value: object) -> None:
        if attribute.startswith("_"):
            object.__setattr__(self, attribute, value)
            return
        # It would stay here, and the actor, to which a type checker thinks it goes, has its own.
        raise AttributeError(
            f"{attribute} cannot be set on a handle, for the state of {self.name} is with "
            "the actor: set it in a @method, and call that"
        )

    def __dir__(self) -> list[str]:
        # For completion: what `__getattr__` would find is in no `__dict__` yet.
        return sorted({*super().__dir__(), *(self._methods or ())})

    def _definition(self, name: str) -> MethodDefinition:
        # Looked up without its class: the actor's node says whether there is such a method.
        if self._methods is None:
            return MethodDefinition(name=name, function=unknown_method)
        definition = self._methods.get(name)
        if definition is None:
            near = difflib.get_close_matches(name, self._methods, n=1)
            hint = (
                _unmarked(self._address.class_path, name)
                or _OF_NODES.get(name)
                or (
                    f"; did you mean {near[0]!r}?"
                    if near
                    else f"; it offers {', '.join(sorted(self._methods)) or 'no methods'}"
                )
            )
            raise AttributeError(
                f"{self._address.class_path} has no @method {name!r} that a handle could call{hint}"
            )
        return definition

    def __eq__(self, other: object) -> bool:
        # Not by node and epoch: a handle stays the actor's when that moves or is started again.
        return isinstance(other, Handle) and other._address.name == self._address.name

    def __hash__(self) -> int:
        return hash(self._address.name)

    def __repr__(self) -> str:
        address = self._address
        return (
            f"<handle of {address.name} ({address.class_path or 'class not said'}), last seen "
            f"on {address.node}>"
        )

    def _repr_html_(self) -> str:
        """Return the handle's own facts as HTML for notebooks, without a call."""
        address = self._address
        methods = (
            "its class is not known here: any may be tried"
            if self._methods is None
            else ", ".join(sorted(self._methods)) or "none"
        )
        return card(
            "handle",
            address.name,
            [
                ("class", address.class_path or "not said"),
                ("last seen on", address.node),
                ("epoch", str(address.epoch)),
                ("methods", methods),
            ],
        )


def moved(handle: Handle, caller: Caller) -> Handle:
    """Return a handle of the same actor whose calls another node, or door, makes."""
    return Handle(caller, handle._address, handle._methods, handle._options)


def with_methods(handle: Handle, streams: Mapping[str, bool]) -> Handle:
    """A handle that knows the names of its actor's methods, as completion needs them, and which of
    them are streams; not what they take.
    """
    methods = {
        name: MethodDefinition(name=name, function=unknown_method, stream=stream)
        for name, stream in streams.items()
    }
    return Handle(handle._caller, handle._address, methods, handle._options)


if TYPE_CHECKING:
    # What a supervisor returns: to a type checker a handle of the class that its reader expects.
    AnyHandle = Any
else:
    AnyHandle = Handle


def _unmarked(class_path: str, name: str) -> str:
    """Return what the class has under a name that no handle can call, and what to do; "" if it has
    nothing, or is not loaded here.
    """
    module, _, path = class_path.partition(":")
    found: object = sys.modules.get(module)
    # The class path may be from a message: nothing is imported, and no code of a module runs.
    for part in path.split("."):
        found = inspect.getattr_static(found, part, None)
    member: object = inspect.getattr_static(found, name, None)
    if inspect.isfunction(member):
        return ": its method of that name has no mark; write @method above it"
    if isinstance(member, property):
        return ": its property of that name is for the actor itself; let a @method return it"
    if isinstance(member, staticmethod | classmethod):
        return f": it is a {type(member).__name__}; call it on the class"
    return ""
