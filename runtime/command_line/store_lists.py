"""What `understudy list` shows of the cluster's store: groups and elastic jobs.

No node is asked for them, so a silent one delays nothing. The store drops the records of a node or
an agent that has ended, with its lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import attrs
import trio

from actors.errors import DecodeError, StoreError
from runtime.command_line.node_answers import NODE_SECONDS, Answers
from runtime.command_line.tables import Row
from runtime.groups.memberships import PREFIX as GROUPS
from runtime.groups.memberships import RECORD_MEMBERS, GroupRecord, from_plain
from runtime.membership.cluster_client import ClusterClient
from runtime.rendezvous.overview import LEFT_OUT as JOBS_LEFT_OUT
from runtime.rendezvous.overview import MOST_RECORDS as MOST_JOB_RECORDS
from runtime.rendezvous.overview import PREFIX as JOBS
from runtime.rendezvous.overview import jobs_of, state_of
from runtime.store.interface import Entry

GROUP_COLUMNS = ("name", "members", "nodes", "class")

JOB_COLUMNS = (
    *("name", "state", "round", "agents", "in_round", "min", "max", "waiting", "spares"),
    *("silent", "gone", "reason"),
)

MOST_GROUP_RECORDS = 1000
"""Records of groups that are read. Each has the members of one group on one node, or at most
`RECORD_MEMBERS` of them.
"""

GROUPS_LEFT_OUT = (
    f"only the first {MOST_GROUP_RECORDS:,} records of groups were read, each of up to "
    f"{RECORD_MEMBERS} members on one node"
)


@attrs.define
class _GroupCounts:
    """What the records of one group say: how many members each node and each class has."""

    nodes: Counter[str] = attrs.field(factory=lambda: Counter[str]())
    classes: Counter[str] = attrs.field(factory=lambda: Counter[str]())

    def add(self, record: GroupRecord) -> None:
        for one in record.members:
            # An actor that joined twice gets each message twice, and counts as often.
            self.nodes[record.node] += one.times
            self.classes[one.address.class_path] += one.times


async def groups_of(client: ClusterClient) -> tuple[list[Row], Answers]:
    """The groups that have members, each a row."""
    answers = Answers()
    groups: dict[str, _GroupCounts] = {}
    for entry in await _records(
        client, answers, "groups", GROUPS, MOST_GROUP_RECORDS, GROUPS_LEFT_OUT
    ):
        name = unquote(entry.key.removeprefix(GROUPS).partition("/")[0])
        try:
            record = from_plain(client.endpoint.codec.decode_stored(entry.value))
        except (DecodeError, TypeError, ValueError):
            answers.problems.append(f"a record of group {name} cannot be read")
            continue
        groups.setdefault(name, _GroupCounts()).add(record)
    return [_group_row(name, group) for name, group in groups.items()], answers


def _group_row(name: str, group: _GroupCounts) -> Row:
    return {
        "name": name,
        "members": group.nodes.total(),
        "nodes": ", ".join(f"{node} {count}" for node, count in sorted(group.nodes.items())),
        "class": ", ".join(sorted(group.classes)),
    }


async def elastic_jobs(client: ClusterClient) -> tuple[list[Row], Answers]:
    """The jobs whose agents meet in the cluster's store, each a row. An agent that does not renew
    its lease is named.
    """
    answers = Answers()
    found = await _records(client, answers, "jobs", JOBS, MOST_JOB_RECORDS, JOBS_LEFT_OUT)
    return [_job_row(job) for job in jobs_of(found).values()], answers


def _job_row(job: dict[str, Any]) -> Row:
    participants: Sequence[str] | None = job.get("participants")
    return {
        "name": job["name"],
        "state": state_of(job),
        "round": job.get("round"),
        "agents": job["agents"],
        "in_round": None if participants is None else len(participants),
        "min": job.get("min_nodes"),
        "max": job.get("max_nodes"),
        "waiting": job.get("waiting"),
        "spares": job.get("spares"),
        "silent": ", ".join(job.get("silent", ())) or None,
        "gone": ", ".join(job.get("gone", ())) or None,
        "reason": job.get("problem") or job["closed"] or None,
    }


async def _records(
    client: ClusterClient, answers: Answers, things: str, prefix: str, most: int, left_out: str
) -> Sequence[Entry]:
    """Return the records under a prefix, at most so many; `left_out` is what `answers` notes if
    there are more. If the store does not answer within `NODE_SECONDS`, or refuses, there are none,
    and `answers` has the problem, which names what the records are: the `things`.
    """
    try:
        with trio.fail_after(NODE_SECONDS):
            # One more than is shown, to know whether there are more.
            found = (await client.store.range(prefix, most + 1)).entries
    except trio.TooSlowError:
        answers.problems.append(
            f"the store, which has the {things}, did not answer within {NODE_SECONDS:g} s"
        )
        return ()
    except StoreError as error:
        answers.problems.append(f"the store, which has the {things}, cannot be asked: {error}")
        return ()
    if len(found) > most:
        answers.notes.append(left_out)
    return found[:most]
