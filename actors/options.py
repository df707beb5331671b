"""One vocabulary of options, for spawning, for calling and for child specs.

Options are frozen; `changed(...)` gives a copy. None means "not said here", so that what is said
closer to the call wins: the call's options over the method's, the method's over the actor's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_args

import attrs

from actors.exact import exact, exact_fields
from actors.keywords import names_options
from actors.messages import sparse_message
from actors.retry import MOST_COUNT, RetryPolicy, check_whole_number
from actors.short_repr import short_repr

T = TypeVar("T")

Isolation = Literal["none", "process"]
Placement = Literal["spread", "pack"]

DEFAULT_MAILBOX_LIMIT = 10_000

DEFAULT_MAILBOX_BYTES = 1024 * 1024 * 1024

CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor, begins a line, or turns the direction of what follows: no name
has it, because names stand in logs and tables.
"""


MOST_NAME = 255
"""The most characters that the name of an actor or of a node may have."""


MOST_PAIRS = 256
"""How many labels a node carries or an actor asks for, and how many resources."""

MOST_PAIRS_BYTES = 16 * 1024
"""What the names and texts of these labels, or the names of these resources, take as UTF-8. With
both of them the record of a node is far smaller than 96 KiB, above which no node could read it.
"""

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of characters, which UTF-8 cannot encode: no text on the wire or in a store has them."""

_NAMING = frozenset(("name", "on"))
"""Options that are checked without the others."""


def check_positive_seconds(name: str, value: object) -> None:
    """Raises TypeError or ValueError, which name the option, for what is neither None nor a
    positive number of seconds.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, not {short_repr(value)}")
    # Compared, not converted: an int may be larger than any float.
    if not 0 < value <= sys.float_info.max:
        raise ValueError(
            f"{name} must be a positive number of seconds, not {short_repr(value)}; "
            "leave it out for no limit"
        )


def positive_seconds(
    instance: object, attribute: attrs.Attribute[float | None], value: float | None
) -> None:
    """An attrs validator: see `check_positive_seconds`."""
    check_positive_seconds(attribute.name, value)


def _positive_count(
    instance: object, attribute: attrs.Attribute[int | None], value: int | None
) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{attribute.name} must be a whole number or None, not {short_repr(value)}")
    check_whole_number(attribute.name, value, least=1)


def is_unsendable_text(text: str) -> bool:
    """True for a text with a lone surrogate, which UTF-8 cannot encode."""
    return not text.isascii() and _LONE_SURROGATES.search(text) is not None


def is_unprintable(text: str) -> bool:
    """True for a text that may not stand in the errors, logs and tables that show it."""
    return CONTROL_CHARACTERS.search(text) is not None or is_unsendable_text(text)


def check_name(what: str, value: object) -> None:
    """Raises TypeError or ValueError, which call it `what`, for what cannot be the name of an actor
    or of a node.
    """
    value = exact(value)
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str or None, not {short_repr(value)}")
    if (
        not value
        or value != value.strip()
        or value.startswith("@")
        or is_unprintable(value)
        or len(value) > MOST_NAME
    ):
        raise ValueError(
            f"{what}={short_repr(value)} is not a usable name: 1 to {MOST_NAME} characters, no "
            "control characters, no lone surrogates, no spaces at the ends, no leading '@'"
        )


def _name(instance: object, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    if value is not None:
        check_name(attribute.name, value)


def _copied(what: str, pairs: Mapping[str, T]) -> dict[str, T]:
    given: object = pairs
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} are a mapping, not {short_repr(given)}")
    if len(given) > MOST_PAIRS:
        raise ValueError(f"at most {MOST_PAIRS} {what} can be given, not {len(given)}")
    return {exact(key): exact(value) for key, value in pairs.items()}


def _check_size(what: str, texts: Iterable[str]) -> None:
    """Raises ValueError for checked texts that are too long, all of them together."""
    size = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
    if size > MOST_PAIRS_BYTES:
        raise ValueError(
            f"{what} are too long: their texts take {size} bytes together, and at most "
            f"{MOST_PAIRS_BYTES} are possible"
        )


def checked_labels(pairs: Mapping[str, str]) -> dict[str, str]:
    """A copy of the labels of a node, or of those that an actor asks for. Raises TypeError or
    ValueError for what cannot be any.
    """
    labels = _copied("labels", pairs)
    for key, value in labels.items():
        texts: tuple[object, object] = (key, value)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"labels map str to str, not {short_repr(key)}: {short_repr(value)}")
        if not key:
            raise ValueError(f"labels have names, unlike {short_repr(key)}: {short_repr(value)}")
        if is_unprintable(key) or is_unprintable(value):
            raise ValueError(
                "labels have no control characters and no lone surrogates, unlike "
                f"{short_repr(key)}: {short_repr(value)}"
            )
    _check_size("labels", chain(labels, labels.values()))
    return labels


def is_amount(number: float) -> bool:
    """True for what may be an amount of a resource: a finite number of at least 0. An int beyond
    all floats is none, because amounts are added to floats, and compared with sums of them.
    """
    return 0 <= number <= sys.float_info.max


def checked_resources(amounts: Mapping[str, float]) -> dict[str, float]:
    """A copy of the amounts that a node has, or that an actor takes. Raises TypeError or ValueError
    for what cannot be any.
    """
    resources = _copied("resources", amounts)
    for name, amount in resources.items():
        given: tuple[object, object] = (name, amount)
        if (
            not isinstance(given[0], str)
            or isinstance(given[1], bool)
            or not isinstance(given[1], int | float)
        ):
            raise TypeError(
                f"resources map names to numbers, not {short_repr(name)}: {short_repr(amount)}"
            )
        if not name:
            raise ValueError(f"resources have names, unlike {name!r}: {short_repr(amount)}")
        if is_unprintable(name):
            raise ValueError(
                "names of resources have no control characters and no lone surrogates, unlike "
                f"{name!r}"
            )
        if not is_amount(amount):
            raise ValueError(
                "resources are finite amounts of at least 0, not "
                f"{short_repr(name)}: {short_repr(amount)}"
            )
    _check_size("resources", resources)
    return resources


def _one_of(choices: tuple[str, ...]) -> Callable[[object, attrs.Attribute[Any], object], None]:
    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in choices:
            raise ValueError(
                f"{attribute.name} must be one of {', '.join(map(repr, choices))}, not "
                f"{short_repr(value)}"
            )

    return check


def positive_count(instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    """An attrs validator: raises TypeError or ValueError, which name the option, for what is no
    whole number from 1 to `MOST_COUNT`.
    """
    check_whole_number(attribute.name, value, least=1)


def flag(instance: object, attribute: attrs.Attribute[bool], value: bool) -> None:
    """An attrs validator: raises TypeError, which names the option, for what is no bool."""
    given: object = value
    if not isinstance(given, bool):
        raise TypeError(f"{attribute.name} must be True or False, not {short_repr(given)}")


def _memory_limit(
    instance: SpawnOptions, attribute: attrs.Attribute[int | None], value: int | None
) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"memory_limit must be a number of bytes or None, not {short_repr(value)}")
    if not 1 <= value <= MOST_COUNT:
        raise ValueError(
            f"memory_limit must be a positive number of bytes, not {short_repr(value)}; leave it "
            "out for no limit"
        )
    if instance.isolation != "process":
        raise ValueError(
            "memory_limit is for an actor with a process of its own: give it together with "
            'isolation="process"'
        )


def _retry_policy(
    instance: object, attribute: attrs.Attribute[RetryPolicy | None], value: RetryPolicy | None
) -> None:
    given: object = value
    if given is not None and not isinstance(given, RetryPolicy):
        raise TypeError(f"{attribute.name} must be a RetryPolicy or None, not {short_repr(given)}")


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
    mailbox_bytes: int
    thread_limit: int | None
    idle_timeout: float | None
    isolation: Isolation
    memory_limit: int | None
    idempotent: bool


@sparse_message
@names_options("options")
@attrs.frozen(kw_only=True, field_transformer=exact_fields)
class CallOptions:
    """How a call is made. All of these may be left out:

    - `timeout`: seconds that the whole call may take, all its attempts included; the caller's trio
      deadline holds besides. By default no limit but that one.
    - `retry`: a `RetryPolicy`, when and how often the runtime may repeat the call. By default it
      repeats only what certainly did not run, because its actor was moving or its connection was
      not there.

    Options of the call go before those of the method (`@method(timeout=...)`), and these before
    those of the handle. Raises TypeError or ValueError, naming the field, for values that make no
    sense.
    """

    timeout: float | None = attrs.field(default=None, validator=positive_seconds)
    retry: RetryPolicy | None = attrs.field(default=None, validator=_retry_policy)

    @property
    def is_default(self) -> bool:
        """True if nothing was said: the call takes the short way."""
        return self.timeout is None and self.retry is None

    def over(self, other: CallOptions) -> CallOptions:
        """These options where they say something, `other`'s where they do not."""
        if other.is_default:
            return self
        return CallOptions(
            timeout=other.timeout if self.timeout is None else self.timeout,
            retry=other.retry if self.retry is None else self.retry,
        )


@sparse_message
@names_options("options")
@attrs.frozen(kw_only=True, field_transformer=exact_fields)
class SpawnOptions(CallOptions):
    """How an actor is started, and how it is called where neither the method nor the call says
    otherwise. All of these may be left out:

    - `name`: unique in the cluster. By default generated, and then the actor cannot be looked up or
      moved.
    - `on`: name of the node to run on. By default this node, or for supervised children any node
      that fits.
    - `labels`: the node must carry all of these, at most 256, whose texts take 16 KiB at most.
    - `resources`: amounts by name that the actor takes of its node while it lives: at most 256,
      whose names take 16 KiB at most. A node that has not as much left does not start it. Such an
      actor has a name in the store even if you give none.
    - `placement`: of several nodes that fit, "spread" takes the one with the fewest actors, "pack"
      the one with the most. Actors with names are counted; where the numbers are equal, "spread"
      takes the nodes in turn, and "pack" the same one again. By default this node if it fits and
      nothing else was asked for, or for supervised children "spread".
    - `mailbox_limit`: calls that may wait at the actor. More are refused with `MailboxFullError`.
    - `mailbox_bytes`: bytes that arguments from other processes may take, of the calls that wait or
      run at the actor. By default 1 GiB. A call that would exceed it is refused with
      `MailboxFullError`; one that finds no others there is not.
    - `thread_limit`: plain `def` methods of the actor that may run at once, each in a thread, if
      they are concurrent. More wait. By default 40.
    - `idle_timeout`: seconds without a call after which the actor is stopped, with the reason
      "idle"; at most twice as many pass. By default it is not.
    - `isolation`: "process" for a process of its own, which can crash, hang or be killed alone.
    - `memory_limit`: bytes of address space that this process may have, only with
      isolation="process". By default what the system grants.
    - `idempotent`: only for functions (`run`), which have no decorator to say it: the retry policy
      may repeat one that may have run.
    - `timeout`: seconds that each call through the handle that you get may take, all its attempts
      included. Handles that others get, by `lookup` or in a message, are without it. Refused for
      children and for members of pools, which have no such handle.
    - `retry`: a `RetryPolicy` for calls through that handle.
    """

    name: str | None = attrs.field(default=None, validator=_name)
    on: str | None = attrs.field(default=None, validator=_name)
    labels: Mapping[str, str] = attrs.field(factory=dict, converter=checked_labels)
    resources: Mapping[str, float] = attrs.field(factory=dict, converter=checked_resources)
    placement: Placement | None = attrs.field(
        default=None, validator=attrs.validators.optional(_one_of(get_args(Placement)))
    )
    mailbox_limit: int = attrs.field(default=DEFAULT_MAILBOX_LIMIT, validator=positive_count)
    mailbox_bytes: int = attrs.field(default=DEFAULT_MAILBOX_BYTES, validator=positive_count)
    thread_limit: int | None = attrs.field(default=None, validator=_positive_count)
    idle_timeout: float | None = attrs.field(default=None, validator=positive_seconds)
    isolation: Isolation = attrs.field(default="none", validator=_one_of(get_args(Isolation)))
    memory_limit: int | None = attrs.field(default=None, validator=_memory_limit)
    idempotent: bool = attrs.field(default=False, validator=flag)

    def call_options(self) -> CallOptions:
        """Only what concerns calls."""
        return CallOptions(timeout=self.timeout, retry=self.retry)

    def changed(self, **changes: Unpack[SpawnChanges]) -> SpawnOptions:
        """A copy with these changes. Raises TypeError and ValueError like the constructor."""
        if not changes.keys() <= _NAMING:
            return attrs.evolve(self, **changes)
        # Each of many actors is given a name: the other options are checked already, and to check
        # them again takes four times as long.
        return self._named(changes)

    def _named(self, names: Mapping[str, object]) -> SpawnOptions:
        """A copy with these instead of `_NAMING`. Raises TypeError and ValueError for others than
        names.
        """
        copy = object.__new__(SpawnOptions)
        for field in _FIELDS:
            object.__setattr__(copy, field, getattr(self, field))
        for field, given in names.items():
            value = exact(given)
            if value is not None:
                check_name(field, value)
            object.__setattr__(copy, field, value)
        return copy

    @classmethod
    def of_sent(cls, fields: Mapping[str, object]) -> SpawnOptions | None:
        """Options of which at most a name and a node were sent; None for others. Most are: each
        start of an actor on another node has some.
        """
        if not fields.keys() <= _NAMING:
            return None
        read = _USUAL._named(fields)
        # Their own: the defaults are shared by no two of them.
        object.__setattr__(read, "labels", {})
        object.__setattr__(read, "resources", {})
        return read


_FIELDS = tuple(field.name for field in attrs.fields(SpawnOptions))

_USUAL = SpawnOptions()


NO_CALL_OPTIONS = CallOptions()
