"""Every outcome that a caller can catch, and every refusal that a user can act upon.

A call ends in exactly one of three ways besides its value: `NotExecutedError` (it certainly never
ran, so repeating it is safe), `OutcomeUnknownError` (it may have run) or `RemoteError` (it ran, and
the method raised). Distinguish them by type, never by text; the names follow gRPC's distinction
between transparent retries and committed calls, and Jepsen's "info" events.

Messages say what happened, to whom, and what to do next; the same facts are attributes, so that
programs need not parse them.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Outcome = Literal["not executed", "unknown", "raised"]


def outcome_of(error: CallError) -> Outcome:
    """`error.outcome`, also where a remote exception has an attribute of that name itself."""
    return "raised" if issubclass(type(error), RemoteError) else error.outcome


class UnderstudyError(Exception):
    """The base of everything that this project raises on purpose."""


class CallError(UnderstudyError):
    """A call that did not return a value. Catch one of the three subclasses; this base is for code
    that treats them alike.

    Attributes: `actor` (name), `method`, `node` (name), `epoch` of the actor as the caller knew it,
    `attempts` made so far, `outcome`. Each is None (`attempts`: 0) where it is not known.
    """

    outcome: ClassVar[Outcome] = "unknown"

    def __init__(
        self,
        text: str = "",
        *,
        actor: str | None = None,
        method: str | None = None,
        node: str | None = None,
        epoch: int | None = None,
        attempts: int = 0,
    ) -> None:
        super().__init__(text)
        self.actor = actor
        self.method = method
        self.node = node
        self.epoch = epoch
        self.attempts = attempts


class NotExecutedError(CallError):
    """The call certainly never ran: repeating it is safe, here or elsewhere."""

    outcome: ClassVar[Outcome] = "not executed"


class ActorNotFoundError(NotExecutedError):
    """No actor of this name lives in the cluster now."""


class MethodNotFoundError(NotExecutedError):
    """The actor exists, but has no method of this name that may be called from outside."""


class BadArgumentsError(NotExecutedError, TypeError):
    """The arguments do not fit the method, or the constructor of an actor that was to be started.
    The message names the parameter.
    """


class FunctionNotImportableError(NotExecutedError, TypeError):
    """The function cannot be found by its name in another process: it is a lambda, nested, written
    at a prompt, or missing in the code of the node that was to run it.
    """


class NoWorkerError(NotExecutedError):
    """No node of the cluster can run the function: none meets what its options ask for, or no
    worker process could be started.
    """


class ArgumentLostError(NotExecutedError):
    """A reference that was given as an argument has no value to fetch. The error that says why is
    the `__cause__`, where it is known here.
    """


class StaleEpochError(NotExecutedError):
    """The call was addressed to an epoch of the actor that is no longer (or not yet) valid on that
    node.
    """


class EmptyGroupError(NotExecutedError):
    """The group has no members now, as far as this node knows."""


class NodeNotFoundError(NotExecutedError):
    """No node of this name is a member of the cluster now."""


class NodeUnreachableError(NotExecutedError):
    """The call could not be handed to the node's connection; the node may or may not be alive."""


class NodeDrainingError(NotExecutedError):
    """The node is leaving the cluster and takes no new work."""


class NotAMemberError(NotExecutedError):
    """The calling node has lost its place in the cluster, or its `open_node` block has ended:
    nothing it asks for is done any more.
    """


class WrongDoorError(NotExecutedError, RuntimeError):
    """A blocking call from inside a running event loop, which it would have blocked, or an
    asyncio one from outside of any. The message names the module whose `connect` to use there.
    """


class ForkedProcessError(NotExecutedError, RuntimeError):
    """The connection was opened before `os.fork()`, and belongs to the parent process: open another
    one in this process.
    """


class DirectoryUnavailableError(NotExecutedError):
    """The cluster's store, which knows where actors and nodes are, cannot be asked now: nothing was
    done.

    It says nothing about what there is: "not to be asked" is not "no such name". The error of the
    store is the `__cause__`.
    """


class ClassMismatchError(NotExecutedError, TypeError):
    """The actor that has the name now is of another class than the handle, or the lookup,
    is for.
    """


class MailboxFullError(NotExecutedError):
    """The actor's mailbox is at its limit; the call was shed at the door."""


class AnswersUnreadError(NotExecutedError):
    """The caller's node leaves so many answers unread that the actor's node takes no more calls
    from it for now.
    """


class DeadlineExceededError(NotExecutedError, TimeoutError):
    """The deadline passed before the call began to run; it was dropped unexecuted."""


class CallCycleError(NotExecutedError):
    """The call came back to an actor whose running method waits for it: both would have waited for
    ever. The message has the chain.
    """


class SelfCallError(CallCycleError):
    """A running method awaited its own actor: it would have waited for itself for ever."""


class OutcomeUnknownError(CallError):
    """The call may have run: its answer did not arrive, and will not."""

    outcome: ClassVar[Outcome] = "unknown"


class CallTimeoutError(OutcomeUnknownError, TimeoutError):
    """The call's `timeout` passed before its answer came."""


class ActorDiedError(OutcomeUnknownError):
    """The actor ended while the call was with it."""


class NodeDiedError(OutcomeUnknownError):
    """The node ended while the call was with it."""


class ConnectionLostError(OutcomeUnknownError):
    """The session with the node was given up after the call was handed to it and before its answer
    came. The node may live: its death is a `NodeDiedError`.
    """


class ReplyEncodeError(OutcomeUnknownError):
    """The method ran and returned, but what it returned cannot be sent."""


class AnswerDroppedError(OutcomeUnknownError):
    """The method ran, and its answer was dropped: the caller's node leaves too many answers
    unread.
    """


class AlreadyAppliedError(OutcomeUnknownError):
    """An earlier attempt at the call has certainly taken effect: the actor saved the state that it
    led to. Its answer is lost.

    The call was not run again. Only what it would have answered is unknown: `Actor.save(state,
    answer=...)` keeps that as well.
    """


class RemoteError(CallError):
    """The method ran and raised.

    Where the remote exception's type is a builtin or a class registered with `@message`, the error
    that the caller catches is an instance of that type as well, with its arguments, fields and
    notes: `except ValueError` and `except RemoteError` both work. A group arrives as a group, so
    that `except*` finds what is in it. `str()` says what the exception said; the traceback is in a
    note.

    Attributes besides those of `CallError`: `remote_type` (import path of the exception's class)
    and `remote_traceback` (text). Where the exception has attributes of these names itself,
    `error.node` for example, they are the exception's own.
    """

    outcome: ClassVar[Outcome] = "raised"
    remote_type: str = ""
    remote_traceback: str = ""


class EncodeError(UnderstudyError, TypeError):
    """A value that cannot cross the wire. `path` leads to it from the parameter that it was given
    for, for example `order.items['x']`.
    """

    def __init__(self, text: str, *, path: str = "") -> None:
        super().__init__(text)
        self.path = path


class DecodeError(UnderstudyError, ValueError):
    """Bytes from a proven peer that do not decode to a value here, for example a message type that
    cannot be imported.
    """


class ProtocolError(UnderstudyError):
    """A peer sent bytes that break the protocol. The connection they came on is closed; nothing
    else is touched.
    """


class HandshakeError(UnderstudyError):
    """Two nodes did not come to terms; the connection is closed. `code` is the machine-readable
    reason.
    """

    code: ClassVar[str] = "handshake"


class WrongSecretError(HandshakeError):
    """The peer could not prove that it knows the cluster's secret, or we could not to it."""

    code: ClassVar[str] = "wrong-secret"


class WrongClusterError(HandshakeError):
    """The peer belongs to a cluster of another name."""

    code: ClassVar[str] = "wrong-cluster"


class ProtocolVersionError(HandshakeError):
    """The two sides share no version of the protocol."""

    code: ClassVar[str] = "protocol-version"


class WrongPeerError(HandshakeError):
    """Another node, or another incarnation of it, answered at the address that was dialled."""

    code: ClassVar[str] = "wrong-peer"


class WrongStoreError(HandshakeError):
    """A node of the cluster's name answered, or dialled, whose coordination store is another: one
    of the two was lost, and begun anew.
    """

    code: ClassVar[str] = "wrong-store"


class HandshakeTimeoutError(HandshakeError, TimeoutError):
    """The peer connected, or accepted, and then said too little for too long."""

    code: ClassVar[str] = "handshake-timeout"


class JoinError(UnderstudyError):
    """This node could not join the cluster. The message names the address tried and the
    next step.
    """


class NodeNameTakenError(JoinError):
    """A live member of the cluster has this node name already."""


class ListenError(UnderstudyError):
    """This node cannot, or must not, listen on the address given."""


class SpawnError(UnderstudyError):
    """An actor could not be started. `actor` is its name, `node` where it was tried."""

    def __init__(self, text: str, *, actor: str | None = None, node: str | None = None) -> None:
        super().__init__(text)
        self.actor = actor
        self.node = node


class NameTakenError(SpawnError):
    """An actor of this name lives already; `get_or_spawn` returns it instead."""


class ActorClassError(SpawnError):
    """The actor's class cannot be imported on the node that should run it, or is no `Actor`."""


class ActorStartError(SpawnError):
    """The actor's constructor or `on_start` raised; `remote_traceback` holds where."""

    def __init__(
        self,
        text: str,
        *,
        actor: str | None = None,
        node: str | None = None,
        remote_traceback: str = "",
    ) -> None:
        super().__init__(text, actor=actor, node=node)
        self.remote_traceback = remote_traceback


class ActorNotPlacedError(ActorStartError):
    """A supervisor could not be started because there is no node for one of its children, or the
    store is away. That says nothing about either of them: its own supervisor waits a little and
    tries again, and counts no restart.
    """


class ActorNotNeededError(ActorStartError):
    """The actor's `on_start` raised `actors.Ignore`: it does not want to run, and that is no
    failure.
    """


class SupervisorGaveUpError(UnderstudyError):
    """A supervisor ended with "shutdown": its children failed more often than its intensity allows,
    or its significant ones have ended.
    """


class ChildError(UnderstudyError):
    """What was asked of a supervisor about one of its children cannot be done. The message names
    the child by its path in the tree.
    """


class ChildNotFoundError(ChildError, LookupError):
    """The supervisor has no such child."""


class ChildExistsError(ChildError, ValueError):
    """The supervisor has a child of this id already: running, being restarted, or stopped with its
    spec kept.
    """


class ChildRunningError(ChildError):
    """The child has an actor, or is being restarted: stop it first."""


class TooManyChildrenError(ChildError):
    """The dynamic supervisor has as many children as it may."""


class SupervisorStoppingError(ChildError):
    """The supervisor is stopping, or has: it does nothing more for its children."""


class NoPlacementError(SpawnError):
    """No member of the cluster meets what the actor asks of its node."""


class OwnerDiedError(UnderstudyError):
    """The node that owned a referenced value ended, and the value with it."""


class ReferenceReleasedError(UnderstudyError):
    """The referenced value was freed by its owner."""


class NotTheOwnerError(UnderstudyError):
    """The value of the reference is on another node. The message names both."""


class ReferenceNotReadyError(UnderstudyError):
    """The value of the reference is not there yet."""


class ReferenceMemoryError(UnderstudyError):
    """The values of a node take all the memory that they may, and none can be written to disk."""


class StoreError(UnderstudyError):
    """The coordination store did not do what was asked."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached now. Says nothing about what it holds: "away" is not "no such
    name".
    """


class StoreOutcomeUnknownError(StoreError):
    """A write was sent to the store and its answer was lost: it may have been applied."""


class StoreCompactedError(StoreError):
    """The watch asked for a revision that the store no longer keeps: read afresh and watch from
    there.
    """


class StoreDataError(StoreError):
    """The files of a store on disk cannot be used, or not be written. The message names the file
    and the next step.
    """


class StoreMismatchError(StoreError):
    """The store belongs to another cluster. Nothing in it was changed."""


class LeaseLostError(StoreError):
    """The lease has expired or was revoked; what was tied to it is gone."""
