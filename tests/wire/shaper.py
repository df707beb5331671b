"""Spoils values rather than bytes: a control part is read as a tree, one or some of its nodes are
changed, and it is written again.
"""

from __future__ import annotations

import random
from typing import Any

import cbor2
from cbor2 import CBORTag

from runtime.wire.tags import (
    ARRAY,
    BUILTIN_TAGS,
    DATETIME,
    DECIMAL,
    ENUM,
    MESSAGE,
    OWN_TAGS,
    PAIRS,
    SCALAR,
    SEGMENT,
    SET,
    SPILLED,
    TUPLE,
)

TAGS = (*sorted(OWN_TAGS), *BUILTIN_TAGS, 2, 3, 64_000, 64_100, 65_535)

TRAPS = (
    "unittest.__main__:x",
    "antigravity:x",
    "this:s",
    "idlelib.idle:x",
    "tests.processes.broken_import:X",
    "os:system",
    "builtins:SystemExit",
    "trio:Cancelled",
    "signal:Signals",
    "actors.errors:ProtocolError",
    "actors.actor:Actor",
    "actors.method:Address",
    "tests.node.hostile_errors:HarmfulNew",
    "tests.node.hostile_errors:Need",
)
"""Names of classes. Some of their modules end their process, open a browser or write as they are
imported.
"""

PLAIN: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    23,
    2**31,
    2**32,
    2**53 + 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**64),
    10**300,
    0.0,
    -0.0,
    1e-320,
    1.7e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    "\x00",
    "x",
    "talker",
    "nobody",
    "@node",
    "@references",
    "echo",
    "__init__",
    "__class__",
    "on_stop",
    "\ud7ff\ue000\U0010ffff",
    "x" * 300,
    "n" * 20_000,
    b"",
    b"\x00" * 7,
    b"\xff" * 5_000,
    [],
    {},
    [[]],
    [None] * 300,
    {"": None},
    {1: 2, "1": 3},
)

STANDARD: tuple[tuple[object, ...], ...] = (
    ("builtins:complex", 1.0, "x"),
    ("builtins:range", [0, 2**200, 3]),
    ("builtins:range", [0, 1, 0]),
    ("fractions:Fraction", [1, 0]),
    ("fractions:Fraction", [3**9000, 7**9000]),
    ("collections:deque", [[]], -1),
    ("collections:deque", [1], 2**70),
    ("collections:deque", {}),
    ("collections:Counter", {"a": []}),
    ("collections:OrderedDict", [["a", 1]]),
    ("collections:defaultdict", {}, "exec"),
    ("collections:defaultdict", {}, ["list"]),
    ("pathlib:PosixPath", b"x"),
    ("pathlib:PosixPath", "x/" * 5000),
    ("pathlib:Path", "x"),
    ("ipaddress:IPv4Address", 2**40),
    ("ipaddress:IPv6Address", "::%" + "x" * 5000),
    ("ipaddress:IPv4Network", "10.0.0.1/8"),
    ("builtins:UnicodeDecodeError", ["x"]),
    ("builtins:OSError", [2, "no"], {"errno": []}, []),
    ("builtins:KeyError", {}),
    ("builtins:ExceptionGroup", ["x", []]),
    ("urllib.parse:SplitResult", {}),
    ("urllib.parse:SplitResult", []),
    ("tests.wire.test_converters:Celsius", "cold", "converted"),
    ("tests.wire.test_converters:Celsius", {}, []),
    ("no.such:Class", 1, "converted"),
)
"""Contents of messages that are types of the standard library or have converters, and that no node
sends.
"""

TAGGED: tuple[object, ...] = (
    *(CBORTag(MESSAGE, list(parts)) for parts in STANDARD),
    *(
        CBORTag(tag, content)
        for path in TRAPS
        for tag, content in (
            (MESSAGE, [path, {}]),
            (MESSAGE, [path, ["a", 1]]),
            (ENUM, [path, "x"]),
        )
    ),
    CBORTag(SET, [[1]]),
    CBORTag(SET, [index * (2**61 - 1) for index in range(500)]),
    CBORTag(PAIRS, [[], 1]),
    CBORTag(TUPLE, 5),
    CBORTag(DECIMAL, "1e" + "9" * 5000),
    CBORTag(DATETIME, ["2026-01-01", 0, "../../etc/passwd"]),
    CBORTag(ARRAY, ["<i8", [2**62, 4], b""]),
    CBORTag(ARRAY, ["O", [1], b"12345678"]),
    CBORTag(SCALAR, ["<i8", b"1"]),
    CBORTag(SEGMENT, 0),
    CBORTag(SEGMENT, 7),
    CBORTag(SPILLED, 0),
    CBORTag(35, "(a+)+$"),
    CBORTag(28, [CBORTag(29, 0)]),
)

_RAW = {tag: (lambda content, immutable, tag=tag: CBORTag(tag, content)) for tag in BUILTIN_TAGS}

DEPTH = 60

INSIDE = 0.8
"""How many of the changes are within the last item of a control part, or the arguments of a
call.
"""

DOWN = 0.75
"""How many of the changes to something are to a part of it."""


def parse(control: bytes) -> Any:
    """The tree of a control part, with its tags as `CBORTag`s. Raises ValueError or a CBORError."""
    return cbor2.loads(control, semantic_decoders=_RAW, max_depth=DEPTH)


def _copied(value: Any) -> Any:
    if type(value) is list:
        return [_copied(each) for each in value]
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    if type(value) is CBORTag:
        return CBORTag(value.tag, _copied(value.value))
    return value


class Shaper:
    """Changes trees, by one generator of chance. What it makes of a tree is no longer that of any
    peer of ours, most times.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def control(self, control: bytes) -> bytes:
        """A control part of which some values are others; the part itself where it cannot be read.
        Its first number stays in front as it is written by our peers, so that what is changed is
        looked at as a call, or an answer, of that number.
        """
        try:
            tree = parse(control)
        except (ValueError, TypeError, cbor2.CBORError):
            return control
        for _ in range(self.draw.choice((1, 1, 1, 2, 3))):
            if type(tree) is list and len(tree) > 1 and self.draw.random() < INSIDE:
                # The arguments of a call, or the value of an answer: what is around them is soon
                # told to be wrong.
                place = min(4, len(tree) - 1)
                tree[place] = self._changed(tree[place])
            else:
                tree = self._changed(tree)
        try:
            return self.written(tree)
        except (
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
            UnicodeEncodeError,
            cbor2.CBORError,
        ):
            return control

    @staticmethod
    def written(tree: object) -> bytes:
        """A tree as it travels: an array that begins with a number has that in 32 bits, or
        in 64.
        """
        if (
            type(tree) is list
            and 0 < len(tree) < 24
            and type(tree[0]) is int
            and 0 <= tree[0] < 2**64
        ):
            number = tree[0]
            head = (
                b"\x1a" + number.to_bytes(4, "big")
                if number < 2**32
                else b"\x1b" + number.to_bytes(8, "big")
            )
            return bytes([0x80 + len(tree)]) + head + b"".join(map(cbor2.dumps, tree[1:]))
        return cbor2.dumps(tree)

    def value(self) -> object:
        """Any."""
        # A copy: the trees that it is put into are changed in place, and what is changed here would
        # be so in all later ones, until it holds itself and no tree with it can be written.
        return _copied(self.draw.choice(PLAIN if self.draw.random() < 0.85 else TAGGED))

    def other(self, tree: object) -> object:
        """A copy of a tree with one change, or the tree itself where it cannot be copied."""
        try:
            return self._changed(parse(cbor2.dumps(tree)))
        except (ValueError, TypeError, OverflowError, cbor2.CBORError):
            return tree

    def _changed(self, tree: Any) -> Any:
        """The tree with one change, somewhere in it."""
        draw = self.draw
        if draw.random() < DOWN:
            # On the way down to a place in it. Its parts are changed in place: it was read for
            # this.
            if type(tree) is list and tree:
                place = draw.randrange(len(tree))
                tree[place] = self._changed(tree[place])
                return tree
            if type(tree) is dict and tree:
                key = draw.choice(list(tree))
                tree[key] = self._changed(tree[key])
                return tree
            if type(tree) is CBORTag:
                return CBORTag(tree.tag, self._changed(tree.value))
        return self._other(tree)

    def _other(self, value: Any) -> Any:
        draw = self.draw
        how = draw.random()
        if how < 0.35:
            return self.value()
        if how < 0.38:
            return CBORTag(draw.choice(TAGS), value)
        if how < 0.45:
            return [value]
        if type(value) is int:
            return draw.choice(
                (
                    value + 1,
                    value - 1,
                    -value,
                    value ^ (1 << draw.randrange(70)),
                    float(min(value, 2**60)),
                )
            )
        if type(value) is str:
            at = draw.randrange(len(value) + 1)
            return draw.choice(
                (
                    value[:at],
                    value + "x",
                    value[:at] + chr(draw.randrange(0xD7FF)) + value[at:],
                    value.encode(),
                )
            )
        if type(value) is list:
            return self._other_list(value)
        if type(value) is dict:
            changed = dict(value)
            changed[draw.choice(("", "x", "args", "self", "name", 5))] = self.value()
            return changed
        if type(value) is CBORTag:
            return draw.choice((value.value, CBORTag(draw.choice(TAGS), value.value)))
        return self.value()

    def _other_list(self, items: list[Any]) -> list[Any]:
        draw = self.draw
        place = draw.randrange(len(items) + 1)
        how = draw.randrange(5)
        if how == 0:
            return items[:place]
        if how == 1:
            return items[:place] + items[place + 1 :]
        if how == 2:
            return [*items[:place], self.value(), *items[place:]]
        if how == 3:
            return items + items[place:]
        return draw.sample(items, len(items))
