"""What a node has to say to others about references, gathered and said: claims, releases, questions, and values that are its own now.

One letter to each node is under way at a time; what comes up meanwhile goes with the next. A letter that is not answered is written again
for as long as its receiver may live. Everything in it may be said twice, so it does no harm that an answer was lost.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any

import trio

from actors.errors import ActorNotFoundError, CallError, OutcomeUnknownError
from runtime.environment import Environment
from runtime.references.claims import Identity, ReferenceId
from runtime.references.letters import Letter
from runtime.references.values import Failure

if TYPE_CHECKING:
    from runtime.references.table import ReferenceTable

GATHER_SECONDS = 0.02
"""How long the first thing to be said waits for others, at most: nodes that hear of something together do not answer together."""

LOOK_SECONDS = (0.005, 0.2)
"""How often the garbage collector's notes are read while there are references: sooner after there were any."""

AGAIN_SECONDS = 0.1
"""Until a letter that failed is written again."""

MOST_ITEMS = 10_000
"""Of one kind in one letter."""

MOST_CONCLUSIONS = 100
"""In one letter: they have errors in them."""

logger = logging.getLogger("understudy.references")


class Correspondence:
    """See the module. `service(node, incarnation)` gives a handle of that node's `ReferenceService`."""

    def __init__(self, identity: Identity, service: Callable[[str, int], Any], environment: Environment) -> None:
        self._identity = identity
        self._service = service
        self._environment = environment
        self._now = environment.now
        self._letters: dict[Identity, Letter] = {}
        self._awake: trio.Event | None = None
        self._is_looking = True
        self.table: ReferenceTable

    def claim(self, owner: Identity, identity: ReferenceId, version: int, after: float, *, again: bool) -> None:
        """Tell `owner`, in `after` seconds, that this node holds a value, of which it may know if this is said `again`."""
        self._letter(owner).claim(identity, version, self._now() + after if after else -math.inf, again=again)
        self._hurry()

    def is_counted(self, owner: Identity, identity: ReferenceId) -> None:
        """`owner` counts this node as a holder already; see `Letter.is_counted`."""
        letter = self._letters.get(owner)
        if letter is not None:
            letter.is_counted(identity)

    def release(self, owner: Identity, identity: ReferenceId, version: int) -> None:
        """Tell `owner` that it does not any more."""
        self._letter(owner).release(identity, version)
        self._hurry()

    def ask(self, sponsor: Identity, identity: ReferenceId, number: int, after: float) -> None:
        """Ask `sponsor`, in `after` seconds, where a value is. `number` is not told, and goes with the answer; see `holds.Ask`."""
        self._letter(sponsor).asks[identity] = (number, self._now() + after if after else -math.inf)
        self._hurry()

    def announce(self, holder: Identity, identity: ReferenceId, version: int) -> None:
        """Tell `holder`, which held a value in `version` when its owner left, that it is this node's now. If it does not hold it any more,
        perhaps nobody but the old owner was told.
        """
        self._letter(holder).moves[identity] = version
        self._hurry()

    def conclude(self, owner: Identity, identity: ReferenceId, failure: Failure) -> None:
        """Tell `owner` that the call which makes a value was given up; see `ReferenceTable.conclude`."""
        self._letter(owner).conclusions[identity] = failure
        self._hurry()

    def question(self, peer: Identity) -> None:
        """Ask `peer` which hand-overs are not settled there."""
        letter = self._letter(peer)
        letter.questions_at = min(letter.questions_at, self._now())
        self._hurry()

    def ended(self, peer: Identity) -> None:
        """There is nobody to write to."""
        self._letters.pop(peer, None)

    def wake(self) -> None:
        """There is a reference now, which may be dropped at any time."""
        if not self._is_looking and self._awake is not None:
            self._awake.set()

    async def run(self) -> None:
        """Say all that comes up, for as long as the node lives."""
        async with trio.open_nursery() as nursery:
            pause = LOOK_SECONDS[1]
            while True:
                self._awake = trio.Event()
                news = self.table.tidy()
                soonest = self._dispatch(nursery)
                pause = LOOK_SECONDS[0] if news else min(2 * pause, LOOK_SECONDS[1])
                self._is_looking = self.table.is_busy
                with trio.move_on_at(min(soonest, self._now() + pause if self._is_looking else math.inf)):
                    await self._awake.wait()
                    # Much of what comes up comes together.
                    await trio.sleep(GATHER_SECONDS * self._environment.random())

    def _dispatch(self, nursery: trio.Nursery) -> float:
        """Begin the letters that are due; returns when the next is."""
        now = self._now()
        soonest = math.inf
        for peer, letter in list(self._letters.items()):
            if letter.under_way:
                continue
            if letter.is_empty:
                del self._letters[peer]
                continue
            due = letter.due_at()
            if due <= now:
                letter.under_way = True
                nursery.start_soon(self._write, peer, letter)
            else:
                soonest = min(soonest, due)
        return soonest

    async def _write(self, peer: Identity, letter: Letter) -> None:
        try:
            await self._tell(peer, letter)
            await self._announce(peer, letter)
            await self._conclude(peer, letter)
            await self._ask(peer, letter)
            await self._question(peer, letter)
        except ActorNotFoundError:
            # A system service is missing only where its node has ended, and perhaps nobody else says so: it may have been no member.
            self.table.ended(peer)
        except CallError as error:
            logger.info("a letter about references to node %s failed and is written again: %s", peer[0], error)
            letter.not_before = self._now() + AGAIN_SECONDS
        finally:
            letter.under_way = False
            self._hurry()

    async def _tell(self, peer: Identity, letter: Letter) -> None:
        words = letter.words(self._now())
        claims, releases = words
        if not claims and not releases:
            return
        answers = await self._service(*peer).update(
            *self._identity,
            [[*identity, version] for identity, version in claims.items()],
            [[*identity, version] for identity, version in releases.items()],
        )
        _check_number(answers[0], claims, peer)
        _check_number(answers[1], releases, peer)
        # Only now: what was not answered is said again.
        letter.said(words)
        for (identity, version), answer in zip(claims.items(), answers[0], strict=True):
            self.table.confirmed(identity, version, peer, _identity(answer))
        for (identity, version), answer in zip(releases.items(), answers[1], strict=True):
            owner = _identity(answer)
            if owner is not None and owner != peer:
                self.release(owner, identity, version)

    async def _announce(self, peer: Identity, letter: Letter) -> None:
        for identity, version in list(letter.moves.items()):
            if not await self._service(*peer).moved(list(identity), *self._identity):
                self.table.release(identity, peer, version)
            if letter.moves.get(identity) == version:
                del letter.moves[identity]

    async def _conclude(self, peer: Identity, letter: Letter) -> None:
        given_up = dict(itertools.islice(letter.conclusions.items(), MOST_CONCLUSIONS))
        if not given_up:
            return
        answers = await self._service(*peer).conclude([[list(identity), failure] for identity, failure in given_up.items()])
        _check_number(answers, given_up, peer)
        for (identity, failure), answer in zip(given_up.items(), answers, strict=True):
            letter.conclusions.pop(identity, None)
            self.table.concluded(identity, failure, _identity(answer) if isinstance(answer, list) else answer)

    async def _ask(self, peer: Identity, letter: Letter) -> None:
        now = self._now()
        asks = {identity: number for identity, (number, at) in letter.asks.items() if at <= now}
        if not asks:
            return
        answers = await self._service(*peer).where([list(identity) for identity in asks])
        _check_number(answers, asks, peer)
        for identity, number in asks.items():
            if letter.asks.get(identity, (-1, 0.0))[0] == number:
                del letter.asks[identity]
        for (identity, number), answer in zip(asks.items(), answers, strict=True):
            self.table.told(identity, peer, number, _identity(answer) if isinstance(answer, list) else answer)

    async def _question(self, peer: Identity, letter: Letter) -> None:
        if letter.questions_at > self._now():
            return
        letter.questions_at = math.inf
        numbers = self.table.questions(peer, MOST_ITEMS)
        if not numbers:
            return
        try:
            unsettled = await self._service(*peer).unsettled(*self._identity, numbers)
        except BaseException:
            self.table.settled(numbers, numbers)
            letter.questions_at = -math.inf
            raise
        self.table.settled(numbers, frozenset(unsettled))
        if unsettled or len(numbers) == MOST_ITEMS:
            letter.questions_at = self._now() + LOOK_SECONDS[0]

    def _letter(self, peer: Identity) -> Letter:
        letter = self._letters.get(peer)
        if letter is None:
            letter = self._letters[peer] = Letter()
        return letter

    def _hurry(self) -> None:
        if self._awake is not None:
            self._awake.set()


def _check_number(answers: Sized, asked: Sized, peer: Identity) -> None:
    """Raises CallError where a peer has not answered each of what it was asked, once."""
    if len(answers) != len(asked):
        raise OutcomeUnknownError(f"node {peer[0]} gave {len(answers)} answers to {len(asked)} words about references", node=peer[0])


def _identity(answer: Any) -> Identity | None:
    return (answer[0], answer[1]) if answer is not None else None
