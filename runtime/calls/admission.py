"""The admission of calls: whether a peer may make a call, decided before the call reaches a
mailbox.

What counts is who the peer of the connection has proven to be (`VerifiedPeer`), and never what the
call says of its caller. Nodes may call everything, because they can run any code; so links to nodes
have no check at all, unless the application has an `authorize` function.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import attrs
import trio

from actors.call_context import CURRENT, CallContext
from actors.errors import NotAllowedError
from actors.filters import Call, CallKind
from actors.handle import Handle
from actors.identifiers import NodeId
from actors.method import Address, MethodDefinition
from actors.own_logger import own_logger
from actors.peers import VerifiedPeer, may_call
from actors.retry import check_whole_number
from actors.short_repr import short_repr
from actors.supervisor import ChildSpec
from runtime.audit import AuditLog
from runtime.calls.protocol import CallRequest
from runtime.calls.rights import ACTS, OPERATORS, service_refusal
from runtime.calls.spawnable import checked_spawnable, child_classes
from runtime.hosting.authorization import Authorize, is_allowed
from runtime.hosting.cell import ActorCell, Invocation, RefusedElsewhereError
from runtime.hosting.client_quotas import CLIENT_ACTORS, ClientQuotas
from runtime.hosting.held_bytes import ByteBudget
from runtime.hosting.host import ActorHost
from runtime.hosting.item_batches import BATCH_METHODS, JUDGED_AT_ONCE, calls_in
from runtime.limited_log import LimitedLog
from runtime.links.link import Link
from runtime.user_errors import is_interrupt, text_of, traceback_of

logger = own_logger("understudy.calls")


def checked_authorize(given: object) -> Authorize | None:
    """Return the function. Raises TypeError if it cannot be called, or is an `async def`."""
    if given is None:
        return None
    if not callable(given):
        raise TypeError(f"authorize is a function that takes a Call, not {short_repr(given)}")
    if inspect.iscoroutinefunction(given):
        raise TypeError(
            "authorize is a plain function: it is called for each call, before the mailbox, and "
            "calls keep their order; read what it needs beforehand"
        )
    return cast("Authorize", given)


@attrs.frozen
class AdmissionRules:
    """An application's rules about calls to its node. `spawnable`: the classes, as `module:Class`,
    that peers other than nodes may start. `authorize`: see `Authorize`; None admits all calls.
    `client_actors`: how many actors of one client may live here.
    """

    spawnable: frozenset[str] = frozenset()
    authorize: Authorize | None = None
    client_actors: int = attrs.field(
        default=CLIENT_ACTORS,
        validator=lambda _, attribute, value: check_whole_number(attribute.name, value),
    )

    @classmethod
    def checked(cls, spawnable: object, authorize: object, client_actors: int) -> AdmissionRules:
        """Return the rules. Raises TypeError or ValueError for arguments that are none."""
        return cls(checked_spawnable(spawnable), checked_authorize(authorize), client_actors)


class AccessRequest(NamedTuple):
    """A call that `peer` asks for, as it is judged. `context`: the call context that it brings."""

    peer: VerifiedPeer
    kind: CallKind
    actor: str
    method: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    context: CallContext | None


def _first(args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
    """What an act is about: its first argument, or all that came by name, since any may be it."""
    return args[:1] or tuple(kwargs.values())


def _subject_of(argument: object) -> str:
    """What an act is about, as its line names it: a child, an actor or a size; "" if neither."""
    if isinstance(argument, str):
        return argument
    if isinstance(argument, ChildSpec):
        return f"{argument.id} ({argument.actor})"
    if isinstance(argument, Handle):
        return argument._address.name
    # Such as the size of a pool. Other values may be of users, or have theirs in them.
    return str(argument) if type(argument).__module__.startswith("runtime.") else ""


class CallAdmission:
    """Decides for the calls that arrive at one node. `now` gives seconds."""

    def __init__(
        self,
        host: ActorHost,
        own: NodeId,
        now: Callable[[], float],
        rules: AdmissionRules,
    ) -> None:
        self._host = host
        self.own = VerifiedPeer("node", own.name, own.name, own.incarnation, "self")
        """This node as the peer of its own calls."""
        self._spawnable = rules.spawnable
        self.authorize = rules.authorize
        self.audit = AuditLog(own.name, now)
        self.quotas = ClientQuotas(rules.client_actors, own.name, self.audit, host.has)
        host.extensions.add("client quotas", self.quotas)
        self._log = LimitedLog(logger, now)

    def refusal(self, asked: AccessRequest) -> NotAllowedError | None:
        """Return the error with which a call is refused, or None. A call of an actor or a method
        that is not there is admitted: it will be refused for that.
        """
        name, called = asked.actor, asked.method
        if name.startswith("@"):
            why = service_refusal(asked.peer, name, called, asked.args, asked.kwargs)
            if why and name == "@node" and not asked.kwargs and self._stops_its_own(asked):
                why = ""
        else:
            cell = self._host.cells.get(name)
            definition = self._definition(cell, asked)
            address = cell.address if cell is not None else None
            if called in BATCH_METHODS and asked.kwargs:
                # What is looked at below must not come by its name instead.
                why = "a batch of items takes its arguments by position only"
            else:
                why = self._barred(asked, address, definition)
            if definition is not None:
                # Of a batch the method of its items.
                called = definition.name
        if not why and asked.peer.role != "node":
            why = self._unspawnable(asked)
        return self._refused(asked.peer, name, called, why) if why else None

    def refusal_of_answer(
        self, asked: AccessRequest, address: Address, definition: MethodDefinition
    ) -> NotAllowedError | None:
        """Return the error with which a peer is refused the answer of a call that was made before,
        perhaps by another peer; None if it might make that call itself. The actor, which was at
        `address`, may have ended.
        """
        why = self._barred(asked, address, definition)
        return self._refused(asked.peer, asked.actor, asked.method, why) if why else None

    async def judge_items(self, invocation: Invocation, rows: Sequence[object]) -> None:
        """Judge the items of a large batch, which is about to run, in parts between which other
        tasks have their turn. Raises `RefusedElsewhereError` if one of them may not run.
        """
        peer, address = invocation.verified or self.own, invocation.cell.address
        for start in range(0, len(rows), JUDGED_AT_ONCE):
            args = (invocation.args[0], "", list(rows[start : start + JUDGED_AT_ONCE]))
            asked = AccessRequest(
                peer, "call", address.name, "@items", args, {}, invocation.context
            )
            if why := self._unauthorized(asked, address):
                refused = self._refused(peer, address.name, str(invocation.args[0]), why)
                raise RefusedElsewhereError(refused)
            await trio.lowlevel.checkpoint()

    def of_call(self, link: Link, kind: CallKind, call: CallRequest) -> NotAllowedError | None:
        """`refusal` for a call that has come over a link. One that is an act of administration is
        noted.
        """
        peer = link.verified
        assert peer is not None, "no frame arrives before the handshake"
        asked = AccessRequest(
            peer, kind, call.actor, call.method, call.args, call.kwargs, call.context
        )
        if link.restricted or self.authorize is not None:
            refused = self.refusal(asked)
            if refused is not None:
                return refused
        if link.audited:
            self.note_act(asked)
        return None

    def note_act(self, asked: AccessRequest) -> None:
        """Note in the audit log that a peer, which is no member, calls a method of an actor, if
        only operators may call that.
        """
        definition = self._definition(self._host.cells.get(asked.actor), asked)
        if definition is None or definition.allow != OPERATORS:
            return
        what = [f"{asked.actor}.{definition.name}"]
        # What the runtime's own actors take is no secret. That of users' actors may be.
        if definition.function.__module__.startswith(("actors.", "runtime.")):
            about = _first(asked.args, asked.kwargs)
            what += [text for one in about if (text := _subject_of(one))]
        self.audit.on_acted(asked.peer, " ".join(what))

    def values_of(self, link: Link) -> ByteBudget | None:
        """What the peer of a link may keep of results here; None for a node, which is not
        bounded.
        """
        if not link.restricted or link.verified is None:
            return None
        return self.quotas.values_of(link.verified)

    def on_service_call(self, link: Link, call: CallRequest) -> None:
        """Note in the audit log what a peer asks a service of the runtime for, if that is an act
        of administration.
        """
        # By processes that are no members: what members ask each other for is the daily work of
        # their supervisors.
        if call.method not in ACTS.get(call.actor, ()):
            return
        if link.peer.role == "client" and link.verified is not None:
            # Of the arguments only texts: a secret is bytes.
            texts = [one for one in _first(call.args, call.kwargs) if isinstance(one, str)]
            what = " ".join([call.method, *texts])
            self.audit.on_acted(link.verified, what)

    def _refused(self, peer: VerifiedPeer, name: str, method: str, why: str) -> NotAllowedError:
        node = self.own.node
        self.audit.on_refused(peer, f"{name}.{method}", why)
        return NotAllowedError(
            f"node {node} does not let {peer} call {name}.{method}: {why}",
            actor=name,
            method=method,
            node=node,
        )

    def _definition(self, cell: ActorCell | None, asked: AccessRequest) -> MethodDefinition | None:
        """The method whose rights count: of a batch of items, that of the items."""
        if cell is None:
            return None
        method: object = asked.method
        if method in BATCH_METHODS:
            method = asked.args[0] if method == "@items" and asked.args else ""
        return cell.methods.get(method) if isinstance(method, str) else None

    def _barred(
        self, asked: AccessRequest, address: Address | None, definition: MethodDefinition | None
    ) -> str:
        """Why a peer may not call a method of an actor; "" if it may."""
        role = asked.peer.role
        if definition is not None and not may_call(role, definition.allow):
            return f"the role {role!r} may not call {definition.name!r}"
        if address is None or self.authorize is None:
            return ""
        return self._unauthorized(asked, address)

    def _unauthorized(self, asked: AccessRequest, address: Address) -> str:
        """Why the application does not allow the call; "" if it does."""
        assert self.authorize is not None
        # It judges each item of a batch: how calls travel must not decide what is allowed.
        calls = calls_in(asked.method, asked.args, asked.kwargs)
        if len(calls) > JUDGED_AT_ONCE:
            # In its turn, right before it runs; see `judge_items`.
            return ""
        token = CURRENT.set(asked.context)
        try:
            for called, its_args, its_kwargs in calls:
                call = Call(
                    side="server",
                    kind=asked.kind,
                    actor=address.name,
                    class_path=address.class_path,
                    method=called,
                    node=address.node,
                    epoch=address.epoch,
                    incarnation=address.incarnation,
                    args=its_args,
                    kwargs=its_kwargs,
                    peer=asked.peer,
                )
                if not is_allowed(self.authorize, call):
                    return "authorize did not return True"
            return ""
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            if is_interrupt(error):
                raise
            if issubclass(type(error), NotAllowedError):
                return text_of(error)  # noqa: ASYNC104
            # Its text may say what is not for the caller.
            self._log.log(
                logging.ERROR,
                "authorize raised for %s.%s, which is refused for that\n%s",
                address.name,
                asked.method,
                traceback_of(error),
            )
            return f"authorize raised {type(error).__name__}"  # noqa: ASYNC104
        finally:
            CURRENT.reset(token)

    def _stops_its_own(self, asked: AccessRequest) -> bool:
        """True for a client that asks to stop actors which it has started: it must be able to make
        room in its quota.
        """
        peer, method, args = asked.peer, asked.method, asked.args
        if peer.role != "client":
            return False
        if method == "stop_actor":
            named: object = [args[:2]]
        elif method in ("stop_many", "take_back_started") and args:
            named = args[0]
        else:
            return False
        if not isinstance(named, list) or not named:
            return False
        return all(self._is_its_own(peer, one) for one in cast("list[object]", named))

    def _is_its_own(self, peer: VerifiedPeer, actor: object) -> bool:
        # A value that is no name and epoch belongs to no peer.
        if not isinstance(actor, tuple):
            return False
        name, epoch, *more = (*cast("tuple[object, ...]", actor), None, None)[:3]
        return (
            isinstance(name, str)
            and isinstance(epoch, int)
            and more == [None]
            and self.quotas.has_started(peer, name, epoch)
        )

    def _unspawnable(self, asked: AccessRequest) -> str:
        """Why a call asks for the start of a class that others than nodes may not start; "" if it
        does not.
        """
        # What is no text is no listed class, and could not be looked up.
        classes: list[object] = []
        if asked.actor == "@node" and asked.method in ("spawn", "spawn_many"):
            classes.append(asked.args[0] if asked.args else None)
        # Any method may be one that starts what it is given, as those of supervisors do.
        classes += child_classes((asked.args, asked.kwargs))
        for path in classes:
            if not isinstance(path, str) or path not in self._spawnable:
                return (
                    f"only nodes may start {short_repr(path)} here; for others a node lists "
                    "classes with "
                    "--spawnable or open_node(spawnable=...)"
                )
        return ""
