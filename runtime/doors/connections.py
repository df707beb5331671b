"""What the doors open: a connection to a cluster, which is a node without actors, or a local
cluster.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import attrs
import trio

from actors.actor import Member, Spawner
from actors.errors import UnderstudyError
from actors.foreign_names import HasForeignNames, missing
from actors.handle import Handle, moved
from actors.options import SpawnChanges, SpawnOptions
from actors.peers import PeerRole
from actors.short_repr import short_repr
from runtime.announcements import local_cluster_at
from runtime.cluster_processes import LocalCluster, NodeProcess, open_cluster_on
from runtime.doors.handoff import Handoff
from runtime.doors.loop_thread import OpenBlock
from runtime.environment import SystemEnvironment
from runtime.links.encryption import Tls, TlsMode
from runtime.links.keyring import GivenSecret
from runtime.local_cluster import PRELOADED, check_count, check_data_dir
from runtime.node import Node, internals_of
from runtime.node.opening import Platform, open_node
from runtime.observation.cluster_html import cluster_html
from runtime.processes import open_fork_server
from runtime.supervision.placement import CALLS_ONLY

HTML_SECONDS = 0.5
"""How long a picture of a connection for a notebook may take."""


def connection(
    address: str,
    *,
    name: str | None,
    cluster: str | None,
    secret: GivenSecret | None,
    call_timeout: float | None,
    tls: Tls | TlsMode | None,
    tracing: bool,
    role: PeerRole | None,
) -> OpenBlock[Node]:
    """A session of a node that joins the cluster at `address` to make calls, and is given no
    actors by others. `role`: see `open_node`.
    """
    if not isinstance(address, str):
        raise TypeError(
            f"address must be a str such as '127.0.0.1:7400', not {short_repr(address)}"
        )
    local = None
    if secret is None:
        # Like this user's commands: the announcement of an open local cluster has its secret.
        local = local_cluster_at(SystemEnvironment(), address, cluster)
    # Portal and node share it: while a single thread calls, the portal waits for its next request,
    # and the node may spin.
    handoff = Handoff()
    opening = partial(
        open_node,
        name or f"caller-{os.getpid()}-{SystemEnvironment().token(3).hex()}",
        join=address,
        cluster=local.cluster if local is not None else cluster or "understudy",
        secret=local.secret if local is not None else secret,
        labels={CALLS_ONLY: "true"},
        call_timeout=call_timeout,
        tls=tls,
        tracing=tracing,
        role=role,
        # The node may spin only while one thread makes one call after the other: any other thread
        # of the program needs the interpreter.
        platform=Platform(may_spin=handoff.is_on),
    )
    return OpenBlock(opening, f"the connection to {address}", _has_left, handoff)


def local_cluster(
    nodes: int,
    *,
    cluster: str,
    store: str | None,
    data_dir: str | os.PathLike[str] | None,
    call_timeout: float | None,
    tracing: bool,
    on_process_start: Callable[[], object] | str | None,
) -> OpenBlock[LocalCluster]:
    """A session of a local cluster."""

    # Before any process is started.
    check_count(nodes)
    check_data_dir(data_dir, store)
    # As for a connection: the founding node shares the loop of the doors with the calls.
    handoff = Handoff()

    @asynccontextmanager
    async def opening() -> AsyncIterator[LocalCluster]:
        async with (
            open_fork_server(preload=PRELOADED, wait_ready=False) as server,
            open_cluster_on(
                server,
                nodes,
                cluster=cluster,
                store=store,
                data_dir=data_dir,
                call_timeout=call_timeout,
                tracing=tracing,
                on_process_start=on_process_start,
                platform=Platform(may_spin=handoff.is_on),
            ) as opened,
        ):
            yield opened

    return OpenBlock(
        opening,
        "the local cluster of this program",
        lambda opened: _has_left(opened.node),
        handoff,
    )


async def _has_left(node: Node) -> str:
    """Wait until the node has lost its place in the cluster, as after a pause of its process that
    was longer than its lease, or was asked to leave. Returns why.
    """
    await node.asked_to_leave.wait()
    return str(internals_of(node).given_up or f"{node.name} was asked to leave the cluster")


def starting_on(node: Node, options: SpawnOptions) -> Spawner:
    """Starts actors with these options. If the options do not say where, it chooses the node with
    the fewest actors, and never the calling program.
    """
    if options.on is None and options.placement is None:
        options = attrs.evolve(options, placement="spread")
    return node.options(**cast("SpawnChanges", attrs.asdict(options, recurse=False)))


def takes_actors(member: Member) -> bool:
    """True if other nodes may place actors and functions on the member."""
    return member.state == "up" and CALLS_ONLY not in member.labels


def handle_on(node: Node, handle: object) -> Handle:
    """A handle on `node` of the actor that a handle of any door, or of another node, is of. Raises
    TypeError for what is no handle.
    """
    if not isinstance(handle, Handle):
        raise TypeError(f"a handle is expected, not {short_repr(handle)}")
    endpoint = internals_of(node).endpoint
    return moved(endpoint.check_own(handle), endpoint.users_caller_at(handle.address))


def connection_html(kind: str, session: OpenBlock[Any], node: Node) -> str:
    """What a connection looks like in a notebook: the members as it knows them. This sends no
    request over the network, and waits for the event loop for `HTML_SECONDS` at most.
    """
    members: tuple[Member, ...] | None = None
    problem = ""

    async def known() -> tuple[Member, ...]:
        return node.members()

    if trio.lowlevel.in_trio_run():
        # This may be the loop of the connection, which must not wait for itself.
        problem = "its nodes are not shown within a trio run"
    else:
        try:
            session.check()
            asked = session.portal.future(known)
            try:
                members = asked.result(HTML_SECONDS)
            except TimeoutError:
                asked.cancel()
                problem = "its event loop is busy, and does not answer at the moment"
        except UnderstudyError as error:
            problem = str(error)
    return cluster_html(kind, node.cluster, [("connected as", node.name)], members, problem)


class WithoutNode:
    """A cluster at the blocking door or asyncio's starts and finds actors itself: it has no `node`,
    which a program on trio uses for that. The error for `cluster.node` says so.
    """

    if not TYPE_CHECKING:
        # To a type checker a name that is not there is a mistake.

        def __getattr__(self, name: str) -> NoReturn:
            text = missing(self, name)
            if name == "node":
                raise AttributeError(
                    f"{text}: only programs on trio have a node; call the cluster itself, as in "
                    "cluster.spawn(...), cluster.lookup(...) and cluster.options(...)"
                )
            # With the object, so that Python suggests the nearest of its names.
            raise AttributeError(text, name=name, obj=self)


class ProcessFacts(HasForeignNames):
    """The facts about a node process of a local cluster that every door gives without asking the
    loop.
    """

    def __init__(self, process: NodeProcess) -> None:
        self._process = process

    @property
    def name(self) -> str:
        """The node's name."""
        return self._process.name

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """False once its process has ended."""
        return self._process.running
