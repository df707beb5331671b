"""Arguments that are references, fetched before their method starts."""

from __future__ import annotations

from functools import partial

import trio

from actors.arguments import Needs
from actors.errors import ArgumentLostError
from actors.reference import Reference
from runtime.hosting.cell import Job


async def with_values(job: Job, needs: Needs) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of a job with values in the places of references, fetched side by side. Raises ArgumentLostError."""
    found: dict[int | str, object] = {}
    lost: list[tuple[int | str, Exception]] = []
    nursery: trio.Nursery | None = None

    async def fetch(place: int | str, reference: Reference[object]) -> None:
        try:
            found[place] = await reference.fetch()
        except Exception as error:
            lost.append((place, error))
            if nursery is not None:
                nursery.cancel_scope.cancel()

    if len(needs) == 1:
        # A nursery for one would cost more than to read a value in place.
        await fetch(*needs[0])
    else:
        async with trio.open_nursery() as nursery:
            for place, reference in needs:
                nursery.start_soon(partial(fetch, place, reference))
    if lost:
        place, error = lost[0]
        name = f"{job.cell.address.name}.{job.definition.name}"
        what = f"argument {place!r}" if isinstance(place, str) else f"argument number {place + 1}"
        raise ArgumentLostError(
            f"{name} was not run: its {what} is a reference without a value: {type(error).__name__}: {error}"
        ) from error
    return (
        tuple(found.get(index, argument) for index, argument in enumerate(job.args)),
        {name: found.get(name, argument) for name, argument in job.kwargs.items()},
    )
