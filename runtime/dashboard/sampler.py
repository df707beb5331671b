"""Asks the cluster while pages are open, through a client that is connected again when it is lost,
and gives pages what is new.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import trio

from actors.errors import UnderstudyError
from actors.own_logger import own_logger
from runtime.dashboard.cluster_view import ClusterView
from runtime.dashboard.questions import ClusterQuestions
from runtime.dashboard.schedule import SamplingSchedule
from runtime.dashboard.snapshots import Feed, PageFeed, TopicSnapshot
from runtime.environment import Environment, first_leaf
from runtime.limited_log import LimitedLog
from runtime.membership.cluster_client import ClusterClient
from runtime.user_errors import summary_of

LOST_SECONDS = 6.0
"""A client to which no node answers for so long is closed, and another one connected."""

AGAIN_SECONDS = 1.0
"""Between two attempts to connect."""

MOST_ADDRESSES = 20

CONNECTION = "connection"
"""The topic about the client itself; every page has it."""

Dial = Callable[[str], AbstractAsyncContextManager[ClusterClient]]

logger = own_logger("understudy.dashboard")


class Sampler:
    """Samples one cluster. `dial` connects a client to an address; `addresses`: where to begin."""

    def __init__(
        self, dial: Dial, address: str, environment: Environment, *, actions: bool = False
    ) -> None:
        self._dial = dial
        self._given = address
        self._addresses = [address]
        self._environment = environment
        self._log = LimitedLog(logger, environment.now)
        self._actions = actions
        self._schedule = SamplingSchedule()
        self._feed = Feed()
        self._view = ClusterView()
        self._questions: ClusterQuestions | None = None
        self._demand = trio.Event()
        self._news = trio.Event()
        self.asked = 0
        """How many questions were asked, of all topics."""

    @property
    def questions(self) -> ClusterQuestions | None:
        """The cluster, while there is a connection to it."""
        return self._questions

    def wall_time(self) -> float:
        """The time on the dashboard's clock, as its snapshots have it: seconds since 1970 UTC."""
        return self._environment.wall_time()

    @contextmanager
    def page(self, topics: Iterable[str]) -> Iterator[PageFeed]:
        """A page is open: its topics are sampled as long. Raises TooManyActorsError."""
        wanted: list[str] = []
        try:
            now = self._environment.now()
            for topic in topics:
                if self._questions is not None and topic not in self._schedule.wanted:
                    # While no browser looked, no node was asked: a missing answer says nothing.
                    self._questions.heard = now
                if not self._schedule.want(topic, now):
                    raise TooManyActorsError
                wanted.append(topic)
            self._wake()
            yield PageFeed(self._feed, [CONNECTION, *wanted])
        finally:
            for topic in wanted:
                self._schedule.unwant(topic)
                if topic not in self._schedule.wanted:
                    # The next page waits for an answer, rather than to show an old one as new.
                    self._feed.forget(topic)

    async def messages(self, page: PageFeed, idle: float) -> list[bytes]:
        """Wait for what is new for a page; an empty list after `idle` seconds without news."""
        with trio.move_on_after(idle):
            while True:
                # Taken before the look: what comes between the look and the wait is not missed.
                news = self._news
                if found := page.take():
                    await trio.lowlevel.checkpoint()
                    return found
                await news.wait()
        return []

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sample until cancelled; started when the first connection stands. Raises what the first
        attempt to connect raises.
        """
        begun = False
        since = self._environment.wall_time()
        while True:
            trouble = ""
            address = self._addresses[0]
            try:
                async with self._dial(address) as client:
                    self._questions = ClusterQuestions(client, self._environment, self._view)
                    self._connected(client, address)
                    if not begun:
                        begun = True
                        task_status.started()
                    trouble = await self._sample(self._questions)
            except* (UnderstudyError, OSError) as group:
                if not begun:
                    raise
                trouble = summary_of(first_leaf(group))
            if self._questions is not None:
                since = self._environment.wall_time()
                self._questions = None
            # The next attempt goes to another node that was known.
            self._addresses = [*self._addresses[1:], address]
            self._publish_lost(trouble, since)
            await trio.sleep(AGAIN_SECONDS)
            await self._wait_for_pages()

    async def _wait_for_pages(self) -> None:
        while not self._schedule.wanted:
            await self._demand.wait()

    async def _sample(self, questions: ClusterQuestions) -> str:
        """Returns when another client is needed, and why."""
        questions.heard = self._environment.now()
        async with trio.open_nursery() as nursery:
            while not (trouble := self._trouble(questions)):
                demand = self._demand
                now = self._environment.now()
                for topic in self._schedule.begin(now):
                    nursery.start_soon(self._ask, questions, topic)
                pause = min(self._schedule.next_at() - now, LOST_SECONDS / 2)
                if not self._schedule.wanted:
                    pause = math.inf
                with trio.move_on_after(max(0.0, pause)):
                    await demand.wait()
            nursery.cancel_scope.cancel()
        return trouble

    def _trouble(self, questions: ClusterQuestions) -> str:
        """Why another client is needed; "" if none is."""
        now = self._environment.now()
        if "cluster" not in self._schedule.wanted:
            # No browser looks: nothing is asked, and so nothing is missed.
            questions.heard = now
        elif now - questions.heard > LOST_SECONDS:
            return f"no node has answered for {LOST_SECONDS:g} s"
        return "the store of the cluster is elsewhere" if questions.store_has_moved else ""

    async def _ask(self, questions: ClusterQuestions, topic: str) -> None:
        self.asked += 1
        try:
            snapshot = await questions.ask(topic)
        except Exception as error:
            # What a node of another version says may not be understood. It costs one topic.
            self._log.warning("no answer about %s: %s", topic, summary_of(error))
            text = f"what the cluster says of this cannot be shown: {summary_of(error)}"
            sections = {"problems": {text: {"text": text}}}
            latest = self._feed.latest(topic)
            old = latest.sections if latest is not None else {}
            snapshot = TopicSnapshot(self._environment.wall_time(), {**old, **sections})
        finally:
            self._schedule.finished(topic, self._environment.now())
            self._wake()
        if topic in self._schedule.wanted:
            self._publish(topic, snapshot)
        if topic == "cluster":
            self._note_addresses(questions)

    def _note_addresses(self, questions: ClusterQuestions) -> None:
        found = [
            address.removeprefix("tcp:")
            for member in questions.members
            for address in member["addresses"]
            if address.startswith("tcp:")
        ]
        self._addresses = list(dict.fromkeys([*found[:MOST_ADDRESSES], self._given]))

    def _connected(self, client: ClusterClient, address: str) -> None:
        self._publish(
            CONNECTION,
            TopicSnapshot(
                self._environment.wall_time(),
                {
                    "connection": {
                        "cluster": {
                            "state": "connected",
                            "cluster": client.status["cluster"],
                            "address": address,
                            "problem": "",
                            "since": self._environment.wall_time(),
                            "actions": self._actions,
                        }
                    }
                },
            ),
        )

    def _publish_lost(self, trouble: str, since: float) -> None:
        before = self._feed.latest(CONNECTION)
        assert before is not None, "there was a connection"
        row = {
            **before.sections["connection"]["cluster"],
            "state": "lost",
            "problem": trouble,
            "since": since,
            "address": self._addresses[0],
        }
        self._publish(
            CONNECTION,
            TopicSnapshot(self._environment.wall_time(), {"connection": {"cluster": row}}),
        )

    def _publish(self, topic: str, snapshot: TopicSnapshot) -> None:
        self._feed.publish(topic, snapshot)
        # Set, then replaced: a task holds the event that it has seen, so it misses no change, and
        # later waits are for the next one. `_wake` does the same.
        self._news.set()
        self._news = trio.Event()

    def _wake(self) -> None:
        self._demand.set()
        self._demand = trio.Event()


class TooManyActorsError(Exception):
    """Pages look at as many actors in detail as they may."""
