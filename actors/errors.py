"""The exceptions of the public API.

A call ends in exactly one of three ways besides its value: `NotExecutedError` (it certainly never
ran, so repeating it is safe), `OutcomeUnknownError` (it may have run) or `RemoteError` (it ran, and
the method raised). Distinguish them by type, never by text; the names follow gRPC's distinction
between transparent retries and committed calls, and Jepsen's "info" events.

Messages say what happened, to whom, and what to do next; the same facts are attributes, so that
programs need not parse them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Literal

Outcome = Literal["not executed", "unknown", "raised"]

_EXPLAINED = "More: understudy explain {}"
"""The line below the text of each error: where people read more about it. This is the only place
that says so. The command prints what stands in errors.md, of this version and without a network.
"""


def outcome_of(error: CallError) -> Outcome:
    """`error.outcome`, also where a remote exception has an attribute of that name itself."""
    return "raised" if issubclass(type(error), RemoteError) else error.outcome


class UnderstudyError(Exception):
    """Base class of all errors that this project raises on purpose.

    Below its text, a traceback shows the command that explains it. That line is a note, so
    `str(error)` is the text alone. Errors that no page explains have no such line.
    """

    has_page: ClassVar[bool] = False
    """True in a class of another module, and not in its subclasses, that has a page of its own."""

    @property
    def __notes__(self) -> list[str]:
        # Made when it is asked for, which is when a traceback is written: errors that programs
        # catch are raised by the thousand, and their notes are not read. `add_note` appends to this
        # list.
        notes: list[str] = self.__dict__.setdefault("__notes__", [])
        line = explained(type(self))
        if line and type(notes) is list and line not in notes:
            notes.insert(0, line)
        return notes

    @__notes__.setter
    def __notes__(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, notes: list[str]
    ) -> None:
        self.__dict__["__notes__"] = notes


def explained(cls: type[UnderstudyError]) -> str:
    """The line that says where an error of the class is explained. A class from elsewhere, which
    has no explanation of its own, has that of the nearest class of this module. Empty where that is
    only the base of all, whose page says nothing of this error.
    """
    nearest = next(
        one for one in cls.__mro__ if one.__module__ == __name__ or vars(one).get("has_page")
    )
    if nearest is UnderstudyError and cls is not UnderstudyError:
        return ""
    return _EXPLAINED.format(nearest.__name__)


class CallError(UnderstudyError):
    """Base class of the errors of calls. Catch one of the three subclasses; catch this one where
    you treat them alike.

    Attributes: `actor` (name), `method`, `node` (name), `epoch` of the actor as the caller knew it,
    `attempts` made so far, `outcome`. An unknown attribute is None (`attempts`: 0).
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
    """No actor of this name is running in the cluster now."""


class MethodNotFoundError(NotExecutedError):
    """The actor exists, but has no method of this name that may be called from outside, or it is a
    stream and was called for one value, or the other way round.
    """


class BadArgumentsError(NotExecutedError, TypeError):
    """The arguments do not fit the method, or the constructor of an actor that was to be started.
    Or the node that was to run it cannot read one of them, for example because it has not imported
    its class. The message names the parameter.
    """


class FunctionNotImportableError(NotExecutedError, TypeError):
    """The function cannot be found by its name in another process: it is a lambda, nested, written
    at a prompt, or missing in the code of the node that was to run it.
    """


class NoWorkerError(NotExecutedError):
    """No node of the cluster can run the function: none meets what its options ask for, or no
    worker process could be started. If an exception kept it from starting, `remote_traceback` and a
    note have its traceback.
    """

    def __init__(
        self,
        text: str = "",
        *,
        actor: str | None = None,
        method: str | None = None,
        node: str | None = None,
        epoch: int | None = None,
        attempts: int = 0,
        remote_traceback: str = "",
    ) -> None:
        super().__init__(
            text, actor=actor, method=method, node=node, epoch=epoch, attempts=attempts
        )
        self.remote_traceback = remote_traceback
        if remote_traceback:
            self.add_note(
                f"raised where its worker process was to start:\n{remote_traceback.rstrip()}"
            )


class ArgumentLostError(NotExecutedError):
    """An argument is a reference whose value cannot be fetched. The reason is the `__cause__`,
    where it is known here.
    """


class StaleEpochError(NotExecutedError):
    """The call names an epoch of the actor that is no longer, or not yet, valid on that node."""


class EmptyGroupError(NotExecutedError):
    """The group has no members now, as far as this node knows."""


class EmptyPoolError(NotExecutedError):
    """The pool has no members now that this node knows of."""


class PoolStoppedError(NotExecutedError):
    """The pool was stopped, or its supervisor has given up: it runs nothing more."""


class JournalError(UnderstudyError):
    """The journal of a map cannot be written any more: it is full, or another driver has it."""


class JournalInUseError(JournalError):
    """Another map works with this journal now."""


class JournalMismatchError(JournalError):
    """The journal is of another job: of another method, or of a source whose items are others."""


class NodeNotFoundError(NotExecutedError):
    """No node of this name is a member of the cluster now."""


class NodeUnreachableError(NotExecutedError):
    """The call could not be handed to the node's connection; the node may or may not be alive."""


class NodeDrainingError(NotExecutedError):
    """The node is leaving the cluster and accepts no new work, or it has left before it took the
    call. An actor that was starting there has not started; its constructor and `on_start` may have
    begun. Without `on=`, another node is asked to start it instead.
    """


class NotAMemberError(NotExecutedError):
    """The calling node is no longer a member of the cluster, or its `open_node` block has ended:
    other nodes refuse its requests.
    """


class WrongDoorError(NotExecutedError, RuntimeError):
    """A blocking call was made inside a running event loop, which it would have blocked, or an
    asyncio call outside of one, or a call of a node in another thread than the node's. The message
    names what to use there.
    """


class ForkedProcessError(NotExecutedError, RuntimeError):
    """The connection was opened before `os.fork()`, and belongs to the parent process: open another
    one in this process.
    """


class DirectoryUnavailableError(NotExecutedError):
    """The cluster's store, which has the places of actors and nodes, cannot be reached now: nothing
    was done.

    The name may exist: this error does not mean "no such name". The error of the store is the
    `__cause__`.
    """


class ClassMismatchError(NotExecutedError, TypeError):
    """The actor that has the name now is an instance of another class than that of the handle or
    lookup.
    """


class MailboxFullError(NotExecutedError):
    """The actor's mailbox is at its limit; the call was refused on arrival."""


class MethodNotExposedError(NotExecutedError):
    """The method may not be called over HTTP: it has no `@method(http=True)`, and the gateway's
    list of allowed methods does not name it.
    """


class KeyReusedError(NotExecutedError):
    """The key that identifies the call was used before, for a call of another method or with other
    arguments. That call stands; this one was not run.
    """


class AnswersUnreadError(NotExecutedError):
    """The caller's node has too many unread answers, so the actor's node refuses its calls."""


class DeadlineExceededError(NotExecutedError, TimeoutError):
    """The deadline passed before the call began to run; it was dropped unexecuted."""


class CallCycleError(NotExecutedError):
    """The call came back to an actor whose running method waits for it: a deadlock. The message has
    the chain of calls.
    """


class SelfCallError(CallCycleError):
    """A running method awaited a call to its own actor: a deadlock."""


class FilterRefusedError(NotExecutedError):
    """A filter raised before the method ran. What it raised is the `__cause__`, on the client
    side; on the server side the text names it.
    """


class NotAllowedError(NotExecutedError):
    """The caller may not make this call: its role has no right to it, `open_node(authorize=...)`
    has refused it, or it has as many actors there as `open_node(client_actors=...)` allows.
    """


class OutcomeUnknownError(CallError):
    """The call may have run: its answer did not arrive, and will not."""

    outcome: ClassVar[Outcome] = "unknown"


class CallTimeoutError(OutcomeUnknownError, TimeoutError):
    """The call's `timeout` passed before its answer came."""


class ActorDiedError(OutcomeUnknownError):
    """The actor ended before it answered the call."""


class NodeDiedError(OutcomeUnknownError):
    """The actor's node ended before it answered the call."""


class ConnectionLostError(OutcomeUnknownError):
    """The session with the node ended after the call was handed to it and before its answer came.
    The node may still be running: its death is a `NodeDiedError`.
    """


class ReplyEncodeError(OutcomeUnknownError):
    """The method ran, but its result cannot be sent."""


class ReplyDecodeError(OutcomeUnknownError):
    """The method ran, but the caller's process cannot build its result from what was sent."""


class FilterFailedError(OutcomeUnknownError):
    """A filter raised after it had let the call go on: the method may have run, and its result is
    lost.
    """


class AnswerDroppedError(OutcomeUnknownError):
    """The method ran, but its answer was dropped, because the caller's node has too many unread
    answers.
    """


class AlreadyAppliedError(OutcomeUnknownError):
    """An earlier attempt at the call has taken effect: the actor saved the resulting state. Its
    answer is lost.

    The call was not run again. Use `Actor.save(state, answer=...)` to keep the answer as well.
    """


class PoisonedItemError(OutcomeUnknownError):
    """An item of a pool's `map` was given up: one member after the other has ended while it ran.

    `deaths`: how each of them ended.
    """

    def __init__(
        self,
        text: str = "",
        *,
        deaths: tuple[str, ...] = (),
        actor: str | None = None,
        method: str | None = None,
        node: str | None = None,
        epoch: int | None = None,
        attempts: int = 0,
    ) -> None:
        super().__init__(
            text, actor=actor, method=method, node=node, epoch=epoch, attempts=attempts
        )
        self.deaths = deaths


class RemoteError(CallError):
    """The method ran and raised.

    Where the remote exception's type is a builtin or a class registered with `@message`, the error
    that the caller catches is an instance of that type as well, with its arguments, fields and
    notes: `except ValueError` and `except RemoteError` both work. A group arrives as a group, so
    that `except*` finds what is in it. `str()` gives the text of the exception; the traceback is in
    a note.

    Attributes besides those of `CallError`: `remote_type` (import path of the exception's class)
    and `remote_traceback` (text). If the exception itself has an attribute of one of these names,
    for example `error.node`, that one is kept.
    """

    outcome: ClassVar[Outcome] = "raised"
    remote_type: str = ""
    remote_traceback: str = ""


class EncodeError(UnderstudyError, TypeError):
    """A value cannot be sent. `path` names it, beginning with the parameter, for example
    `order.items['x']`.
    """

    def __init__(self, text: str, *, path: str = "") -> None:
        super().__init__(text)
        self.path = path


class DecodeError(UnderstudyError, ValueError):
    """Bytes from an authenticated peer cannot be decoded here, for example because a message type
    cannot be imported.
    """


class ProtocolError(UnderstudyError):
    """A peer sent bytes that violate the protocol. Only their connection is closed."""


class HandshakeError(UnderstudyError):
    """The handshake of two nodes failed, and the connection is closed. `code` is the
    machine-readable reason.
    """

    code: ClassVar[str] = "handshake"


class WrongSecretError(HandshakeError):
    """The peer could not prove that it knows the cluster's secret, or this node could not prove it
    to the peer.
    """

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


class EncryptionError(HandshakeError):
    """One side encrypts the connection and the other does not, or TLS failed between them."""

    code: ClassVar[str] = "encryption"


class WrongCertificateError(HandshakeError):
    """The peer's certificate is not one of this cluster, or not for what the peer says it is."""

    code: ClassVar[str] = "wrong-certificate"


class ExpelledError(HandshakeError):
    """The cluster has expelled the peer, or this node, for good. `proven`: the side that refuses
    has proven the cluster's secret over its refusal.
    """

    code: ClassVar[str] = "expelled"
    proven: bool = False


class WrongStoreError(HandshakeError):
    """The peer's cluster has the same name but another coordination store: one of the two stores
    was lost and created again.
    """

    code: ClassVar[str] = "wrong-store"


class HandshakeTimeoutError(HandshakeError, TimeoutError):
    """The connection was made, but the peer did not complete the handshake in time."""

    code: ClassVar[str] = "handshake-timeout"


class JoinError(UnderstudyError):
    """This node could not join the cluster. The message names the address tried and the
    next step.
    """


class NodeNameTakenError(JoinError):
    """A live member of the cluster has this node name already."""


class ListenError(UnderstudyError):
    """This node cannot listen on the given address, or must not without a secret."""


class SpawnError(UnderstudyError):
    """An actor could not be started. `actor` is its name, `node` where it was tried."""

    def __init__(self, text: str, *, actor: str | None = None, node: str | None = None) -> None:
        super().__init__(text)
        self.actor = actor
        self.node = node


class SpawnManyError(SpawnError):
    """Some of the actors of a `spawn_many` did not start; the others did.

    `errors`: why each of those did not, by its place in the list. `handles`: a handle in the place
    of each that did, and None for the others.
    """

    def __init__(
        self,
        text: str,
        *,
        errors: Mapping[int, Exception] = MappingProxyType({}),
        handles: Sequence[object] = (),
    ) -> None:
        super().__init__(text)
        self.errors = dict(errors)
        self.handles = list(handles)


class NameTakenError(SpawnError):
    """An actor of this name is running already; `get_or_spawn` returns it instead."""


class ActorClassError(SpawnError):
    """The actor's class cannot be imported on the node that should run it, or is not a subclass of
    `Actor`.
    """


class ActorStartError(SpawnError):
    """The actor's constructor or `on_start` raised; `remote_traceback` has the traceback."""

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
    """A supervisor could not be started, because no node fits one of its children, or because the
    store cannot be reached; or a child that was added could not, for the same reasons. Neither the
    supervisor nor the child has failed: the supervisor above it tries again after a delay, and
    counts no restart.
    """


class ActorNotNeededError(ActorStartError):
    """The actor's `on_start` raised `actors.Ignore`: it is not needed, and has not failed."""


class SupervisorGaveUpError(UnderstudyError):
    """A supervisor ended with "shutdown": its children failed more often than its intensity allows,
    or its significant children have ended.
    """


class ChildError(UnderstudyError):
    """A supervisor refused a request about one of its children. The message names the child by its
    path in the tree.
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
    """The supervisor is stopping or has stopped, and accepts no requests about its children."""


class NoPlacementError(SpawnError):
    """No member of the cluster meets the actor's placement requirements, or has as much left of a
    resource as the actor takes.
    """


class OwnerDiedError(UnderstudyError):
    """The node that owned a referenced value has ended, so the value is lost."""


class ReferenceReleasedError(UnderstudyError):
    """The referenced value was freed by its owner."""


class NotTheOwnerError(UnderstudyError):
    """The value of the reference is on another node. The message names both."""


class ReferenceNotReadyError(UnderstudyError):
    """The value of the reference is not there yet."""


class ReferenceMemoryError(UnderstudyError):
    """A node's referenced values use all the memory allowed for them, and none can be written to
    disk.
    """


class StoreError(UnderstudyError):
    """Base class of the errors of the coordination store."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached now. This does not mean "no such name"."""


class StoreOutcomeUnknownError(StoreError):
    """A write was sent to the store and its answer was lost: it may have been applied."""


class StoreCompactedError(StoreError):
    """The watch asked for a revision that the store no longer keeps: read the keys again and watch
    from there.
    """


class StoreDataError(StoreError):
    """The files of a store on disk cannot be read or written, or parts of a saved state are missing
    in the store. The message names the file or the key, and the next step.
    """


class StoreMismatchError(StoreError):
    """The store belongs to another cluster. Nothing in it was changed."""


class LeaseLostError(StoreError):
    """The lease has expired or was revoked; what was tied to it is gone."""
