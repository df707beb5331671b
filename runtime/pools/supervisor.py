"""The supervisor of a pool: starts its members over the nodes, replaces those that end, grows and
shrinks it, and tells those who use the pool who the members are.

The supervisor of a named pool is a singleton, for which nodes of its members stand as well: when
its node dies, one of them starts it again, and it adopts the members that live.
"""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar, cast

import attrs
import trio

from actors.actor import Actor, Member
from actors.errors import (
    CallError,
    ChildError,
    SpawnError,
    StoreError,
    SupervisorStoppingError,
    UnderstudyError,
)
from actors.handle import Handle
from actors.messages import MAIN_ALIAS, message
from actors.method import Address, method
from actors.options import SpawnOptions
from actors.own_logger import own_logger
from actors.short_repr import short_repr
from actors.supervision import ExitReason
from actors.supervisor import ChildSpec, ChildStatus, DynamicSupervisor
from runtime.pools.member_plan import GROWTH, IDLE_SECONDS, PoolSize, PoolSpec, plan
from runtime.supervision.placement import CALLS_ONLY

OTHERS_SECONDS = 1.0
"""How long the start of a pool waits for other members when it has the first."""

LOOK_SECONDS = 0.25
"""Seconds between looks at the nodes of the cluster."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds between attempts to start members, after starts that failed."""

ASK_SECONDS = 2.0
"""How long a keeper is waited for that is asked what it keeps."""

FORGET_SECONDS = 2.0
"""How long the end of a named pool may take to remove what it has saved."""

DRAIN_SECONDS = 30.0
"""How long a member may take for the items that it has when it is stopped."""

KEEPERS = 2
"""Other nodes that stand for a named pool's supervisor."""

KEEPER_SECONDS = 5.0
"""How long the opening of a named pool waits for the first other node that stands for it. Without
one, for instance while a node that still counts as up is cut off, the pool is there nevertheless.
"""

MEMBER, KEEPER = "member-", "keeper-"

logger = own_logger("understudy.pools")


# What runs in the members of a pool of a plain function.


def function_path(function: Callable[..., object]) -> str:
    """`module:name` of a function. Raises TypeError for one that no other process could import."""
    name = getattr(function, "__qualname__", "")
    module = getattr(function, "__module__", "")
    if not inspect.isfunction(function) and not inspect.isbuiltin(function):
        raise TypeError(
            f"a pool is of a class of actors or of a plain function, not {short_repr(function)}"
        )
    if "<" in name or not module:
        raise TypeError(
            f"{module}.{name} cannot be imported by the nodes of a pool, since it is "
            f"{'a lambda' if '<lambda>' in name else 'defined inside of a function'}: define it "
            "with `def` at the top of a module"
        )
    return f"{'__main__' if module == MAIN_ALIAS else module}:{name}"


def find_function(path: str) -> Callable[..., Any]:
    """The function at `module:name`; imports the module. Raises ImportError, saying what is
    missing.
    """
    module_name, _, name = path.partition(":")
    module = sys.modules.get(module_name) or importlib.import_module(module_name)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        where = (
            "; a function of the main script is known only to the nodes of its own local cluster: "
            "put it into a module that all nodes can import"
            if module_name == "__main__"
            else "; run the same code on all nodes"
        )
        raise ImportError(f"there is no function {path} here{where}")
    return cast("Callable[..., Any]", found)


class FunctionMember(Actor):
    """A member of a pool of a plain function, which runs in a thread."""

    def __init__(self, path: str) -> None:
        self._function = find_function(path)

    @method
    def run(self, *args: object) -> object:
        """Call the function."""
        return self._function(*args)


class CoroutineMember(Actor):
    """A member of a pool of an `async def` function."""

    def __init__(self, path: str) -> None:
        self._function = find_function(path)

    @method
    async def run(self, *args: object) -> object:
        """Call the function."""
        return await self._function(*args)


# The supervisor itself.


def _hosts_actors(member: Member, besides: str = "") -> bool:
    return member.state == "up" and CALLS_ONLY not in member.labels and member.name != besides


def _saved(state: object) -> tuple[PoolSize | None, str]:
    """The size and the opening of the pool that has saved this; the opening is "" if none has."""
    match state:
        case [PoolSize() as size, str(opening)]:
            return size, opening
        case _:
            return None, ""


@message
@attrs.frozen(kw_only=True)
class PoolView:
    """A pool at a moment: `members` take items, `draining` finish those that they have."""

    members: tuple[Address, ...] = ()
    draining: tuple[str, ...] = ()
    what: str = ""
    size: PoolSize = attrs.field(factory=PoolSize)
    problem: str = ""
    """Why no member can be started at the moment."""
    stopped: bool = False


@attrs.define
class StartPause:
    """The pause between attempts to start members, or keepers, after starts that failed."""

    seconds: float = 0.0
    until: float = -math.inf

    def is_over(self, now: float) -> bool:
        """True if another attempt may begin."""
        return now >= self.until

    def on_failed(self, now: float) -> None:
        """A start has failed: wait longer each time."""
        if self.is_over(now):
            # Those that were started together and fail together are one failure.
            self.seconds = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * self.seconds))
            self.until = now + self.seconds

    def end(self) -> None:
        """A start has succeeded."""
        self.seconds = 0.0


class PoolKeeper(Actor):
    """Makes its node stand for the supervisor of a named pool."""

    def __init__(self, pool: str, spec: PoolSpec) -> None:
        self._pool = pool
        self._spec = spec
        self._stands = trio.Event()

    async def on_start(self) -> None:
        """Stand for it from now on: the node does, and not this actor. Returns once it does, so
        that the supervisor knows by the start of its keepers that others stand for it.
        """
        self.nursery.start_soon(self._stand)
        with trio.move_on_after(KEEPER_SECONDS):
            await self._stands.wait()

    @method(concurrent=True, idempotent=True)
    async def spec(self) -> PoolSpec:
        """The specification that it keeps."""
        return self._spec

    async def _stand(self) -> None:
        while True:
            try:
                await self.node.options(name=self._pool).singleton(PoolSupervisor, self._spec)
                self._stands.set()
                return
            except (CallError, SpawnError, StoreError) as error:
                logger.info("%s does not stand for pool %s yet: %s", self.name, self._pool, error)
                await trio.sleep(LONGEST_PAUSE)


class PoolSupervisor(DynamicSupervisor):
    """See the module. Its children are temporary: it replaces them itself, on other nodes if need
    be, and however many of them items take down, it goes on.
    """

    after_temporary: ClassVar[str | None] = (
        "not started again: the pool starts another member if it needs one"
    )

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__()
        self._spec = spec
        self._saving = trio.Lock()
        self._demand = 0
        self._demanded_at = -float("inf")
        self._addresses: dict[str, Address] = {}
        """Of members, by their ids."""
        self._starting: dict[str, str | None] = {}
        """Where members are being started, by their ids."""
        self._draining: set[str] = set()
        self._started = 0
        self._pauses = {MEMBER: StartPause(), KEEPER: StartPause()}
        self._failure: UnderstudyError | None = None
        self._changed = trio.Event()
        self._stopped = False
        self._is_placeable = True
        self._opened = False
        """True once it has a member, or needs none: from then on other nodes stand for it."""

    async def on_start(self) -> None:
        """Adopt the members that live, and start others; returns when there is one. Raises what
        the start of the first has raised.
        """
        await super().on_start()
        await self._find_adopted()
        if self._spec.named:
            await self._take_over()
        self._act()
        with trio.move_on_after(math.inf) as patience:
            # One whose constructor has raised says nothing of those that start still.
            while any(id.startswith(MEMBER) for id in self._starting):
                await self._changed.wait()
                if self._present():
                    patience.deadline = min(patience.deadline, trio.current_time() + OTHERS_SECONDS)
        if not self._present() and self._failure is not None:
            raise self._failure
        self._opened = True
        self._act()
        self.nursery.start_soon(self._tend, name=f"pool {self.name}")

    async def on_stop(self, reason: ExitReason) -> None:
        """Stop the members, unless the pool only moves to another node."""
        self._stopped = reason.kind != "node left"
        self._tell()
        await super().on_stop(reason)
        if self._stopped and self._spec.named:
            # Last: until its members have ended, a successor needs what was saved.
            await self._forget()

    @property
    def present_members(self) -> int:
        """How many members it has: lists of actors show it."""
        return len(self._present())

    @method(concurrent=True, allow=("operator", "client", "observer"))
    async def watch_members(self) -> AsyncIterator[PoolView]:
        """The pool as it is, again after each change."""
        seen: PoolView | None = None
        while True:
            changed, view = self._changed, self._view()
            if view != seen:
                seen = view
                yield view
            if view.stopped:
                return
            await changed.wait()

    @method(concurrent=True, idempotent=True, allow=("operator", "client", "observer"))
    async def view(self) -> PoolView:
        """The pool as it is."""
        return self._view()

    @method(concurrent=True, idempotent=True)
    async def wait_for_keeper(self) -> None:
        """Return when another node stands for this supervisor, or there is none, or after
        `KEEPER_SECONDS`. Until then the pool would end with the node of its supervisor.
        """
        with trio.move_on_after(KEEPER_SECONDS):
            while not self._stopped and not self._keepers() and self._others():
                await self._changed.wait()

    @method(concurrent=True, idempotent=True, allow=("operator",))
    async def resize(self, size: PoolSize) -> PoolView:
        """Have another size from now on. A named pool keeps it when it moves."""
        self._spec = attrs.evolve(self._spec, size=size)
        if self._spec.named:
            await self._save()
        self._act()
        return self._view()

    @method(concurrent=True, idempotent=True)
    async def ask_for(self, members: int) -> None:
        """Work waits that so many members could do."""
        present = max(1, len(self._present()))
        self._demand = max(self._demand, min(members, GROWTH * present))
        self._demanded_at = trio.current_time()
        self._act()

    async def _take_over(self) -> None:
        """Go on as the pool that an earlier incarnation was.

        A node that called `node.pool` at the same time as another one stands for the pool with what
        it has asked for itself, and this may be its spec. So who the members belong to is read from
        the store, by the text of their `opening`, and what they are is asked of a keeper.
        """
        saved = await self.saved()
        if isinstance(saved, PoolSize) and (self._addresses or not self._spec.opening):
            # By an earlier version, which knows no openings. It may have left it behind.
            self._spec = attrs.evolve(self._spec, size=saved)
            return
        size, opening = _saved(saved)
        if opening == self._spec.opening:
            self._spec = attrs.evolve(self._spec, size=size or self._spec.size)
            return
        spec = await self._kept_spec()
        if spec is not None:
            latest = size if opening == spec.opening else None
            self._spec = attrs.evolve(spec, size=latest or spec.size)
            return
        if self._spec.opening:
            # Left behind by a pool that died with all nodes that stood for it.
            for id in self._addresses:
                self._drain(id)
        await self._save()

    async def _kept_spec(self) -> PoolSpec | None:
        """Ask the keepers of an earlier incarnation what this pool is; None if none answers."""
        for child in self._children_now(KEEPER):
            with trio.move_on_after(ASK_SECONDS):
                try:
                    return await (await self.node.lookup(child.name, PoolKeeper)).spec()
                except (CallError, SpawnError) as error:
                    logger.info("%s does not say what it keeps: %s", child.name, error)
        return None

    async def _save(self) -> None:
        # Not two at once: the latest is to be written last.
        async with self._saving:
            await self.save([self._spec.size, self._spec.opening])

    async def _forget(self) -> None:
        with trio.move_on_after(FORGET_SECONDS):
            try:
                await self.save(None)
            except (CallError, StoreError) as error:
                # It counts for nothing: another opening has another text.
                logger.debug("what pool %s has saved was not removed: %s", self.name, error)

    def _on_children_changed(self) -> None:
        """The supervisor's children have changed: forget the members that have ended."""
        living = {child.id for child in self._children_now()}
        for id in [id for id in self._addresses if id not in living]:
            del self._addresses[id]
        self._draining &= living | set(self._starting)
        self._tell()

    async def _tend(self) -> None:
        while True:
            with trio.move_on_after(LOOK_SECONDS):
                await self._changed.wait()
            if trio.current_time() - self._demanded_at > IDLE_SECONDS:
                self._demand = 0
            self._act()

    def _act(self) -> None:
        """Begin what is to be done now."""
        if self._stopped:
            return
        options, nodes = self._spec.options, self._nodes()
        self._is_placeable = bool(nodes)
        placed = {
            id: node
            for id, node in (
                {id: address.node for id, address in self._addresses.items()} | self._starting
            ).items()
            if id.startswith(MEMBER) and id not in self._draining
        }
        changes = plan(
            self._spec.size,
            self._demand,
            nodes,
            placed,
            opener=self._spec.opener if options.on is None else "",
            free=bool(options.resources),
            busy=self._starting or self._draining,
        )
        if self._pauses[MEMBER].is_over(trio.current_time()):
            for node in changes.starts:
                self._begin(MEMBER, node)
        for id in changes.stops:
            if id in self._addresses:
                self._drain(id)
        self._keep()

    def _nodes(self) -> list[str]:
        """The nodes that members may be on."""
        options = self._spec.options
        return [
            member.name
            for member in self.node.members()
            if _hosts_actors(member)
            and options.on in (None, member.name)
            and all(member.labels.get(key) == value for key, value in options.labels.items())
        ]

    def _others(self) -> list[str]:
        """The nodes that may stand for this supervisor: those of its members, or any if there is
        none beside its own.
        """
        own = self.node.name
        return [node for node in self._nodes() if node != own] or [
            member.name for member in self.node.members() if _hosts_actors(member, own)
        ]

    def _keepers(self) -> set[str]:
        """The other nodes that stand for this supervisor."""
        return {child.node or "" for child in self._children_now(KEEPER)} - {self.node.name}

    def _keep(self) -> None:
        """Have other nodes stand for this supervisor."""
        # Before it is opened, they would go on with the attempt to open it after the caller had
        # the answer that it has failed.
        if not self._spec.named or not self._opened:
            return
        if not self._pauses[KEEPER].is_over(trio.current_time()):
            return
        keepers = self._keepers()
        keepers |= {node for id, node in self._starting.items() if id.startswith(KEEPER) and node}
        fresh = [node for node in self._others() if node not in keepers]
        for _ in range(min(KEEPERS - len(keepers), len(fresh))):
            # Each in turn: one of them may refuse each time.
            self._begin(KEEPER, fresh.pop(self._started % len(fresh)))

    def _begin(self, kind: str, node: str | None) -> None:
        self._started += 1
        id = f"{kind}{self.epoch}-{self._started}"
        self._starting[id] = node
        self.nursery.start_soon(self._start, kind, id, node, name=f"start of {self.name}/{id}")

    async def _start(self, kind: str, id: str, node: str | None) -> None:
        spec = self._child(kind, id, node)
        try:
            handle = await self._working().start_child(spec)
        except SupervisorStoppingError:
            # The pool was stopped, or resized and stopped at once: no caller waits for this member.
            return
        except (ChildError, CallError, SpawnError, StoreError) as error:
            self._failed(kind, error)
            return
        finally:
            del self._starting[id]
            self._tell()
        self._pauses[kind].end()
        if kind == MEMBER:
            self._failure = None
            if any(child.id == id for child in self._children_now()):
                self._addresses[id] = handle.address
            self._tell()

    def _child(self, kind: str, id: str, node: str | None) -> ChildSpec:
        if kind == KEEPER:
            return ChildSpec(
                id=id,
                actor=cast("str", PoolKeeper),
                args=(self.name, self._spec),
                restart="temporary",
                options=SpawnOptions(on=node),
            )
        options = self._spec.options
        return ChildSpec(
            id=id,
            actor=self._spec.member,
            args=self._spec.args,
            kwargs=self._spec.kwargs,
            restart="temporary",
            kind="worker",
            shutdown=DRAIN_SECONDS,
            options=options if node is None else attrs.evolve(options, on=node),
        )

    def _failed(self, kind: str, error: UnderstudyError) -> None:
        """A member or a keeper did not start: wait longer each time."""
        self._pauses[kind].on_failed(trio.current_time())
        if kind == MEMBER:
            self._failure = error
            logger.warning("a member of pool %s did not start: %s", self.name, error)
        else:
            logger.info("no other node stands for pool %s yet: %s", self.name, error)

    def _drain(self, id: str) -> None:
        self._draining.add(id)
        self._tell()
        self.nursery.start_soon(self._stop_member, id, name=f"drain of {self.name}/{id}")

    async def _stop_member(self, id: str) -> None:
        try:
            await self._working().stop_child(id)
        except (ChildError, CallError, StoreError) as error:
            # It has ended by itself, or the supervisor stops.
            logger.debug("%s/%s was not stopped: %s", self.name, id, error)

    async def _find_adopted(self) -> None:
        """The addresses of members that an earlier incarnation has started."""
        for child in self._children_now():
            try:
                handle: object = await self.node.lookup(child.name)
            except (CallError, SpawnError):
                continue
            if isinstance(handle, Handle):
                self._addresses[child.id] = handle.address

    def _children_now(self, kind: str = MEMBER) -> list[ChildStatus]:
        return [
            child
            for child in self._working().status().children
            if child.id.startswith(kind) and child.state == "running"
        ]

    def _present(self) -> Mapping[str, Address]:
        """The members that take items, by their ids."""
        return {id: found for id, found in self._addresses.items() if id not in self._draining}

    def _view(self) -> PoolView:
        return PoolView(
            members=tuple(self._present().values()),
            draining=tuple(
                address.name for id, address in self._addresses.items() if id in self._draining
            ),
            what=self._spec.what,
            size=self._spec.size,
            problem=self._problem(),
            stopped=self._stopped,
        )

    def _problem(self) -> str:
        if self._present():
            return ""
        if self._failure is not None:
            return str(self._failure)
        return "" if self._is_placeable else "no node of the cluster can take its members"

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
