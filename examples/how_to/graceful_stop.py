"""Stop at SIGTERM without losing what was accepted: finish calls, flush, leave."""

import os
import signal

import trio

from actors import Actor, method
from runtime import Node, open_node


class Writer(Actor):
    def __init__(self) -> None:
        self.buffer: list[str] = []

    @method
    async def write(self, line: str) -> None:
        await trio.sleep(0.05)
        self.buffer.append(line)

    async def on_stop(self, reason: object) -> None:
        print("flushed:", self.buffer)


async def stop_at_signal(node: Node) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            print("stopping at", signal.Signals(number).name)
            node.leave()
            return


async def main() -> None:
    async with open_node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(stop_at_signal, node)
        writer = await node.spawn(Writer)
        nursery.start_soon(writer.write, "one")
        await trio.sleep(0.01)  # The call has arrived.
        os.kill(os.getpid(), signal.SIGTERM)  # In place of the service manager.
        await node.asked_to_leave.wait()
    print("left")


if __name__ == "__main__":
    trio.run(main)
