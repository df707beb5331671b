"""Adoption: what a supervisor that starts does with children that outlived its predecessor.

Beyond OTP, whose supervisors never outlive their node, nor their children them. A child that lives
is not started a second time. Where children depend on each other, those that live are kept only if
all live on which they were started; the others are stopped first, and then started in order with
those that died.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from actors.supervision import Strategy


def adopted(
    strategy: Strategy, order: Sequence[str], living: AbstractSet[str]
) -> tuple[list[str], list[str]]:
    """Return which of the `living` children are kept, and which are stopped, in this order, before
    anything is started. `order`: all ids.
    """
    lives = [id for id in order if id in living]
    if strategy == "one-for-one":
        kept = lives
    elif strategy == "one-for-all":
        kept = lives if len(lives) == len(order) else []
    else:
        kept = []
        for id in order:
            if id not in living:
                break
            kept.append(id)
    return kept, [id for id in reversed(lives) if id not in kept]
