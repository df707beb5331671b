"""How actors end."""

from __future__ import annotations

import pytest
import trio

from actors import Actor, method
from actors.errors import ActorNotFoundError
from actors.supervision import ExitReason
from runtime import open_node
from runtime.testing import Faults, Platform
from tests.waiting import until

SECRET = "a secret of these tests"


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
    async with open_node("alone", secret=SECRET) as node:
        with trio.fail_after(3):
            actor = await node.options(name="suicidal" if named else None).spawn(Suicidal)
            (instance,) = (
                cell.instance
                for cell in node._endpoint.host.cells.values()
                if isinstance(cell.instance, Suicidal)
            )
            address = actor.address
            assert await actor.finish() == "the last word"
            await node._spawner.watch_address(address)
            assert instance.ended == ["finished"]
            with pytest.raises(ActorNotFoundError):
                await actor.finish()


@pytest.mark.parametrize("named", [True, False])
async def test_a_spawn_that_is_cancelled_while_its_answer_is_on_the_way_leaves_no_actor_behind(
    named: bool,
) -> None:
    lost = Faults()
    lost.add("reply-lost", method="spawn")
    async with (
        open_node("here", secret=SECRET) as here,
        open_node(
            "there", join=here.address, secret=SECRET, platform=Platform(faults=lost)
        ) as there,
    ):
        await here.wait_for(2)

        def hosted() -> list[str]:
            return [name for name, cell in there._endpoint.host.cells.items() if not cell.system]

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    here.options(on="there", name="lost" if named else None).spawn, Suicidal
                )
                await until(hosted, "it has started")
                nursery.cancel_scope.cancel()
            await until(lambda: not hosted(), "it is gone")
            lost.clear()
            again = await here.options(on="there", name="lost" if named else None).spawn(Suicidal)
            assert await again.finish() == "the last word"
