"""Which names may have been meant by one that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str], most: int = 1) -> list[str]:
    """The names that are most like `name`: first those of which it is the last part, since children
    are called after their supervisors (`top/a` for `a`), then those that are written like it.
    """
    given = list(names)
    ends = sorted(
        (one for one in given if one.endswith(f"/{name}")), key=lambda one: (len(one), one)
    )
    like = difflib.get_close_matches(name, given, n=most)
    return list(dict.fromkeys([*ends, *like]))[:most]
