"""The service `@keyring` of every node: reports which secrets the node accepts, and changes them
for `understudy secret`. Secrets are named by their ids; only `install` gets a secret itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from actors.actor import Actor
from actors.errors import StoreError
from actors.method import method
from runtime.calls.endpoint import RpcEndpoint
from runtime.links.keyring import Keyring, Origin

KEYRING_SERVICE = "@keyring"


@attrs.frozen
class KeyringFacts:
    """A node's answer about its keyring. `ids`: the ids of the secrets that it accepts; with the
    first one it proves itself. `path`: the file that they are from. `problem`: why the last change
    failed, or why it is not in the file.
    """

    ids: tuple[str, ...]
    origin: Origin
    path: str
    problem: str

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> KeyringFacts:
        """Read the answer of a node."""
        return cls(tuple(plain["ids"]), plain["origin"], plain["path"], plain["problem"])


class KeyringService(Actor):
    """Changes the secrets of a node. `share` gives them to the node's other processes; `before_end`
    is called with the secret that stays, before the others are removed; `prove_again` drops all
    connections of the node, so that its peers have to prove a secret that it accepts now.
    """

    def __init__(
        self,
        keyring: Keyring,
        share: Callable[[], Awaitable[None]],
        before_end: Callable[[bytes], Awaitable[None]],
        prove_again: Callable[[], None],
    ) -> None:
        self._keyring = keyring
        self._share = share
        self._before_end = before_end
        self._prove_again = prove_again

    @method(concurrent=True, idempotent=True)
    async def facts(self) -> dict[str, object]:
        """The fields of `KeyringFacts`."""
        return self._facts()

    @method(concurrent=True, idempotent=True)
    async def install(self, secret: bytes) -> dict[str, object]:
        """Accept another secret as well."""
        return await self._change(lambda: self._keyring.install(secret))

    @method(concurrent=True, idempotent=True)
    async def use(self, name: str) -> dict[str, object]:
        """Prove this node by the installed secret of this id."""
        return await self._change(lambda: self._keyring.use(name))

    @method(concurrent=True, idempotent=True)
    async def keep(self, name: str) -> dict[str, object]:
        """Remove all secrets but that of this id, which is in use."""
        secrets = self._keyring.secrets()
        if self._keyring.ids()[0] != name:
            return self._facts("the secret that is to stay is not in use here")
        # The store first: a node that is started from here on proves itself by the secret that
        # stays, also where this node fails before it has removed the others.
        try:
            await self._before_end(secrets[0])
        except StoreError as error:
            return self._facts(f"the store does not have the new secret yet: {error}")
        return await self._change(lambda: self._keyring.keep(name))

    @method(concurrent=True, idempotent=True)
    async def prove_again(self) -> None:
        """Have all peers prove themselves again, also those whose sessions began with a secret that
        is removed by now. No session ends by it, but those of peers that cannot.
        """
        self._prove_again()

    async def _change(self, change: Callable[[], None]) -> dict[str, object]:
        if self._keyring.origin == "certificates":
            return self._facts("it has no secret: certificates prove it")
        if self._keyring.origin == "shared":
            return self._facts(
                f"it has the secret that all clusters of one user on one machine share, in "
                f"{self._keyring.path}, so it cannot have another one: start it with --secret-file"
            )
        try:
            change()
        except ValueError as error:
            return self._facts(str(error))
        # Before the answer: the next step is taken when all nodes have answered, and their
        # processes must be as far by then.
        await self._share()
        return self._facts()

    def _facts(self, problem: str = "") -> dict[str, object]:
        path = self._keyring.path
        return {
            "ids": self._keyring.ids(),
            "origin": self._keyring.origin,
            "path": "" if path is None else str(path),
            "problem": problem or self._keyring.problem,
        }


def keyring_of_node(endpoint: RpcEndpoint, node: str, incarnation: int) -> Any:
    """The service of a node, to be called."""
    return endpoint.system_handle(KeyringService, KEYRING_SERVICE, node, incarnation)
