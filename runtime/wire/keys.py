"""Keys of dicts and sets: bounds against hashes that collide.

A dict or set of keys that share one hash takes quadratic time to build, and a peer can choose
integers, or instances of a class, that do. So both sides look before they build: the writer, so
that a value which the reader would refuse does not cost its node the link, and the reader, because
the peer may be hostile.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection
from typing import Any, NoReturn, cast

from actors.converters import converter_of
from actors.errors import DecodeError, ProtocolError
from actors.messages import message_type
from runtime.user_errors import guarded, is_interrupt, summary_of
from runtime.wire.standard_types import UnsendableError

MAX_KEY_BITS = 8192
"""Bits of an integer in a key whose hash another key shares. Comparing one of a megabyte with a
Decimal converts it to decimal digits, in time that grows with its square.
"""


MAX_COLLISIONS = 64
"""The number of keys of one dict or set that may share hashes with others. Honest data has almost
none. Without the bound, a peer could make thousands of integers collide, and building the dict
would take quadratic time.
"""


def check_keys(keys: Collection[object]) -> None:
    """Raise UnsendableError for keys that a reader would refuse; see `distinct`. Without this, the
    value of an honest user would cost its node the link.
    """
    hashes, quick = guarded(functools.partial(_hashes_of, keys), _refuse_keys)
    if len(keys) - hashes > MAX_COLLISIONS:
        raise UnsendableError(
            f"has {len(keys)} keys with only {hashes} different hashes, so that building it takes "
            "quadratic time; send a list of pairs, or give the keys another hash"
        )
    if not quick:
        raise UnsendableError(
            f"has keys that share a hash, with an integer of more than {MAX_KEY_BITS} bits; send a "
            "list of pairs"
        )


def _hashes_of(keys: Collection[object]) -> tuple[int, bool]:
    hashes = len(set(map(hash, keys)))
    return hashes, (
        hashes == len(keys) or len(keys) - hashes > MAX_COLLISIONS or _compare_quickly(keys)
    )


def _refuse_keys(error: BaseException) -> NoReturn:
    raise UnsendableError(f"has a key whose hash raised {summary_of(error)}")


def distinct(keys: Collection[object]) -> Collection[object]:
    """Return `keys` if a dict or set of them is built in linear time and keeps all of them. Raises
    ProtocolError otherwise.
    """
    try:
        hashes = len(set(map(hash, keys)))
        # Keys are compared only if they share a hash. So without collisions, as in nearly all
        # honest data, nothing is compared; with them, the comparisons must be few and quick.
        few = len(keys) - hashes <= MAX_COLLISIONS
        quick = hashes == len(keys) or not few or _compare_quickly(keys)
        different = len(set(keys)) if few and quick else 0
    except BaseException as error:  # noqa: ASYNC103
        # No checkpoint: keys may be messages, whose `__hash__` and `__eq__` are user code.
        if is_interrupt(error):
            raise
        if all(_is_plain_key(key) for key in keys):
            raise  # noqa: ASYNC104  a list, or what else no peer of ours sends as a key
        raise DecodeError(  # noqa: ASYNC104
            "a key cannot be used as one here: its hash, or a comparison, raised "
            f"{summary_of(error)}"
        ) from None
    wrong = ""
    if len(keys) - hashes > MAX_COLLISIONS:
        wrong = f"{len(keys)} keys with only {hashes} hashes"
    elif not quick:
        wrong = f"keys that share a hash, with an integer of more than {MAX_KEY_BITS} bits"
    elif different != len(keys):
        wrong = "a key that occurs twice"
    if not wrong:
        return keys
    # Code of users may judge keys in another way at the sender, which checks them as well.
    raise ProtocolError(wrong) if all(map(_is_plain_key, keys)) else DecodeError(wrong)


def _compare_quickly(keys: Collection[object]) -> bool:
    """True unless keys that share their hash with others have large integers in them."""
    times = Counter(map(hash, keys))
    return not any(times[hash(key)] > 1 and _has_large_integer(key) for key in keys)


def _is_plain_key(key: Any) -> bool:
    """True if no code of users runs when this is hashed, or compared."""
    # The recursion ends where the decoded value does, which has a limit on its depth.
    if issubclass(type(key), tuple) or type(key) is frozenset:
        return all(map(_is_plain_key, cast("Any", key)))
    return message_type(type(key)) is None and converter_of(type(key)) is None


def _has_large_integer(key: Any) -> bool:
    # The recursion ends where the decoded value does, which has a limit on its depth.
    if type(key) is int:
        return key.bit_length() > MAX_KEY_BITS
    if issubclass(type(key), tuple) or type(key) is frozenset:
        return any(map(_has_large_integer, cast("Any", key)))
    mark = message_type(type(key))
    return mark is not None and any(
        _has_large_integer(getattr(key, name, None))
        for name in (*(name for name, _ in mark.fields), *mark.later)
    )
