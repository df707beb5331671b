"""The tags of CBOR: those that the codec writes and reads, and those that no decoder accepts.

cbor2 decodes the latter by itself. Some build large or surprising objects from few bytes: regular
expressions, e-mails, references that make cycles. Each decoder refuses them, and takes only tags of
its own. Left out are 2 and 3, integers of more than 64 bits, which are plain data.
"""

from cbor2 import CBORTag, dumps

# Peers of other versions and stored values contain these numbers: a new tag gets a new number, and
# none is given a second meaning.

ARGUMENTS, SPILLED, SEGMENT, ARRAY, SCALAR, MESSAGE, ENUM = range(64_000, 64_007)


TUPLE, PAIRS, SET, FROZENSET = range(64_010, 64_014)


DATETIME, DATE, TIME, TIMEDELTA, DECIMAL, IDENTIFIER = range(64_020, 64_026)


OWN_TAGS = frozenset(range(64_000, 64_032))
"""Tags of the codec itself, from the range that IANA hands out first come, first served. Extensions
use others.
"""


BUILTIN_TAGS = (
    *(0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004),
    *(43_000, 55_799),
)

CONVERTED = "converted"
"""Follows the content of a value that a converter made, so that a process without that converter
can say what it lacks.
"""


def head_of(tag: int) -> bytes:
    """Return the bytes with which an item with this tag begins."""
    return dumps(CBORTag(tag, 0))[:-1]
