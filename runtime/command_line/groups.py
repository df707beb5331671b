"""The groups of a cluster as rows: what `understudy list groups` shows."""

from __future__ import annotations

from collections import Counter
from urllib.parse import unquote

import attrs
import trio

from actors.errors import DecodeError, StoreError
from runtime.command_line.node_answers import NODE_SECONDS, Answers
from runtime.command_line.tables import Row
from runtime.groups.memberships import PREFIX, RECORD_MEMBERS, GroupRecord, from_plain
from runtime.membership.cluster_client import ClusterClient

COLUMNS = ("name", "members", "nodes", "class")

MOST_RECORDS = 1000
"""Records of groups that are read. Each has the members of one group on one node, or at most
`RECORD_MEMBERS` of them.
"""


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
    """The groups that have members, each a row. They are in the store, which drops those of a node
    that has ended with its lease; so no node is asked, and a silent one's are there. Raises
    StoreError.
    """
    answers = Answers()
    try:
        with trio.fail_after(NODE_SECONDS):
            # One more than is shown, to know whether there are more.
            found = await client.store.range(PREFIX, MOST_RECORDS + 1)
    except trio.TooSlowError:
        answers.problems.append(
            f"the store, which has the groups, did not answer within {NODE_SECONDS:g} s"
        )
        return [], answers
    except StoreError as error:
        answers.problems.append(f"the store, which has the groups, cannot be asked: {error}")
        return [], answers
    groups: dict[str, _GroupCounts] = {}
    for entry in found.entries[:MOST_RECORDS]:
        name = unquote(entry.key.removeprefix(PREFIX).partition("/")[0])
        try:
            record = from_plain(client.endpoint.codec.decode_stored(entry.value))
        except (DecodeError, TypeError, ValueError):
            answers.problems.append(f"a record of group {name} cannot be read")
            continue
        groups.setdefault(name, _GroupCounts()).add(record)
    if len(found.entries) > MOST_RECORDS:
        answers.notes.append(
            f"only the first {MOST_RECORDS:,} records of groups were read, each of up to "
            f"{RECORD_MEMBERS} members on one node"
        )
    return [_row(name, group) for name, group in groups.items()], answers


def _row(name: str, group: _GroupCounts) -> Row:
    return {
        "name": name,
        "members": group.nodes.total(),
        "nodes": ", ".join(f"{node} {count}" for node, count in sorted(group.nodes.items())),
        "class": ", ".join(sorted(group.classes)),
    }
