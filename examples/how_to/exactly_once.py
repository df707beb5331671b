"""Take money once, although the actor dies after it has taken it and before it answers."""

import logging

import trio

from actors import Actor, ChildSpec, RetryPolicy, SpawnOptions, Supervisor, method
from runtime import open_node


class Account(Actor):
    async def on_start(self) -> None:
        self.balance = await self.saved() or 100

    @method
    async def withdraw(self, amount: int) -> int:
        balance = self.balance - amount
        await self.save(balance, answer=balance)  # The state, and that this call was done.
        self.balance = balance
        if amount == 30:
            self.nursery.start_soon(self.crash)  # After the save, and before the answer.
            await trio.sleep_forever()
        return balance

    async def crash(self) -> None:
        raise RuntimeError("on purpose")


PATIENT = RetryPolicy(max_retries=10, initial_delay=0.05, repeat_unknown=True)


async def main() -> None:
    async with open_node() as node:
        spec = ChildSpec(id="account", actor=Account, options=SpawnOptions(name="account"))
        await node.options(name="supervisor").spawn(Supervisor, [spec])
        account = await node.lookup("account", Account)
        print("after 30:", await account.withdraw.options(retry=PATIENT)(30))
        print("after 20:", await account.withdraw.options(retry=PATIENT)(20))


if __name__ == "__main__":
    # The crash is on purpose, and the log would show it.
    logging.getLogger("understudy").setLevel(logging.CRITICAL)
    trio.run(main)
