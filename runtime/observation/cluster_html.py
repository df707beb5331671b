"""What a node, and a connection to a cluster, look like in a notebook: from what is known of the
members at the moment, without a question to any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from actors.actor import Member
from actors.html import Html, card, dotted_state, escaped, html_table
from runtime.observation.roles import with_roles

HEADS = ("node", "state", "address", "pid", "labels")


def members_table(members: Sequence[Member]) -> Html:
    """The nodes of a cluster, a row for each."""
    return html_table(HEADS, (_row(member) for member in members), len(members))


def cluster_html(
    kind: str,
    name: str,
    facts: Iterable[tuple[str, object]],
    members: Sequence[Member] | None,
    problem: str = "",
) -> str:
    """A node or cluster: `kind` and `name` head it. `members`: None where they are not known, of
    which `problem` says why.
    """
    if members is None:
        return card(kind, name, facts, note=problem)
    return card(kind, name, [*facts, ("nodes", len(members))], members_table(members), note=problem)


def status_html(
    cluster: str, members: Sequence[Member], reports: Mapping[str, Sequence[Mapping[str, object]]]
) -> str:
    """Return the nodes of a cluster and their actors as HTML. `reports`: the actors of each node
    that has answered.
    """
    actors = [(node, actor) for node, found in sorted(reports.items()) for actor in found]
    heads = ("actor", "class", "node", "epoch", "waiting", "served")
    rows = (
        [
            escaped(actor.get("name")),
            escaped(with_roles({"class": None, **actor})["class"]),
            escaped(node),
            *(escaped(actor.get(number)) for number in ("epoch", "waiting", "served")),
        ]
        for node, actor in actors
    )
    silent = [member.name for member in members if member.name not in reports]
    return card(
        "cluster",
        cluster,
        [("nodes", len(members)), ("actors", len(actors))],
        members_table(members),
        *([html_table(heads, rows, len(actors))] if actors else []),
        note=f"no answer within a second from: {', '.join(silent)}" if silent else "",
    )


def _row(member: Member) -> list[Html]:
    address = next((one for one in member.addresses if one.startswith("tcp:")), "")
    labels = ", ".join(f"{key}={value}" for key, value in sorted(member.labels.items()))
    return [
        escaped(member.name),
        dotted_state(member.state),
        escaped(address.removeprefix("tcp:")),
        # No number for reading: without thousands' commas.
        escaped(str(member.pid)),
        escaped(labels),
    ]
