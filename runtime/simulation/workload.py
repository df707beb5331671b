"""The workload that attacks the promises of a simulated cluster: registers that save their values,
and clients that call them.

Registers are named, saved, and started elsewhere by any client that finds them gone. Clients live
on every node, and are killed, stopped and cut off with it. All requests and answers of clients go
into one history.
"""

from __future__ import annotations

import random
from typing import Any

import attrs
import trio

from actors import Actor, ChildSpec, Reference, SpawnOptions, Supervisor, message, method
from actors.errors import (
    ActorNotFoundError,
    CallError,
    NotExecutedError,
    OwnerDiedError,
    ReferenceReleasedError,
    UnderstudyError,
)
from actors.options import CallChanges
from actors.retry import RetryPolicy
from runtime.node import Node, internals_of
from runtime.references.table import state_of
from runtime.simulation.cluster import CLUSTER, Place, SimulatedCluster
from runtime.simulation.crowds import Crowds
from runtime.simulation.deep_calls import DeepCalls
from runtime.simulation.full_nodes import FullNodes
from runtime.simulation.joint_starts import JointStarts
from runtime.simulation.large_states import LargeStates
from runtime.simulation.late_errors import LateErrors
from runtime.simulation.late_starts import LateStarts
from runtime.simulation.load import Load
from runtime.simulation.name_races import NameRaces
from runtime.simulation.oracle import Oracle
from runtime.simulation.outbursts import Outbursts
from runtime.simulation.polls import Polls
from runtime.simulation.programs import Programs
from runtime.simulation.refused_calls import RefusedCalls
from runtime.simulation.report import CallHistory, Operation
from runtime.simulation.shared_devices import SharedDevices

# References that are forwarded between the nodes of a simulated cluster, and what must never happen
# to them.
#
# Reference holders are actors that make values, keep references to them for a while, lend them to
# clients and fetch their values. Each value has its own mark, so each fetch can check its result.
# The oracle records which nodes have forwarded which reference, so that it knows whether a value
# may be gone.

SHELVES = 3


FETCH_SECONDS = 12.0
"""Seconds that a fetch may take. Without faults that must be enough."""


KEPT_SECONDS = (0.0, 0.5, 3.0, 8.0)
"""Seconds for which a reference is kept, one of these: sometimes pauses and partitions last longer
than a lease.
"""


STUBBORN = 0.4
"""The share of the values that are made by calls which raise at first and are repeated."""


Thing = list[Any]
"""A mark, and a reference to the value that has it."""

KEYS = 3

CLIENTS = 2
"""Clients on each node."""

PATIENCE = (0.3, 1.0, 4.0)
"""Seconds that a call is given, one of these."""

PAUSE = 0.6
"""Mean seconds between the calls of a client."""

LOOKUP_PAUSE = 2.0
"""Mean seconds between the lookups of a node."""

LOOKUP_SECONDS = 25.0
"""Seconds that a lookup may take: two requests to a store with a time-out of ten seconds each, and
an attempt that ends a little later.
"""

INTENSITY = 3

PERIOD = 5.0

STEADY = 4
"""Children of a supervisor that only lose their nodes."""

THOUGHTFUL = 0.1
"""The share of the changes that take up to a second."""

RETRY = RetryPolicy(max_retries=4, initial_delay=0.05, max_delay=1.0, attempt_timeout=0.4)
"""The retry policy of some calls."""

IMPATIENT = RetryPolicy(
    max_retries=6, initial_delay=0.02, max_delay=0.2, attempt_timeout=0.1, repeat_unknown=True
)
"""The retry policy of calls to a ledger, which may be repeated after any outcome."""

MAILBOX = 8
"""How many calls may wait at a ledger."""

BURST = 20
"""How many calls a client makes to it at once."""

LOADS: tuple[type[Load], ...] = (
    Outbursts,
    JointStarts,
    NameRaces,
    LateStarts,
    DeepCalls,
    RefusedCalls,
    Programs,
    Polls,
    LateErrors,
    FullNodes,
    SharedDevices,
    LargeStates,
)
"""The loads that only some seeds have. A run starts and judges them in this order."""

LATE = 0.2
"""Seconds by which a call may exceed its time."""


@message
class SlippedError(Exception):
    """What a method raises before it succeeds."""


INSISTENT = RetryPolicy(max_retries=3, initial_delay=0.6, backoff=2.0, retry_on=SlippedError)
"""The retry policy of calls whose first attempts raise that."""


@attrs.define(eq=False)
class ReferenceOracle:
    """Records which nodes have forwarded which references, and what went wrong. It sees all nodes
    at once.
    """

    cluster: SimulatedCluster
    calm: bool = False
    """True once all faults are healed, and all nodes see each other again."""
    fetched: int = 0
    mixed_up: list[str] = attrs.field(factory=list)
    """Fetched values that differ from those that were made."""
    freed: list[str] = attrs.field(factory=list)
    """Values that were lost although no node that took part had ended."""
    stuck: list[str] = attrs.field(factory=list)
    """Fetches that neither returned nor failed in their time."""
    torn: list[str] = attrs.field(factory=list)
    """References of which some holders got the value and others a failure."""
    _holders: dict[str, dict[Place, None]] = attrs.field(factory=dict)
    _outcomes: dict[str, dict[str, Place]] = attrs.field(factory=dict)
    """By mark: which holders got which result, the first of each kind."""
    _attempts: dict[str, int] = attrs.field(factory=dict)

    def attempt(self, mark: str) -> int:
        """Return how often the call that makes the value with that mark has run, including this
        time.
        """
        self._attempts[mark] = self._attempts.get(mark, 0) + 1
        return self._attempts[mark]

    def handed(self, mark: str, place: Place) -> None:
        """Record that an incarnation of a node has made, kept or forwarded the value with that
        mark.
        """
        self._holders.setdefault(mark, {})[place] = None

    async def look(self, here: Place, mark: str, reference: Reference[Any]) -> list[Thing]:
        """Fetch a value on the node `here` and check the result. Returns the references in it."""
        state, began_calm = state_of(reference), self.calm
        self.handed(mark, here)
        owner = (state.owner_id.name, state.owner_id.incarnation, here[2])
        value: Any = None
        try:
            with trio.move_on_after(FETCH_SECONDS) as patience:
                value = await reference.fetch()
        except ReferenceReleasedError as error:
            # The node that fetches takes part as well: a node that others have marked dead holds
            # nothing.
            owner_id = state.owner_id
            if all(map(self.cluster.is_well, self._holders[mark])) and self.cluster.is_well(
                (owner_id.name, owner_id.incarnation, here[2])
            ):
                self.cluster.trace.violation(
                    self.freed,
                    "",
                    f"{mark} is gone for {here}, and {sorted(self._holders[mark])} are all well: "
                    f"{error}",
                )
        except OwnerDiedError as error:
            if self.cluster.is_well(owner) and self.cluster.is_well(here):
                self.cluster.trace.violation(
                    self.freed,
                    "",
                    f"{mark} is lost for {here}, and its owner {owner} is well: {error}",
                )
        except UnderstudyError as error:
            # The outcome of the call that makes the value. Its maker may not know yet what the
            # owner knows.
            if state.failure is not None and (
                state.identity[:2] != here[:2] or isinstance(error, SlippedError)
            ):
                self._seen(mark, f"a failure ({type(error).__name__})", here, owner)
        else:
            if patience.cancelled_caught:
                if began_calm and self.cluster.is_well(here):
                    self.cluster.trace.violation(
                        self.stuck,
                        "",
                        f"{mark} did not come from {owner} to {here} in {FETCH_SECONDS:g} s, in "
                        "the calm",
                    )
                return []
            self.fetched += 1
            self._seen(mark, "a value", here, owner)
            if value["mark"] != mark:
                self.cluster.trace.violation(
                    self.mixed_up, "", f"{here} fetched {mark}, and got {value['mark']}"
                )
            for inner, _ in value["things"]:
                self.handed(inner, owner)
            return list(value["things"])
        return []

    def _seen(self, mark: str, what: str, here: Place, owner: Place) -> None:
        """Check that all fetches of a value have the same result, as long as the owner and all
        nodes that took part live.
        """
        seen = self._outcomes.setdefault(mark, {})
        seen.setdefault(what, here)
        if (
            len(seen) > 1
            and self.cluster.is_well(owner)
            and all(map(self.cluster.is_well, self._holders[mark]))
        ):
            self.cluster.trace.violation(
                self.torn,
                "",
                f"{mark} of {owner} is "
                + " and ".join(f"{each} for {place}" for each, place in seen.items()),
            )


def reference_oracle() -> ReferenceOracle:
    """Return the references of the workload that the running task belongs to."""
    found = getattr(CLUSTER.get().scenario, "reference_oracle", None)
    assert isinstance(found, ReferenceOracle)
    return found


class ReferenceHolder(Actor):
    """An actor that makes values and keeps references for a while."""

    def __init__(self) -> None:
        self.things: dict[int, Thing] = {}
        self.number = 0

    @method(concurrent=True)
    async def make(self, mark: str, seconds: float, things: list[Any]) -> dict[str, Any]:
        """Make a value, after a while, with references in it."""
        self._handed([*things, [mark, None]])
        await trio.sleep(seconds)
        return {"mark": mark, "things": things}

    @method(concurrent=True)
    async def make_at_last(self, mark: str, failures: int, things: list[Any]) -> dict[str, Any]:
        """Likewise for a caller that repeats the call: raises this many times first."""
        self._handed([*things, [mark, None]])
        if reference_oracle().attempt(mark) <= failures:
            raise SlippedError(f"{mark} slipped")
        return {"mark": mark, "things": things}

    @method(concurrent=True)
    async def keep(self, things: list[Any], seconds: float, looks: bool) -> None:
        """Hold these for some seconds. Perhaps look at the values before they are dropped."""
        self._handed(things)
        numbers = []
        for thing in things:
            self.number += 1
            numbers.append(self.number)
            self.things[self.number] = thing
        try:
            await trio.sleep(seconds)
            if looks:
                for mark, reference in things:
                    for inner, deeper in await reference_oracle().look(
                        self._place, mark, reference
                    ):
                        await reference_oracle().look(self._place, inner, deeper)
        finally:
            for number in numbers:
                del self.things[number]

    @method
    async def lend(self, count: int) -> list[Any]:
        """How many references are kept here, the latest ones."""
        things = list(self.things.values())[-count:]
        self._handed(things)
        return things

    def _handed(self, things: list[Any]) -> None:
        for mark, _ in things:
            reference_oracle().handed(mark, self._place)

    @property
    def _place(self) -> Place:
        return CLUSTER.get().place(self.node.name, self.node.incarnation)


async def _holder_of(client: WorkloadClient) -> ReferenceHolder:
    """Return one of the reference holders; start it if it does not run."""
    name = f"shelf-{client.work.generation}-{client.draw.randrange(SHELVES)}"
    members = [member.name for member in client.node.members() if member.state == "up"]
    return await client.node.options(
        name=name, on=client.draw.choice([None, *members])
    ).get_or_spawn(ReferenceHolder)


async def hand_on(client: WorkloadClient) -> None:
    """Make a value, borrow some, and forward them to reference holders on other nodes."""
    draw = client.draw
    here = CLUSTER.get().place(client.node.name, client.node.incarnation)
    try:
        with trio.move_on_after(10.0):
            things = await _gathered(client)
            seen = reference_oracle()
            for mark, _ in things:
                seen.handed(mark, here)
            for _ in range(draw.randrange(1, 3)):
                holder = await _holder_of(client)
                seconds = draw.choice(KEPT_SECONDS) * draw.random()
                arguments = (
                    draw.sample(things, draw.randrange(1, len(things) + 1)),
                    seconds,
                    draw.random() < 0.7,
                )
                if draw.random() < 0.6:
                    await holder.keep.send(*arguments)
                else:
                    # A fetch that is given up after a while, so that what it holds is dropped at an
                    # arbitrary point.
                    await holder.keep.options(timeout=draw.choice((0.3, 2.0, 9.0)))(*arguments)
            if draw.random() < 0.3:
                mark, reference = draw.choice(things)
                await seen.look(here, mark, reference)
    except UnderstudyError:
        return


async def _gathered(client: WorkloadClient) -> list[Thing]:
    """Return what a client forwards: a new value, and perhaps one that others hold."""
    draw, node = client.draw, client.node
    borrowed: list[Thing] = []
    if draw.random() < 0.5:
        holder = await _holder_of(client)
        borrowed = await holder.lend.options(timeout=2.0)(draw.randrange(1, 4))
    mark = f"{client.name}#{client.work.next_number()}"
    inside = _some(draw, borrowed)
    reference_oracle().handed(mark, CLUSTER.get().place(node.name, node.incarnation))
    reference: Reference[dict[str, Any]]
    if draw.random() < 0.4:
        reference = await node.put({"mark": mark, "things": inside})
    else:
        holder = await _holder_of(client)
        stubborn = random.Random(f"{client.work.cluster.seed} {mark}")
        if stubborn.random() < STUBBORN:
            calls = holder.make_at_last.options(timeout=9.0, retry=INSISTENT)
            return [[mark, await calls.remote(mark, stubborn.randrange(1, 4), inside)], *borrowed]
        reference = await holder.make.options(timeout=9.0).remote(
            mark, draw.choice((0.0, 0.1, 1.0)), inside
        )
    return [[mark, reference], *borrowed]


def _some(draw: random.Random, things: list[Thing]) -> list[Thing]:
    return draw.sample(things, draw.randrange(len(things) + 1))


def workload() -> Workload:
    """Return the workload that the running task belongs to."""
    found = CLUSTER.get().scenario
    assert isinstance(found, Workload)
    return found


class Register(Actor):
    """A register with one number. Everything that it has answered is saved."""

    def __init__(self) -> None:
        self.value: int | None = None

    async def on_start(self) -> None:
        """Load the state that a predecessor saved."""
        self.value = await self.saved()

    def report(self, call: str = "") -> None:
        """Report a run to the oracle."""
        workload().oracle.ran(self.name, self.epoch, self.node.name, call)

    @method(idempotent=True)
    async def read(self) -> int | None:
        """Return the number."""
        self.report()
        return self.value

    @method
    async def write(self, call: str, value: int) -> None:
        """Replace the number."""
        self.report(call)
        await self.keep(value)

    @method
    async def add(self, call: str, amount: int) -> int:
        """Add to the number and return the sum."""
        self.report(call)
        value = (self.value or 0) + amount
        await self.keep(value)
        return value

    @method
    async def compare_and_set(self, call: str, expected: int | None, new: int) -> bool:
        """Replace the number if it is the expected one. Returns whether it was."""
        self.report(call)
        if self.value != expected:
            return False
        await self.keep(new)
        return True

    async def keep(self, value: int) -> None:
        """Save the value before it is returned, so that a caller who gets the answer can rely on
        it.
        """
        draw = CLUSTER.get().draw
        if draw.random() < THOUGHTFUL:
            # Long enough that the process may be stopped here, and go on when it has a successor.
            await trio.sleep(draw.random())
        oracle = workload().oracle
        succeeded = oracle.has_successor(self.name, self.epoch)
        await self.save(value)
        if succeeded:
            oracle.saved_late(self.name, self.epoch, self.node.name)
        self.value = value


class Ledger(Actor):
    """Takes its time, so that calls are repeated: what has run once must not run again."""

    @method
    async def count(self, call: str, seconds: float) -> str:
        """Record that the call ran."""
        place = f"{self.node.name}.{self.node.incarnation}"
        workload().oracle.ran_on(call, place)
        await trio.sleep(seconds)
        return call


class Fragile(Actor):
    """A child that ends on request, or now and then in its constructor. Its supervisor restarts it
    within its intensity.
    """

    def __init__(self, supervisor: str) -> None:
        self.supervisor = supervisor

    async def on_start(self) -> None:
        """Report the start to the oracle."""
        work = workload()
        before, here = (
            work.places.get(self.name),
            work.cluster.place(self.node.name, self.node.incarnation),
        )
        work.places[self.name] = here
        # The end or leaving of a node says nothing about its actors, so what is started elsewhere
        # because of it is no restart.
        if work.calling and (before is None or work.cluster.is_well(before)):
            work.oracle.started(self.supervisor, self.name, CLUSTER.get().now(), INTENSITY, PERIOD)

    @method
    async def shatter(self) -> None:
        """End the actor."""
        raise SystemExit(f"{self.name} was asked to")


class Steady(Actor):
    """A child that never fails by itself: it ends with its node, or moves with it."""


@attrs.define(eq=False)
class Workload:
    """The clients and what they have seen. `program` runs beside each node."""

    cluster: SimulatedCluster
    fair: bool
    """True if no faults were drawn."""
    oracle: Oracle = attrs.field(init=False)
    reference_oracle: ReferenceOracle = attrs.field(init=False)
    loads: dict[type[Load], Load] = attrs.field(init=False)
    """Those of this run."""
    places: dict[str, Place] = attrs.field(factory=dict)
    """Where children of supervisors were started last."""
    history: CallHistory = attrs.field(factory=CallHistory)
    generation: int = 0
    """How often the store was lost with its disk. What it acknowledged before that is not
    checked.
    """
    calling: bool = True
    late: list[str] = attrs.field(factory=list)
    denied: dict[str, Operation] = attrs.field(factory=dict)
    """Calls that were reported as certainly not executed."""
    mistaken: list[str] = attrs.field(factory=list)
    """Answers to other questions."""
    not_outcomes: list[str] = attrs.field(factory=list)
    """Calls and lookups that ended with none of the three outcomes."""
    lookups: int = 0
    _numbers: int = 0

    def __attrs_post_init__(self) -> None:
        self.oracle = Oracle(self.cluster.trace, fair=self.fair)
        self.reference_oracle = ReferenceOracle(self.cluster)
        drawn = [kind for kind in LOADS if kind.is_drawn(self.cluster.seed)]
        # Faults may delay the refusal of an earlier call, or end the retries of any call. Only
        # without faults can the exact outcome of a crowd's calls be checked.
        kinds: list[type[Load]] = [Crowds, *drawn] if self.fair else drawn
        self.loads = {kind: kind(self.cluster, self.oracle) for kind in kinds}

    @property
    def keys(self) -> list[str]:
        """The registers that are called now."""
        return [f"register-{self.generation}-{number}" for number in range(KEYS)]

    def disk_lost(self) -> None:
        """The store does not know any of these yet."""
        for operation in self.history.operations:
            if operation.outcome == "pending":
                self.history.unknown(operation, "the store is lost", self.cluster.now())
        self.generation += 1
        for load in self.loads.values():
            load.generation = self.generation

    async def program(self, node: Node) -> None:
        """The clients of one node."""
        seed = f"{self.cluster.seed} clients {node.name} {node.incarnation} {self.generation}"
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                client = WorkloadClient(
                    self,
                    node,
                    f"{node.name}.{node.incarnation}/{number}",
                    random.Random(f"{seed} {number}"),
                )
                nursery.start_soon(client.run)
            nursery.start_soon(self._look_up, node, random.Random(f"{seed} lookups"))
            for load in self.loads.values():
                nursery.start_soon(load.run, node, random.Random(f"{seed} {load.title}"))
            if node.name == self.cluster.founder:
                nursery.start_soon(self._supervise, node, random.Random(f"{seed} supervision"))
                nursery.start_soon(self._supervise_steady, node)

    async def _look_up(self, node: Node, draw: random.Random) -> None:
        """Ask for names and for the tree without a deadline: in any state of the store, each
        request ends with an outcome, in bounded time.
        """
        tell, now = self.cluster.trace.tell, self.cluster.now
        while True:
            await trio.sleep(draw.expovariate(1 / LOOKUP_PAUSE))
            if not self.calling:
                continue
            name = draw.choice([*self.keys, f"tally-{self.generation}", "nobody"])
            look_up = draw.random() < 0.8
            what = f"lookup of {name}" if look_up else "tree"
            began = now()
            self.lookups += 1
            try:
                await (node.lookup(name) if look_up else node.tree())
            except CallError:
                pass
            except UnderstudyError as error:
                self.no_outcome(node.name, what, error)
            if self.cluster.live(node.name) is not node:
                # Its process was killed meanwhile, and its tasks end unobserved.
                return
            took = now() - began - self.cluster.stopped(node.name, began)
            if took > LOOKUP_SECONDS:
                text = f"{what} by {node.name} took {took:.3f} s"
                self.late.append(text)
                tell(node.name, "wrong", text)

    def no_outcome(self, node: str, what: str, error: UnderstudyError) -> None:
        """Record a call or lookup that ended with none of the three outcomes."""
        text = f"{what} ended with {type(error).__name__}: {error}"
        self.cluster.trace.violation(self.not_outcomes, node, text)

    async def _supervise(self, node: Node, draw: random.Random) -> None:
        """A supervisor with children that end again and again."""
        name = f"supervisor-{node.incarnation}-{self.generation}"
        specs = [
            ChildSpec(
                id=f"{name}-child-{number}",
                actor=Fragile,
                args=(name,),
                options=SpawnOptions(name=f"{name}-child-{number}"),
            )
            for number in range(2)
        ]
        try:
            await node.options(name=name).spawn(
                Supervisor, specs, intensity=INTENSITY, period=PERIOD
            )
        except UnderstudyError:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, node, name)
            await self._break(node, specs, draw)
            nursery.cancel_scope.cancel()

    async def _supervise_steady(self, node: Node) -> None:
        """A supervisor that is allowed no restart, with children on all nodes that never fail: it
        must stay, whatever happens to the nodes.
        """
        name = f"steady-{node.incarnation}-{self.generation}"
        specs = [ChildSpec.of(f"{number}", Steady) for number in range(STEADY)]
        try:
            await node.options(name=name).spawn(Supervisor, specs, intensity=0)
        except UnderstudyError:
            return
        reason = await internals_of(node).host.exits.wait(name, 0)
        if "restart" in reason.text and self.calling:
            self.oracle.gave_up_in_vain(name, reason.text)

    async def _watch(self, node: Node, supervisor: str) -> None:
        """Report to the oracle if a supervisor gives up."""
        reason = await internals_of(node).host.exits.wait(supervisor, 0)
        if "restart" in reason.text and self.calling:
            self.oracle.gave_up(supervisor, self.cluster.now(), INTENSITY, PERIOD)

    async def _break(self, node: Node, specs: list[ChildSpec], draw: random.Random) -> None:
        while self.calling:
            await trio.sleep(draw.expovariate(1 / draw.choice((0.5, 5.0))))
            try:
                child = await node.lookup(draw.choice(specs).id, Fragile)
                await child.shatter.options(timeout=1.0)()
            except UnderstudyError:
                continue

    async def watch_queues(self) -> None:
        """Check all mailboxes and all other tables now and then, for ever."""
        while True:
            await trio.sleep(0.25)
            self.cluster.check_invariants()
            for name in self.cluster.machines:
                node = self.cluster.live(name)
                for cell in internals_of(node).cells.values() if node is not None else ():
                    self.oracle.waiting(cell.address.name, cell.waiting, cell.limit)

    def executed_though_denied(self) -> list[str]:
        """Return calls that ran although they were reported to their caller as not executed."""
        return [
            f"{operation} was executed"
            for call, operation in self.denied.items()
            if call in self.oracle.executions
        ]

    def next_number(self) -> int:
        """Return a number that was not used before, so that values cannot be mistaken for each
        other.
        """
        self._numbers += 1
        return self._numbers


@attrs.define(eq=False)
class WorkloadClient:
    """Calls one register after the other, and records the outcome of each call."""

    work: Workload
    node: Node
    name: str
    draw: random.Random
    handles: dict[str, Register] = attrs.field(factory=dict)

    async def run(self) -> None:
        """Call registers at random times until cancelled, as long as `work.calling` is true."""
        while True:
            await trio.sleep(self.draw.expovariate(1 / PAUSE))
            if self.work.calling:
                await self._call(self.draw.choice(self.work.keys))

    async def _call(self, key: str) -> None:
        register = await self._find(key)
        if register is None:
            return
        aside = self.draw.random()
        if aside < 0.05:
            await self._refer(register)
            return
        if aside < 0.15:
            await hand_on(self)
            return
        if aside < 0.25:
            await self._count()
            return
        number = self.work.next_number()
        call = f"{self.name}#{number}"
        what, arguments, argument = self._drawn(number)
        changes: CallChanges = {"timeout": self.draw.choice(PATIENCE)}
        if self.draw.random() < 0.5:
            changes["retry"] = RETRY
        history, now = self.work.history, self.work.cluster.now
        operation = history.invoke(self.name, key, what, argument, now())
        said = f"{self.name}: {key}.{what}({argument!r}) #{operation.called}"
        tell = self.work.cluster.trace.tell
        tell(self.node.name, "call", said)
        bound: Any = getattr(register, what).options(**changes)
        try:
            result = await (bound() if what == "read" else bound(call, *arguments))
        except NotExecutedError as error:
            self.work.denied[call] = operation
            self._end(operation, "failed", error)
            if isinstance(error, ActorNotFoundError):
                self.handles.pop(key, None)
        except UnderstudyError as error:
            self._end(operation, "unknown", error)
            if not isinstance(error, CallError):
                self.work.no_outcome(self.node.name, str(operation), error)
        else:
            if operation.outcome == "pending":
                history.ok(operation, result, now())
                tell(self.node.name, "ok", f"{said} -> {result!r}")
        self._look_at_the_clock(operation, changes["timeout"] or 0.0)

    async def _refer(self, register: Register) -> None:
        """Leave a result with its owner for a while. The reference is dropped in the end, or ends
        with its holder.
        """
        try:
            reference = await register.read.options(timeout=1.0).remote()
            await trio.sleep(self.draw.random() * 2)
            if self.draw.random() < 0.5:
                with trio.move_on_after(1.0):
                    await reference.fetch()
        except UnderstudyError:
            return

    async def _count(self) -> None:
        """Call a ledger, once or many times at once, with repeats before the calls can have
        ended.
        """
        name = f"tally-{self.work.generation}"
        try:
            with trio.move_on_after(5.0):
                ledger = await self.node.options(name=name, mailbox_limit=MAILBOX).get_or_spawn(
                    Ledger
                )
                async with trio.open_nursery() as nursery:
                    for _ in range(BURST if self.draw.random() < 0.2 else 1):
                        nursery.start_soon(self._count_once, ledger)
        except UnderstudyError:
            return

    async def _count_once(self, ledger: Ledger) -> None:
        call = f"{self.name}#{self.work.next_number()}"
        seconds = self.draw.choice((0.0, 0.01, 0.3))
        try:
            answer = await ledger.count.options(timeout=2.0, retry=IMPATIENT)(call, seconds)
        except UnderstudyError:
            return
        if answer != call:
            self.work.mistaken.append(
                f"{self.name} asked for {call!r}, and was answered {answer!r}"
            )

    def _drawn(self, number: int) -> tuple[str, tuple[object, ...], object]:
        what = self.draw.choice(("read", "read", "write", "add", "compare_and_set"))
        if what == "write":
            return what, (number,), number
        if what == "add":
            return what, (1,), 1
        if what == "compare_and_set":
            expected = self.draw.choice([None, *range(max(0, number - 6), number)])
            return what, (expected, number), (expected, number)
        return what, (), None

    def _end(self, operation: Operation, how: str, error: UnderstudyError) -> None:
        if operation.outcome == "pending":
            text = f"{type(error).__name__}: {error}"
            said = (
                f"{self.name}: {operation.key}.{operation.what}({operation.argument!r}) "
                f"#{operation.called}: {text}"
            )
            self.work.cluster.trace.tell(self.node.name, how, said)
            if how == "failed":
                self.work.history.failed(operation, text, self.work.cluster.now())
            else:
                self.work.history.unknown(operation, text, self.work.cluster.now())

    def _look_at_the_clock(self, operation: Operation, patience: float) -> None:
        """Check that a call ends when its time is over. Time during which the client's own process
        was stopped does not count.
        """
        now = self.work.cluster.now()
        took = (
            now
            - operation.called_at
            - self.work.cluster.stopped(self.node.name, operation.called_at)
        )
        if took > patience + LATE:
            text = f"{operation} took {took:.3f} s of the {patience:g} s it had"
            self.work.late.append(text)
            self.work.cluster.trace.tell(self.node.name, "wrong", text)

    async def _find(self, key: str) -> Register | None:
        """Return a handle of the register; start it if it does not run."""
        if key not in self.handles or self.draw.random() < 0.1:
            try:
                members = [member.name for member in self.node.members() if member.state == "up"]
                where = self.draw.choice([None, *members])
                with trio.move_on_after(5.0):
                    self.handles[key] = await self.node.options(name=key, on=where).get_or_spawn(
                        Register
                    )
            except UnderstudyError:
                return None
        return self.handles.get(key)
