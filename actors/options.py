"""One vocabulary of options, for spawning, for calling and for child specs.

Options are frozen; `changed(...)` gives a copy. None means "not said here", so that what is said closer to the call wins: the
call's options over the method's, the method's over the actor's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypedDict, get_args

import attrs

from actors.messages import message
from actors.retry import RetryPolicy

Isolation = Literal["none", "process"]
Placement = Literal["spread", "pack"]

DEFAULT_MAILBOX_LIMIT = 10_000


def _positive_seconds(instance: object, attribute: attrs.Attribute[float | None], value: float | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{attribute.name} must be a number of seconds or None, not {value!r}")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{attribute.name} must be a positive number of seconds, not {value!r}; leave it out for no limit")


def _name(instance: object, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise TypeError(f"{attribute.name} must be a str or None, not {value!r}")
    if not value or value != value.strip() or value.startswith("@") or any(ord(c) < 32 for c in value) or len(value) > 255:
        raise ValueError(
            f"{attribute.name}={value!r} is not a usable name: 1 to 255 characters, none of control, no spaces at the ends, no leading '@'"
        )


def _labels(pairs: Mapping[str, str]) -> dict[str, str]:
    labels = dict(pairs)
    for key, value in labels.items():
        texts: tuple[object, object] = (key, value)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"labels are text for text, not {key!r}: {value!r}")
    return labels


def _resources(amounts: Mapping[str, float]) -> dict[str, float]:
    resources = dict(amounts)
    for name, amount in resources.items():
        given: tuple[object, object] = (name, amount)
        if not isinstance(given[0], str) or isinstance(given[1], bool) or not isinstance(given[1], int | float):
            raise TypeError(f"resources are numbers by name, not {name!r}: {amount!r}")
        if not 0 <= amount < math.inf:
            raise ValueError(f"resources are amounts of at least 0, not {name!r}: {amount!r}")
    return resources


def _placement(instance: object, attribute: attrs.Attribute[Placement], value: Placement) -> None:
    if value not in get_args(Placement):
        raise ValueError(f"{attribute.name} must be one of {', '.join(map(repr, get_args(Placement)))}, not {value!r}")


def _memory_limit(instance: SpawnOptions, attribute: attrs.Attribute[int | None], value: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"memory_limit must be a number of bytes or None, not {value!r}")
    if value < 1:
        raise ValueError(f"memory_limit must be a positive number of bytes, not {value!r}; leave it out for no limit")
    if instance.isolation != "process":
        raise ValueError('memory_limit is for an actor with a process of its own: give it together with isolation="process"')


class CallChanges(TypedDict, total=False):
    """The keywords that `options(...)` of a method takes; see `CallOptions`."""

    timeout: float | None
    retry: RetryPolicy | None


class SpawnChanges(CallChanges, total=False):
    """The keywords that `node.options(...)` takes; see `SpawnOptions`."""

    name: str | None
    on: str | None
    labels: Mapping[str, str]
    resources: Mapping[str, float]
    placement: Placement | None
    mailbox_limit: int
    idle_timeout: float | None
    isolation: Isolation
    memory_limit: int | None


@message
@attrs.frozen(kw_only=True)
class CallOptions:
    """How a call is made.

    `timeout`: seconds that the whole call may take, all its attempts included; the caller's trio deadline holds besides.
    `retry`: when and how often the runtime may repeat it. Without one, only what certainly did not run, because its actor was moving
    or its connection was not there, is repeated.
    Raises TypeError or ValueError, naming the field, for values that make no sense.
    """

    timeout: float | None = attrs.field(default=None, validator=_positive_seconds)
    retry: RetryPolicy | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.instance_of(RetryPolicy)))

    @property
    def is_default(self) -> bool:
        """True if nothing was said: the call takes the short way."""
        return self.timeout is None and self.retry is None

    def over(self, other: CallOptions) -> CallOptions:
        """These options where they say something, `other`'s where they do not."""
        if other.is_default:
            return self
        return CallOptions(
            timeout=other.timeout if self.timeout is None else self.timeout, retry=other.retry if self.retry is None else self.retry
        )


@message
@attrs.frozen(kw_only=True)
class SpawnOptions(CallOptions):
    """How an actor is started, and how it is called where neither the method nor the call says otherwise.

    `name`: unique in the cluster; generated if None, and then the actor cannot be looked up or moved.
    `on`: name of the node to run on; None: this node, or for supervised children any node that fits.
    `labels`: the node must carry all of these.
    `resources`: amounts by name that the actor takes of its node while it lives; a node that has not as much left is not chosen.
    `placement`: of several nodes that fit, "spread" takes the one with the fewest actors, "pack" the one with the most; None: this node if
    it fits and nothing else was asked for, or for supervised children "spread".
    `mailbox_limit`: calls that may wait at the actor; more are refused with `MailboxFullError`.
    `idle_timeout`: seconds without a call after which the actor is stopped, with the reason "idle"; at most twice as many pass.
    `isolation`: "none", or "process" for a process of its own, which can crash, hang or be killed alone.
    `memory_limit`: bytes of address space that this process may have, only with isolation="process"; None: what the system grants.
    """

    name: str | None = attrs.field(default=None, validator=_name)
    on: str | None = attrs.field(default=None, validator=_name)
    labels: Mapping[str, str] = attrs.field(factory=dict, converter=_labels)
    resources: Mapping[str, float] = attrs.field(factory=dict, converter=_resources)
    placement: Placement | None = attrs.field(default=None, validator=attrs.validators.optional(_placement))
    mailbox_limit: int = attrs.field(default=DEFAULT_MAILBOX_LIMIT, validator=[attrs.validators.instance_of(int), attrs.validators.ge(1)])
    idle_timeout: float | None = attrs.field(default=None, validator=_positive_seconds)
    isolation: Isolation = attrs.field(default="none", validator=attrs.validators.in_(get_args(Isolation)))
    memory_limit: int | None = attrs.field(default=None, validator=_memory_limit)

    def call_options(self) -> CallOptions:
        """Only what concerns calls."""
        return CallOptions(timeout=self.timeout, retry=self.retry)


NO_CALL_OPTIONS = CallOptions()
