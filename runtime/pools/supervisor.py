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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import attrs
import trio

from actors.actor import Actor, Member
from actors.errors import (
    ActorNotPlacedError,
    CallError,
    ChildError,
    ClassMismatchError,
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
from actors.supervisor import ChildSpec, DynamicSupervisor
from runtime.hosting.allocations import TOLERANCE
from runtime.limited_log import LimitedLog
from runtime.pools.early_ends import EarlyEnds
from runtime.pools.member_plan import (
    GROWTH,
    IDLE_SECONDS,
    PoolSize,
    PoolSpec,
    check_pool_name,
    plan,
)
from runtime.pools.start_pause import LONGEST_PAUSE, StartPause
from runtime.supervision.placement import CALLS_ONLY
from runtime.supervision.singletons import CandidateComparison

OTHERS_SECONDS = 1.0
"""How long the start of a pool waits for other members when it has the first."""

LOOK_SECONDS = 0.25
"""Seconds between looks at the nodes of the cluster."""

ASK_SECONDS = 2.0
"""How many seconds a keeper has to answer what it keeps."""

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

LINES = 3
LINES_SECONDS = 60.0
"""At most so many lines of the log in so long about members that did not start: each is about all
members of a pool that were started together.
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


def check_what(pool: Handle, view: PoolView, what: str) -> None:
    """Raise ClassMismatchError for a pool that is of something else."""
    if view.what != what:
        raise ClassMismatchError(
            f"pool {pool.name} is of {view.what}, not of {what}", actor=pool.name
        )


class PoolSupervisor(DynamicSupervisor, CandidateComparison):
    """See the module. Its children are temporary: it replaces them itself, on other nodes if need
    be, and however many of them items take down, it goes on.
    """

    after_temporary: ClassVar[str | None] = (
        "not started again: the pool starts another member if it needs one"
    )
    logs_failed_starts: ClassVar[bool] = True

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
        self._early = EarlyEnds()
        self._failure: UnderstudyError | None = None
        self._no_room: tuple[int, UnderstudyError] | None = None
        """From when a member found no room until one finds some that has looked later: how many
        starts had begun, and the error. One at a time looks meanwhile, and the others follow it.
        """
        self._looked_for: set[str | None] = set()
        """The nodes on which members wait for room, None for any: one task each."""
        self._withdrawn: set[str] = set()
        """Members whose starts were withdrawn, since their nodes take none any more."""
        self._log = LimitedLog(logger, trio.current_time, burst=LINES, period=LINES_SECONDS)
        self._wanted = 0
        """How many members there are to be, as the last plan says."""
        self._logged = (0, 0)
        """How many members there were, and how many wanted, when a lack of room was logged."""
        self._changed = trio.Event()
        self._stopped = False
        self._is_placeable = True
        self._opened = False
        """True once it has a member, or needs none, or goes on as a pool that had: from then on
        other nodes stand for it.
        """

    @classmethod
    async def compare(cls, running: Handle, args: tuple[object, ...]) -> None:
        """Two nodes that open pools of one name at the same time both stand for it, and one of the
        two is refused if they are of different classes.
        """
        (spec,) = args
        check_what(running, await cast("Any", running).view(), cast("PoolSpec", spec).what)

    async def on_start(self) -> None:
        """Adopt the members that live, and start others; returns when there is one. Raises what
        the start of the first has raised.
        """
        # Of a pool that was given no name, too: its generated one has that of its node.
        check_pool_name(self.name)
        await super().on_start()
        await self._find_adopted()
        if self._spec.named:
            await self._take_over()
            # Keepers are begun by an incarnation that was opened. If this node ends before there is
            # a member, others must go on as well.
            self._opened = bool(self._working().running(KEEPER))
        self._act()
        with trio.move_on_after(math.inf) as patience:
            # If one constructor has raised, those of the members that are still starting may not.
            while any(id.startswith(MEMBER) for id in self._starting):
                with trio.move_on_after(LOOK_SECONDS):
                    await self._changed.wait()
                # A member may start for minutes, and nodes come and go meanwhile.
                self._keep()
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
        """Note that there is work for so many members."""
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
            # An earlier version has saved it, which knows no openings. It may be of a pool that has
            # ended.
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
        for _, keeper in self._working().running(KEEPER):
            with trio.move_on_after(ASK_SECONDS):
                try:
                    return await (await self.node.lookup(keeper.name, PoolKeeper)).spec()
                except (CallError, SpawnError) as error:
                    logger.info("%s does not say what it keeps: %s", keeper.name, error)
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
                # What is left does no harm: another opening has another text.
                logger.debug("what pool %s has saved was not removed: %s", self.name, error)

    def _on_children_changed(self, ids: Sequence[str]) -> None:
        """Some children have changed: forget the members among them that have ended."""
        self._see_early_ends()
        # Only these, and not all children: while a large pool starts or stops, each of its members
        # changes several times.
        for id in ids:
            if self._working().is_running(id):
                continue
            if self._addresses.pop(id, None) is not None:
                self._early.forget(id)
            if id not in self._starting:
                self._draining.discard(id)
        self._tell()

    def _see_early_ends(self) -> None:
        """See whether a member has ended by itself right after its start."""
        now = trio.current_time()
        for report in self._early.fresh(self._working().latest_deaths()):
            if report.id.startswith(MEMBER) and self._early.on_ended(report, now):
                self._log.warning(
                    "members of pool %s end right after their start; it starts one at a time, the "
                    "next after %.1f s, until one of them goes on running: %s",
                    self.name,
                    self._early.pause.seconds,
                    report.reason,
                )

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
        self._withdraw(MEMBER, nodes)
        placed = {
            id: node
            for id, node in (
                {id: address.node for id, address in self._addresses.items()} | self._starting
            ).items()
            if id.startswith(MEMBER) and id not in self._draining and id not in self._withdrawn
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
        self._wanted = len(placed) + len(changes.starts) - len(changes.stops)
        if self._logged != (0, 0) and len(self._present()) >= self._wanted:
            self._logged = (0, 0)
            logger.info("pool %s has all of its %d members", self.name, self._wanted)
        if self._pauses[MEMBER].is_over(trio.current_time()):
            # Not when the first has failed: those that fit may not have said yet that they run.
            self._log_lack()
            for node in self._due(changes.starts):
                self._begin(MEMBER, node)
        for id in changes.stops:
            if id in self._addresses:
                self._drain(id)
        self._keep()

    def _due(self, starts: Sequence[str | None]) -> list[str | None]:
        """The starts of a plan that are made now."""
        now = trio.current_time()
        self._early.look(now)
        if self._early.is_one_at_a_time:
            # All of them would probably end as well, each with a line in the log.
            looks = any(id.startswith(MEMBER) for id in self._starting)
            if looks or not starts or not self._early.may_start(now):
                return []
            # The places take turns: only one of the nodes may be unfit.
            return [starts[self._started % len(starts)]]
        if self._no_room is None:
            return list(starts)
        # One looks for room on all nodes. A pool that is larger than the room there is would cost
        # the store several reads a second for each member that it lacks.
        looks = any(node is None and id.startswith(MEMBER) for id, node in self._starting.items())
        return [node for node in starts if node is not None] + [
            node for node in starts if node is None
        ][: 0 if looks else 1]

    def _withdraw(self, kind: str, nodes: Sequence[str]) -> None:
        """Withdraw the starts on nodes that are not among these any more, such as those that leave:
        they would be tried there until their time is over, and count as made.
        """
        if not nodes:
            # Where there is no other node, the last attempt says why.
            return
        for id, node in self._starting.items():
            is_gone = node is not None and node not in nodes
            if is_gone and id.startswith(kind) and id not in self._withdrawn:
                self._withdrawn.add(id)
                self.nursery.start_soon(self._stop_member, id, name=f"end of {self.name}/{id}")

    def _nodes(self) -> list[str]:
        """The nodes that members may be on: those that have what a member takes, if there is one.
        Otherwise an attempt to start one says what each lacks.
        """
        allowed = self._allowed()
        amounts = self._spec.options.resources.items()
        return [
            member.name
            for member in allowed
            if all(
                member.resources.get(name, 0.0) >= amount - TOLERANCE for name, amount in amounts
            )
        ] or [member.name for member in allowed]

    def _allowed(self) -> list[Member]:
        """The members of the cluster that the options of the pool's members allow."""
        options = self._spec.options
        return [
            member
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
        return [member.name for member in self._allowed() if member.name != own] or [
            member.name for member in self.node.members() if _hosts_actors(member, own)
        ]

    def _keepers(self) -> set[str]:
        """The other nodes that stand for this supervisor."""
        keepers = self._working().running(KEEPER)
        return {address.node for _, address in keepers} - {self.node.name}

    def _keep(self) -> None:
        """Have other nodes stand for this supervisor."""
        # Before it is opened, they would go on with the attempt to open it after the caller had
        # the answer that it has failed.
        if not self._spec.named or not self._opened:
            return
        others = self._others()
        self._withdraw(KEEPER, others)
        if not self._pauses[KEEPER].is_over(trio.current_time()):
            return
        keepers = self._keepers()
        keepers |= {
            node
            for id, node in self._starting.items()
            if id.startswith(KEEPER) and node and id not in self._withdrawn
        }
        fresh = [node for node in others if node not in keepers]
        for _ in range(min(KEEPERS - len(keepers), len(fresh))):
            # The nodes take turns: one of them may refuse each time.
            self._begin(KEEPER, fresh.pop(self._started % len(fresh)))

    def _begin(self, kind: str, node: str | None) -> None:
        self._started += 1
        id = f"{kind}{self.epoch}-{self._started}"
        self._starting[id] = node
        number = self._started
        name = f"start of {self.name}/{id}"
        self.nursery.start_soon(self._start, kind, number, id, node, name=name)

    async def _start(self, kind: str, number: int, id: str, node: str | None) -> None:
        spec = self._child(kind, id, node)
        seen = self._working().room_changes
        try:
            handle = await self._working().start_child(spec)
        except SupervisorStoppingError:
            # The pool was stopped, or resized and stopped at once: no caller waits for this member.
            return
        except (ChildError, CallError, SpawnError, StoreError) as error:
            if id not in self._withdrawn:
                self._failed(kind, error)
                if kind == MEMBER and isinstance(error, ActorNotPlacedError):
                    self._look_for_room(spec, seen, node)
            return
        finally:
            del self._starting[id]
            self._withdrawn.discard(id)
            self._tell()
        self._pauses[kind].end()
        if kind == MEMBER:
            self._failure = None
            if self._no_room is not None and number > self._no_room[0]:
                self._no_room = None
            # It may have ended meanwhile, or its start was withdrawn.
            if self._working().is_running(id):
                self._addresses[id] = handle.address
                self._early.on_started(id, trio.current_time())
            self._tell()

    def _look_for_room(self, spec: ChildSpec, seen: int, node: str | None) -> None:
        """End the pause before the next attempt as soon as there is room for a member: on that
        node, or on any. `seen`: the `room_changes` before the attempt that has failed.
        """
        if node in self._looked_for:
            return
        self._looked_for.add(node)

        async def look() -> None:
            pause = self._pauses[MEMBER]
            try:
                seconds = pause.until - trio.current_time()
                if await self._working().wait_for_room(spec, seen, seconds):
                    pause.until = -math.inf
            finally:
                self._looked_for.discard(node)
            self._tell()

        self.nursery.start_soon(look, name=f"room for {self.name}/{spec.id}")

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
        is_first = self._pauses[kind].on_failed(trio.current_time())
        if kind == KEEPER:
            logger.info("no other node stands for pool %s yet: %s", self.name, error)
            return
        self._failure = error
        if isinstance(error, ActorNotPlacedError):
            self._no_room = self._started, error
        elif is_first:
            self._log.warning("a member of pool %s did not start: %s", self.name, error)

    def _log_lack(self) -> None:
        """Say that there is no room for some members, once for each number of those."""
        numbers = (len(self._present()), self._wanted)
        if self._no_room is None or numbers == self._logged:
            return
        self._logged = numbers
        self._log.warning(
            "pool %s has %d of its %d members, and there is no room for the others now; they are "
            "started when there is: %s",
            self.name,
            *numbers,
            self._no_room[1],
        )

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
        for id, address in self._working().running(MEMBER):
            try:
                handle: object = await self.node.lookup(address.name)
            except (CallError, SpawnError):
                continue
            # It may have ended meanwhile.
            if isinstance(handle, Handle) and self._working().is_running(id):
                self._addresses[id] = handle.address

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
        if self._early.latest is not None:
            return f"they end right after their start: {self._early.latest}"
        return "" if self._is_placeable else "no node of the cluster can take its members"

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
