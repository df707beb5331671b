"""What runs on a simulated cluster to have its promises attacked: registers that save what they are told, and clients that call them.

Registers are named, saved, and started again elsewhere by whichever client finds them gone. Clients live on every node, and are killed,
stopped and cut off with it. What a client asks for and learns goes into one history.
"""

from __future__ import annotations

import random
from typing import Any

import attrs
import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from actors.errors import ActorNotFoundError, CallError, NotExecutedError, UnderstudyError
from actors.options import CallChanges
from actors.retry import RetryPolicy
from runtime.node import Node
from runtime.simulation.cluster import CLUSTER, SimulatedCluster
from runtime.simulation.crowds import Crowds
from runtime.simulation.history import History, Operation
from runtime.simulation.oracle import SHOWN, Oracle
from runtime.simulation.shelves import Hands, Place, hand_on

KEYS = 3
CLIENTS = 2
"""On each node."""

PATIENCE = (0.3, 1.0, 4.0)
"""Seconds that a call is given, one of these."""

PAUSE = 0.6
"""Seconds between the calls of a client, on average."""

LOOKUP_PAUSE = 2.0
"""Seconds between the lookups of a node, on average."""

LOOKUP_SECONDS = 25.0
"""How long a lookup may take: two questions to a store that is given ten seconds for each, and an attempt that ends a little later."""

INTENSITY = 3
PERIOD = 5.0

STEADY = 4
"""Children of a supervisor that only lose their nodes."""

THOUGHTFUL = 0.1
"""How many of the changes take up to a second."""

RETRY = RetryPolicy(max_retries=4, initial_delay=0.05, max_delay=1.0, attempt_timeout=0.4)
"""Of some calls."""

IMPATIENT = RetryPolicy(max_retries=6, initial_delay=0.02, max_delay=0.2, attempt_timeout=0.1, repeat_unknown=True)
"""Of calls to a tally, which may be made again whatever became of them."""

MAILBOX = 8
"""Calls that may wait at a tally."""

BURST = 20
"""Calls that a client makes to it at once."""


def workload() -> Workload:
    """The one that the running task belongs to."""
    found = CLUSTER.get().scenario
    assert isinstance(found, Workload)
    return found


class Register(Actor):
    """Keeps one number. What it has answered is saved."""

    def __init__(self) -> None:
        self.value: int | None = None

    async def on_start(self) -> None:
        """Take over from a predecessor."""
        self.value = await self.saved()

    def report(self, call: str = "") -> None:
        """Tell the oracle that something runs."""
        workload().oracle.ran(self.name, self.epoch, self.node.name, call)

    @method(idempotent=True)
    async def read(self) -> int | None:
        """The number."""
        self.report()
        return self.value

    @method
    async def write(self, call: str, value: int) -> None:
        """Another number."""
        self.report(call)
        await self.keep(value)

    @method
    async def add(self, call: str, amount: int) -> int:
        """The sum."""
        self.report(call)
        value = (self.value or 0) + amount
        await self.keep(value)
        return value

    @method
    async def compare_and_set(self, call: str, expected: int | None, new: int) -> bool:
        """Whether it was the expected one, and is the new one now."""
        self.report(call)
        if self.value != expected:
            return False
        await self.keep(new)
        return True

    async def keep(self, value: int) -> None:
        """First on its way to the store, then known: whoever is answered can rely upon it."""
        draw = CLUSTER.get().draw
        if draw.random() < THOUGHTFUL:
            # Long enough to be stopped in the middle, and to have a successor when it goes on.
            await trio.sleep(draw.random())
        oracle = workload().oracle
        succeeded = oracle.has_successor(self.name, self.epoch)
        await self.save(value)
        if succeeded:
            oracle.saved_late(self.name, self.epoch, self.node.name)
        self.value = value


class Tally(Actor):
    """Takes its time, and is called again when that is too long: what was executed once must not be executed again."""

    @method
    async def count(self, call: str, seconds: float) -> str:
        """Note that it ran."""
        place = f"{self.node.name}.{self.node.incarnation}"
        workload().oracle.ran_on(call, place)
        await trio.sleep(seconds)
        return call


class Fragile(Actor):
    """Ends when it is asked to, or now and then in its constructor; its supervisor starts it again, within its intensity."""

    def __init__(self, supervisor: str) -> None:
        self.supervisor = supervisor

    async def on_start(self) -> None:
        """Tell the oracle."""
        work = workload()
        before, here = work.places.get(self.name), work.hands.place(self.node.name, self.node.incarnation)
        work.places[self.name] = here
        # The end of a node, or its leaving, says nothing about its actors: what is started elsewhere for that is not restarted.
        if work.calling and (before is None or work.hands.is_well(before)):
            work.oracle.started(self.supervisor, self.name, CLUSTER.get().now(), INTENSITY, PERIOD)

    @method
    async def shatter(self) -> None:
        """End the actor."""
        raise SystemExit(f"{self.name} was asked to")


class Steady(Actor):
    """Never fails by itself: it ends with its node, or moves with it."""


@attrs.define(eq=False)
class Workload:
    """The clients, and what they have seen. `program` runs beside each node."""

    cluster: SimulatedCluster
    oracle: Oracle = attrs.field(init=False)
    hands: Hands = attrs.field(init=False)
    crowds: Crowds = attrs.field(init=False)
    places: dict[str, Place] = attrs.field(factory=dict)
    """Where children of supervisors were started last."""
    history: History = attrs.field(factory=History)
    generation: int = 0
    """Counts how often the store was lost with its disk: what was acknowledged before is not looked for after."""
    calling: bool = True
    late: list[str] = attrs.field(factory=list)
    denied: dict[str, Operation] = attrs.field(factory=dict)
    """Calls that were reported as certainly not executed."""
    mistaken: list[str] = attrs.field(factory=list)
    """Answers to other questions."""
    not_outcomes: list[str] = attrs.field(factory=list)
    """What calls and lookups have ended with that is none of the three outcomes."""
    lookups: int = 0
    _numbers: int = 0

    def __attrs_post_init__(self) -> None:
        self.oracle = Oracle(self.cluster.trace)
        self.hands = Hands(self.cluster)
        self.crowds = Crowds(self.cluster, self.oracle)

    @property
    def keys(self) -> list[str]:
        """The registers that are called now."""
        return [f"register-{self.generation}-{number}" for number in range(KEYS)]

    def disk_lost(self) -> None:
        """The store will not know of anything so far."""
        for operation in self.history.operations:
            if operation.outcome == "pending":
                self.history.unknown(operation, "the store is lost", self.cluster.now())
        self.generation += 1

    async def program(self, node: Node) -> None:
        """The clients of one node."""
        seed = f"{self.cluster.seed} clients {node.name} {node.incarnation} {self.generation}"
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                client = Client(self, node, f"{node.name}.{node.incarnation}/{number}", random.Random(f"{seed} {number}"))
                nursery.start_soon(client.run)
            nursery.start_soon(self._look_up, node, random.Random(f"{seed} lookups"))
            if self.oracle.fair:
                # Bad weather may delay the refusal of an earlier call, or end the retries of any: only here can it be said what must be.
                nursery.start_soon(self.crowds.run, node, random.Random(f"{seed} crowds"))
            if node.name == self.cluster.founder:
                nursery.start_soon(self._supervise, node, random.Random(f"{seed} supervision"))
                nursery.start_soon(self._supervise_steady, node)

    async def _look_up(self, node: Node, draw: random.Random) -> None:
        """Ask for names and for the tree, with no deadline: whatever the store does, there is an outcome, and in time."""
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
                # Its process was killed meanwhile, and comes to its end out of sight.
                return
            took = now() - began - self.cluster.stopped(node.name, began)
            if took > LOOKUP_SECONDS:
                text = f"{what} by {node.name} took {took:.3f} s"
                self.late.append(text)
                tell(node.name, "wrong", text)

    def no_outcome(self, node: str, what: str, error: UnderstudyError) -> None:
        """A call or a lookup has ended with what nobody has to expect."""
        text = f"{what} ended with {type(error).__name__}: {error}"
        if len(self.not_outcomes) < SHOWN:
            self.not_outcomes.append(text)
        self.cluster.trace.tell(node, "wrong", text)

    async def _supervise(self, node: Node, draw: random.Random) -> None:
        """A supervisor with children that end again and again."""
        name = f"supervisor-{node.incarnation}-{self.generation}"
        specs = [
            ChildSpec(id=f"{name}-child-{number}", actor=Fragile, args=(name,), options=SpawnOptions(name=f"{name}-child-{number}"))
            for number in range(2)
        ]
        try:
            await node.options(name=name).spawn(Supervisor, specs, intensity=INTENSITY, period=PERIOD)
        except UnderstudyError:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, node, name)
            await self._break(node, specs, draw)
            nursery.cancel_scope.cancel()

    async def _supervise_steady(self, node: Node) -> None:
        """A supervisor that is allowed no restart, with children on all nodes that never fail: whatever happens to these, it stays."""
        name = f"steady-{node.incarnation}-{self.generation}"
        specs = [ChildSpec.of(f"{number}", Steady) for number in range(STEADY)]
        try:
            await node.options(name=name).spawn(Supervisor, specs, intensity=0)
        except UnderstudyError:
            return
        reason = await node.station.host.watch(name, 0)
        if "restart" in reason.text and self.calling:
            self.oracle.gave_up_in_vain(name, reason.text)

    async def _watch(self, node: Node, supervisor: str) -> None:
        """Tell the oracle if a supervisor gives up."""
        reason = await node.station.host.watch(supervisor, 0)
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
        """Look at all mailboxes now and then, for ever."""
        while True:
            await trio.sleep(0.25)
            for name in self.cluster.machines:
                node = self.cluster.live(name)
                for cell in node.station.host.cells.values() if node is not None else ():
                    self.oracle.waiting(cell.address.name, cell.waiting, cell.limit)

    def executed_though_denied(self) -> list[str]:
        """Calls that ran although somebody was told that they had not and would not."""
        return [f"{operation} was executed" for call, operation in self.denied.items() if call in self.oracle.executions]

    def next_number(self) -> int:
        """For values that are not mistaken for each other."""
        self._numbers += 1
        return self._numbers


@attrs.define(eq=False)
class Client:
    """Calls one register after the other, and writes down what became of it."""

    work: Workload
    node: Node
    name: str
    draw: random.Random
    handles: dict[str, Register] = attrs.field(factory=dict)

    async def run(self) -> None:
        """For as long as there is to be called."""
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
        """Let a result stay with its owner for a while; the reference is dropped in the end, or goes with its holder."""
        try:
            reference = await register.read.options(timeout=1.0).remote()
            await trio.sleep(self.draw.random() * 2)
            if self.draw.random() < 0.5:
                with trio.move_on_after(1.0):
                    await reference.fetch()
        except UnderstudyError:
            return

    async def _count(self) -> None:
        """Calls to a tally, one or many at once, that are repeated before they can have ended."""
        name = f"tally-{self.work.generation}"
        try:
            with trio.move_on_after(5.0):
                tally = await self.node.options(name=name, mailbox_limit=MAILBOX).get_or_spawn(Tally)
                async with trio.open_nursery() as nursery:
                    for _ in range(BURST if self.draw.random() < 0.2 else 1):
                        nursery.start_soon(self._count_once, tally)
        except UnderstudyError:
            return

    async def _count_once(self, tally: Tally) -> None:
        call = f"{self.name}#{self.work.next_number()}"
        seconds = self.draw.choice((0.0, 0.01, 0.3))
        try:
            answer = await tally.count.options(timeout=2.0, retry=IMPATIENT)(call, seconds)
        except UnderstudyError:
            return
        if answer != call:
            self.work.mistaken.append(f"{self.name} asked for {call!r}, and was answered {answer!r}")

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
            said = f"{self.name}: {operation.key}.{operation.what}({operation.argument!r}) #{operation.called}: {text}"
            self.work.cluster.trace.tell(self.node.name, how, said)
            if how == "failed":
                self.work.history.failed(operation, text, self.work.cluster.now())
            else:
                self.work.history.unknown(operation, text, self.work.cluster.now())

    def _look_at_the_clock(self, operation: Operation, patience: float) -> None:
        """Whatever happens, a call ends when its time is over. Time in which the client's own process was stopped does not count."""
        now = self.work.cluster.now()
        took = now - operation.called_at - self.work.cluster.stopped(self.node.name, operation.called_at)
        if took > patience + LATE:
            text = f"{operation} took {took:.3f} s of the {patience:g} s it had"
            self.work.late.append(text)
            self.work.cluster.trace.tell(self.node.name, "wrong", text)

    async def _find(self, key: str) -> Register | None:
        """A handle; the register is started if nobody has it."""
        if key not in self.handles or self.draw.random() < 0.1:
            try:
                members = [member.name for member in self.node.members() if member.state == "up"]
                where = self.draw.choice([None, *members])
                with trio.move_on_after(5.0):
                    self.handles[key] = await self.node.options(name=key, on=where).get_or_spawn(Register)
            except UnderstudyError:
                return None
        return self.handles.get(key)


LATE = 0.2
"""Seconds by which a call may outlast its time."""
