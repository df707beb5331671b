"""Repeat calls that failed: which ones, how often, and what is never repeated."""

import trio

from actors import Actor, RetryPolicy, method
from runtime import open_node


class Weather(Actor):
    def __init__(self) -> None:
        self.asked = 0

    @method(idempotent=True)
    async def temperature(self) -> float:
        self.asked += 1
        if self.asked % 3:
            raise ConnectionError("the station does not answer")
        return 21.5

    @method
    async def how_often_asked(self) -> int:
        return self.asked


PATIENT = RetryPolicy(max_retries=5, initial_delay=0.01, retry_on=(ConnectionError,))


async def main() -> None:
    async with open_node() as node:
        weather = await node.spawn(Weather)
        try:
            await weather.temperature()
        except ConnectionError as error:
            print("without a policy:", error)
        print("with a policy:", await weather.temperature.options(retry=PATIENT)())
        print("runs in all:", await weather.how_often_asked())


if __name__ == "__main__":
    trio.run(main)
