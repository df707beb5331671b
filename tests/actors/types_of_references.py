"""Right and wrong uses of references, for type checkers; nobody runs this. See
`types_of_streams`.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any, assert_type

from actors import Actor, Reference, method, wait_all, wait_any
from runtime.node import Node


class Typed(Actor):
    """Takes values, and references."""

    @method
    async def add(self, one: int, other: int = 0) -> int:
        return one + other

    @method
    async def title(self) -> str:
        return "title"

    @method
    async def keep(self, reference: Reference[int]) -> None:
        assert_type(await reference.fetch(), int)

    @method
    def in_thread(self, size: int) -> bytes:
        return bytes(size)


async def right(handle: Typed, node: Node) -> None:
    """All of it is accepted."""
    number = await handle.add.remote(1, other=2)
    assert_type(number, Reference[int])
    assert_type(await number.fetch(), int)
    assert_type(number.local_value(), int)
    assert_type(await number.ready(), bool)
    assert_type(number.owner, str)
    assert_type(number.as_value(), int)
    assert_type(await handle.add(number.as_value(), 1), int)
    assert_type(await handle.add(1, other=number.as_value()), int)
    assert_type(await handle.add.remote(number.as_value(), number.as_value()), Reference[int])
    assert_type(await handle.add.options(timeout=1.0).remote(number.as_value()), Reference[int])
    assert_type(await handle.in_thread.remote(number.as_value()), Reference[bytes])
    await handle.keep(number)
    await handle.add.send(number.as_value())
    text = await node.put("text")
    assert_type(text, Reference[str])
    assert_type(await text.call.upper(), Any)
    assert_type(await text.call.upper.remote(), Reference[Any])
    assert_type(
        await wait_any([number, number], count=2), tuple[list[Reference[int]], list[Reference[int]]]
    )
    assert_type(
        await wait_all([text], timeout=1.0), tuple[list[Reference[str]], list[Reference[str]]]
    )


async def wrong(handle: Typed, node: Node) -> None:
    """Every line is refused."""
    number, text = await handle.add.remote(1), await handle.title.remote()
    await handle.add(number, 1)  # type: ignore[arg-type]
    await handle.add(text.as_value(), 1)  # type: ignore[arg-type]
    await handle.add(1, other=text.as_value())  # type: ignore[arg-type]
    await handle.add.remote(text.as_value())  # type: ignore[arg-type]
    await handle.add.remote()  # type: ignore[call-arg]
    await handle.keep(text)  # type: ignore[arg-type]
    await handle.keep(number.as_value())  # type: ignore[arg-type]
    await handle.keep(await node.put("text"))  # type: ignore[arg-type]
    await wait_any(number)  # type: ignore[arg-type]
    await wait_any([number], count="all")  # type: ignore[arg-type]
