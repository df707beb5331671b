"""Starts on other nodes that fail: the errors as the user reads them who has started the actor, and
what is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from actors.actor import Member
from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    BadArgumentsError,
    CallError,
    DeadlineExceededError,
    NodeDiedError,
    NodeDrainingError,
    NodeUnreachableError,
    OutcomeUnknownError,
    RemoteError,
    UnderstudyError,
)
from actors.messages import import_path
from runtime.calls.error_codec import plain_error
from runtime.hosting.host import left_meanwhile
from runtime.hosting.node_service import NODE_SERVICE

ELSEWHERE = "start it again, or elsewhere"
"""The advice of errors about nodes that have ended, or cannot be reached."""


@contextmanager
def about_start(
    what: str, member: Member, now: Callable[[], float], *, known: bool
) -> Iterator[None]:
    """Where the service of `member` has not answered, raise an error about `what` was to be started
    there, and not about that service, of which users know nothing, nor its attempts. `now`: the
    node's clock; `known`: other tasks can find by its name what was started. What is not, is taken
    back by the caller where it may start yet: see `is_to_be_taken_back`. What the service raises
    comes out as if it had been raised here.
    """
    began = now()
    try:
        yield
    except trio.Cancelled as error:
        # People read it in the traceback of the error that their time limit raises.
        error.add_note(
            f"The start of {what} on node {member.name} had no answer after {now() - began:.1f} s. "
            "If it has started, it is stopped again: no task has its handle."
        )
        raise
    except BadArgumentsError as error:
        if error.actor != NODE_SERVICE:
            raise
        # That node cannot read the arguments, or refuses them: its text is about the actor already.
        refused = BadArgumentsError(str(error), node=member.name, attempts=error.attempts)
        # As below.
        error.__traceback__ = None
        try:
            raise refused from None
        finally:
            del refused
    except (
        ActorNotFoundError,
        DeadlineExceededError,
        NodeDrainingError,
        NodeUnreachableError,
        OutcomeUnknownError,
    ) as error:
        if error.actor != NODE_SERVICE:
            raise
        unanswered = _unanswered(error, what, member, now() - began, known=known)
        # Since Python 3.13 the frame of this generator keeps that of contextlib, which has the
        # error. With the traceback, which has this frame, that would be a circle.
        error.__traceback__ = None
        try:
            raise unanswered from None
        finally:
            # No circle with this frame either.
            del unanswered
    except RemoteError as error:
        own = _own_error(error, member)
        # As above.
        error.__traceback__ = None
        try:
            raise own from None
        finally:
            del own


def _unanswered(
    error: CallError, what: str, member: Member, seconds: float, *, known: bool
) -> CallError:
    """Return the error of a start that the service of `member` has not answered in `seconds`."""
    ended = f"node {member.name} ended"
    kind: type[CallError] = type(error)
    if isinstance(error, NodeDrainingError):
        text = (
            f"{what} was not started: node {member.name} left the cluster before it began with it; "
            f"{ELSEWHERE}"
        )
    elif isinstance(error, ActorDiedError) or isinstance(error.__cause__, NodeDrainingError):
        # The service ends only when its node has left: with it has ended what it was starting. An
        # earlier attempt, of which nothing was heard, was made at the same node.
        kind = NodeDrainingError
        text = left_meanwhile(member.name, what)
    elif isinstance(error, ActorNotFoundError):
        kind = NodeUnreachableError
        text = f"{what} was not started: {ended} before it could be asked; {ELSEWHERE}"
    elif isinstance(error, NodeUnreachableError):
        text = (
            f"{what} was not started: there was no connection to node {member.name} in time; "
            f"{ELSEWHERE}"
        )
    elif isinstance(error, NodeDiedError) or (
        isinstance(error, OutcomeUnknownError) and isinstance(error.__cause__, ActorNotFoundError)
    ):
        kind = NodeDiedError
        text = (
            f"{ended} while it started {what}, which is gone with it if it had started; {ELSEWHERE}"
        )
    elif isinstance(error, DeadlineExceededError):
        text = (
            f"{what} was not started: node {member.name} had not begun with it after "
            f"{seconds:.1f} s, and will not; {ELSEWHERE}"
        )
    else:
        next_step = (
            "if it has, it goes on: look it up by its name, or start it again"
            if known
            else f"if it has, it is stopped again, as no task has its handle; {ELSEWHERE}"
        )
        text = (
            f"{what} may have started on node {member.name}, whose answer has not come after "
            f"{seconds:.1f} s, and will not; {next_step}"
        )
    return kind(text, node=member.name, attempts=error.attempts)


def is_to_be_taken_back(error: BaseException, *, known: bool) -> bool:
    """True for the end of a start whose actor may run or start yet, without any task that has its
    handle: after a cancellation, and where the outcome is unknown and no task knows its name: it
    has none in the store, or one that was made up because it takes resources. What was to be
    started on a node that has died is gone with it.
    """
    return isinstance(error, trio.Cancelled) or (not known and not isinstance(error, NodeDiedError))


def of_class(path: str) -> str:
    """Say what an actor without a name is."""
    return f"an actor of class {path.rpartition(':')[2]}"


def _own_error(error: RemoteError, member: Member) -> UnderstudyError:
    """Return the runtime's own error that the service of `member` has raised, as if it had been
    raised here; `error` itself, if it raised another one.
    """
    if error.remote_type == import_path(NodeDrainingError):
        # The service has raised it, so it is about that node, and the actor has not started.
        return NodeDrainingError(str(error).removeprefix("NodeDrainingError: "), node=member.name)
    return plain_error(error) or error
