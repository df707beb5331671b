import os

import torch.distributed.rpc as rpc
import torch.multiprocessing as processes


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value


def run(rank: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29511"
    rpc.init_rpc(f"worker-{rank}", rank=rank, world_size=2)
    if rank == 0:
        counter = rpc.remote("worker-1", Counter)
        print(counter.rpc_sync().add(5))
        futures = [counter.rpc_async().add(1) for _ in range(3)]
        print(sorted(future.wait() for future in futures))
        print(counter.owner().name)
    rpc.shutdown()


if __name__ == "__main__":
    processes.spawn(run, nprocs=2)
