"""An actor that is in the cluster as long as any node is, and keeps its state."""

import trio

from actors import Actor, ChildSpec, RetryPolicy, Supervisor, method
from runtime import open_local_cluster


class Counter(Actor):
    async def on_start(self) -> None:
        self.value = await self.saved() or 0

    @method(idempotent=True)
    async def add(self, amount: int) -> int:
        value = self.value + amount
        await self.save(value, answer=value)
        self.value = value
        return value

    @method(idempotent=True)
    async def where(self) -> str:
        return self.node.name


class Candidate(Actor):
    """Makes its node one of those that may run the supervisor."""

    async def on_start(self) -> None:
        spec = ChildSpec.of("counter", Counter).changed(
            name="counter", labels={"keeps": "counters"}
        )
        await self.node.options(name="counters").singleton(Supervisor, [spec])


PATIENT = RetryPolicy(max_retries=20, initial_delay=0.05)


async def main() -> None:
    async with open_local_cluster(nodes=0) as cluster:
        for name in ("left", "right"):
            await cluster.start_node(name, labels={"keeps": "counters"})
        await cluster.node.pool("candidates", Candidate, per_node=1)
        counter = await cluster.node.lookup("counter", Counter)
        print("added:", await counter.add(5))
        place = await counter.where()
        cluster.process(place).kill()
        print("killed its node; added:", await counter.add.options(retry=PATIENT)(1))
        print("moved:", await counter.where.options(retry=PATIENT)() != place)


if __name__ == "__main__":
    trio.run(main)
