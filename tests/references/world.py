"""A world of reference tables: real tables, stand-ins for everything around them, and a network that does what it likes.

Each step is drawn: a value is made or kept, a reference is sent, dropped or answered, a letter or a message arrives, late, twice, or never,
a link is replaced, a node ends, and others hear of that, each in its own time. An oracle that sees all of it looks after every step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import attrs

from actors.reference import Reference
from runtime.references.anchors import Anchor
from runtime.references.claims import Identity, ReferenceId
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
class Letter:
    """One item of what a table says to another: it is asked at the receiver as often as the network likes, and one answer counts."""

    source: Identity
    target: Identity
    text: str
    ask: Callable[[ReferenceTable], Any]
    take: Callable[[Any], None]
    answers: list[Any] = attrs.field(factory=list)
    answered: bool = False


@attrs.define(eq=False)
class Post:
    """Stands in for `Correspondence`. There is no order between letters, not even of one node to another."""

    world: World
    identity: Identity
    table: ReferenceTable = attrs.field(init=False)

    def claim(self, owner: Identity, identity: ReferenceId, version: int, after: float) -> None:
        """See `Correspondence.claim`."""
        self._write(
            owner,
            f"claim {identity} {version}",
            lambda there: there.claim(identity, self.identity, version),
            lambda answer: self.table.confirmed(identity, version, owner, answer),
        )

    def release(self, owner: Identity, identity: ReferenceId, version: int) -> None:
        """See `Correspondence.release`."""
        # What was not said yet is not said any more; what is under way already may arrive late.
        for letter in self.world.letters:
            if letter.source == self.identity and letter.text == f"claim {identity} {version}":
                letter.answered = True
        self._write(
            owner, f"release {identity} {version}", lambda there: there.release(identity, self.identity, version), lambda answer: None
        )

    def ask(self, sponsor: Identity, identity: ReferenceId, number: int, after: float) -> None:
        """See `Correspondence.ask`."""
        self._write(
            sponsor,
            f"ask {identity}",
            lambda there: there.where(identity),
            lambda answer: self.table.told(identity, sponsor, number, answer),
        )

    def question(self, peer: Identity) -> None:
        """See `Correspondence.question`."""
        numbers = self.table.questions(peer, 1 + self.world.draw.randrange(3))
        if numbers:
            self._write(
                peer, f"question {numbers}", lambda there: there.unsettled(self.identity, numbers), partial(self._told, peer, numbers)
            )

    def _told(self, peer: Identity, numbers: list[int], answer: Any) -> None:
        self.table.settled(numbers, frozenset(answer))
        self.question(peer)

    def ended(self, peer: Identity) -> None:
        """See `Correspondence.ended`."""
        letters = self.world.letters
        letters[:] = [each for each in letters if each.source != self.identity or each.target != peer]

    def wake(self) -> None:
        """See `Correspondence.wake`."""

    def _write(self, target: Identity, text: str, ask: Callable[[ReferenceTable], Any], take: Callable[[Any], None]) -> None:
        node = self.world.nodes[self.identity]
        if target in node.obituaries:
            # What is written to an incarnation that is known to have ended, is answered by that.
            self.world.hear(node, target)
        else:
            self.world.letters.append(Letter(self.identity, target, text, ask, take))


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
    """See the module. `crashes`: whether nodes may end."""

    def __init__(self, seed: int, count: int = 4, *, crashes: bool, breaks: bool = True) -> None:
        self.draw = random.Random(seed)
        self.crashes = crashes
        self.breaks = breaks
        self.nodes: dict[Identity, Node] = {}
        self.dead: set[Identity] = set()
        self.letters: list[Letter] = []
        self.messages: list[Message] = []
        self.tainted: set[ReferenceId] = set()
        """References whose way was cut: a node ended that was handing them on, or the call that makes them came to nothing."""
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
        draw = self.draw
        way = draw.random()
        node = draw.choice(self.live)
        if way < 0.34:
            self._some_letter()
        elif way < 0.56:
            self._some_message()
        elif way < 0.66:
            self._pass(node)
        elif way < 0.74:
            self._drop(node)
        elif way < 0.79:
            self._make(node)
        elif way < 0.83:
            self._put(node)
        elif way < 0.88:
            self._finish(node)
        elif way < 0.94:
            node.table.tidy()
        elif way < 0.96:
            self._fetch(node)
        elif way < 0.964:
            self._replace_link()
        elif way < 0.967:
            self._crash(node)
        else:
            self._hear_of_an_end()
        self.look()

    def _some_letter(self) -> None:
        if not self.letters:
            return
        letter = self.draw.choice(self.letters)
        if letter.target in self.dead:
            return
        if letter.answers and self.draw.random() < 0.5:
            self._answer(letter)
            return
        self._ask(letter)
        if self.draw.random() < 0.5:
            self._answer(letter)

    def _ask(self, letter: Letter) -> None:
        letter.answers.append(letter.ask(self.nodes[letter.target].table))

    def _answer(self, letter: Letter) -> None:
        """One answer counts; the letter may arrive again all the same, as long as there is one to write it."""
        answer = self.draw.choice(letter.answers)
        if letter.source in self.dead or letter.answered:
            if self.draw.random() < 0.5 and letter in self.letters:
                self.letters.remove(letter)
            return
        letter.answered = True
        if letter in self.letters and self.draw.random() < 0.9:
            self.letters.remove(letter)
        letter.take(answer)

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
            target.references += [target.table.read(plain) for plain in message.plains]
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
        if owner is None:
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
        if not self.crashes or len(self.live) < 3:
            return
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

    def _hear_of_an_end(self) -> None:
        node = self.draw.choice(self.live)
        unknown = sorted(self.dead - node.obituaries)
        if unknown:
            self.hear(node, self.draw.choice(unknown))

    def hear(self, node: Node, ended: Identity) -> None:
        """A node learns that another has ended: nothing more comes from it, and calls to it end."""
        node.obituaries.add(ended)
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
                    owner = self.nodes[anchor.home].table
                    assert owner.owner(identity) == anchor.home, f"{identity} was freed while {node.identity} held it"

    def calm(self) -> None:
        """Everything arrives in the end, and all hear of all ends: then every reference is settled, one way or the other."""
        for _ in range(300):
            for node in self.live:
                for ended in sorted(self.dead - node.obituaries):
                    self.hear(node, ended)
                while node.jobs:
                    self._finish(node)
                node.table.tidy()
            for message in list(self.messages):
                if message.target in self.dead:
                    self._land(message)
                elif message in self.messages:
                    self._deliver(message)
            for letter in list(self.letters):
                if letter.source in self.dead or letter.answered:
                    self.letters.remove(letter)
                elif letter in self.letters and letter.target not in self.dead:
                    self._ask(letter)
                    self._answer(letter)
            self.look()
            if not self.messages and not self.letters and not any(node.table.tidy() or node.jobs for node in self.live):
                break
        else:
            raise AssertionError(f"no calm: {[(each.source, each.target, each.text) for each in self.letters]}")
        for node in self.live:
            for reference in node.references:
                anchor = cast("Anchor", reference.anchor)
                state = node.table.state(anchor)
                if anchor.failure is not None or anchor.error is not None:
                    continue
                assert state == "held" or (state == "" and anchor.kept is not None), f"{node.identity}: {anchor.identity} is {state!r}"
                owner = self.nodes[anchor.home].table
                there = owner.find(anchor.identity)
                assert anchor.home not in self.dead, f"{node.identity} believes {anchor.home} to have {anchor.identity}"
                assert owner.owner(anchor.identity) == anchor.home, f"{anchor.identity} was freed while {node.identity} held it"
                assert there is not None
                assert there.kept is not None, f"{node.identity} waits for {anchor.identity}"
                assert cast("Value", there.kept).name == anchor.identity

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
