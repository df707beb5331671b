"""The metrics of a node: their names, kinds, labels and what they say. docs/reference/metrics.md
is made from this table, and a test compares it with a real scrape.

Labels are bounded: classes, methods, kinds and reasons, and the names of nodes. An actor's name is
never one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, cast

import attrs

Kind = Literal["counter", "gauge", "histogram"]

HEAD = re.compile(r"(counter|gauge|histogram) (\w+)(?:\{(.+)\})?")

METRICS: Final = {
    "calls": {
        "histogram rpc_client_call_duration_seconds{class, method}": (
            "How long calls that this node made took, over all attempts, however they ended."
        ),
        "histogram rpc_server_call_duration_seconds{class, method}": (
            "From the arrival of a call at this node to its outcome."
        ),
        "counter understudy_call_outcomes_total{class, method, outcome, reason}": (
            "Calls that this node made, by outcome: value, raised, not_executed, unknown, or "
            "cancelled by the caller. The reason is the class of the error."
        ),
        "counter understudy_call_attempts_total{reason}": (
            "Failed attempts of calls that were made again, by the class of the error."
        ),
        "counter understudy_call_repeats_recognised_total": (
            "Repeats that arrived of calls that were running or had run, and did not run again."
        ),
        "counter understudy_retry_budget_empty_total": (
            "Calls that were not made again because the retry budget of their actor was used up."
        ),
        "counter understudy_runs_raised_total{class, method}": "Methods that ran here and raised.",
    },
    "mailboxes": {
        "histogram understudy_mailbox_wait_seconds{class, method}": (
            "From the arrival of a call to its turn."
        ),
        "histogram understudy_turn_seconds{class, method}": (
            "How long methods ran here, also while they waited for something."
        ),
        "counter understudy_long_turns_total{class, method}": "Turns of more than 1 s.",
        "gauge understudy_mailbox_waiting{class}": "Calls that wait in mailboxes.",
        "gauge understudy_mailbox_depth{class}": (
            "Calls that wait in the fullest mailbox of an actor of the class."
        ),
        "counter understudy_mailbox_refused_total{reason}": (
            "Calls that were refused on arrival at their actor, by the class of the error."
        ),
        "gauge understudy_argument_bytes": (
            "Bytes of the arguments of calls that wait or run here: of those of 4 KiB and more "
            "that came from other processes."
        ),
        "gauge understudy_methods_running": "Methods that run now.",
    },
    "actors": {
        "gauge understudy_actors{class, state}": (
            "Actors that are here: running, or starting while their on_start has not returned."
        ),
        "gauge understudy_client_actors": (
            "Actors that are here and that clients or operators have started."
        ),
        "counter understudy_actor_starts_total{class}": "Starts of actors, also those that failed.",
        "counter understudy_actor_ends_total{class, kind}": (
            "Ends of actors, by the kind of their exit reason."
        ),
        "counter understudy_restarts_total{supervisor, reason}": (
            "Ends of children after which supervisors of this node started children again, by the "
            "kind of exit reason. `supervisor` is empty for those that --measured-supervisor does "
            "not name."
        ),
        "gauge understudy_intensity_used_ratio{supervisor}": (
            "Restarts within their period as a share of those that are allowed: of each supervisor "
            "that --measured-supervisor names, and, with an empty label, of the one of all others "
            "here that has used most. Above 1 it gives up."
        ),
        "counter understudy_escalations_total": "Supervisors of this node that gave up.",
        "counter understudy_orphans_stopped_total": (
            "Actors that were stopped because their supervisor has ended and does not come back."
        ),
        "counter understudy_adoptions_total": (
            "Living children that a supervisor kept when it was itself restarted here."
        ),
    },
    "members": {
        "gauge understudy_nodes{state}": "Members of the cluster as this node sees them, by state.",
        "gauge understudy_node_unreachable{peer}": (
            "1 for a member that this node cannot reach at the moment, else 0."
        ),
        "counter understudy_node_deaths_total{proof}": (
            "Other nodes that died, by what proved it: kernel (the end of the process was seen) or "
            "lease (it ran out)."
        ),
        "gauge understudy_ready": "1 if /readyz answers 200, else 0.",
        "gauge understudy_lease_remaining_seconds": (
            "For how long the node may rely on its lease, by its own clock; below 0 it may not, "
            "and its named actors pause."
        ),
        "gauge understudy_lease_seconds": (
            "For how long the node may rely on a lease that was just renewed."
        ),
        "histogram understudy_lease_renewal_seconds": (
            "How long the store took to renew the node's lease."
        ),
        "gauge understudy_names_paused": (
            "1 while named actors pause because the lease is in doubt, else 0."
        ),
        "counter understudy_stale_epochs_refused_total": (
            "Calls for an earlier epoch of an actor that were refused."
        ),
    },
    "links": {
        "gauge understudy_link_connected{peer}": "1 if a connection to the node stands, else 0.",
        "counter understudy_link_reconnects_total": (
            "Connections after the first of a link: sessions that were resumed."
        ),
        "counter understudy_link_frames_total{direction}": "Numbered frames, sent and received.",
        "counter understudy_frames_sent_again_total": (
            "Frames that were sent again over a new connection."
        ),
        "counter understudy_link_bytes_total{direction}": (
            "Bytes sent to other processes, and received from them, over sockets."
        ),
        "counter understudy_link_shared_bytes_total": (
            "Bytes of large arguments and results given to processes of this host in shared memory."
        ),
        "counter understudy_window_full_seconds_total": (
            "For how long calls, streams or values waited because the window of their link was "
            "full, summed over links."
        ),
        "gauge understudy_link_unacknowledged_bytes{peer}": (
            "Bytes for the node that it has not acknowledged."
        ),
        "counter understudy_handshakes_refused_total{reason}": (
            "Connections that were refused or closed before their peer had proven itself, by the "
            "class of the error."
        ),
    },
    "store": {
        "histogram understudy_store_request_seconds{op}": (
            "How long requests to the coordination store took, by operation, besides renewals of "
            "the lease."
        ),
        "gauge understudy_store_away": (
            "1 from a renewal of the lease that failed to the next one that succeeded, else 0."
        ),
        "counter understudy_store_unavailable_total": "Requests that did not reach the store.",
        "counter understudy_store_unknown_outcomes_total": (
            "Requests to the store whose outcome is unknown."
        ),
        "gauge understudy_store_revision": (
            "Revision of the store up to which this node's view of the members is complete."
        ),
        "gauge understudy_store_watch_lag_revisions": (
            "By how many revisions the latest changes that a watch brought were behind what other "
            "answers of the store had named by then."
        ),
        "gauge understudy_store_bytes": (
            "Bytes of all keys and values, on the node that keeps an embedded store; no other has "
            "it."
        ),
    },
    "references": {
        "gauge understudy_references{role}": (
            "Referenced values: owned by this node, and held here of other nodes."
        ),
        "gauge understudy_reference_bytes{place}": (
            "Bytes of referenced values in memory, on disk, and of fetched copies."
        ),
        "gauge understudy_reference_memory_limit_bytes": (
            "Bytes of memory that values of this node may take before some go to disk."
        ),
        "counter understudy_spilled_bytes_total": (
            "Bytes of referenced values that were written to disk because the memory for them was "
            "full."
        ),
        "histogram understudy_fetch_seconds": (
            "How long it took to bring values here from their owners; waiting for the call that "
            "makes the value counts."
        ),
        "counter understudy_owner_died_total": (
            "Requests for referenced values that ended with OwnerDiedError: the value was lost "
            "with its owner."
        ),
        "gauge understudy_streams_open": (
            "Streams that this node produces for readers on other nodes."
        ),
        "counter understudy_stream_credit_wait_seconds_total": (
            "For how long streams that are produced here waited for their readers to take items, "
            "summed over streams."
        ),
    },
    "process": {
        "histogram understudy_loop_lag_seconds": (
            "By how much the event loop was late, looked at ten times a second."
        ),
        "gauge understudy_loop_lag_max_seconds": "The longest of these since the last scrape.",
        "histogram understudy_timer_tardiness_seconds": (
            "By how much deadlines of calls were handled after their time."
        ),
        "gauge understudy_spinning_connections": (
            "Connections that poll for a while before a receive sleeps, because that pays at the "
            "moment."
        ),
        "gauge understudy_tls_certificate_expiry_timestamp_seconds": (
            "When the node's certificate ends, in seconds since 1970; only of a node with "
            "certificate files."
        ),
        "gauge understudy_tls_files_unusable": (
            "1 while the certificate files cannot be used and what was read before stays in use; "
            "only of a node with certificate files."
        ),
        "histogram understudy_gc_pause_seconds{generation}": (
            "How long collections of the cyclic garbage collector took."
        ),
        "gauge understudy_threads_used": "Threads in which plain methods run.",
        "gauge understudy_threads_limit": (
            "Threads in which plain methods may run at once, beside those that others wait for."
        ),
        "gauge understudy_build_info{version, protocol, python}": (
            "Always 1; its labels say what runs."
        ),
    },
}
"""By what they are about: the kind of each, its name, its labels, and what it says."""


@attrs.frozen
class Definition:
    """One metric. `group`: what it is about. `unit`: what its name ends in, of counters without
    `_total`.
    """

    group: str
    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str


def _definitions() -> Iterator[Definition]:
    for group, metrics in METRICS.items():
        for head, text in metrics.items():
            found = HEAD.fullmatch(head)
            assert found is not None, head
            kind, name, labels = found.groups()
            names = tuple(labels.split(", ")) if labels else ()
            yield Definition(group, name, cast("Kind", kind), names, text)


DEFINITIONS: Final = tuple(_definitions())
"""All metrics but those of the process itself (`process_*`), which prometheus-client has."""
