"""The children of one supervisor by their ids, those included that wait for an id which another has still. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from actors.children import ChildSpec
from actors.errors import ChildNotFoundError
from actors.handle import Handle
from actors.supervision import Answer
from runtime.supervision.operations import Child


class ChildTable:
    """Beside what the machine knows of them. Children whose specs say no name are called after `supervisor`, its name, and their ids."""

    def __init__(self, supervisor: str, specs: Iterable[ChildSpec]) -> None:
        self._supervisor = supervisor
        self._children: dict[str, Child] = {}
        self._ids: dict[str, str] = {}
        """By the names of their actors."""
        self._wanted: dict[object, Child] = {}
        """Those that were asked for, by request, until that is answered."""
        self._requests: dict[str, dict[object, None]] = {}
        """The requests for each id, in their order: what is done for one child must not cost more because there are many."""
        for spec in specs:
            self.put(spec)

    def __iter__(self) -> Iterator[Child]:
        return iter(tuple(self._children.values()))

    def __getitem__(self, id: str) -> Child:
        return self._children[id]

    def get(self, id: str) -> Child | None:
        """The child of this id."""
        return self._children.get(id)

    def put(self, spec: ChildSpec, *, added: bool = False) -> Child:
        """A child that there is from now on."""
        child = self._child(spec, added)
        self._enter(child)
        return child

    def want(self, spec: ChildSpec, request: object) -> None:
        """A child that somebody asks for: there at once, or when the present one of its id has gone."""
        child = self._wanted[request] = self._child(spec, True)
        self._requests.setdefault(spec.id, {})[request] = None
        if spec.id not in self._children:
            self._enter(child)

    def settle(self, answer: Answer) -> None:
        """If that was a request for a child, it has been answered."""
        child = self._wanted.pop(answer.request, None)
        if child is None:
            return
        requests = self._requests[child.spec.id]
        del requests[answer.request]
        if not requests:
            del self._requests[child.spec.id]
        if answer.reply == "too many children" and self._children.get(child.spec.id) is child:
            self._remove(child)

    def forget(self, id: str) -> Child:
        """The child of this id is no more. Another that was asked for takes its place."""
        child = self._children[id]
        self._remove(child)
        for request in self._requests.get(id, ()):
            if self._wanted[request] is not child:
                self._enter(self._wanted[request])
                break
        return child

    def id_of(self, child: str | Handle) -> str:
        """The id of a child that was named by it, by its path, by the actor's name, or by a handle. Raises `ChildNotFoundError`."""
        name = child.name if isinstance(child, Handle) else child
        for id in (name, name.removeprefix(f"{self._supervisor}/")):
            if id in self._children:
                return id
        found = self._ids.get(name)
        if found is None:
            raise self.not_found(name)
        return found

    def _enter(self, child: Child) -> None:
        self._children[child.spec.id] = child
        self._ids[child.name] = child.spec.id

    def _remove(self, child: Child) -> None:
        del self._children[child.spec.id]
        if self._ids.get(child.name) == child.spec.id:
            del self._ids[child.name]

    def not_found(self, id: str) -> ChildNotFoundError:
        """What to raise for an id that no child has."""
        some = sorted(self._children)[:10]
        more = f" and {len(self._children) - len(some)} more" if len(self._children) > len(some) else ""
        return ChildNotFoundError(f"{self._supervisor} has no child {id!r}; it has: {', '.join(some) or 'none'}{more}")

    def _child(self, spec: ChildSpec, added: bool) -> Child:
        return Child(spec, spec.options.name or f"{self._supervisor}/{spec.id}", added)
