"""The metrics of a node: their names, kinds, labels and what they say. docs/reference/metrics.md
is made from this table, and a test compares it with a real scrape.

Labels are bounded: classes, methods, kinds and reasons, and the names of nodes. An actor's name is
never one.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

Kind = Literal["counter", "gauge", "histogram"]

CALLS = ("class", "method")


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


DEFINITIONS: Final = (
    Definition(
        "calls",
        "rpc_client_call_duration_seconds",
        "histogram",
        CALLS,
        "How long calls that this node made took, over all attempts, however they ended.",
    ),
    Definition(
        "calls",
        "rpc_server_call_duration_seconds",
        "histogram",
        CALLS,
        "From the arrival of a call at this node to its outcome.",
    ),
    Definition(
        "calls",
        "understudy_call_outcomes_total",
        "counter",
        (*CALLS, "outcome", "reason"),
        "Calls that this node made, by outcome: value, raised, not_executed, unknown, or cancelled "
        "by the caller. The reason is the class of the error.",
    ),
    Definition(
        "calls",
        "understudy_call_attempts_total",
        "counter",
        ("reason",),
        "Failed attempts of calls that were made again, by the class of the error.",
    ),
    Definition(
        "calls",
        "understudy_call_repeats_recognised_total",
        "counter",
        (),
        "Repeats that arrived of calls that were running or had run, and did not run again.",
    ),
    Definition(
        "calls",
        "understudy_retry_budget_empty_total",
        "counter",
        (),
        "Calls that were not made again because the retry budget of their actor was used up.",
    ),
    Definition(
        "calls",
        "understudy_runs_raised_total",
        "counter",
        CALLS,
        "Methods that ran here and raised.",
    ),
    Definition(
        "mailboxes",
        "understudy_mailbox_wait_seconds",
        "histogram",
        CALLS,
        "From the arrival of a call to its turn.",
    ),
    Definition(
        "mailboxes",
        "understudy_turn_seconds",
        "histogram",
        CALLS,
        "How long methods ran here, also while they waited for something.",
    ),
    Definition(
        "mailboxes",
        "understudy_long_turns_total",
        "counter",
        CALLS,
        "Turns of more than 1 s.",
    ),
    Definition(
        "mailboxes",
        "understudy_mailbox_waiting",
        "gauge",
        ("class",),
        "Calls that wait in mailboxes.",
    ),
    Definition(
        "mailboxes",
        "understudy_mailbox_depth",
        "gauge",
        ("class",),
        "Calls that wait in the fullest mailbox of an actor of the class.",
    ),
    Definition(
        "mailboxes",
        "understudy_mailbox_refused_total",
        "counter",
        ("reason",),
        "Calls that were refused on arrival at their actor, by the class of the error.",
    ),
    Definition(
        "mailboxes",
        "understudy_argument_bytes",
        "gauge",
        (),
        "Bytes of the arguments of calls that wait or run here: of those of 4 KiB and more that "
        "came from other processes.",
    ),
    Definition("mailboxes", "understudy_methods_running", "gauge", (), "Methods that run now."),
    Definition(
        "actors",
        "understudy_actors",
        "gauge",
        ("class", "state"),
        "Actors that are here: running, or starting while their on_start has not returned.",
    ),
    Definition(
        "actors",
        "understudy_client_actors",
        "gauge",
        (),
        "Actors that are here and that clients or operators have started.",
    ),
    Definition(
        "actors",
        "understudy_actor_starts_total",
        "counter",
        ("class",),
        "Starts of actors, also those that failed.",
    ),
    Definition(
        "actors",
        "understudy_actor_ends_total",
        "counter",
        ("class", "kind"),
        "Ends of actors, by the kind of their exit reason.",
    ),
    Definition(
        "actors",
        "understudy_restarts_total",
        "counter",
        ("supervisor", "reason"),
        "Ends of children after which supervisors of this node started children again, by the kind "
        "of exit reason. `supervisor` is empty for those that --measured-supervisor does not name.",
    ),
    Definition(
        "actors",
        "understudy_intensity_used_ratio",
        "gauge",
        ("supervisor",),
        "Restarts within their period as a share of those that are allowed: of each supervisor "
        "that --measured-supervisor names, and, with an empty label, of the one of all others here "
        "that has used most. Above 1 it gives up.",
    ),
    Definition(
        "actors",
        "understudy_escalations_total",
        "counter",
        (),
        "Supervisors of this node that gave up.",
    ),
    Definition(
        "actors",
        "understudy_orphans_stopped_total",
        "counter",
        (),
        "Actors that were stopped because their supervisor has ended and does not come back.",
    ),
    Definition(
        "actors",
        "understudy_adoptions_total",
        "counter",
        (),
        "Living children that a supervisor kept when it was itself restarted here.",
    ),
    Definition(
        "members",
        "understudy_nodes",
        "gauge",
        ("state",),
        "Members of the cluster as this node sees them, by state.",
    ),
    Definition(
        "members",
        "understudy_node_unreachable",
        "gauge",
        ("peer",),
        "1 for a member that this node cannot reach at the moment, else 0.",
    ),
    Definition(
        "members",
        "understudy_node_deaths_total",
        "counter",
        ("proof",),
        "Other nodes that died, by what proved it: kernel (the end of the process was seen) or "
        "lease (it ran out).",
    ),
    Definition(
        "members",
        "understudy_ready",
        "gauge",
        (),
        "1 if /readyz answers 200, else 0.",
    ),
    Definition(
        "members",
        "understudy_lease_remaining_seconds",
        "gauge",
        (),
        "For how long the node may rely on its lease, by its own clock; below 0 it may not, and "
        "its named actors pause.",
    ),
    Definition(
        "members",
        "understudy_lease_seconds",
        "gauge",
        (),
        "For how long the node may rely on a lease that was just renewed.",
    ),
    Definition(
        "members",
        "understudy_lease_renewal_seconds",
        "histogram",
        (),
        "How long the store took to renew the node's lease.",
    ),
    Definition(
        "members",
        "understudy_names_paused",
        "gauge",
        (),
        "1 while named actors pause because the lease is in doubt, else 0.",
    ),
    Definition(
        "members",
        "understudy_stale_epochs_refused_total",
        "counter",
        (),
        "Calls for an earlier epoch of an actor that were refused.",
    ),
    Definition(
        "links",
        "understudy_link_connected",
        "gauge",
        ("peer",),
        "1 if a connection to the node stands, else 0.",
    ),
    Definition(
        "links",
        "understudy_link_reconnects_total",
        "counter",
        (),
        "Connections after the first of a link: sessions that were resumed.",
    ),
    Definition(
        "links",
        "understudy_link_frames_total",
        "counter",
        ("direction",),
        "Numbered frames, sent and received.",
    ),
    Definition(
        "links",
        "understudy_frames_sent_again_total",
        "counter",
        (),
        "Frames that were sent again over a new connection.",
    ),
    Definition(
        "links",
        "understudy_link_bytes_total",
        "counter",
        ("direction",),
        "Bytes sent to other processes, and received from them, over sockets.",
    ),
    Definition(
        "links",
        "understudy_link_shared_bytes_total",
        "counter",
        (),
        "Bytes of large arguments and results given to processes of this host in shared memory.",
    ),
    Definition(
        "links",
        "understudy_window_full_seconds_total",
        "counter",
        (),
        "For how long calls, streams or values waited because the window of their link was full, "
        "summed over links.",
    ),
    Definition(
        "links",
        "understudy_link_unacknowledged_bytes",
        "gauge",
        ("peer",),
        "Bytes for the node that it has not acknowledged.",
    ),
    Definition(
        "links",
        "understudy_handshakes_refused_total",
        "counter",
        ("reason",),
        "Connections that were refused or closed before their peer had proven itself, by the class "
        "of the error.",
    ),
    Definition(
        "store",
        "understudy_store_request_seconds",
        "histogram",
        ("op",),
        "How long requests to the coordination store took, by operation, besides renewals of the "
        "lease.",
    ),
    Definition(
        "store",
        "understudy_store_away",
        "gauge",
        (),
        "1 from a renewal of the lease that failed to the next one that succeeded, else 0.",
    ),
    Definition(
        "store",
        "understudy_store_unavailable_total",
        "counter",
        (),
        "Requests that did not reach the store.",
    ),
    Definition(
        "store",
        "understudy_store_unknown_outcomes_total",
        "counter",
        (),
        "Requests to the store whose outcome is unknown.",
    ),
    Definition(
        "store",
        "understudy_store_revision",
        "gauge",
        (),
        "Revision of the store up to which this node's view of the members is complete.",
    ),
    Definition(
        "store",
        "understudy_store_watch_lag_revisions",
        "gauge",
        (),
        "By how many revisions the latest changes that a watch brought were behind what other "
        "answers of the store had named by then.",
    ),
    Definition(
        "store",
        "understudy_store_bytes",
        "gauge",
        (),
        "Bytes of all keys and values, on the node that keeps an embedded store; no other has it.",
    ),
    Definition(
        "references",
        "understudy_references",
        "gauge",
        ("role",),
        "Referenced values: owned by this node, and held here of other nodes.",
    ),
    Definition(
        "references",
        "understudy_reference_bytes",
        "gauge",
        ("place",),
        "Bytes of referenced values in memory, on disk, and of fetched copies.",
    ),
    Definition(
        "references",
        "understudy_reference_memory_limit_bytes",
        "gauge",
        (),
        "Bytes of memory that values of this node may take before some go to disk.",
    ),
    Definition(
        "references",
        "understudy_spilled_bytes_total",
        "counter",
        (),
        "Bytes of referenced values that were written to disk because the memory for them was "
        "full.",
    ),
    Definition(
        "references",
        "understudy_fetch_seconds",
        "histogram",
        (),
        "How long it took to bring values here from their owners; waiting for the call that makes "
        "the value counts.",
    ),
    Definition(
        "references",
        "understudy_owner_died_total",
        "counter",
        (),
        "Requests for referenced values that ended with OwnerDiedError: the value was lost with "
        "its owner.",
    ),
    Definition(
        "references",
        "understudy_streams_open",
        "gauge",
        (),
        "Streams that this node produces for readers on other nodes.",
    ),
    Definition(
        "references",
        "understudy_stream_credit_wait_seconds_total",
        "counter",
        (),
        "For how long streams that are produced here waited for their readers to take items, "
        "summed over streams.",
    ),
    Definition(
        "process",
        "understudy_loop_lag_seconds",
        "histogram",
        (),
        "By how much the event loop was late, looked at ten times a second.",
    ),
    Definition(
        "process",
        "understudy_loop_lag_max_seconds",
        "gauge",
        (),
        "The longest of these since the last scrape.",
    ),
    Definition(
        "process",
        "understudy_timer_tardiness_seconds",
        "histogram",
        (),
        "By how much deadlines of calls were handled after their time.",
    ),
    Definition(
        "process",
        "understudy_spinning_connections",
        "gauge",
        (),
        "Connections that poll for a while before a receive sleeps, because that pays at the "
        "moment.",
    ),
    Definition(
        "process",
        "understudy_tls_certificate_expiry_timestamp_seconds",
        "gauge",
        (),
        "When the node's certificate ends, in seconds since 1970; only of a node with certificate "
        "files.",
    ),
    Definition(
        "process",
        "understudy_tls_files_unusable",
        "gauge",
        (),
        "1 while the certificate files cannot be used and what was read before stays in use; only "
        "of a node with certificate files.",
    ),
    Definition(
        "process",
        "understudy_gc_pause_seconds",
        "histogram",
        ("generation",),
        "How long collections of the cyclic garbage collector took.",
    ),
    Definition(
        "process",
        "understudy_threads_used",
        "gauge",
        (),
        "Threads in which plain methods run.",
    ),
    Definition(
        "process",
        "understudy_threads_limit",
        "gauge",
        (),
        "Threads in which plain methods may run at once.",
    ),
    Definition(
        "process",
        "understudy_build_info",
        "gauge",
        ("version", "protocol", "python"),
        "Always 1; its labels say what runs.",
    ),
)
"""All metrics but those of the process itself (`process_*`), which prometheus-client has."""
