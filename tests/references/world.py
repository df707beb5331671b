"""A world of reference tables: real tables, stand-ins for everything around them, and a network
that does what it likes.

Each step is drawn: a value is made or kept, a reference is sent, dropped or answered, a batch or a
message arrives, late, twice, or never, a link is replaced, a node ends, and others hear of that,
each in its own time. An oracle that sees all of it looks after every step.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import attrs

from actors.identifiers import NodeId, ReferenceId
from actors.reference import Reference
from runtime.references.manager import InFlightReferences, ReferenceParts
from runtime.references.protocol import UpdateBatch, UpdateQueue
from runtime.references.table import (
    Ask,
    AskUnsettled,
    Claim,
    Conclude,
    Effect,
    Finalized,
    Forwarder,
    HolderCounted,
    NodeEnded,
    ReferenceState,
    ReferenceTable,
    Release,
    state_of,
)
from runtime.references.values import FailedValue, StoredValue
from runtime.wire.frames import Outgoing

GONE = FailedValue("outcome_unknown", {}, "maker", "make", "", 0)


@attrs.frozen(eq=False)
class Value(StoredValue):
    """What a node keeps: its name, so that a mix-up is seen, and the references in it."""

    name: ReferenceId | None
    inner: tuple[Reference[object], ...] = ()
    size: int = 1


class Shell:
    """Stands in for `ReferenceManager`: carries out the effects of one table between which and the
    network there is only the `Post`. What is not written here is asked of the table itself.
    """

    def __init__(self, world: World, identity: NodeId, post: Post) -> None:
        self._world = world
        self._post = post
        self._finalized: Finalized = []
        self._landed: list[int] = []
        self.pure = ReferenceTable(identity, iter(range(1, 10**9)).__next__, self._finalized)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pure, name)

    def __len__(self) -> int:
        self.tidy()
        return len(self.pure)

    @property
    def held(self) -> int:
        """See `ReferenceManager.held`."""
        self.tidy()
        return self.pure.held

    @property
    def has_open_forks(self) -> bool:
        """See `ReferenceTable.has_open_forks`."""
        self.tidy()
        return self.pure.has_open_forks

    def own(self) -> list[ReferenceState]:
        """See `ReferenceManager.own`."""
        self.tidy()
        return self.pure.own()

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carry out what concerns other nodes; no task waits here, and nothing is stored."""
        post = self._post
        for effect in effects:
            match effect:
                case Claim(owner, identity, version, after, again):
                    post.claim(owner, identity, version, after, again=again)
                case Release(owner, identity, version):
                    post.release(owner, identity, version)
                case Ask(forwarder, identity, number, after):
                    post.ask(forwarder, identity, number, after)
                case HolderCounted(owner, identity):
                    post.on_counted(owner, identity)
                case Conclude(owner, identity, failure):
                    post.conclude(owner, identity, failure)
                case AskUnsettled(peer):
                    post.ask_unsettled(peer)
                case NodeEnded(peer):
                    post.on_node_ended(peer)
                case _:
                    pass

    def tidy(self) -> bool:
        """See `ReferenceManager.tidy`."""
        pure = self.pure
        if not (self._finalized or self._landed or pure.arrivals or pure.has_ends):
            return False
        while self._landed:
            self.pure.on_landed(self._landed.pop())
        self.apply(self.pure.record_arrivals(sys.maxsize))
        self._handle_dropped()
        self.apply(pure.note_ends(sys.maxsize))
        self.apply(self.pure.forks_due())
        return True

    def _handle_dropped(self) -> None:
        while self._finalized:
            self.apply(self.pure.on_dropped(*self._finalized.pop()))

    def reference(self, state: ReferenceState) -> Reference[object]:
        """See `ReferenceManager.reference`."""
        return Reference(state, cast("Any", self))

    def keep(self, stored: Any) -> Reference[object]:
        """See `ReferenceTable.put`."""
        state, effects = self.pure.put(stored, "", self._now())
        self.apply(effects)
        return self.reference(state)

    def make(self, owner: NodeId, maker: str) -> ReferenceState:
        """See `ReferenceTable.make`."""
        state, effects = self.pure.make(owner, maker, "", self._now())
        self.apply(effects)
        return state

    def begin(
        self, identity: ReferenceId, holder: NodeId, version: int, maker: str
    ) -> ReferenceState:
        """See `ReferenceTable.begin`."""
        state, effects = self.pure.begin(identity, holder, version, maker, self._now())
        self.apply(effects)
        return state

    def adopt(
        self, identity: ReferenceId, registers: list[tuple[str, int, int]], maker: str, site: str
    ) -> ReferenceState:
        """See `ReferenceTable.adopt`."""
        state, effects = self.pure.adopt(identity, registers, maker, site, self._now())
        self.apply(effects)
        return state

    def conclude(self, identity: ReferenceId, failure: FailedValue) -> Any:
        """See `ReferenceTable.conclude`."""
        answer, effects = self.pure.conclude(identity, failure)
        self.apply(effects)
        return answer

    def on_moved(self, identity: ReferenceId, owner: NodeId) -> bool:
        """See `ReferenceService.moved`."""
        is_held = self.pure.find(identity) is not None
        self.apply(self.pure.on_moved(identity, owner))
        return is_held

    def on_call_ended(self, *arguments: Any) -> None:
        """See `ReferenceTable.on_call_ended`."""
        self.apply(self.pure.on_call_ended(*arguments))

    def on_result(self, *arguments: Any) -> None:
        """See `ReferenceTable.on_result`."""
        self.apply(self.pure.on_result(*arguments))

    def on_conclusion_answered(self, *arguments: Any) -> None:
        """See `ReferenceTable.on_conclusion_answered`."""
        self.apply(self.pure.on_conclusion_answered(*arguments))

    def on_claim_answered(self, *arguments: Any) -> None:
        """See `ReferenceTable.on_claim_answered`."""
        self.apply(self.pure.on_claim_answered(*arguments))

    def on_where_answered(self, *arguments: Any) -> None:
        """See `ReferenceTable.on_where_answered`."""
        self.apply(self.pure.on_where_answered(*arguments))

    def on_given(self, *arguments: Any) -> None:
        """See `ReferenceTable.on_given`."""
        self.apply(self.pure.on_given(*arguments))

    def on_node_ended(self, peer: NodeId) -> None:
        """See `ReferenceManager.on_node_ended`."""
        self.apply(self.pure.on_node_ended(peer))
        self.apply(self.pure.note_ends(self._world.at_once))

    def write(self, reference: Reference[Any], segments: Outgoing) -> ReferenceParts:
        """A reference is put into a message; see `ReferenceManager.write`."""
        state = state_of(reference)
        number, distance = self.pure.forward(state, segments.peer)
        in_flight = InFlightReferences(self._landed)
        in_flight.numbers.append(number)
        segments.attach(in_flight)
        forwarder = Forwarder(self.pure.identity, number, distance)
        return ReferenceParts(state.identity, state.owner_id, forwarder, None)

    def read(self, arrived: Any) -> Reference[object]:
        """A reference came in a message; see `ReferenceManager.read`."""
        if self.pure.is_counted(arrived.identity) and self.pure.find(arrived.identity) is None:
            self._handle_dropped()
        state, effects = self.pure.arrive(*arrived, self._now())  # type: ignore[call-arg]
        self.apply(effects)
        # It may be recorded at any time from now on.
        if self._world.draw.random() < 0.5:
            self.apply(self.pure.record_arrivals(sys.maxsize))
        return self.reference(state)

    def _now(self) -> float:
        return float(self._world.steps)


@attrs.define(eq=False)
class Question:
    """Something that a table says to another: it is asked at the receiver as often as the network
    likes, and one answer counts.
    """

    source: NodeId
    target: NodeId
    text: str
    ask: Callable[[Node], Any]
    take: Callable[[Any], None]
    lose: Callable[[], None]
    """The network has given it up."""
    is_call: bool = False
    """Has references in it, so it does not arrive after it was answered; see `Message`."""
    answers: list[Any] = attrs.field(factory=list)
    answered: bool = False


@attrs.define(eq=False)
class Post:
    """Stands in for `ReferenceProtocol`, around the same batches. Questions of different kinds have
    no order.
    """

    world: World
    identity: NodeId
    table: Shell = attrs.field(init=False)
    batches: dict[NodeId, UpdateBatch] = attrs.field(factory=dict)

    def claim(
        self, owner: NodeId, identity: ReferenceId, version: int, after: float, *, again: bool
    ) -> None:
        """See `ReferenceProtocol.claim`."""
        self._batch(owner).claim(identity, version, -math.inf, again=again)

    def release(self, owner: NodeId, identity: ReferenceId, version: int) -> None:
        """See `ReferenceProtocol.release`."""
        self._batch(owner).release(identity, version)

    def on_counted(self, owner: NodeId, identity: ReferenceId) -> None:
        """See `ReferenceProtocol.on_counted`."""
        self._batch(owner).on_counted(identity)

    def write(self) -> None:
        """What has gathered is under way; to an incarnation that is known to have ended, that is
        the answer.
        """
        node = self.world.nodes[self.identity]
        for owner, batch in list(self.batches.items()):
            if batch.under_way or batch.is_empty:
                continue
            if owner in node.obituaries:
                self.world.hear(node, owner)
                continue
            updates = batch.due_updates(math.inf)
            batch.under_way = True
            self._write(
                owner,
                " ".join(
                    [
                        *(f"claim {each}" for each in updates.claims),
                        *(f"release {each}" for each in updates.releases),
                    ]
                ),
                lambda there, updates=updates: (  # type: ignore[misc]
                    [
                        there.table.claim(identity, self.identity, version)
                        for identity, version in updates.claims.items()
                    ],
                    [
                        there.table.release(identity, self.identity, version)
                        for identity, version in updates.releases.items()
                    ],
                ),
                partial(self._said, owner, batch, updates),
                lambda batch=batch: setattr(batch, "under_way", False),  # type: ignore[misc]
            )

    def _said(self, owner: NodeId, batch: UpdateBatch, updates: UpdateQueue, answers: Any) -> None:
        batch.under_way = False
        batch.on_answered(updates)
        for (identity, version), answer in zip(updates.claims.items(), answers[0], strict=True):
            self.table.on_claim_answered(identity, version, owner, answer)
        for (identity, version), answer in zip(updates.releases.items(), answers[1], strict=True):
            if answer is not None and answer != owner:
                self.release(answer, identity, version)

    def announce(self, holder: NodeId, identity: ReferenceId, version: int) -> None:
        """See `ReferenceProtocol.announce`."""

        def take(is_held: Any) -> None:
            if not is_held:
                self.table.release(identity, holder, version)

        self._write(
            holder,
            f"moved {identity}",
            lambda there: there.table.on_moved(identity, self.identity),
            take,
            lambda: self.announce(holder, identity, version),
        )

    def ask(self, forwarder: NodeId, identity: ReferenceId, number: int, after: float) -> None:
        """See `ReferenceProtocol.ask`."""
        self._write(
            forwarder,
            f"ask {identity}",
            lambda there: there.table.where(identity),
            lambda answer: self.table.on_where_answered(identity, forwarder, number, answer),
            lambda: self.ask(forwarder, identity, number, after),
        )

    def conclude(self, owner: NodeId, identity: ReferenceId, failure: FailedValue) -> None:
        """See `ReferenceProtocol.conclude`."""
        if owner in self.world.nodes[self.identity].obituaries:
            # The table is about to be told, and drops the batch.
            return
        self._write(
            owner,
            f"conclude {identity}",
            lambda there: there.table.conclude(identity, failure),
            lambda answer: self.table.on_conclusion_answered(identity, failure, answer),
            lambda: self.conclude(owner, identity, failure),
        )

    def ask_unsettled(self, peer: NodeId) -> None:
        """See `ReferenceProtocol.ask_unsettled`."""
        numbers = self.table.forks_to_ask(peer, 1 + self.world.draw.randrange(3))
        if numbers:
            self._write(
                peer,
                f"question {numbers}",
                lambda there: there.table.unsettled(self.identity, numbers),
                partial(self._told, peer, numbers),
                lambda: self._told(peer, numbers, numbers),
            )

    def _told(self, peer: NodeId, numbers: list[int], answer: Any) -> None:
        self.table.on_unsettled_answered(numbers, frozenset(answer))
        self.ask_unsettled(peer)

    def on_node_ended(self, peer: NodeId) -> None:
        """See `ReferenceProtocol.on_node_ended`."""
        self.batches.pop(peer, None)
        questions = self.world.questions
        questions[:] = [
            each for each in questions if each.source != self.identity or each.target != peer
        ]

    def _batch(self, peer: NodeId) -> UpdateBatch:
        return self.batches.setdefault(peer, UpdateBatch())

    def _write(
        self,
        target: NodeId,
        text: str,
        ask: Callable[[Node], Any],
        take: Callable[[Any], None],
        lose: Callable[[], None],
        *,
        is_call: bool = False,
    ) -> None:
        node = self.world.nodes[self.identity]
        if target in node.obituaries:
            # What is written to an incarnation that is known to have ended, is answered by that.
            self.world.hear(node, target)
        else:
            self.world.questions.append(
                Question(self.identity, target, text, ask, take, lose, is_call)
            )


@attrs.define(eq=False)
class Node:
    """One incarnation: its table, and what its actors hold."""

    identity: NodeId
    post: Post
    table: Shell
    references: list[Reference[object]] = attrs.field(factory=list)
    jobs: list[tuple[NodeId, int, ReferenceState]] = attrs.field(factory=list)
    """Calls that run here: who made them, as which number, and where their results go."""
    calls: dict[int, tuple[NodeId, ReferenceState]] = attrs.field(factory=dict)
    """Calls of this node that are not answered: to whom, and for which reference state."""
    obituaries: set[NodeId] = attrs.field(factory=set)
    """Who has ended, as far as this node has heard."""
    leaves: bool = False
    offers: dict[ReferenceId, NodeId] = attrs.field(factory=dict)
    """To whom it is giving its values, as it leaves."""


@attrs.define(eq=False)
class Message:
    """References on their way; the attachment of `segments` lives for as long as it may arrive."""

    source: NodeId
    target: NodeId
    plains: list[object]
    segments: Outgoing | None
    call: tuple[ReferenceId, int, int] | None = None
    """A call whose result stays with `target`: for which reference, in which version, and its
    number.
    """
    answer: int = 0
    """The number of the call that it answers."""


class World:
    """See the module. `crashes`: whether nodes may end without a word. `leaves`: whether they may
    end in order. `at_once`: for how many values a node notes at once that another has ended; for
    the others it does so later, as nodes with many values do.
    """

    def __init__(
        self,
        seed: int,
        count: int = 4,
        *,
        crashes: bool,
        breaks: bool = True,
        leaves: bool = False,
        at_once: int = sys.maxsize,
    ) -> None:
        self.at_once = at_once
        self.draw = random.Random(seed)
        self.crashes = crashes
        self.breaks = breaks
        self.leaves = leaves
        self.nodes: dict[NodeId, Node] = {}
        self.dead: set[NodeId] = set()
        self.questions: list[Question] = []
        self.messages: list[Message] = []
        self.tainted: set[ReferenceId] = set()
        """References whose way was cut: a node ended that was handing them on, or the call that
        makes them came to nothing.
        """
        self.crashed: set[NodeId] = set()
        self.given: dict[ReferenceId, NodeId] = {}
        """Values whose owner has left, and to whom they went."""
        self.steps = 0
        self._made: dict[ReferenceId, int] = {}
        """In which order references were made."""
        self._incarnations = 0
        for number in range(count):
            self.start(f"node-{number}")

    def start(self, name: str) -> None:
        """Another incarnation."""
        self._incarnations += 1
        identity = NodeId(name, self._incarnations)
        post = Post(self, identity)
        post.table = Shell(self, identity, post)
        self.nodes[identity] = Node(identity, post, post.table)

    @property
    def live(self) -> list[Node]:
        """Nodes that have not ended."""
        return [node for node in self.nodes.values() if node.identity not in self.dead]

    # What may happen

    def step(self) -> None:
        """One thing happens, and the oracle looks."""
        self.steps += 1
        way = self.draw.random()
        node = self.draw.choice(self.live)
        if way < 0.32:
            self._some_question()
        elif way < 0.52:
            self._some_message()
        elif way < 0.61:
            self._pass(node)
        elif way < 0.69:
            self._drop(node)
        elif way < 0.74:
            self._make(node)
        elif way < 0.78:
            self._put(node)
        elif way < 0.82:
            self._finish(node)
        elif way < 0.87:
            node.table.tidy()
        elif way < 0.93:
            node.post.write()
        elif way < 0.945:
            self._fetch(node)
        elif way < 0.949:
            self._replace_link()
        elif way < 0.952:
            self._crash(node)
        elif way < 0.957:
            self._leave(node)
        elif way < 0.975:
            self._give(node)
        else:
            self._hear_of_an_end()
        self.look()

    def _some_question(self) -> None:
        if not self.questions:
            return
        question = self.draw.choice(self.questions)
        if question.target in self.dead:
            return
        if question.answers and self.draw.random() < 0.5:
            self._answer(question)
            return
        self.ask(question)
        if self.draw.random() < 0.5:
            self._answer(question)

    def ask(self, question: Question) -> None:
        question.answers.append(question.ask(self.nodes[question.target]))

    def _answer(self, question: Question) -> None:
        """One answer counts, or none; it may arrive again all the same, as long as there is
        one who has asked.
        """
        answer = self.draw.choice(question.answers)
        if question.source in self.dead or question.answered:
            if self.draw.random() < 0.5 and question in self.questions:
                self.questions.remove(question)
            return
        question.answered = True
        if question in self.questions and (question.is_call or self.draw.random() < 0.6):
            self.questions.remove(question)
        if self.draw.random() < 0.1:
            question.lose()
        else:
            question.take(answer)

    def _some_message(self) -> None:
        if not self.messages:
            return
        message = self.draw.choice(self.messages)
        if message.target not in self.dead:
            self.deliver(message)

    def deliver(self, message: Message) -> None:
        target = self.nodes[message.target]
        if self.draw.random() < 0.95 or message.answer or message.call:
            # Now and then it is not decoded: nobody wants it any more.
            references = [target.table.read(plain) for plain in message.plains]
            if not target.leaves:
                target.references += references
        if message.call:
            identity, version, number = message.call
            target.jobs.append(
                (
                    message.source,
                    number,
                    target.table.begin(identity, message.source, version, "maker.make"),
                )
            )
        if message.answer and message.answer in target.calls:
            _, state = target.calls.pop(message.answer)
            target.table.on_call_ended(state, None)
        if message.call or message.answer or self.draw.random() < 0.8:
            self.land(message)

    def land(self, message: Message) -> None:
        """It is not sent again."""
        self.messages.remove(message)
        message.segments = None

    def send(
        self, source: Node, target: NodeId, references: list[Reference[object]]
    ) -> Message | None:
        if target in source.obituaries:
            return None
        segments = Outgoing(target)
        plains = [source.table.write(reference, segments) for reference in references]
        segments.complete()
        message = Message(source.identity, target, plains, segments)  # type: ignore[arg-type]
        self.messages.append(message)
        return message

    def _another(self, node: Node) -> NodeId | None:
        others = [
            identity
            for identity in self.nodes
            if identity != node.identity and identity not in node.obituaries
        ]
        return self.draw.choice(others) if others else None

    def _pass(self, node: Node) -> None:
        other = self._another(node)
        if node.references and other is not None:
            self.send(
                node, other, self.draw.choices(node.references, k=1 + (self.draw.random() < 0.2))
            )

    def _drop(self, node: Node) -> None:
        if node.references:
            node.references.pop(self.draw.randrange(len(node.references)))

    def _make(self, node: Node) -> None:
        owner = self._another(node) if self.draw.random() < 0.9 else node.identity
        if owner is None or node.leaves:
            return
        state = node.table.make(owner, "maker.make")
        self._made[state.identity] = len(self._made)
        node.references.append(node.table.reference(state))
        number = state.identity[2]
        if owner == node.identity:
            node.jobs.append((owner, number, state))
            return
        node.calls[number] = (owner, state)
        message = self.send(node, owner, [])
        if message is not None:
            message.call = (state.identity, state.version, number)

    def _put(self, node: Node) -> None:
        if node.leaves:
            return
        inner = (
            self.draw.choices(node.references, k=self.draw.randrange(3)) if node.references else []
        )
        reference = node.table.keep(Value(None, tuple(inner)))
        state = state_of(reference)
        self._made[state.identity] = len(self._made)
        state.stored = Value(state.identity, tuple(inner))  # type: ignore[assignment]
        node.references.append(reference)

    def _finish(self, node: Node) -> None:
        if not node.jobs:
            return
        maker, number, state = node.jobs.pop(self.draw.randrange(len(node.jobs)))
        # Values that refer to each other on several nodes are never freed; that is known of counts
        # of references.
        older = [
            each
            for each in node.references
            if self._made[state_of(each).identity] < self._made[state.identity]
        ]
        inner = self.draw.choices(older, k=self.draw.randrange(3)) if older else []
        if not state.is_settled:
            node.table.on_result(state, Value(state.identity, tuple(inner)))
        if maker == node.identity:
            node.table.on_call_ended(state, None)
            return
        message = self.send(node, maker, [])
        if message is not None:
            message.answer = number

    def _fetch(self, node: Node) -> None:
        """A node asks for a value that it holds: the references in it come with it, if it still
        asks when they do.
        """
        if not node.references:
            return
        state = state_of(self.draw.choice(node.references))
        if (
            node.table.hold_state(state) != "held"
            or state.owner_id not in self.nodes
            or state.owner_id in self.dead
        ):
            return
        owner = self.nodes[state.owner_id]
        there = owner.table.find(state.identity)
        if there is not None and there.stored is not None:
            assert cast("Value", there.stored).name == state.identity
            self.send(owner, node.identity, list(cast("Value", there.stored).inner))

    def _replace_link(self) -> None:
        """What was under way between two nodes is lost, calls with it."""
        if not self.breaks:
            return
        one, other = self.draw.sample(list(self.nodes), 2)
        if one in self.nodes[other].obituaries or other in self.nodes[one].obituaries:
            return
        for message in [
            each for each in self.messages if {each.source, each.target} == {one, other}
        ]:
            self.land(message)
        for source, target in ((one, other), (other, one)):
            self._fail_calls(self.nodes[source], target)

    def _fail_calls(self, node: Node, target: NodeId) -> None:
        for number, (owner, state) in list(node.calls.items()):
            if owner == target:
                del node.calls[number]
                self.tainted.add(state.identity)
                node.table.on_call_ended(state, GONE)

    def _crash(self, node: Node) -> None:
        if (
            self.crashes
            and len([each for each in self.live if not each.leaves and each is not node]) >= 2
        ):
            self.crashed.add(node.identity)
            self._end(node)

    def _end(self, node: Node) -> None:
        self.dead.add(node.identity)
        node.table.tidy()
        open_ = node.table._forks._open.values()
        self.tainted |= {fork.thing.identity for fork in open_}
        self.tainted |= {state.identity for _, state in node.calls.values()}
        for message in [
            each
            for each in self.messages
            if each.source == node.identity and self.draw.random() < 0.5
        ]:
            self.land(message)
        node.references.clear()
        node.jobs.clear()
        node.calls.clear()
        if self.draw.random() < 0.7:
            self.start(node.identity[0])

    def _leave(self, node: Node) -> None:
        """A node begins to leave in order: nothing runs there any more, and it gives away what it
        has.
        """
        if (
            self.leaves
            and len([each for each in self.live if not each.leaves and each is not node]) >= 2
        ):
            node.leaves = True
            node.references.clear()

    def _give(self, node: Node) -> None:
        """A node that leaves offers its values to others, and ends when they have got them and
        their holders know.
        """
        if not node.leaves or node.identity in self.dead:
            return
        while node.jobs:
            self._finish(node)
        staying = [
            each.identity
            for each in self.live
            if not each.leaves and each.identity not in node.obituaries
        ]
        left = False
        for state in node.table.own():
            identity, holders = state.identity, node.table.holders(state)
            if not holders or not state.is_settled:
                continue
            left = True
            if node.offers.get(identity) in node.obituaries:
                del node.offers[identity]
                taker = node.table.taker(identity)
                if taker is not None:
                    node.offers[identity] = taker
                    self._offer(node, state)
            if identity not in node.offers and staying:
                takers = [holder for holder in holders if holder in staying] or staying
                node.offers[identity] = self.draw.choice(takers)
                self._offer(node, state)
        waits = left or any(
            question.text in {f"moved {identity}" for identity in node.offers}
            for question in self.questions
        )
        if not waits and not (node.table.has_open_forks and self.draw.random() < 0.9):
            self._end(node)

    def _offer(self, node: Node, state: ReferenceState) -> None:
        """See `Leaving`; in the place of `ReferenceService.adopt`."""
        identity, target = state.identity, node.offers[state.identity]
        registers = node.table.registers(identity)
        givers = (node.identity, *node.table.givers(identity))
        segments = Outgoing(target)
        stored = state.stored
        inner = stored.inner if isinstance(stored, Value) else ()
        plains = [node.table.write(reference, segments) for reference in inner]  # type: ignore[var-annotated]
        segments.complete()

        def adopt(there: Node) -> NodeId | None:
            assert segments is not None
            references = [there.table.read(plain) for plain in plains]
            while (owner := there.table.given_to(identity)) is not None:
                if owner in self.dead or owner == node.identity:
                    return None
                along = Outgoing(owner)
                sent = [there.table.write(reference, along) for reference in references]
                along.complete()
                there = self.nodes[owner]
                references = [there.table.read(plain) for plain in sent]
            value = Value(identity, tuple(references))
            adopted = there.table.adopt(identity, registers, state.maker, "")
            if not adopted.is_settled:
                adopted.stored = value if stored is not None else None  # type: ignore[assignment]
                adopted.failure = state.failure
            for giver in there.table.on_given_by(identity, givers):
                there.post.announce(giver, identity, 0)
            for name, incarnation, version in registers:
                holder = NodeId(name, incarnation)
                if version > 0 and holder != there.identity and not there.table.has_ended(holder):
                    there.post.announce(holder, identity, version)
            return there.identity

        def taken(owner: NodeId | None) -> None:
            if owner is None:
                del node.offers[identity]
            elif node.table.registers(identity) != registers:
                self._offer(node, state)
            else:
                node.table.on_given(state, owner)
                self.given[identity] = owner

        node.post._write(
            target,
            f"adopt {identity}",
            adopt,
            taken,
            lambda: self._offer(node, state),
            is_call=True,
        )

    def _hear_of_an_end(self) -> None:
        node = self.draw.choice(self.live)
        unknown = sorted(self.dead - node.obituaries)
        if unknown:
            self.hear(node, self.draw.choice(unknown))

    def hear(self, node: Node, ended: NodeId) -> None:
        """A node learns that another has ended: nothing more comes from it, and calls to it end."""
        node.obituaries.add(ended)
        self.questions[:] = [
            each
            for each in self.questions
            if not each.is_call or {each.source, each.target} != {node.identity, ended}
        ]
        for message in [
            each for each in self.messages if {each.source, each.target} == {node.identity, ended}
        ]:
            self.land(message)
        for number, (owner, state) in list(node.calls.items()):
            if owner == ended:
                del node.calls[number]
                node.table.on_call_ended(state, GONE)
        node.table.on_node_ended(ended)

    # What must never be seen

    def look(self) -> None:
        """No value is freed that a live node holds with its owner's knowledge; nothing is lost but
        for a reason; and each table agrees with itself.
        """
        for node in self.live:
            node.table.check_invariants()
            for reference in node.references:
                state = state_of(reference)
                identity = state.identity
                assert node.table.find(identity) is state, (
                    f"{node.identity} has two reference states of {identity}"
                )
                hold_state = node.table.hold_state(state)
                if hold_state == "lost" or state.error is not None:
                    assert state.owner_id in self.dead or identity in self.tainted, (
                        f"{node.identity} lost {identity} while all live: {hold_state}"
                    )
                elif (
                    hold_state == "held"
                    and state.owner_id not in self.dead
                    and identity not in self.tainted
                ):
                    where = self.nodes[state.owner_id].table.owner(identity)
                    while (
                        where is not None
                        and where not in self.dead
                        and (next_ := self.nodes[where].table.owner(identity)) != where
                    ):
                        where = next_
                    assert where is not None, f"{identity} was freed while {node.identity} held it"

    def calm(self) -> None:
        """Everything arrives in the end, and all hear of all ends: then every reference is settled,
        one way or the other.
        """
        for _ in range(300):
            for node in self.live:
                for ended in sorted(self.dead - node.obituaries):
                    self.hear(node, ended)
                while node.jobs:
                    self._finish(node)
                node.table.tidy()
                node.post.write()
                self._give(node)
            for message in list(self.messages):
                if message.target in self.dead:
                    self.land(message)
                elif message in self.messages:
                    self.deliver(message)
            for question in list(self.questions):
                if question.source in self.dead or question.answered:
                    self.questions.remove(question)
                elif question in self.questions and question.target not in self.dead:
                    self.ask(question)
                    self._answer(question)
            self.look()
            if self._is_calm():
                break
        else:
            raise AssertionError(
                f"no calm: {[(each.source, each.target, each.text) for each in self.questions]}"
            )
        self._assert_one_owner_each()
        for node in self.live:
            for reference in node.references:
                state = state_of(reference)
                if state.failure is not None or state.error is not None:
                    self._assert_lost(node, state)
                else:
                    self._assert_held(node, state)

    def _assert_one_owner_each(self) -> None:
        for identity in self._made:
            owners = [
                node.identity
                for node in self.live
                if node.table.owner(identity) == node.identity and node.table.find(identity)
            ]
            assert len(owners) < 2, f"{identity} has two owners: {owners}"

    def _assert_lost(self, node: Node, state: ReferenceState) -> None:
        """A reference fails only where its value may be lost, and its owner has none then."""
        given = self.given.get(state.identity, state.owner_id)
        excused = (
            state.error is None or state.identity in self.tainted or state.owner_id in self.crashed
        )
        assert excused or given in self.dead, (
            f"{node.identity} lost {state.identity}, which {given} has"
        )
        there = (
            self.nodes[state.owner_id].table.find(state.identity)
            if state.owner_id not in self.dead
            else None
        )
        two = (
            state.error is None
            and there is not None
            and there.owner_id == state.owner_id
            and there.stored is not None
        )
        assert not two, (
            f"{state.identity} has two outcomes: {node.identity} knows a failure, "
            f"and {state.owner_id} has a value"
        )

    def _assert_held(self, node: Node, state: ReferenceState) -> None:
        """A reference that has not failed is held, and its owner has the value."""
        hold_state = node.table.hold_state(state)
        assert hold_state == "held" or (hold_state == "" and state.stored is not None), (
            f"{node.identity}: {state.identity} is {hold_state!r}"
        )
        owner = self.nodes[state.owner_id].table
        there = owner.find(state.identity)
        assert state.owner_id not in self.dead, (
            f"{node.identity} believes {state.owner_id} to have {state.identity}"
        )
        assert owner.owner(state.identity) == state.owner_id, (
            f"{state.identity} was freed while {node.identity} held it"
        )
        assert there is not None
        assert there.is_settled, f"{node.identity} waits for {state.identity}"
        assert there.stored is None or cast("Value", there.stored).name == state.identity

    def _is_calm(self) -> bool:
        def busy(node: Node) -> bool:
            if node.table.tidy() or node.jobs or node.leaves or self.dead - node.obituaries:
                return True
            return not all(batch.is_empty for batch in node.post.batches.values())

        return (
            not self.messages and not self.questions and not any(busy(node) for node in self.live)
        )

    def drain(self) -> None:
        """When all references are dropped, nothing is left anywhere."""
        for node in self.live:
            node.references.clear()
        self.calm()
        for node in self.live:
            table = node.table
            left = (
                len(table),
                table.held,
                table._borrowed.all,
                table._borrowed._open,
                [one for one in table._claims.values() if one.kept_alive is not None],
                table._forks._landed,
            )
            assert left == (0, 0, {}, {}, [], {}), f"{node.identity} still has {left}"
