"""`understudy expel`: shut a node out of its cluster for good."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from actors.identifiers import NodeId
from actors.peers import PeerRole
from runtime.command_line.connect import (
    ChosenCluster,
    cluster_options,
    connect_with,
    security_for,
)
from runtime.command_line.node_answers import Member, ask_nodes
from runtime.command_line.secret_rotation import (
    STEP_SECONDS,
    NewSecret,
    Rotation,
    check_not_plain,
    check_not_shared,
    keyring_facts,
    left_to_do,
    members_now,
    rotate_secret,
)
from runtime.command_line.units import PathName, Text
from runtime.links.encryption import Tls
from runtime.links.keyring import Keyring
from runtime.membership.cluster_client import ClusterClient
from runtime.membership.expulsion_service import expulsions_of
from runtime.membership.keyring_service import keyring_of_node
from runtime.printable import plain

EXPEL_SECONDS = 30.0
"""How long the node that is asked may take. It waits for the end of a lease where the expelled node
does not answer.
"""


@click.command(epilog="Example:  understudy expel w3 --secret-file now --rotate --to next")
@click.argument("node", required=False, type=Text())
@click.option("--list", "listing", is_flag=True, help="Show which nodes are expelled.")
@click.option("--readmit", type=Text(), metavar="NODE", help="Let an expelled node join again.")
@click.option("--absent", is_flag=True, help="Expel a node that does not run now.")
@click.option(
    "--rotate",
    is_flag=True,
    help="Give the cluster another secret as well, which the expelled node is not given.",
)
@click.option(
    "--to",
    type=PathName(path_type=Path, dir_okay=False),
    help="File of the new secret, for --rotate. Made, with a random secret, if there is none.",
)
@click.option(
    "--keep-secret",
    is_flag=True,
    help="Shut out the name only, where the secret is all that proves a node.",
)
@cluster_options
def expel(
    node: str | None,
    listing: bool,
    readmit: str | None,
    absent: bool,
    rotate: bool,
    to: Path | None,
    keep_secret: bool,
    chosen: ChosenCluster,
    as_json: bool,
) -> None:
    """Shut NODE out of the cluster for good, when its machine is not to be trusted any more.

    Its links are cut, its actors are placed elsewhere as after its death, and it is refused when it
    comes back, by its name and by its certificate. Its process ends with status 77.

    Where the nodes have no certificates, a machine that knows the secret can come back under
    another name, so the secret is changed as well, with --rotate; --keep-secret leaves it as it is.
    What the node has seen or done before is not undone.
    """
    if (node is not None) + listing + (readmit is not None) != 1:
        raise click.UsageError("give a NODE, or --list, or --readmit NODE")
    if rotate != (to is not None) or ((rotate or absent or keep_secret) and node is None):
        raise click.UsageError("--rotate and --to FILE are given together, and with a NODE")
    if rotate and keep_secret:
        raise click.UsageError("give --rotate or --keep-secret, not both")
    keyring, tls = security_for(chosen)
    if node is None:
        asked = trio.run(_ask, chosen, keyring, tls, readmit)
        _tell_listing(asked, as_json) if readmit is None else _tell_readmitted(asked, as_json)
        return
    rotation = None
    if to is None and not keep_secret and _proves_by_secret_alone(keyring, tls):
        raise click.UsageError(
            f"the machine of {node} knows the cluster's secret: with it, it can come back under "
            "another name, or take the expulsion back. Add --rotate --to FILE to change the secret "
            "as well, or --keep-secret to shut out the name only"
        )
    if to is not None:
        rotation = _rotation(keyring, to)
        # Without the file: this command changes its own secrets on the way.
        keyring = Keyring(tuple(dict.fromkeys((*keyring.secrets(), rotation.target))))
    with nullcontext() if rotation is None else rotation.new.told_when_it_fails():
        answer = trio.run(_expel, chosen, keyring, tls, node, absent, rotation)
    _tell(answer, node, keyring, tls, rotation, as_json)


def _proves_by_secret_alone(keyring: Keyring, tls: Tls) -> bool:
    return keyring.origin != "certificates" and not tls.has_files


def _rotation(keyring: Keyring, to: Path) -> Rotation:
    """What `--rotate` asks for. Raises `click.UsageError`."""
    if keyring.origin == "certificates":
        raise click.UsageError(
            "without a secret, certificates prove the nodes: there is nothing to --rotate"
        )
    new = NewSecret(to)
    new.refuse_guessable()
    return Rotation(new.secret, new)


async def _ask(chosen: ChosenCluster, keyring: Keyring, tls: Tls, readmit: str | None) -> Any:
    needs: PeerRole = "observer" if readmit is None else "operator"
    async with connect_with(chosen, keyring, tls, needs) as client:
        service = _service(client, "")
        if readmit is None:
            return await service.listing()
        return _checked(await service.readmit(readmit))


async def _expel(
    chosen: ChosenCluster,
    keyring: Keyring,
    tls: Tls,
    node: str,
    absent: bool,
    rotation: Rotation | None,
) -> dict[str, Any]:
    """Expel the node and change the secret. Returns what there is to tell."""
    needs: PeerRole | None = "operator" if rotation is None else None
    async with connect_with(chosen, keyring, tls, needs) as client:
        if rotation is not None:
            await _check_rotates(client, tls, node)
            # Before the expulsion: it could not be finished without the file.
            rotation.new.write()
        expelled = _checked(await _service(client, node).expel(node, absent))
        answer: dict[str, Any] = {"expelled": {**expelled, "at": _iso(expelled["at"])}}
        if rotation is not None:
            answer["rotated"] = await _rotate(client, keyring, tls, rotation)
    return answer


async def _check_rotates(client: ClusterClient, tls: Tls, node: str) -> None:
    """Refuse before the expulsion what would be refused after it. Raises `ClickException`."""
    members = [one for one in client.status["members"] if one["name"] != node]
    check_not_plain(members, tls)
    check_not_shared((await keyring_facts(client, members)).by_node)


async def _rotate(
    client: ClusterClient, keyring: Keyring, tls: Tls, rotation: Rotation
) -> dict[str, Any]:
    """Give the new secret to those who are members now, and to no others: the expelled machine
    knows the old one until the end, and may join under another name meanwhile.
    """
    members = await members_now(client)
    only = frozenset(NodeId(one["name"], one["incarnation"]) for one in members)
    rotation = attrs.evolve(rotation, only=only)
    found = await rotate_secret(client, keyring, tls, rotation, chatty=False)

    async def prove_again(member: Member) -> None:
        service = keyring_of_node(client.endpoint, member["name"], member["incarnation"])
        await service.prove_again.options(timeout=STEP_SECONDS)()

    # Sessions that began with the old secret would go on for as long as their connections stand.
    answers = await ask_nodes(client, prove_again, members)
    later = [one["name"] for one in await members_now(client) if not rotation.concerns(one)]
    return {
        "nodes": sorted(found),
        "to_do": left_to_do(rotation, found),
        "not_given": sorted(later),
        "silent": answers.silent,
    }


def _service(client: ClusterClient, node: str) -> Any:
    """The service of a member other than `node`, where there is one: that which serves the store,
    or the dialled one.
    """
    members: dict[str, Member] = {one["name"]: one for one in client.status["members"]}
    chosen = client.status["store"]["node"]
    if chosen == node or chosen not in members:
        chosen = next((name for name in sorted(members) if name != node), chosen)
    incarnation = members[chosen]["incarnation"] if chosen in members else 0
    return expulsions_of(client.endpoint, chosen, incarnation).options(timeout=EXPEL_SECONDS)


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without its `problem`, which is raised as `ClickException`."""
    if problem := answer.pop("problem"):
        raise click.ClickException(problem)
    return answer


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if at else ""


def _tell(
    answer: dict[str, Any],
    node: str,
    keyring: Keyring,
    tls: Tls,
    rotation: Rotation | None,
    as_json: bool,
) -> None:
    """Print what was done, and what is left to do."""
    known = rotation is None and _proves_by_secret_alone(keyring, tls)
    warning = (
        f"the machine of {node} still knows the cluster's secret: with it, it can come back under "
        "another name, or take the expulsion back. Run this command again with --rotate --to FILE"
    )
    if as_json:
        click.echo(json.dumps(answer | ({"warning": warning} if known else {}), indent=2))
        return
    again = " already" if answer["expelled"]["again"] else ""
    click.echo(
        f"node {node} was expelled{again}: it is not a member, and is refused when it comes back"
    )
    if known:
        click.echo(warning, err=True)
    if rotation is None:
        return
    rotated = answer["rotated"]
    click.echo(
        f"the cluster has the secret in {rotation.new.path} only: {', '.join(rotated['nodes'])}"
    )
    for name, advice in sorted(rotated["to_do"].items()):
        click.echo(f"{name}: {advice}")
    for name in rotated["not_given"]:
        click.echo(f"{name} joined meanwhile and was not given the secret: it is cut off")
    for name, reason in sorted(rotated["silent"].items()):
        click.echo(
            f"{name} may still serve connections that began with the old secret ({reason}): "
            "restart it",
            err=True,
        )
    click.echo("commands and programs elsewhere need the new secret before they start again")


def _tell_listing(expulsions: list[dict[str, Any]], as_json: bool) -> None:
    rows = [{**one, "at": _iso(one["at"])} for one in expulsions]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        certificate = f"certificate {row['certificate'][:16]}" if row["certificate"] else ""
        click.echo(plain(f"{row['name']:<16} {row['at']}  {certificate}".rstrip()))
    if not rows:
        click.echo("no node is expelled")


def _tell_readmitted(expulsion: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"readmitted": expulsion["name"]}))
        return
    click.echo(f"node {expulsion['name']} may join again")
    if expulsion["certificate"]:
        click.echo("its old certificate is accepted again as well: give it another one")
