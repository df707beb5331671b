"""`understudy secret`: the secret of a running cluster, and how it is changed without a restart."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import click
import trio

from runtime.command_line.connect import (
    ChosenCluster,
    cluster_options,
    connect_with,
    security_for,
)
from runtime.command_line.node_answers import Answers
from runtime.command_line.secret_rotation import (
    NewSecret,
    Rotation,
    keyring_facts,
    left_to_do,
    rotate_secret,
)
from runtime.command_line.units import PathName, Text
from runtime.command_line.usage import NamingGroup
from runtime.links.encryption import Tls
from runtime.links.keyring import Keyring, secret_id
from runtime.membership.keyring_service import KeyringFacts
from runtime.printable import plain


@click.group(cls=NamingGroup)
def secret() -> None:
    """Change the secret of a running cluster, and see which nodes have which."""


@secret.command(epilog="Example:  understudy secret rotate --secret-file now --to next")
@click.option(
    "--to",
    type=PathName(path_type=Path, dir_okay=False),
    required=True,
    help="File of the new secret. If there is none, it is made, with a random secret.",
)
@click.option(
    "--back",
    is_flag=True,
    help="Take a rotation to that secret back: the cluster is to have the one of --secret-file.",
)
@click.option(
    "--without",
    type=Text(),
    multiple=True,
    metavar="NODE",
    help="Go on without this node if it does not answer. May be given more than once.",
)
@cluster_options
def rotate(
    to: Path,
    back: bool,
    without: tuple[str, ...],
    chosen: ChosenCluster,
    as_json: bool,
) -> None:
    """Give the cluster another secret while it runs.

    All nodes accept the new secret besides the old one, then all prove themselves by it, and then
    the old one is removed. A node writes the new secret to its own secret file; what you must do
    where it cannot is printed. Run the command again to go on with a rotation that was interrupted.
    """
    keyring, tls = security_for(chosen)
    if keyring.origin == "certificates":
        raise click.ClickException("without a secret, certificates prove the nodes: see `tls`")
    own = chosen.secret_file
    if own is not None and to.exists() and os.path.samefile(to, own):
        raise click.UsageError(f"--to and --secret-file are the same file, {to}: give two")
    if back and not to.exists():
        raise click.UsageError(f"there is no {to}: --back needs the secret that was rotated to")
    old = keyring.secrets()
    new = NewSecret(to)
    target = new.secret
    if back:
        before = [one for one in old if one != new.secret]
        if not before:
            raise click.UsageError(
                f"{to} has the only secret that is known here: give the one of before with "
                "--secret-file"
            )
        target = before[0]
    else:
        new.refuse_guessable()
    known = Keyring(tuple(dict.fromkeys((*old, new.secret))))
    rotation = Rotation(target, new, back, without)
    with new.told_when_it_fails():
        found, members = trio.run(_rotate, chosen, known, tls, rotation, not as_json)
    _tell(rotation, found, members, as_json)


@secret.command(epilog="Example:  understudy secret status")
@cluster_options
def status(chosen: ChosenCluster, as_json: bool) -> None:
    """Show which secrets each node accepts, by ids that reveal nothing, and where from. Exit
    status 1 if a node does not answer.
    """
    keyring, tls = security_for(chosen)
    answers = trio.run(_status, chosen, keyring, tls)
    answers.warn()
    if as_json:
        answer = {node: attrs.asdict(facts) for node, facts in sorted(answers.by_node.items())}
        click.echo(json.dumps(answer, indent=2))
        raise SystemExit(1 if answers.silent else 0)
    for node, facts in sorted(answers.by_node.items()):
        also = f" (also accepts {', '.join(facts.ids[1:])})" if facts.ids[1:] else ""
        where = facts.path or facts.origin
        click.echo(plain(f"{node:<16} {facts.ids[0]}{also}  {where}  {facts.problem}").rstrip())
    raise SystemExit(1 if answers.silent else 0)


async def _status(chosen: ChosenCluster, keyring: Keyring, tls: Tls) -> Answers:
    async with connect_with(chosen, keyring, tls) as client:
        return await keyring_facts(client, client.status["members"])


async def _rotate(
    chosen: ChosenCluster, keyring: Keyring, tls: Tls, rotation: Rotation, chatty: bool
) -> tuple[dict[str, KeyringFacts], set[str]]:
    """The keyrings of the nodes that have the secret now, and the names of those that were members
    before.
    """
    async with connect_with(chosen, keyring, tls) as client:
        members = {member["name"] for member in client.status["members"]}
        return await rotate_secret(client, keyring, tls, rotation, chatty), members


def _tell(
    rotation: Rotation, found: dict[str, KeyringFacts], members: set[str], as_json: bool
) -> None:
    target = secret_id(rotation.target)
    left = left_to_do(rotation, found)
    if as_json:
        click.echo(json.dumps({"secret": target, "nodes": sorted(found), "to_do": left}, indent=2))
        return
    click.echo(f"the cluster has the secret {target} only: {', '.join(sorted(found))}")
    for node, advice in sorted(left.items()):
        click.echo(f"{node}: {advice}")
    left_out = [node for node in rotation.without if node not in found]
    if silent := [node for node in left_out if node in members]:
        click.echo(plain(f"left out: {', '.join(silent)}; other nodes refuse them now"))
    if unknown := [node for node in left_out if node not in members]:
        click.echo(plain(f"--without {', '.join(unknown)}: no member has that name"))
    if answered := [node for node in rotation.without if node in found]:
        click.echo(f"not left out, because they have answered: {', '.join(answered)}")
    click.echo(
        "nodes that were not running, and commands and programs elsewhere, need the new secret "
        "before they start again"
    )
