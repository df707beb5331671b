"""How actors end."""

from __future__ import annotations

import pytest
import trio

from actors import Actor, method
from actors.errors import ActorNotFoundError
from actors.supervision import ExitReason
from runtime import open_node


class Suicidal(Actor):
    """Stops itself."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    @method
    async def finish(self) -> str:
        await self.node.stop(self.handle, reason="finished")
        return "the last word"

    async def on_stop(self, reason: ExitReason) -> None:
        self.ended.append(reason.text)


@pytest.mark.parametrize("named", [True, False])
async def test_an_actor_may_stop_itself_and_still_answer(named: bool) -> None:
    async with open_node("alone", secret="a secret of these tests") as node:
        with trio.fail_after(3):
            actor = await node.options(name="suicidal" if named else None).spawn(Suicidal)
            (instance,) = (cell.instance for cell in node._station.host.cells.values() if isinstance(cell.instance, Suicidal))
            address = actor.address
            assert await actor.finish() == "the last word"
            await node.watch_address(address)
            assert instance.ended == ["finished"]
            with pytest.raises(ActorNotFoundError):
                await actor.finish()
