"""A bank whose accounts are actors, and a test that finds what is wrong with the obvious way to
transfer money.

python examples/bank.py
"""

import trio

from actors import Actor, UnderstudyError, method
from runtime.simulation import Simulation, SimulationError, simulate

START = 100


class Account(Actor):
    """Keeps its balance over restarts, and remembers which transfers it has seen."""

    async def on_start(self) -> None:
        saved = await self.saved()
        self.balance, self.seen = (START, []) if saved is None else saved

    @method(idempotent=True)
    async def read(self) -> int:
        return self.balance

    @method
    async def change(self, amount: int) -> None:
        await self.save((self.balance + amount, self.seen))
        self.balance += amount

    @method(idempotent=True)
    async def change_once(self, transfer: str, amount: int) -> None:
        if transfer not in self.seen:
            await self.save((self.balance + amount, [*self.seen, transfer]))
            self.balance += amount
            self.seen.append(transfer)


async def account(simulation: Simulation, name: str) -> Account:
    """The account of this name, on any node; started anew where its node has died."""
    while True:
        try:
            where = simulation.random.choice(simulation.nodes)
            return await simulation.node.options(name=name, on=where).get_or_spawn(Account)
        except UnderstudyError:
            await trio.sleep(0.1)


async def until_known(simulation: Simulation, name: str, call) -> object:
    """Make a call that may be made again until there is an answer."""
    while True:
        try:
            return await call(await account(simulation, name))
        except UnderstudyError:
            await trio.sleep(0.1)


async def careless(simulation: Simulation) -> None:
    """Transfers that are simply tried again: wrong, since what is not known to have happened may
    have.
    """
    for _ in range(10):
        for name, amount in (("alice", -1), ("bob", 1)):
            await until_known(
                simulation, name, lambda one, amount=amount: one.change.options(timeout=1)(amount)
            )
        await trio.sleep(1)  # so that some meet a fault
    await look(simulation)


async def careful(simulation: Simulation) -> None:
    """Transfers with a number, which the accounts remember: done once, however often they are asked
    for.
    """
    for number in range(10):
        for name, amount in (("alice", -1), ("bob", 1)):
            await until_known(
                simulation,
                name,
                lambda one, n=number, amount=amount: one.change_once.options(timeout=1)(
                    f"t{n}", amount
                ),
            )
        await trio.sleep(1)
    await look(simulation)


async def look(simulation: Simulation) -> None:
    """Money is neither made nor lost."""
    await simulation.calm()
    balances = [
        await until_known(simulation, name, lambda one: one.read()) for name in ("alice", "bob")
    ]
    assert sum(balances) == 2 * START, f"the balances are {balances}"


if __name__ == "__main__":
    try:
        simulate(careless, seeds=range(200))
    except SimulationError as error:
        print("careless:", str(error).splitlines()[0])
    simulate(careful, seeds=range(20))
    print("careful:  20 seeds, and no money was made or lost")
