"""The service `@child-keyring` of the process of an isolated actor: its node gives it the secrets
by which it proves itself to other nodes, each time they change.
"""

from __future__ import annotations

from actors.actor import Actor
from actors.method import method
from runtime.links.keyring import Keyring

CHILD_KEYRING_SERVICE = "@child-keyring"


class ChildKeyringService(Actor):
    """Changes the keyring of this process."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    @method(concurrent=True, idempotent=True)
    async def replace(self, secrets: list[bytes]) -> None:
        """Have these secrets from now on, of which the first proves."""
        self._keyring.replace(secrets)
