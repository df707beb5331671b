"""Which methods of a referenced value other nodes may call: those that work with the value and
have no other effect on its node.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, cast
from uuid import UUID

from actors.messages import message_type

PLAIN: Final = (
    bool,
    int,
    float,
    str,
    bytes,
    list,
    tuple,
    dict,
    set,
    frozenset,
    datetime,
    date,
    time,
    timedelta,
    Decimal,
    UUID,
    Enum,
)
"""Types of which every public method may be called: none has effects beyond its value."""


OF_ARRAYS: Final = frozenset(
    [
        "all",
        "any",
        "argmax",
        "argmin",
        "argpartition",
        "argsort",
        "astype",
        "choose",
        "clip",
        "compress",
        "conj",
        "conjugate",
        "copy",
        "cumprod",
        "cumsum",
        "diagonal",
        "dot",
        "flatten",
        "item",
        "max",
        "mean",
        "min",
        "nonzero",
        "prod",
        "ravel",
        "repeat",
        "reshape",
        "round",
        "searchsorted",
        "squeeze",
        "std",
        "sum",
        "swapaxes",
        "take",
        "tolist",
        "trace",
        "transpose",
        "var",
    ]
)
"""The methods of numpy's arrays and scalars that may be called. Methods that write files, change
the array in place, or return memory or pickles are left out.
"""


def method_of(value: object, name: str) -> Callable[..., Any]:
    """The method `name` of `value`. Raises AttributeError if there is none that may be called."""
    kind = type(value)
    found = getattr(value, name, None)
    if name.startswith("_") or not callable(found):
        raise AttributeError(f"a {kind.__qualname__} has no public method called {name}")
    if message_type(kind) is None and not isinstance(value, PLAIN):
        numpy = sys.modules.get("numpy")
        if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
            raise AttributeError(
                f"methods of a {kind.__qualname__} cannot be called through a reference; mark the "
                "class with @message"
            )
        if name not in OF_ARRAYS:
            raise AttributeError(
                f"{name} of a numpy array cannot be called through a reference; fetch it, or give "
                "the reference to an actor"
            )
    return cast("Callable[..., Any]", found)
