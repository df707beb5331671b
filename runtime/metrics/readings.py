"""Readings: what the machines of a node have counted, copied in one step of its event loop.

The cost does not depend on how many actors there are: everything is counted by class where it
happens, and only actors that have mail at the moment are looked at.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import attrs

from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.hosting.cell import ActorCell
from runtime.hosting.host import ActorHost
from runtime.links.encryption import EncryptedNetwork
from runtime.links.transports import Network, SocketNetwork
from runtime.membership.members import Members, Registration
from runtime.statistics.call_statistics import CallStatistics, class_of
from runtime.statistics.counts import LabelledCount
from runtime.statistics.histograms import Histogram
from runtime.store.measured_store import RENEWAL, MeasuredStore
from runtime.version import __version__
from runtime.wire.handshake import VERSIONS

MOST_BUSY = 10_000
"""Actors with mail that one reading looks at."""

MOST_PEERS = 1000
"""Nodes that one reading has labels for."""

Numbers = list[tuple[tuple[str, ...], float]]
Buckets = list[tuple[tuple[str, ...], list[int], float]]


@attrs.frozen(kw_only=True)
class NodeParts:
    """The parts of a node that are read. `intensity`: the greatest share that a supervisor here has
    used of its restarts, by name, and under "" of all whose names are no labels.
    """

    name: str
    endpoint: RpcEndpoint
    members: Members
    registration: Registration
    store: MeasuredStore
    environment: Environment
    intensity: Callable[[], Mapping[str, float]]

    def not_ready(self) -> list[str]:
        """Why the node should be given no work; empty if it should."""
        registration = self.registration
        reasons = []
        if registration.record.state == "joining":
            reasons.append("the node has not joined yet")
        if self.endpoint.host.draining or registration.record.state == "draining":
            reasons.append("the node drains and leaves")
        if not registration.clock.is_held(self.environment.now()):
            reasons.append("the node's lease is in doubt")
        return reasons


class LoopHealth:
    """Measurements of the event loop and of the process, while metrics are served."""

    def __init__(self) -> None:
        self.lag = Histogram()
        self.most_lag = 0.0
        """Seconds, the most since the last reading."""
        self.pauses = (Histogram(), Histogram(), Histogram())
        """Of the garbage collector, by generation."""

    def on_looked(self, late: float) -> None:
        """Note that a look at the clock came `late` seconds after its time."""
        late = max(0.0, late)
        self.lag.add(late)
        self.most_lag = max(self.most_lag, late)

    def take_most_lag(self) -> float:
        """The longest lag since this was last asked."""
        most, self.most_lag = self.most_lag, 0.0
        return most


@attrs.frozen
class Readings:
    """Numbers by metric and labels, and the counts of histograms with their sums."""

    numbers: dict[str, Numbers] = attrs.field(factory=dict)
    buckets: dict[str, Buckets] = attrs.field(factory=dict)

    def put(self, name: str, value: float, *labels: str) -> None:
        """Add one number."""
        self.numbers.setdefault(name, []).append((labels, float(value)))

    def put_all(self, name: str, counts: LabelledCount) -> None:
        """Add what was counted by labels."""
        self.numbers[name] = [(labels, float(count)) for labels, count in counts]

    def put_histogram(self, name: str, histogram: Histogram, *labels: str) -> None:
        """Add a histogram, if anything was counted in it."""
        counts = list(histogram.counts)
        if any(counts):
            self.buckets.setdefault(name, []).append((labels, counts, histogram.total))


def read(parts: NodeParts, statistics: CallStatistics, health: LoopHealth) -> Readings:
    """Read everything. In the node's event loop, between two steps of its tasks."""
    found = Readings()
    _read_calls(found, statistics)
    _read_actors(found, parts)
    _read_members(found, parts)
    _read_links(found, parts)
    _read_store(found, parts)
    _read_references(found, parts)
    _read_process(found, parts, health)
    return found


def _read_calls(found: Readings, statistics: CallStatistics) -> None:
    for one in statistics:
        labels = (one.class_path, one.method)
        found.put_histogram("rpc_client_call_duration_seconds", one.client, *labels)
        found.put_histogram("rpc_server_call_duration_seconds", one.server, *labels)
        found.put_histogram("understudy_mailbox_wait_seconds", one.wait, *labels)
        found.put_histogram("understudy_turn_seconds", one.turn, *labels)
        outcomes = "understudy_call_outcomes_total"
        if one.client.count:
            found.put(outcomes, one.value, *labels, "value", "")
            found.put(outcomes, one.raised, *labels, "raised", "")
            found.put(outcomes, one.cancelled, *labels, "cancelled", "")
        for reason, count in one.not_executed.items():
            found.put(outcomes, count, *labels, "not_executed", reason)
        for reason, count in one.unknown.items():
            found.put(outcomes, count, *labels, "unknown", reason)
        if one.turn.count:
            found.put("understudy_long_turns_total", one.long_turns, *labels)
            found.put("understudy_runs_raised_total", one.server_raised, *labels)


def _read_actors(found: Readings, parts: NodeParts) -> None:
    host = parts.endpoint.host
    counts = host.counts
    found.put_all("understudy_call_attempts_total", counts.attempts)
    found.put("understudy_call_repeats_recognised_total", counts.repeats)
    found.put("understudy_retry_budget_empty_total", counts.budget_empty)
    found.put_all("understudy_mailbox_refused_total", counts.refused)
    found.put("understudy_stale_epochs_refused_total", counts.stale_epochs)
    for (name,), count in counts.living:
        # Beyond the bound on labels, a class may have a count of its own in one of the two only.
        starting = min(count, counts.starting[(name,)])
        found.put("understudy_actors", count - starting, name, "running")
        found.put("understudy_actors", starting, name, "starting")
    found.put_all("understudy_actor_starts_total", counts.starts)
    found.put_all("understudy_actor_ends_total", counts.ends)
    found.put_all("understudy_restarts_total", counts.restarts)
    found.put("understudy_escalations_total", counts.escalations)
    found.put("understudy_orphans_stopped_total", counts.orphans)
    found.put("understudy_adoptions_total", counts.adoptions)
    for name, used in parts.intensity().items():
        found.put("understudy_intensity_used_ratio", used, name)
    found.put("understudy_methods_running", len(host.workers.running))
    found.put("understudy_argument_bytes", host.arguments.held)
    found.put("understudy_client_actors", parts.endpoint.admission.quotas.actors)
    waiting: Counter[str] = Counter()
    deepest: Counter[str] = Counter()
    for cell in _with_mail(host):
        name = class_of(cell.address)
        waiting[name] += cell.waiting
        deepest[name] = max(deepest[name], cell.waiting)
    # Those of all classes that are here, so that a mailbox that is empty again says so.
    for (name,), _ in counts.living:
        found.put("understudy_mailbox_waiting", waiting[name], name)
        found.put("understudy_mailbox_depth", deepest[name], name)


def _with_mail(host: ActorHost) -> Iterable[ActorCell]:
    """The actors whose mailboxes may not be empty: those that run a method, and those that wait for
    a worker. Mail of an actor that pauses or starts is not counted.
    """
    cells: dict[int, ActorCell] = {}
    for invocation in host.workers.running.values():
        cells[id(invocation.cell)] = invocation.cell
    for cell in host.workers.queued():
        if len(cells) >= MOST_BUSY:
            break
        cells[id(cell)] = cell
    return [cell for cell in cells.values() if cell.waiting and not cell.system]


def _read_members(found: Readings, parts: NodeParts) -> None:
    members = parts.members.all()
    for state, count in Counter(member.state for member in members).items():
        found.put("understudy_nodes", count, state)
    peers = parts.endpoint.peers
    for member in members[:MOST_PEERS]:
        if member.name != parts.name:
            away = peers.is_unreachable(member.node_id)
            found.put("understudy_node_unreachable", away, member.name)
    for proof in ("kernel", "lease"):
        # Also 0: an increase is only seen of a series that was there before.
        deaths = parts.endpoint.host.counts.deaths[(proof,)]
        found.put("understudy_node_deaths_total", deaths, proof)
    now, clock = parts.environment.now(), parts.registration.clock
    found.put("understudy_ready", not parts.not_ready())
    found.put("understudy_lease_remaining_seconds", clock.doubtful_at - now)
    found.put("understudy_lease_seconds", clock.doubtful_at - clock.asked)
    found.put_histogram("understudy_lease_renewal_seconds", parts.store.seconds[RENEWAL])
    found.put("understudy_names_paused", parts.endpoint.host.names_paused)


def _read_links(found: Readings, parts: NodeParts) -> None:
    peers = parts.endpoint.peers
    total = attrs.evolve(peers.ended_links)
    links = [link for link in peers.links.values() if link.ended is None]
    for link in links:
        total.add(link)
    # Clients come and go under names of their own: those are no labels.
    nodes = {link.peer.name: link for link in links if link.peer.role == "node"}
    for name, link in list(nodes.items())[:MOST_PEERS]:
        found.put("understudy_link_connected", link.connected, name)
        found.put("understudy_link_unacknowledged_bytes", link.session.kept_bytes, name)
    found.put("understudy_link_reconnects_total", total.connections)
    found.put("understudy_link_frames_total", total.frames_sent, "sent")
    found.put("understudy_link_frames_total", total.frames_received, "received")
    found.put("understudy_frames_sent_again_total", total.frames_sent_again)
    found.put("understudy_link_bytes_total", total.bytes_sent, "sent")
    found.put("understudy_link_bytes_total", total.bytes_received, "received")
    found.put("understudy_link_shared_bytes_total", total.bytes_shared)
    found.put("understudy_window_full_seconds_total", total.window_full)
    found.put_all("understudy_handshakes_refused_total", peers.refused)


def _read_store(found: Readings, parts: NodeParts) -> None:
    store = parts.store
    for operation, histogram in store.seconds.items():
        if operation != RENEWAL:
            found.put_histogram("understudy_store_request_seconds", histogram, operation)
    found.put("understudy_store_away", parts.registration.store_is_away)
    found.put("understudy_store_unavailable_total", store.unavailable)
    found.put("understudy_store_unknown_outcomes_total", store.unknown)
    found.put("understudy_store_revision", parts.members.revision)
    found.put("understudy_store_watch_lag_revisions", store.watch_lag)
    if store.size is not None:
        found.put("understudy_store_bytes", store.size)


def _read_references(found: Readings, parts: NodeParts) -> None:
    references = parts.endpoint.references
    values = references.value_store
    found.put("understudy_references", len(references), "owned")
    found.put("understudy_references", references.held, "held")
    found.put("understudy_reference_bytes", values.in_memory, "memory")
    found.put("understudy_reference_bytes", values.on_disk, "disk")
    found.put("understudy_reference_bytes", references.fetcher.cached_bytes, "fetched")
    found.put("understudy_reference_memory_limit_bytes", values.limit)
    found.put("understudy_spilled_bytes_total", values.spilled)
    found.put_histogram("understudy_fetch_seconds", references.fetcher.seconds)
    found.put("understudy_owner_died_total", references.fetcher.owners_died)
    found.put("understudy_streams_open", parts.endpoint.stream_server.count)
    waits = parts.endpoint.host.counts.credit_waits
    now = parts.environment.now()
    found.put("understudy_stream_credit_wait_seconds_total", waits.seconds(now))


def _read_process(found: Readings, parts: NodeParts, health: LoopHealth) -> None:
    found.put_histogram("understudy_loop_lag_seconds", health.lag)
    found.put("understudy_loop_lag_max_seconds", health.take_most_lag())
    for generation, histogram in enumerate(health.pauses):
        found.put_histogram("understudy_gc_pause_seconds", histogram, str(generation))
    found.put_histogram(
        "understudy_timer_tardiness_seconds", parts.endpoint.host.counts.deadlines_late
    )
    _read_network(found, parts.endpoint.peers.network)
    threads = parts.endpoint.host.threads
    found.put("understudy_threads_used", threads.used)
    found.put("understudy_threads_limit", threads.limit)
    found.put("understudy_build_info", 1, __version__, str(VERSIONS[1]), platform.python_version())


def _read_network(found: Readings, network: Network) -> None:
    # Others are simulated: they neither spin nor encrypt.
    if isinstance(network, EncryptedNetwork | SocketNetwork):
        found.put("understudy_spinning_connections", network.spinning)
    if isinstance(network, EncryptedNetwork):
        end = network.certificate_end()
        if end is not None:
            found.put("understudy_tls_certificate_expiry_timestamp_seconds", end)
            found.put("understudy_tls_files_unusable", bool(network.files_problem()))
