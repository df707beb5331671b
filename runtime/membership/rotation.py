"""The rotation of a cluster's secret: which step comes next, by what the nodes have now.

Nothing is kept of a rotation but the keyrings of the nodes. So one that was interrupted goes on
where it was, nodes that have joined meanwhile are taken along, and to take it back is to rotate to
the secret of before. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

Step = Literal["install", "use", "keep"]


@attrs.frozen
class RotationStep:
    """The next step of a rotation, and the nodes that must take it."""

    step: Step
    nodes: tuple[str, ...]


def next_step(keyrings: Mapping[str, tuple[str, ...]], target: str) -> RotationStep | None:
    """The next step to a cluster that has the secret `target` only, None if it is there.
    `keyrings`: of each node the ids of its secrets, of which the first is in use.

    A step is done on all nodes before the next begins: then any two nodes accept, at any moment,
    what the other one proves.
    """
    without = [node for node, ids in keyrings.items() if target not in ids]
    if without:
        return RotationStep("install", tuple(without))
    others = [node for node, ids in keyrings.items() if ids[0] != target]
    if others:
        return RotationStep("use", tuple(others))
    more = [node for node, ids in keyrings.items() if len(ids) > 1]
    return RotationStep("keep", tuple(more)) if more else None
