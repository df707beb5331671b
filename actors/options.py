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
    mailbox_limit: int
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
    `mailbox_limit`: calls that may wait at the actor; more are refused with `MailboxFullError`.
    `isolation`: "none", or "process" for a process of its own, which can crash, hang or be killed alone.
    `memory_limit`: bytes of address space that this process may have, only with isolation="process"; None: what the system grants.
    """

    name: str | None = attrs.field(default=None, validator=_name)
    on: str | None = attrs.field(default=None, validator=_name)
    labels: Mapping[str, str] = attrs.field(factory=dict, converter=_labels)
    mailbox_limit: int = attrs.field(default=DEFAULT_MAILBOX_LIMIT, validator=[attrs.validators.instance_of(int), attrs.validators.ge(1)])
    isolation: Isolation = attrs.field(default="none", validator=attrs.validators.in_(get_args(Isolation)))
    memory_limit: int | None = attrs.field(default=None, validator=_memory_limit)

    def call_options(self) -> CallOptions:
        """Only what concerns calls."""
        return CallOptions(timeout=self.timeout, retry=self.retry)


NO_CALL_OPTIONS = CallOptions()
