"""The rotation of a running cluster's secret, walked through its nodes by a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import click

from actors.identifiers import NodeId
from runtime.command_line.node_answers import Answers, Member, ask_nodes
from runtime.environment import SystemEnvironment, host_identity
from runtime.links.encryption import Tls
from runtime.links.keyring import Keyring, guessable, read_secrets, secret_id
from runtime.links.transports import is_loopback
from runtime.membership.cluster_client import ClusterClient
from runtime.membership.cluster_secret import SIZE, VARIABLE
from runtime.membership.keyring_service import KeyringFacts, keyring_of_node
from runtime.membership.rotation import RotationStep, next_step

STEP_SECONDS = 10.0
"""How long a node may take for one step."""

STATUS_SECONDS = 10.0
"""How long the dialled node may take to name the members."""

PAST = {"install": "accepts", "use": "proves", "keep": "accepts nothing but"}


class NewSecret:
    """The new secret, in the file at `path` or, where there is none, made now. What was made is in
    memory until `write`, so that a command which fails before it needs the secret leaves nothing.

    Raises `click.ClickException` for a file that has no secret which the cluster could have.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_given = False
        """True from when a node may have it."""
        self._is_written = os.path.exists(path)
        self._is_made = not self._is_written
        if self._is_made:
            self.secret = SystemEnvironment().token(SIZE).hex().encode()
            return
        found = read_secrets(path)
        if len(found) != 1:
            raise click.UsageError(
                f"{path} has {len(found)} secrets, and the cluster is to have one"
            )
        owner = path.stat().st_uid
        if owner not in (0, os.geteuid()):
            # Root reads it all the same.
            raise click.UsageError(
                f"{path} belongs to another user (uid {owner}), who knows the secret in it"
            )
        self.secret = found[0]

    def refuse_guessable(self) -> None:
        """Raise `click.UsageError` for a secret that the cluster should not get."""
        if why := guessable([self.secret]):
            raise click.UsageError(
                f"{self.path} has {why}; or remove the file, and this command makes a secret"
            )

    def write(self) -> None:
        """Write it to its file, if it is not there yet. Raises `click.ClickException`."""
        if self._is_written:
            return
        target = os.path.realpath(self.path)
        try:
            # Never over a file that another run of the command has made meanwhile: nodes may
            # have the secret in it.
            handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise click.ClickException(
                f"{self.path} was made meanwhile, perhaps by another run of this command: run it "
                "again to use the secret in that file"
            ) from None
        except OSError as error:
            raise click.ClickException(f"{self.path} cannot be written: {error.strerror}") from None
        self._is_written = True
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self.secret + b"\n")
                file.flush()
                os.fsync(handle)
        except OSError as error:
            self.discard()
            raise click.ClickException(f"{self.path} cannot be written: {error.strerror}") from None
        click.echo(f"made a new secret: {self.path}", err=True)

    def on_given(self) -> None:
        """Write it, because a node will have it next. Raises `click.ClickException`."""
        self.write()
        self.is_given = True

    def discard(self) -> None:
        """Remove the file that this command has made, if no node can have the secret in it."""
        if self._is_made and self._is_written and not self.is_given:
            self._is_written = False
            with suppress(OSError):
                os.unlink(os.path.realpath(self.path))

    @contextmanager
    def told_when_it_fails(self) -> Iterator[None]:
        """Say how to go on if the block fails after a node may have been given the secret, and
        leave no file if it fails before.
        """
        try:
            yield
        except BaseException:
            self.discard()
            if self.is_given:
                click.echo(
                    f"the rotation is not finished: nodes may accept the secret in {self.path} "
                    "besides the one of before. Keep both files. Run the same command again to go "
                    f"on, or `understudy secret rotate --to {self.path} --back` to take it back",
                    err=True,
                )
            raise


@attrs.frozen
class Rotation:
    """What the user wants: the cluster is to have `target` only, but for the nodes `without`.
    `new`: the new secret, which is the target unless the rotation is taken `back`. `only`:
    the members that may have it; None for all, also those that join.
    """

    target: bytes
    new: NewSecret
    back: bool = False
    without: tuple[str, ...] = ()
    only: frozenset[NodeId] | None = None

    def concerns(self, member: Member) -> bool:
        """True if this member is to be given the secret."""
        return self.only is None or (member["name"], member["incarnation"]) in self.only


async def rotate_secret(
    client: ClusterClient, keyring: Keyring, tls: Tls, rotation: Rotation, chatty: bool
) -> dict[str, KeyringFacts]:
    """Walk the cluster until all nodes have the target only. Returns what they have. `keyring`:
    that of the client. Raises `ClickException`.
    """
    while True:
        # Anew before each step: nodes that have joined meanwhile are to be taken along.
        members = [one for one in await members_now(client) if rotation.concerns(one)]
        check_not_plain(members, tls)
        found = _heeded(await keyring_facts(client, members), rotation)
        check_not_shared(found)
        _check_kept(members, found, rotation)
        target = secret_id(rotation.target)
        step = next_step({node: facts.ids for node, facts in found.items()}, target)
        if step is None:
            return found
        if step.step == "install" and not rotation.back:
            rotation.new.on_given()
        if step.step == "keep":
            # Before the step: from then on the nodes refuse the other one.
            keyring.use(target)
        await _take(client, members, step, rotation)
        if chatty:
            nodes = ", ".join(sorted(step.nodes))
            click.echo(f"{nodes}: {PAST[step.step]} the secret {target}")


async def members_now(client: ClusterClient) -> list[Member]:
    """The members as the dialled node knows them now; the client follows them."""
    service = client.endpoint.node_service(client.status["node"], client.status["incarnation"])
    answer: dict[str, Any] = await service.options(timeout=STATUS_SECONDS).status()
    client.follow(answer["members"])
    return list(answer["members"])


async def keyring_facts(client: ClusterClient, members: Sequence[Member]) -> Answers:
    """What the members tell of their keyrings."""

    async def ask(member: Member) -> KeyringFacts:
        service = keyring_of_node(client.endpoint, member["name"], member["incarnation"])
        return KeyringFacts.read(await service.facts.options(timeout=STEP_SECONDS)())

    return await ask_nodes(client, ask, members)


def _heeded(answers: Answers, rotation: Rotation) -> dict[str, KeyringFacts]:
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
    client: ClusterClient, members: Sequence[Member], step: RotationStep, rotation: Rotation
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
    for node, state in facts.items():
        done = {
            "install": target in state.ids,
            "use": state.ids[0] == target,
            "keep": state.ids == (target,),
        }
        if not done[step.step]:
            raise click.ClickException(f"node {node} has not changed its secret: {state.problem}")


def check_not_plain(members: Sequence[Member], tls: Tls) -> None:
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


def check_not_shared(found: Mapping[str, KeyringFacts]) -> None:
    """Refuse to change the secret of a node that has it from the file of all clusters of a user.
    Raises `ClickException`.
    """
    for node, facts in sorted(found.items()):
        if facts.origin == "shared":
            raise click.ClickException(
                f"node {node} has the secret that all clusters of one user on one machine share, "
                f"in {facts.path}, so it cannot have another one: start it with --secret-file"
            )


def _check_kept(
    members: Sequence[Member], found: dict[str, KeyringFacts], rotation: Rotation
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
        if os.path.exists(facts.path) and os.path.samefile(facts.path, rotation.new.path):
            raise click.ClickException(
                f"node {member['name']} has its secret in {rotation.new.path} itself, where it "
                "would write the secret of before over the new one: copy that file, and give the "
                "copy with --to"
            )


def left_to_do(rotation: Rotation, found: Mapping[str, KeyringFacts]) -> dict[str, str]:
    """What the user must do at which nodes before they start again."""
    return {node: advice for node, facts in found.items() if (advice := _advice(rotation, facts))}


def _advice(rotation: Rotation, facts: KeyringFacts) -> str:
    """What the user must do before that node starts again; "" for nothing."""
    new = "the secret of before" if rotation.back else f"the secret in {rotation.new.path}"
    if facts.origin == "file":
        if not facts.problem:
            return ""
        return f"could not write {facts.path} ({facts.problem}): put {new} there before it restarts"
    if facts.origin == "environment":
        return f"has it in memory only: set {VARIABLE} to {new} before it restarts"
    return f"has it in memory only: its program must give {new} when it restarts"
