"""Chapter 6: a node that keeps the theatre open: stage.py NAME."""

import sys

import trio

from actors import Supervisor
from kept_office import theatre
from runtime import open_node


async def main(name: str) -> None:
    async with open_node(name=name, join="127.0.0.1:7400", labels={"role": "stage"}) as node:
        spec = theatre(100, role="stage")
        await node.options(name="theatre").singleton(Supervisor, [spec])
        print("the theatre is open", flush=True)
        await node.asked_to_leave.wait()  # by `understudy stop`


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
