"""The children of one supervisor by their ids, with those that were requested while another child
still has their id. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import attrs
import trio

from actors.errors import ChildNotFoundError
from actors.handle import Handle
from actors.method import Address
from actors.supervision import ChildView, ExitReason, Shutdown, SupervisorAnswer
from actors.supervisor import ChildSpec, ChildStatus


@attrs.define(eq=False)
class ChildState:
    """The data of one child that the restart machine does not have. `added`: it was added at run
    time, not by the constructor.
    """

    spec: ChildSpec
    name: str
    added: bool = False
    address: Address | None = None
    adopted: Address | None = None
    """A running actor to adopt instead of starting a new one."""
    intent: Literal["none", "in doubt", "written"] = "none"
    """The restart intent in the store; in doubt while it is being written, and after an attempt to
    write it has failed.
    """
    written_at: int = 0
    """The revision of the intent in the store, as far as is known; 0 if it is not."""
    latest_epoch: int = 0
    """The epoch of its latest actor; 0 before the first."""
    started_at: float = 0.0
    """When that has started, on the environment's clock; 0 before the first start."""
    last_failure: ExitReason | None = None
    """Its last end or failed start, if that was a failure."""
    scope: trio.CancelScope | None = None
    """The scope of the task that starts and then watches it."""
    room_seen: int = 0
    """How many changes of room had been seen before its latest attempt to start."""
    lacks_room: bool = False
    """True if its latest start has failed because no node fits."""
    fails: bool = False
    """True if its latest start has failed: the first failure is logged, further ones in a row are
    not.
    """
    put_off: int = 0
    """How often in a row its start was given up for the restart of a child before it."""

    def status(self, view: ChildView, now: float) -> ChildStatus:
        """Return the child's public status."""
        address = self.address
        return ChildStatus(
            id=self.spec.id,
            name=self.name,
            kind=self.spec.kind,
            restart=self.spec.restart,
            state=view.state,
            node=address.node if address is not None else None,
            epoch=address.epoch if address is not None else None,
            restarts=view.restarts,
            age=now - self.started_at if address is not None else None,
            last_exit=view.last_exit,
        )


def seconds_of(shutdown: Shutdown) -> float:
    """Return the seconds that a child may take to stop."""
    return float("inf") if shutdown is None else 0.0 if shutdown == "kill" else float(shutdown)


class ChildTable:
    """The children of one supervisor, one for each id. A child whose spec has no name gets the name
    `supervisor`/id.
    """

    def __init__(self, supervisor: str, specs: Iterable[ChildSpec]) -> None:
        self._supervisor = supervisor
        self._children: dict[str, ChildState] = {}
        self._ids: dict[str, str] = {}
        """Ids by the names of their actors."""
        self._wanted: dict[object, ChildState] = {}
        """Requested children by request, until that is answered."""
        self._requests: dict[str, dict[object, None]] = {}
        """The requests for each id, in their order: an index, so that the cost for one child does
        not grow with the number of requests.
        """
        for spec in specs:
            self.put(spec)

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[ChildState]:
        return iter(tuple(self._children.values()))

    def __getitem__(self, id: str) -> ChildState:
        return self._children[id]

    def get(self, id: str) -> ChildState | None:
        """Return the child of this id, or None."""
        return self._children.get(id)

    def put(self, spec: ChildSpec, *, added: bool = False) -> ChildState:
        """Add a child, and return it. No other child may have its id."""
        child = self._child(spec, added)
        self._enter(child)
        return child

    def want(self, spec: ChildSpec, request: object) -> None:
        """Add a child on request: at once, or when the present child of its id is forgotten."""
        child = self._wanted[request] = self._child(spec, True)
        self._requests.setdefault(spec.id, {})[request] = None
        if spec.id not in self._children:
            self._enter(child)

    def settle(self, answer: SupervisorAnswer) -> None:
        """Remove a request for a child, because this is its answer."""
        child = self._wanted.pop(answer.request, None)
        if child is None:
            return
        requests = self._requests[child.spec.id]
        del requests[answer.request]
        if not requests:
            del self._requests[child.spec.id]
        if answer.reply == "too many children" and self._children.get(child.spec.id) is child:
            self._remove(child)

    def forget(self, id: str) -> ChildState:
        """Remove and return the child of this id. The first other child that was requested with
        this id takes its place.
        """
        child = self._children[id]
        self._remove(child)
        for request in self._requests.get(id, ()):
            if self._wanted[request] is not child:
                self._enter(self._wanted[request])
                break
        return child

    def id_of(self, child: str | Handle) -> str:
        """Return the id of a child, which may be given as its id, its path, its actor's name or a
        handle. Raises `ChildNotFoundError`, and TypeError for anything else.
        """
        name = child.name if isinstance(child, Handle) else child
        if not isinstance(name, str):
            raise TypeError(
                f"a child of {self._supervisor} is given by its id, its name or its handle, and "
                f"not by an object of type {type(name).__name__}"
            )
        for id in (name, name.removeprefix(f"{self._supervisor}/")):
            if id in self._children:
                return id
        found = self._ids.get(name)
        if found is None:
            raise self.not_found(name)
        return found

    def _enter(self, child: ChildState) -> None:
        assert child.spec.id not in self._children, "an id has one child at a time"
        self._children[child.spec.id] = child
        self._ids[child.name] = child.spec.id

    def _remove(self, child: ChildState) -> None:
        assert self._children[child.spec.id] is child
        del self._children[child.spec.id]
        # Two children may have one name, if their specs say so: then the latter owns the index.
        if self._ids.get(child.name) == child.spec.id:
            del self._ids[child.name]

    def not_found(self, id: str) -> ChildNotFoundError:
        """Return the error for an id that no child has."""
        some = sorted(self._children)[:10]
        more = (
            f" and {len(self._children) - len(some)} more"
            if len(self._children) > len(some)
            else ""
        )
        return ChildNotFoundError(
            f"{self._supervisor} has no child {id!r}; it has: {', '.join(some) or 'none'}{more}"
        )

    def _child(self, spec: ChildSpec, added: bool) -> ChildState:
        return ChildState(spec, spec.options.name or f"{self._supervisor}/{spec.id}", added)
