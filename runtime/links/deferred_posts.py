"""Deferred posts: what is made while a link takes no more waits for its turn, and is encoded then.

Tasks that call all at once run in one pass of the event loop. If each of them encoded its call in
that pass, the pass would last as long as all of that takes: no answer could be read meanwhile, and
no other task could run. No I/O and no clock: the link says whose turn it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MOST_UNWRITTEN = 1024
"""Frames that wait to be written from which on further calls are deferred; so many small calls are
encoded in some 20 ms.
"""

FEWEST_TO_CLEAR = 256
"""Withdrawn posts that are worth a pass over the queue."""


class DeferredPost:
    """One of them, and the ticket of the frame that it will post."""

    __slots__ = ("_queue", "act", "on_end")

    number = 0
    """Of no frame: nothing of it was sent."""

    def __init__(
        self,
        queue: DeferredPosts,
        act: Callable[[], object],
        on_end: Callable[[], object] | None,
    ) -> None:
        self._queue = queue
        self.act: Callable[[], object] | None = act
        """Posts it; None once it has had its turn, or will have none."""
        self.on_end = on_end
        """Called if the link ends first."""

    def withdraw(self) -> None:
        """Have no turn any more, if it waits for one."""
        if self.act is not None:
            self.act = None
            self._queue.on_withdrawn()


class DeferredPosts:
    """Those of one kind on one link, in the order in which they were made."""

    __slots__ = ("_posts", "waiting")

    def __init__(self) -> None:
        self._posts: deque[DeferredPost] = deque()
        self.waiting = 0
        """How many have neither had their turn nor been withdrawn."""

    def add(
        self, act: Callable[[], object], on_end: Callable[[], object] | None = None
    ) -> DeferredPost:
        """Make one that waits behind all others."""
        post = DeferredPost(self, act, on_end)
        self._posts.append(post)
        self.waiting += 1
        return post

    def on_withdrawn(self) -> None:
        """One of them will have no turn."""
        self.waiting -= 1
        # Many thousands may be given up in one moment, in any order: none of them costs a look at
        # all others, and while none has a turn, what is left of them is bounded.
        if len(self._posts) - self.waiting > max(FEWEST_TO_CLEAR, self.waiting):
            self._posts = deque(one for one in self._posts if one.act is not None)

    def next(self) -> Callable[[], object] | None:
        """Return what the first of them does, whose turn it is; None if none waits."""
        while self._posts:
            post = self._posts.popleft()
            act, post.act = post.act, None
            if act is not None:
                self.waiting -= 1
                return act
        return None

    def end(self) -> list[Callable[[], object]]:
        """None of them will have a turn, because the link has ended. Return what is to be called
        for those that wait.
        """
        posts, self._posts, self.waiting = self._posts, deque(), 0
        endings = [
            post.on_end for post in posts if post.act is not None and post.on_end is not None
        ]
        for post in posts:
            post.act = None
        return endings

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. For tests and simulations."""
        assert self.waiting == sum(post.act is not None for post in self._posts)
        assert len(self._posts) - self.waiting <= max(FEWEST_TO_CLEAR, self.waiting)
