"""One process for each GPU: an actor that sees one device, and that is restarted with it."""

import os

import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from runtime import open_node


class Model(Actor):
    def __init__(self, device: str) -> None:
        # Before CUDA is initialised, so import torch here or later, and not above.
        os.environ["CUDA_VISIBLE_DEVICES"] = device
        self.device = device

    @method
    def predict(self, number: int) -> str:
        return f"{number} on device {os.environ['CUDA_VISIBLE_DEVICES']}"

    @method
    def process(self) -> int:
        return os.getpid()


async def main() -> None:
    async with open_node("gpu-host", resources={"gpus": 2}) as node:
        specs = [
            ChildSpec(
                id=device,
                actor=Model,
                args=(device,),
                options=SpawnOptions(
                    name=f"model-{device}", isolation="process", resources={"gpus": 1}
                ),
            )
            for device in ("0", "1")
        ]
        await node.spawn(Supervisor, specs)
        models = [await node.lookup(f"model-{device}", Model) for device in ("0", "1")]
        for number in range(4):
            print(await models[number % 2].predict(number))
        print("processes:", len({await model.process() for model in models} | {os.getpid()}))


if __name__ == "__main__":
    trio.run(main)
