"""The parameters of a rendezvous: the job, the number of agents, and the times to wait.

After torchelastic's `RendezvousParameters` and `RendezvousTimeout`, with one difference: an unknown
option is an error.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import ClassVar

import attrs

from actors.errors import UnderstudyError

TIMEOUT_OPTIONS = (
    "join_timeout",
    "timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
)

AGENT_OPTIONS = (
    *TIMEOUT_OPTIONS,
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "connect_timeout",
    "retention",
    "store_timeout",
)
"""The options that all our back-ends accept; see `AgentSettings`."""

TRUE = ("1", "true", "t", "yes", "y")

FALSE = ("0", "false", "f", "no", "n")

# The errors of a rendezvous, named as in torchelastic.


class RendezvousError(UnderstudyError):
    """Base class of the errors of rendezvous."""

    has_page: ClassVar[bool] = True


class RendezvousClosedError(RendezvousError):
    """The rendezvous is closed: no round will follow."""

    has_page: ClassVar[bool] = True


class RendezvousFinishedError(RendezvousClosedError):
    """The rendezvous was closed because the job has finished."""

    has_page: ClassVar[bool] = True


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """Not enough agents came in time. Trying again is safe."""

    has_page: ClassVar[bool] = True


class RendezvousConnectionError(RendezvousError):
    """The store of the rendezvous cannot be reached."""

    has_page: ClassVar[bool] = True


class RendezvousStateError(RendezvousError):
    """The record of the rendezvous in the store is malformed."""

    has_page: ClassVar[bool] = True


class RendezvousGracefulExitError(RendezvousError):
    """This agent was a spare, and the job ended without it: no failure."""

    has_page: ClassVar[bool] = True


class RendezvousMismatchError(RendezvousStateError, ValueError):
    """Two different jobs have the same id, or two agents the same rank. Nothing was changed."""

    has_page: ClassVar[bool] = True


class RoundOverError(RendezvousError):
    """The round is over: its store accepts no more writes, and calls that wait in it end with this
    error.
    """

    has_page: ClassVar[bool] = True


class StoreTimeoutError(RendezvousError, TimeoutError):
    """A wait in a job's store has timed out."""

    has_page: ClassVar[bool] = True


def back_end_of(endpoint: str) -> str:
    """Return which of our back-ends an endpoint belongs to: an address with `etcd://`, a path with
    a slash in it, or `HOST:PORT` of a node.
    """
    if endpoint.startswith("etcd://"):
        return "etcd"
    return "file" if "/" in endpoint else "understudy"


class RendezvousParameters:
    """The parameters from which a handler is made. `backend`: its name in the registry. `endpoint`:
    its address, in the form that the back-end expects. `run_id`: the job, the same for all its
    agents. `local_addr`: under which others reach this host; by default its host name. `config`:
    options of the back-end.

    Raises ValueError for an empty name or id and for numbers of nodes that cannot be met.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **config: object,
    ) -> None:
        if not backend:
            raise ValueError("The rendezvous backend name must be a non-empty string.")
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        if min_nodes < 1:
            raise ValueError(
                f"The minimum number of rendezvous nodes ({min_nodes}) must be greater than zero."
            )
        if max_nodes < min_nodes:
            raise ValueError(
                f"The maximum number of rendezvous nodes ({max_nodes}) must be greater than or "
                "equal to the minimum number of rendezvous "
                f"nodes ({min_nodes})."
            )
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config = dict(config)

    def get(self, key: str, default: object = None) -> object:
        """Return the option `key`."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return the option `key` as a bool. Accepts bools, 0 and 1, and texts such as "true", "y"
        or "0". Raises ValueError for others.
        """
        value = self.config.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | str) and (text := str(value).lower()) in TRUE + FALSE:
            return text in TRUE
        raise ValueError(
            f"The rendezvous configuration option '{key}' does not represent a valid boolean value."
        )

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return the option `key` as an integer. Raises ValueError if it is none."""
        value = self.config.get(key, default)
        if value is None:
            return None
        try:
            if isinstance(value, int | str):
                return int(value)
        except ValueError:
            pass
        raise ValueError(
            f"The rendezvous configuration option '{key}' does not represent a valid integer value."
        )

    def get_as_seconds(self, key: str, default: float) -> float:
        """Return the option `key` as a number of seconds. Raises ValueError if it is no finite
        number.
        """
        value = self.config.get(key, default)
        try:
            if (
                isinstance(value, int | float | str)
                and not isinstance(value, bool)
                and math.isfinite(seconds := float(value))
            ):
                return seconds
        except ValueError:
            pass
        raise ValueError(
            f"The rendezvous configuration option '{key}' is a number of seconds, not {value!r}."
        )

    def check_options(self, known: Iterable[str]) -> None:
        """Check that the back-end knows all options. Raises ValueError, which suggests the most
        similar option.
        """
        choices = sorted(known)
        for key in self.config:
            if key not in choices:
                near = difflib.get_close_matches(key, choices, n=1)
                raise ValueError(
                    f"the rendezvous back-end {self.backend!r} has no option {key!r}; "
                    + (f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(choices)}")
                )


def _positive(instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    if value <= 0:
        raise ValueError(f"The {attribute.name} timeout ({value:g} s) must be positive.")


def _not_negative(instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    if value < 0:
        raise ValueError(f"The {attribute.name} timeout ({value:g} s) must not be negative.")


@attrs.frozen
class RendezvousTimeout:
    """In seconds. `join`: until a round is complete. `last_call`: how long a round that has enough
    agents waits for more; 0 starts it at once. `close`: for writing that the rendezvous is closed.
    `heartbeat`: for one renewal of an agent's lease.
    """

    join: float = attrs.field(default=600.0, validator=_positive)
    last_call: float = attrs.field(default=30.0, validator=_not_negative)
    close: float = attrs.field(default=30.0, validator=_positive)
    heartbeat: float = attrs.field(default=5.0, validator=_positive)

    @classmethod
    def of(cls, parameters: RendezvousParameters) -> RendezvousTimeout:
        """Read the timeouts from the options `join_timeout` or `timeout`, `last_call_timeout`,
        `close_timeout`, `heartbeat_timeout`. Raises ValueError.
        """
        if "timeout" in parameters.config and "join_timeout" in parameters.config:
            raise ValueError(
                "the options 'timeout' and 'join_timeout' are two names of one thing: give one of "
                "them"
            )
        return cls(
            parameters.get_as_seconds("join_timeout", parameters.get_as_seconds("timeout", 600.0)),
            parameters.get_as_seconds("last_call_timeout", 30.0),
            parameters.get_as_seconds("close_timeout", 30.0),
            parameters.get_as_seconds("heartbeat_timeout", 5.0),
        )


@attrs.frozen
class AgentSettings:
    """The settings of one agent in a rendezvous. `wanted`: its rank, if ranks are fixed."""

    parameters: RendezvousParameters
    timeout: RendezvousTimeout
    keep_alive_interval: float = 5.0
    """Seconds between two renewals of the agent's lease."""
    lease_seconds: float = 15.0
    """Seconds without a renewal after which an agent counts as dead: `keep_alive_interval` times
    `keep_alive_max_attempt`.
    """
    connect_timeout: float = 30.0
    """Seconds for which to retry if the endpoint does not answer; 0: try once."""
    retention: float = 7200.0
    """Seconds for which a job's data is kept after its last agent has left."""
    store_timeout: float = 300.0
    """Default seconds for which calls of the job's stores wait."""
    wanted: int | None = None

    @classmethod
    def of(
        cls, parameters: RendezvousParameters, *more_options: str, wanted: int | None = None
    ) -> AgentSettings:
        """Read the settings from the options; `more_options`: further options of the back-end.
        Raises ValueError.
        """
        parameters.check_options((*AGENT_OPTIONS, *more_options))
        interval = parameters.get_as_seconds("keep_alive_interval", 5.0)
        attempts = parameters.get_as_int("keep_alive_max_attempt", 3) or 0
        connect_timeout = parameters.get_as_seconds("connect_timeout", 30.0)
        retention = parameters.get_as_seconds("retention", 7200.0)
        store_timeout = parameters.get_as_seconds("store_timeout", 300.0)
        if interval <= 0:
            raise ValueError(f"The keep_alive_interval ({interval:g} s) must be positive.")
        if attempts < 2:
            raise ValueError(
                "keep_alive_max_attempt is at least 2, so that one lost renewal ends nothing; "
                f"not {attempts}"
            )
        if connect_timeout < 0:
            raise ValueError(f"The connect_timeout ({connect_timeout:g} s) must not be negative.")
        if retention <= interval * attempts:
            raise ValueError(
                f"retention ({retention:g} s) is longer than the lease of an agent "
                f"({interval * attempts:g} s)"
            )
        if store_timeout <= 0:
            raise ValueError(f"The store_timeout ({store_timeout:g} s) must be positive.")
        timeout = RendezvousTimeout.of(parameters)
        return cls(
            parameters,
            timeout,
            interval,
            interval * attempts,
            connect_timeout,
            retention,
            store_timeout,
            wanted,
        )
