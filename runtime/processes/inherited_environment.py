"""The environment that processes inherit which the runtime starts to run users' code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SECRET_VARIABLES: Final = frozenset(
    ("UNDERSTUDY_SECRET", "UNDERSTUDY_GATEWAY_TOKEN", "UNDERSTUDY_DASHBOARD_TOKEN")
)
"""Variables whose values admit everyone who reads them."""


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that hold secrets. Processes that run users' code do not
    need these: isolated actors have the secret from their node. Whatever such code starts would
    inherit them too, and programs that report crashes copy all variables.
    """
    return {name: value for name, value in environment.items() if name not in SECRET_VARIABLES}
