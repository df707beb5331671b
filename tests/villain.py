"""An actor that says harmful text wherever a class, a file, a value or an exit can say one."""

from __future__ import annotations

from typing import Any, ClassVar

import trio

from actors import Actor, method


class Villain(Actor):
    """A subclass sets the text, `evil`. Its code is in a file with such a name, `odd`: that stands
    in stacks, and where values are made.
    """

    evil: ClassVar[str]

    def __init__(self) -> None:
        self.odd: dict[str, Any] = {}
        self.begun = trio.Event()
        code = (
            "async def stand(event, begun):\n    begun.set()\n    await event.wait()\n"
            "async def keep(node):\n    return await node.put(b'kept')\n"
        )
        exec(compile(code, f"odd{self.evil}.py", "exec"), self.odd)

    @method
    async def keep(self) -> Any:
        return await self.odd["keep"](self.node)

    @method(concurrent=True)
    async def stand(self) -> None:
        await self.odd["stand"](trio.Event(), self.begun)

    @method(concurrent=True)
    async def begin(self) -> None:
        await self.begun.wait()

    @method
    async def crash(self) -> None:
        raise SystemExit(self.evil)
