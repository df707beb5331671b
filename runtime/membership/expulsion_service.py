"""The service `@expulsions` of every node: expels other nodes for good, and lets them join again.
`understudy expel` asks it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import attrs
import trio

from actors.actor import Actor
from actors.errors import CallError, ExpelledError, LeaseLostError
from actors.method import method
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.membership.expulsions import MOST_EXPELLED, Expulsion, Expulsions
from runtime.membership.members import Members, SeenMember, expulsion_key
from runtime.store.interface import Compare, Get, Put, Store

EXPULSION_SERVICE = "@expulsions"

TOLD_SECONDS = 1.0
"""Seconds that the expelled node has to answer that its named actors have ended."""


class ExpulsionService(Actor):
    """Expels nodes on behalf of operators. `was_expelled` is called when this node itself is
    expelled; `store_keeper()` is the node that serves the store, "" for none;
    `own_certificate()` the SHA-256 of this node's certificate, "" for none.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        store: Store,
        members: Members,
        expulsions: Expulsions,
        environment: Environment,
        was_expelled: Callable[[ExpelledError], None],
        store_keeper: Callable[[], str],
        own_certificate: Callable[[], str],
    ) -> None:
        self._endpoint = endpoint
        self._store = store
        self._members = members
        self._expulsions = expulsions
        self._environment = environment
        self._was_expelled = was_expelled
        self._store_keeper = store_keeper
        self._own_certificate = own_certificate

    @method(concurrent=True, idempotent=True)
    async def listing(self) -> list[dict[str, object]]:
        """The expulsions that this node knows of, as plain data."""
        return [attrs.asdict(one) for one in self._expulsions.all()]

    @method(concurrent=True, idempotent=True)
    async def expel(self, name: str, absent: bool) -> dict[str, object]:
        """Expel the node of this name. `absent`: also if it is no member now. Returns the
        expulsion, with `problem`, which says why the node was not expelled, and `again` if it was
        expelled before.
        """
        # Two operators may expel a node at the same time: an expulsion is written on the condition
        # that there is none of that name yet.
        seen = self._members.find(name)
        before = self._expulsions.find(name)
        if before is None and (problem := self._why_not(name, seen, absent)):
            return {"problem": problem}
        reached = seen is not None and before is None and await self._is_reached(seen)
        # After it was reached: its certificate is seen on the link.
        certificate = self._certificate(seen) if seen is not None else ""
        if problem := self._why_shared(certificate, name):
            return {"problem": problem}
        expulsion = before or Expulsion(name, self._environment.wall_time(), certificate)
        stopped = await self._carry_out(expulsion, seen if reached else None)
        if stopped is None:
            own = self._endpoint.identity.name
            return {
                "problem": f"node {own} was expelled meanwhile, and expels no others: ask another "
                "node, with --address"
            }
        if seen is not None:
            await self._end_lease(seen, stopped)
        return {**attrs.asdict(expulsion), "again": before is not None, "problem": ""}

    async def _carry_out(self, expulsion: Expulsion, member: SeenMember | None) -> bool | None:
        """Write the expulsion, notify the node, and cut its links; return True if it answers that
        its named actors have ended. None, and nothing done, if this node was expelled itself.
        `member`: None for a node that does not answer. Raises StoreError.
        """
        key, stopped = expulsion_key(expulsion.name), False
        own = expulsion_key(self._endpoint.identity.name)
        try:
            # The link stands until the node has stopped its named actors: others get the names
            # after that. The view may learn of the expulsion from the store before, and spares it.
            with self._expulsions.sparing(expulsion.name):
                # Two nodes that expel each other, or several in a circle: who is expelled first
                # expels no other any more, so that one node is left.
                found = await self._store.transaction(
                    [Compare(one, "create_revision", 0) for one in (key, own)],
                    [Put(key, expulsion.encoded())],
                    [Get(own)],
                )
                if not found.succeeded and found.responses[0] is not None:
                    return None
                if member is not None:
                    stopped = await self._is_stopped(member, str(expulsion))
            self._expulsions.put(expulsion)
        finally:
            # Also if this was cancelled, after the view has learned of the expulsion.
            self._endpoint.peers.end_refused()
        return stopped

    @method(concurrent=True, idempotent=True)
    async def readmit(self, name: str) -> dict[str, object]:
        """Let the node of this name join again. Returns the expulsion, with `problem`."""
        found = self._expulsions.find(name)
        if not await self._store.delete(expulsion_key(name)) or found is None:
            near = self._near(name, [one.name for one in self._expulsions.all()])
            return {"problem": f"no node called {name!r} is expelled{near}"}
        return {**attrs.asdict(found), "problem": ""}

    @method(concurrent=True, idempotent=True)
    async def on_expelled(self, text: str) -> None:
        """Act on the expulsion of this node: its named actors have ended when this returns."""
        self._was_expelled(ExpelledError(text))

    def _why_not(self, name: str, seen: SeenMember | None, absent: bool) -> str:
        """Why the node of this name cannot be expelled; "" if it can."""
        names = [member.name for member in self._members.all()]
        if seen is None and not absent:
            return (
                f"there is no node called {name!r}{self._near(name, names)}; with --absent a node "
                "is expelled that does not run now"
            )
        if name == self._store_keeper():
            return (
                f"node {name} keeps the cluster's store, so the cluster cannot go on without it: "
                "stop it, and found the cluster again elsewhere"
            )
        if names == [name]:
            return f"node {name} is the only node of the cluster: stop it"
        if name == self._endpoint.identity.name:
            return f"node {name} does not expel itself: ask another node, with --address"
        if len(self._expulsions.all()) >= MOST_EXPELLED:
            return (
                f"{MOST_EXPELLED} nodes are expelled, the limit: let some of them join again with "
                "--readmit; change the secret, and what is not given the new one stays out"
            )
        return ""

    def _why_shared(self, certificate: str, name: str) -> str:
        """Why the certificate of the node of this name cannot be expelled; "" if it can."""
        others = self._others_with(certificate, name) if certificate else []
        if not others:
            return ""
        return (
            f"{', '.join(others)} shows the certificate of {name} as well, and would be expelled "
            "with it: give each node a certificate of its own first"
        )

    def _near(self, name: str, names: list[str]) -> str:
        near = difflib.get_close_matches(name, names, n=1)
        return f"; did you mean {near[0]!r}?" if near else ""

    def _service(self, seen: SeenMember) -> Any:
        return expulsions_of(self._endpoint, seen.member.name, seen.member.incarnation)

    async def _is_reached(self, seen: SeenMember) -> bool:
        """Ask the node something, so that there is a link to it: its certificate is seen then."""
        try:
            await self._service(seen).listing.options(timeout=TOLD_SECONDS)()
        except CallError:
            return False
        return True

    async def _is_stopped(self, seen: SeenMember, text: str) -> bool:
        """Notify the node that it is expelled; return True if it answers that its named actors have
        ended.
        """
        try:
            await self._service(seen).on_expelled.options(timeout=TOLD_SECONDS)(text)
        except CallError:
            return False
        return True

    def _certificate(self, seen: SeenMember) -> str:
        """The certificate that the node has shown on its link; "" if it has shown none."""
        identity = seen.member.node_id
        link = self._endpoint.peers.links.get(identity)
        return link.verified.certificate if link is not None and link.verified is not None else ""

    def _others_with(self, certificate: str, name: str) -> list[str]:
        """Other nodes that show the same certificate here, or this node if it has the same."""
        own = [self._endpoint.identity.name] if self._own_certificate() == certificate else []
        return own + sorted(
            link.peer.name
            for link in self._endpoint.peers.links.values()
            if link.verified is not None
            and link.verified.certificate == certificate
            and link.peer.role == "node"
            and link.peer.name != name
        )

    async def _end_lease(self, seen: SeenMember, stopped: bool) -> None:
        """End the node's lease, and with it its names. Raises StoreError."""
        if not stopped:
            # Its actors may run on: only when it cannot rely on its lease any more may others get
            # their names. It cannot renew it where a node serves the store, which has cut the link.
            identity = seen.member.node_id
            with trio.move_on_after(self._environment.timings.lease):
                while self._members.is_current(identity):
                    await self._members.wait_changed()
        try:
            await self._store.revoke(seen.record.lease)
        except LeaseLostError:
            # It has ended of itself, or the node has left.
            pass


def expulsions_of(endpoint: RpcEndpoint, node: str, incarnation: int) -> Any:
    """The service of a node, to be called."""
    return endpoint.system_handle(ExpulsionService, EXPULSION_SERVICE, node, incarnation)
