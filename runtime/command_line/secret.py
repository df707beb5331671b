"""`understudy secret`: the secret of a running cluster, and how it is changed without a restart."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from runtime.command_line.asking import Answers, Member, ask_nodes
from runtime.command_line.connect import cluster_options, connect_with, security_for
from runtime.environment import SystemEnvironment, host_identity
from runtime.links.encryption import Tls
from runtime.links.keyring import Keyring, read_secrets, secret_id, write_secrets
from runtime.links.transports import is_loopback
from runtime.membership.cluster_client import ClusterClient
from runtime.membership.cluster_session import SIZE, VARIABLE
from runtime.membership.keyring_service import KeyringFacts, keyring_of_node
from runtime.membership.rotation import RotationStep, next_step

STEP_SECONDS = 10.0
"""How long a node may take for one step."""

STATUS_SECONDS = 10.0

PAST = {"install": "accepts", "use": "proves", "keep": "accepts nothing but"}


@click.group()
def secret() -> None:
    """Change the secret of a running cluster, and see which nodes have which."""


@attrs.frozen
class _Rotation:
    """What the user wants: the cluster is to have `target` only, but for the nodes `without`.
    `file`: has the new secret, which is the target unless the rotation is taken `back`.
    """

    target: bytes
    file: Path
    back: bool
    without: tuple[str, ...]


@secret.command(epilog="Example:  understudy secret rotate --secret-file now --to next")
@click.option(
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
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
    multiple=True,
    metavar="NODE",
    help="Go on without this node if it does not answer. May be given more than once.",
)
@cluster_options
def rotate(
    to: Path,
    back: bool,
    without: tuple[str, ...],
    address: str,
    cluster: str,
    secret_file: Path | None,
    as_json: bool,
) -> None:
    """Give the cluster another secret while it runs.

    All nodes accept the new secret besides the old one, then all prove themselves by it, and then
    the old one is removed. A node writes the new secret to its own secret file; what you must do
    where it cannot is printed. Run the command again to go on with a rotation that was interrupted.
    """
    keyring, tls = security_for(address, secret_file)
    if keyring.origin == "certificates":
        raise click.ClickException("without a secret, certificates prove the nodes: see `tls`")
    if secret_file is not None and to.exists() and os.path.samefile(to, secret_file):
        raise click.UsageError(f"--to and --secret-file are the same file, {to}: give two")
    if back and not to.exists():
        raise click.UsageError(f"there is no {to}: --back needs the secret that was rotated to")
    old = keyring.secrets()
    new = _new_secret(to)
    target = new
    if back:
        before = [one for one in old if one != new]
        if not before:
            raise click.UsageError(
                f"{to} has the only secret that is known here: give the one of before with "
                "--secret-file"
            )
        target = before[0]
    known = Keyring(tuple(dict.fromkeys((*old, new))))
    rotation = _Rotation(target, to, back, without)
    found = trio.run(_rotate, address, cluster, known, tls, rotation, not as_json)
    _tell(rotation, found, as_json)


@secret.command(epilog="Example:  understudy secret status")
@cluster_options
def status(address: str, cluster: str, secret_file: Path | None, as_json: bool) -> None:
    """Show which secrets each node accepts, by ids that tell nothing of them, and where from."""
    keyring, tls = security_for(address, secret_file)
    answers = trio.run(_status, address, cluster, keyring, tls)
    answers.warn()
    if as_json:
        told = {node: attrs.asdict(facts) for node, facts in sorted(answers.by_node.items())}
        click.echo(json.dumps(told, indent=2))
        return
    for node, facts in sorted(answers.by_node.items()):
        also = f" (also accepts {', '.join(facts.ids[1:])})" if facts.ids[1:] else ""
        where = facts.path or facts.origin
        click.echo(f"{node:<16} {facts.ids[0]}{also}  {where}  {facts.problem}".rstrip())


def _new_secret(path: Path) -> bytes:
    """The secret in this file, which is made now if there is none."""
    if not path.exists():
        try:
            write_secrets(path, [SystemEnvironment().token(SIZE).hex().encode()])
        except OSError as error:
            raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
        click.echo(f"made a new secret: {path}", err=True)
    elif os.stat(path).st_mode & 0o077:
        raise click.ClickException(f"others can read the secret in {path}: chmod 600 {path}")
    found = read_secrets(path)
    if len(found) != 1:
        raise click.UsageError(f"{path} has {len(found)} secrets, and the cluster is to have one")
    return found[0]


async def _status(address: str, cluster: str, keyring: Keyring, tls: Tls) -> Answers:
    async with connect_with(address, cluster, keyring, tls) as client:
        return await _facts(client, client.status["members"])


async def _rotate(
    address: str, cluster: str, keyring: Keyring, tls: Tls, rotation: _Rotation, chatty: bool
) -> dict[str, KeyringFacts]:
    """Walk the cluster until all nodes have the target only. Returns what they have."""
    async with connect_with(address, cluster, keyring, tls) as client:
        while True:
            # Anew before each step: nodes that have joined meanwhile are to be taken along.
            members = await _members(client)
            _check_not_plain(members, tls)
            found = _heeded(await _facts(client, members), rotation)
            _check_kept(members, found, rotation)
            target = secret_id(rotation.target)
            step = next_step({node: facts.ids for node, facts in found.items()}, target)
            if step is None:
                return found
            if step.step == "keep":
                # As the nodes will refuse the other one from now on.
                keyring.use(target)
            await _take(client, members, step, rotation)
            if chatty:
                nodes = ", ".join(sorted(step.nodes))
                click.echo(f"{nodes}: {PAST[step.step]} the secret {target}")


async def _members(client: ClusterClient) -> list[Member]:
    service = client.endpoint.node_service(client.status["node"], client.status["incarnation"])
    told: dict[str, Any] = await service.options(timeout=STATUS_SECONDS).status()
    client.follow(told["members"])
    return list(told["members"])


async def _facts(client: ClusterClient, members: Sequence[Member]) -> Answers:
    async def ask(member: Member) -> KeyringFacts:
        service = keyring_of_node(client.endpoint, member["name"], member["incarnation"])
        return KeyringFacts.read(await service.facts.options(timeout=STEP_SECONDS)())

    return await ask_nodes(client, ask, members)


def _heeded(answers: Answers, rotation: _Rotation) -> dict[str, KeyringFacts]:
    """The keyrings of the nodes that are to change theirs. Raises `ClickException` if one of them
    does not answer.
    """
    silent = {
        node: reason for node, reason in answers.silent.items() if node not in rotation.without
    }
    if silent:
        listed = "; ".join(f"{node}: {reason}" for node, reason in sorted(silent.items()))
        raise click.ClickException(
            f"the rotation waits for {', '.join(sorted(silent))}, without whose answer a secret is "
            f"not removed, and nothing is broken meanwhile ({listed}). See to it and run the same "
            "command again; or leave it out with --without NODE, and give it the new secret before "
            "it starts again; or take the rotation back with --back"
        )
    return dict(answers.by_node)


async def _take(
    client: ClusterClient, members: Sequence[Member], step: RotationStep, rotation: _Rotation
) -> None:
    """Do one step on its nodes. Raises `ClickException` if one of them has not done it."""
    argument: bytes | str = secret_id(rotation.target)
    if step.step == "install":
        argument = rotation.target

    async def ask(member: Member) -> KeyringFacts:
        service = keyring_of_node(client.endpoint, member["name"], member["incarnation"])
        call: Callable[..., Any] = getattr(service, step.step).options(timeout=STEP_SECONDS)
        return KeyringFacts.read(await call(argument))

    chosen = [member for member in members if member["name"] in step.nodes]
    answers = await ask_nodes(client, ask, chosen)
    facts = _heeded(answers, rotation)
    target = secret_id(rotation.target)
    for node, told in facts.items():
        done = {
            "install": target in told.ids,
            "use": told.ids[0] == target,
            "keep": told.ids == (target,),
        }
        if not done[step.step]:
            raise click.ClickException(f"node {node} has not changed its secret: {told.problem}")


def _check_not_plain(members: Sequence[Member], tls: Tls) -> None:
    """Refuse to send a secret over a network without encryption."""
    if tls.mode not in ("off", "accept"):
        return
    here = host_identity()
    outside = [
        member["name"]
        for member in members
        if member["host"] != here and not all(map(is_loopback, member["addresses"]))
    ]
    if outside:
        raise click.ClickException(
            f"with --tls {tls.mode} the new secret could be read on the way to "
            f"{', '.join(sorted(outside))}: write both secrets, one in a line, to the secret files "
            "of all nodes; then the new one first; then the new one only"
        )


def _check_kept(
    members: Sequence[Member], found: dict[str, KeyringFacts], rotation: _Rotation
) -> None:
    """Refuse to take a rotation back where a node of this machine would write the secret of before
    over the only copy of the new one. Raises `ClickException`.
    """
    if not rotation.back:
        return
    here = host_identity()
    for member in members:
        facts = found.get(member["name"])
        if facts is None or not facts.path or member["host"] != here:
            continue
        # Only of this machine: the same path elsewhere is another file.
        if os.path.exists(facts.path) and os.path.samefile(facts.path, rotation.file):
            raise click.ClickException(
                f"node {member['name']} has its secret in {rotation.file} itself, where it would "
                "write the secret of before over the new one: copy that file, and give the copy "
                "with --to"
            )


def _tell(rotation: _Rotation, found: dict[str, KeyringFacts], as_json: bool) -> None:
    target = secret_id(rotation.target)
    left = {node: advice for node, facts in found.items() if (advice := _advice(rotation, facts))}
    if as_json:
        click.echo(json.dumps({"secret": target, "nodes": sorted(found), "to_do": left}, indent=2))
        return
    click.echo(f"the cluster has the secret {target} only: {', '.join(sorted(found))}")
    for node, advice in sorted(left.items()):
        click.echo(f"{node}: {advice}")
    if rotation.without:
        click.echo(f"left out: {', '.join(rotation.without)}; other nodes refuse them now")
    click.echo(
        "nodes that were not running, and commands and programs elsewhere, need the new secret "
        "before they start again"
    )


def _advice(rotation: _Rotation, facts: KeyringFacts) -> str:
    """What the user must do before that node starts again; "" for nothing."""
    new = "the secret of before" if rotation.back else f"the secret in {rotation.file}"
    if facts.origin == "file":
        if not facts.problem:
            return ""
        return f"could not write {facts.path} ({facts.problem}): put {new} there before it restarts"
    if facts.origin == "environment":
        return f"has it in memory only: set {VARIABLE} to {new} before it restarts"
    return f"has it in memory only: its program must give {new} when it restarts"
