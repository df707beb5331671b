"""A world of reference tables: real tables, stand-ins for everything around them, and a network that does what it likes.

Each step is drawn: a value is made or kept, a reference is sent, dropped or answered, a letter or a message arrives, late, twice, or never,
a link is replaced, a node ends, and others hear of that, each in its own time. An oracle that sees all of it looks after every step.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import attrs

from actors.reference import Reference
from runtime.references.anchors import Anchor
from runtime.references.claims import Identity, ReferenceId
from runtime.references.letters import Letter, Words
from runtime.references.table import ReferenceTable
from runtime.references.values import Failure, Kept
from runtime.wire.frames import Outgoing

GONE = Failure("outcome_unknown", {}, "maker", "make", "", 0)


@attrs.frozen(eq=False)
class Value(Kept):
    """What a node keeps: its name, so that a mix-up is seen, and the references in it."""

    name: ReferenceId | None
    inner: tuple[Reference[object], ...] = ()
    size: int = 1


class NoFetching:
    """Stands in for `Fetching`: nobody waits here."""

    keeps_unnamed = False

    def tell(self) -> None:
        """Nobody listens."""

    def tidy(self) -> None:
        """Nothing is cached."""

    def freed(self, identity: ReferenceId) -> None:
        """Nothing is cached."""

    def ended(self, owner: Identity) -> None:
        """Nothing is mapped."""


class NoMemory:
    """Stands in for `OwnValues`, as what is told of its values."""

    def freed(self, identity: ReferenceId, size: int) -> None:
        """Nothing is counted."""

    def lent_to(self, anchor: Anchor, node: Identity) -> None:
        """Nothing is."""

    def ended(self, node: Identity) -> None:
        """Nobody reads."""

    def reader_ended(self, anchor: Anchor, reader: Identity) -> None:
        """Nothing is read in place."""


@attrs.define(eq=False)
class Question:
    """Something that a table says to another: it is asked at the receiver as often as the network likes, and one answer counts."""

    source: Identity
    target: Identity
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
    """Stands in for `Correspondence`, around the same letters. Questions of different kinds are in no order."""

    world: World
    identity: Identity
    table: ReferenceTable = attrs.field(init=False)
    letters: dict[Identity, Letter] = attrs.field(factory=dict)

    def claim(self, owner: Identity, identity: ReferenceId, version: int, after: float, *, again: bool) -> None:
        """See `Correspondence.claim`."""
        self._letter(owner).claim(identity, version, -math.inf, again=again)

    def release(self, owner: Identity, identity: ReferenceId, version: int) -> None:
        """See `Correspondence.release`."""
        self._letter(owner).release(identity, version)

    def is_counted(self, owner: Identity, identity: ReferenceId) -> None:
        """See `Correspondence.is_counted`."""
        self._letter(owner).is_counted(identity)

    def write(self) -> None:
        """What has gathered is under way; to an incarnation that is known to have ended, that is the answer."""
        node = self.world.nodes[self.identity]
        for owner, letter in list(self.letters.items()):
            if letter.under_way or letter.is_empty:
                continue
            if owner in node.obituaries:
                self.world.hear(node, owner)
                continue
            words = letter.words(math.inf)
            letter.under_way = True
            self._write(
                owner,
                " ".join([*(f"claim {each}" for each in words.claims), *(f"release {each}" for each in words.releases)]),
                lambda there, words=words: (
                    [there.table.claim(identity, self.identity, version) for identity, version in words.claims.items()],
                    [there.table.release(identity, self.identity, version) for identity, version in words.releases.items()],
                ),
                partial(self._said, owner, letter, words),
                lambda letter=letter: setattr(letter, "under_way", False),
            )

    def _said(self, owner: Identity, letter: Letter, words: Words, answers: Any) -> None:
        letter.under_way = False
        letter.said(words)
        for (identity, version), answer in zip(words.claims.items(), answers[0], strict=True):
            self.table.confirmed(identity, version, owner, answer)
        for (identity, version), answer in zip(words.releases.items(), answers[1], strict=True):
            if answer is not None and answer != owner:
                self.release(answer, identity, version)

    def announce(self, holder: Identity, identity: ReferenceId, version: int) -> None:
        """See `Correspondence.announce`."""

        def take(is_held: Any) -> None:
            if not is_held:
                self.table.release(identity, holder, version)

        self._write(
            holder,
            f"moved {identity}",
            lambda there: there.table.moved(identity, self.identity),
            take,
            lambda: self.announce(holder, identity, version),
        )

    def ask(self, sponsor: Identity, identity: ReferenceId, number: int, after: float) -> None:
        """See `Correspondence.ask`."""
        self._write(
            sponsor,
            f"ask {identity}",
            lambda there: there.table.where(identity),
            lambda answer: self.table.told(identity, sponsor, number, answer),
            lambda: self.ask(sponsor, identity, number, after),
        )

    def conclude(self, owner: Identity, identity: ReferenceId, failure: Failure) -> None:
        """See `Correspondence.conclude`."""
        if owner in self.world.nodes[self.identity].obituaries:
            # The table is about to be told, and drops the letter.
            return
        self._write(
            owner,
            f"conclude {identity}",
            lambda there: there.table.conclude(identity, failure),
            lambda answer: self.table.concluded(identity, failure, answer),
            lambda: self.conclude(owner, identity, failure),
        )

    def question(self, peer: Identity) -> None:
        """See `Correspondence.question`."""
        numbers = self.table.questions(peer, 1 + self.world.draw.randrange(3))
        if numbers:
            self._write(
                peer,
                f"question {numbers}",
                lambda there: there.table.unsettled(self.identity, numbers),
                partial(self._told, peer, numbers),
                lambda: self._told(peer, numbers, numbers),
            )

    def _told(self, peer: Identity, numbers: list[int], answer: Any) -> None:
        self.table.settled(numbers, frozenset(answer))
        self.question(peer)

    def ended(self, peer: Identity) -> None:
        """See `Correspondence.ended`."""
        self.letters.pop(peer, None)
        questions = self.world.questions
        questions[:] = [each for each in questions if each.source != self.identity or each.target != peer]

    def wake(self) -> None:
        """See `Correspondence.wake`."""

    def _letter(self, peer: Identity) -> Letter:
        return self.letters.setdefault(peer, Letter())

    def _write(
        self,
        target: Identity,
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
            self.world.questions.append(Question(self.identity, target, text, ask, take, lose, is_call))


@attrs.define(eq=False)
class Node:
    """One incarnation: its table, and what its actors hold."""

    identity: Identity
    post: Post
    table: ReferenceTable
    references: list[Reference[object]] = attrs.field(factory=list)
    jobs: list[tuple[Identity, int, Anchor]] = attrs.field(factory=list)
    """Calls that run here: who made them, as which number, and where their results go."""
    calls: dict[int, tuple[Identity, Anchor]] = attrs.field(factory=dict)
    """Calls of this node that are not answered: to whom, and for which anchor."""
    obituaries: set[Identity] = attrs.field(factory=set)
    """Who has ended, as far as this node has heard."""
    leaves: bool = False
    offers: dict[ReferenceId, Identity] = attrs.field(factory=dict)
    """To whom it is giving its values, as it leaves."""


@attrs.define(eq=False)
class Message:
    """References on their way; the attachment of `segments` lives for as long as it may arrive."""

    source: Identity
    target: Identity
    plains: list[object]
    segments: Outgoing | None
    call: tuple[ReferenceId, int, int] | None = None
    """A call whose result stays with `target`: for which reference, in which version, and its number."""
    answer: int = 0
    """The number of the call that it answers."""


class World:
    """See the module. `crashes`: whether nodes may end without a word. `leaves`: whether they may end in order."""

    def __init__(self, seed: int, count: int = 4, *, crashes: bool, breaks: bool = True, leaves: bool = False) -> None:
        self.draw = random.Random(seed)
        self.crashes = crashes
        self.breaks = breaks
        self.leaves = leaves
        self.nodes: dict[Identity, Node] = {}
        self.dead: set[Identity] = set()
        self.questions: list[Question] = []
        self.messages: list[Message] = []
        self.tainted: set[ReferenceId] = set()
        """References whose way was cut: a node ended that was handing them on, or the call that makes them came to nothing."""
        self.crashed: set[Identity] = set()
        self.given: dict[ReferenceId, Identity] = {}
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
        identity = (name, self._incarnations)
        post = Post(self, identity)
        numbers = iter(range(1, 10**9)).__next__
        post.table = ReferenceTable(identity, cast("Any", NoFetching()), cast("Any", post), numbers, lambda: float(self.steps))
        post.table.values = cast("Any", NoMemory())
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
        self._ask(question)
        if self.draw.random() < 0.5:
            self._answer(question)

    def _ask(self, question: Question) -> None:
        question.answers.append(question.ask(self.nodes[question.target]))

    def _answer(self, question: Question) -> None:
        """One answer counts, or none; it may arrive again all the same, as long as there is somebody who has asked."""
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
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        target = self.nodes[message.target]
        if self.draw.random() < 0.95 or message.answer or message.call:
            # Now and then it is not decoded: nobody wants it any more.
            references = [target.table.read(plain) for plain in message.plains]
            if not target.leaves:
                target.references += references
        if message.call:
            identity, version, number = message.call
            target.jobs.append((message.source, number, target.table.begin(identity, message.source, version, "maker.make")))
        if message.answer and message.answer in target.calls:
            _, anchor = target.calls.pop(message.answer)
            target.table.answered(anchor, None)
        if message.call or message.answer or self.draw.random() < 0.8:
            self._land(message)

    def _land(self, message: Message) -> None:
        """It is not sent again."""
        self.messages.remove(message)
        message.segments = None

    def _send(self, source: Node, target: Identity, references: list[Reference[object]]) -> Message | None:
        if target in source.obituaries:
            return None
        segments = Outgoing(target)
        plains = [source.table.write(reference, cast("Any", segments)) for reference in references]
        segments.complete()
        message = Message(source.identity, target, plains, segments)
        self.messages.append(message)
        return message

    def _another(self, node: Node) -> Identity | None:
        others = [identity for identity in self.nodes if identity != node.identity and identity not in node.obituaries]
        return self.draw.choice(others) if others else None

    def _pass(self, node: Node) -> None:
        other = self._another(node)
        if node.references and other is not None:
            self._send(node, other, self.draw.choices(node.references, k=1 + (self.draw.random() < 0.2)))

    def _drop(self, node: Node) -> None:
        if node.references:
            node.references.pop(self.draw.randrange(len(node.references)))

    def _make(self, node: Node) -> None:
        owner = self._another(node) if self.draw.random() < 0.9 else node.identity
        if owner is None or node.leaves:
            return
        anchor = node.table.make(owner, "maker.make")
        self._made[anchor.identity] = len(self._made)
        node.references.append(Reference(anchor))
        number = anchor.identity[2]
        if owner == node.identity:
            node.jobs.append((owner, number, anchor))
            return
        node.calls[number] = (owner, anchor)
        message = self._send(node, owner, [])
        if message is not None:
            message.call = (anchor.identity, anchor.version, number)

    def _put(self, node: Node) -> None:
        if node.leaves:
            return
        inner = self.draw.choices(node.references, k=self.draw.randrange(3)) if node.references else []
        reference = node.table.keep(Value(None, tuple(inner)))
        anchor = cast("Anchor", reference.anchor)
        self._made[anchor.identity] = len(self._made)
        anchor.kept = Value(anchor.identity, tuple(inner))
        node.references.append(reference)

    def _finish(self, node: Node) -> None:
        if not node.jobs:
            return
        maker, number, anchor = node.jobs.pop(self.draw.randrange(len(node.jobs)))
        # Values that refer to each other on several nodes are never freed; that is known of counts of references.
        older = [each for each in node.references if self._made[each.anchor.identity] < self._made[anchor.identity]]
        inner = self.draw.choices(older, k=self.draw.randrange(3)) if older else []
        if not anchor.is_settled:
            anchor.kept = Value(anchor.identity, tuple(inner))
            anchor.tell()
        if maker == node.identity:
            node.table.answered(anchor, None)
            return
        message = self._send(node, maker, [])
        if message is not None:
            message.answer = number

    def _fetch(self, node: Node) -> None:
        """A node asks for a value that it holds: the references in it come with it, if it still asks when they do."""
        if not node.references:
            return
        anchor = cast("Anchor", self.draw.choice(node.references).anchor)
        if node.table.state(anchor) != "held" or anchor.home not in self.nodes or anchor.home in self.dead:
            return
        owner = self.nodes[anchor.home]
        there = owner.table.find(anchor.identity)
        if there is not None and there.kept is not None:
            assert cast("Value", there.kept).name == anchor.identity
            self._send(owner, node.identity, list(cast("Value", there.kept).inner))

    def _replace_link(self) -> None:
        """What was under way between two nodes is lost, calls with it."""
        if not self.breaks:
            return
        one, other = self.draw.sample(list(self.nodes), 2)
        if one in self.nodes[other].obituaries or other in self.nodes[one].obituaries:
            return
        for message in [each for each in self.messages if {each.source, each.target} == {one, other}]:
            self._land(message)
        for source, target in ((one, other), (other, one)):
            self._fail_calls(self.nodes[source], target)

    def _fail_calls(self, node: Node, target: Identity) -> None:
        for number, (owner, anchor) in list(node.calls.items()):
            if owner == target:
                del node.calls[number]
                self.tainted.add(anchor.identity)
                node.table.answered(anchor, GONE)

    def _crash(self, node: Node) -> None:
        if self.crashes and len([each for each in self.live if not each.leaves and each is not node]) >= 2:
            self.crashed.add(node.identity)
            self._end(node)

    def _end(self, node: Node) -> None:
        self.dead.add(node.identity)
        node.table.tidy()
        open_ = node.table._hand_overs._open.values()
        self.tainted |= {hand_over.thing.identity for hand_over in open_}
        self.tainted |= {anchor.identity for _, anchor in node.calls.values()}
        for message in [each for each in self.messages if each.source == node.identity and self.draw.random() < 0.5]:
            self._land(message)
        node.references.clear()
        node.jobs.clear()
        node.calls.clear()
        if self.draw.random() < 0.7:
            self.start(node.identity[0])

    def _leave(self, node: Node) -> None:
        """A node begins to leave in order: nothing runs there any more, and it gives away what it has."""
        if self.leaves and len([each for each in self.live if not each.leaves and each is not node]) >= 2:
            node.leaves = True
            node.references.clear()

    def _give(self, node: Node) -> None:
        """A node that leaves offers its values to others, and ends when they have got them and their holders know."""
        if not node.leaves or node.identity in self.dead:
            return
        while node.jobs:
            self._finish(node)
        staying = [each.identity for each in self.live if not each.leaves and each.identity not in node.obituaries]
        left = False
        for anchor in node.table.own():
            identity, holders = anchor.identity, node.table.holders(anchor)
            if not holders or not anchor.is_settled:
                continue
            left = True
            if node.offers.get(identity) in node.obituaries:
                del node.offers[identity]
                taker = node.table.taker(identity)
                if taker is not None:
                    node.offers[identity] = taker
                    self._offer(node, anchor)
            if identity not in node.offers and staying:
                takers = [holder for holder in holders if holder in staying] or staying
                node.offers[identity] = self.draw.choice(takers)
                self._offer(node, anchor)
        waits = left or any(question.text in {f"moved {identity}" for identity in node.offers} for question in self.questions)
        if not waits and not (node.table.hands_on and self.draw.random() < 0.9):
            self._end(node)

    def _offer(self, node: Node, anchor: Anchor) -> None:
        """See `Leaving`; in the place of `ReferenceService.adopt`."""
        identity, target = anchor.identity, node.offers[anchor.identity]
        registers = node.table.registers(identity)
        givers = (node.identity, *node.table.givers(identity))
        segments = Outgoing(target)
        kept = anchor.kept
        inner = kept.inner if isinstance(kept, Value) else ()
        plains = [node.table.write(reference, cast("Any", segments)) for reference in inner]
        segments.complete()

        def adopt(there: Node) -> Identity | None:
            assert segments is not None
            references = [there.table.read(plain) for plain in plains]
            while (owner := there.table.given_to(identity)) is not None:
                if owner in self.dead or owner == node.identity:
                    return None
                along = Outgoing(owner)
                sent = [there.table.write(reference, cast("Any", along)) for reference in references]
                along.complete()
                there = self.nodes[owner]
                references = [there.table.read(plain) for plain in sent]
            value = Value(identity, tuple(references))
            adopted = there.table.adopt(identity, registers, anchor.maker, "")
            if not adopted.is_settled:
                adopted.kept = value if kept is not None else None
                adopted.failure = anchor.failure
                adopted.tell()
            for giver in there.table.given_by(identity, givers):
                there.post.announce(giver, identity, 0)
            for name, incarnation, version in registers:
                holder = (name, incarnation)
                if version > 0 and holder != there.identity and not there.table.has_ended(holder):
                    there.post.announce(holder, identity, version)
            return there.identity

        def taken(owner: Identity | None) -> None:
            if owner is None:
                del node.offers[identity]
            elif node.table.registers(identity) != registers:
                self._offer(node, anchor)
            else:
                node.table.given(anchor, owner)
                self.given[identity] = owner

        node.post._write(target, f"adopt {identity}", adopt, taken, lambda: self._offer(node, anchor), is_call=True)

    def _hear_of_an_end(self) -> None:
        node = self.draw.choice(self.live)
        unknown = sorted(self.dead - node.obituaries)
        if unknown:
            self.hear(node, self.draw.choice(unknown))

    def hear(self, node: Node, ended: Identity) -> None:
        """A node learns that another has ended: nothing more comes from it, and calls to it end."""
        node.obituaries.add(ended)
        self.questions[:] = [each for each in self.questions if not each.is_call or {each.source, each.target} != {node.identity, ended}]
        for message in [each for each in self.messages if {each.source, each.target} == {node.identity, ended}]:
            self._land(message)
        for number, (owner, anchor) in list(node.calls.items()):
            if owner == ended:
                del node.calls[number]
                node.table.answered(anchor, GONE)
        node.table.ended(ended)

    # What must never be seen

    def look(self) -> None:
        """No value is freed that a live node holds with its owner's knowledge; nothing is lost but for a reason."""
        for node in self.live:
            for reference in node.references:
                anchor = cast("Anchor", reference.anchor)
                identity = anchor.identity
                assert node.table.find(identity) is anchor, f"{node.identity} has two anchors of {identity}"
                state = node.table.state(anchor)
                if state == "lost" or (anchor.error is not None and state != "lost"):
                    assert anchor.home in self.dead or identity in self.tainted, f"{node.identity} lost {identity} while all live: {state}"
                elif state == "held" and anchor.home not in self.dead and identity not in self.tainted:
                    where = self.nodes[anchor.home].table.owner(identity)
                    while where is not None and where not in self.dead and (next_ := self.nodes[where].table.owner(identity)) != where:
                        where = next_
                    assert where is not None, f"{identity} was freed while {node.identity} held it"

    def calm(self) -> None:
        """Everything arrives in the end, and all hear of all ends: then every reference is settled, one way or the other."""
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
                    self._land(message)
                elif message in self.messages:
                    self._deliver(message)
            for question in list(self.questions):
                if question.source in self.dead or question.answered:
                    self.questions.remove(question)
                elif question in self.questions and question.target not in self.dead:
                    self._ask(question)
                    self._answer(question)
            self.look()
            if self._is_calm():
                break
        else:
            raise AssertionError(f"no calm: {[(each.source, each.target, each.text) for each in self.questions]}")
        for identity in self._made:
            owners = [node.identity for node in self.live if node.table.owner(identity) == node.identity and node.table.find(identity)]
            assert len(owners) < 2, f"{identity} has two owners: {owners}"
        for node in self.live:
            for reference in node.references:
                anchor = cast("Anchor", reference.anchor)
                state = node.table.state(anchor)
                if anchor.failure is not None or anchor.error is not None:
                    given = self.given.get(anchor.identity, anchor.home)
                    excused = anchor.error is None or anchor.identity in self.tainted or anchor.home in self.crashed
                    assert excused or given in self.dead, f"{node.identity} lost {anchor.identity}, which {given} has"
                    there = self.nodes[anchor.home].table.find(anchor.identity) if anchor.home not in self.dead else None
                    two = anchor.error is None and there is not None and there.home == anchor.home and there.kept is not None
                    assert not two, f"{anchor.identity} has two outcomes: {node.identity} knows a failure, and {anchor.home} has a value"
                    continue
                assert state == "held" or (state == "" and anchor.kept is not None), f"{node.identity}: {anchor.identity} is {state!r}"
                owner = self.nodes[anchor.home].table
                there = owner.find(anchor.identity)
                assert anchor.home not in self.dead, f"{node.identity} believes {anchor.home} to have {anchor.identity}"
                assert owner.owner(anchor.identity) == anchor.home, f"{anchor.identity} was freed while {node.identity} held it"
                assert there is not None
                assert there.is_settled, f"{node.identity} waits for {anchor.identity}"
                assert there.kept is None or cast("Value", there.kept).name == anchor.identity

    def _is_calm(self) -> bool:
        def busy(node: Node) -> bool:
            if node.table.tidy() or node.jobs or node.leaves or self.dead - node.obituaries:
                return True
            return not all(letter.is_empty for letter in node.post.letters.values())

        return not self.messages and not self.questions and not any(busy(node) for node in self.live)

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
                table._holds.all,
                table._holds._open,
                [one for one in table._claims.values() if one.keeps is not None],
                table._hand_overs._landed,
            )
            assert left == (0, 0, {}, {}, [], {}), f"{node.identity} still has {left}"
