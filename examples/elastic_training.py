"""Train a small network on handwritten digits with PyTorch's DistributedDataParallel, on as many
machines as there are at the moment.

    pip install . torch scikit-learn
    understudy run --standalone --nproc-per-node 2 examples/elastic_training.py checkpoint.pt

An ordinary script for torchrun: it takes its place from its environment, begins where the last
checkpoint was made, and ends when something goes wrong. Its launcher starts it again, with
the workers that are there then. docs/how-to/torch.md has the commands for several machines.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import torch
    from sklearn.datasets import load_digits
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel
except ImportError as error:
    sys.exit(
        "this example trains with PyTorch on data of scikit-learn: pip install torch "
        f"scikit-learn ({error})"
    )

# of all workers together; each takes its share, so what is learnt does not depend on how many there
# are
BATCH = 120
HELD_OUT = 297
CHECKPOINT_EVERY = 20

OnStep = Callable[[int], None]


def read_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images of eight by eight pixels, and what they show: the same order every time."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(1))
    return torch.tensor(digits.data / 16.0, dtype=torch.float32)[order], torch.tensor(
        digits.target
    )[order]


def batch_of(step: int, size: int) -> torch.Tensor:
    """Which images are learnt from in a step: the step alone decides, so nothing is left out or
    taken twice after a restart.
    """
    per_epoch = size // BATCH
    order = torch.randperm(size, generator=torch.Generator().manual_seed(2 + step // per_epoch))
    return order[step % per_epoch * BATCH :][:BATCH]


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """The same for all workers: that which the first of them finds."""
    found = [torch.load(path) if distributed.get_rank() == 0 and path.exists() else None]
    distributed.broadcast_object_list(found, src=0)
    return found[0]


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """In one step: a reader finds the old one or the new one."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    torch.save(state, new)
    new.replace(path)


def train(path: Path, steps: int, on_step: OnStep) -> tuple[float, float]:
    """Take part in the training until it has made so many steps; the loss on all that was learnt
    from, and the accuracy on what was not.
    """
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    images, labels = read_digits()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    loss_of = nn.CrossEntropyLoss(reduction="sum")
    step = 0
    if (checkpoint := read_checkpoint(path)) is not None:
        network.load_state_dict(checkpoint["network"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        step = checkpoint["step"]
    parallel = DistributedDataParallel(network)
    while step < steps:
        mine = batch_of(step, len(images) - HELD_OUT)[rank::world_size]
        optimizer.zero_grad()
        # The gradients of all workers are averaged; with this factor the sum is that of the whole
        # batch.
        loss = loss_of(parallel(images[mine]), labels[mine]) * (world_size / BATCH)
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            if step % CHECKPOINT_EVERY == 0 or step == steps:
                write_checkpoint(
                    path,
                    {
                        "network": network.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "step": step,
                    },
                )
            on_step(step)
    with torch.no_grad():
        learnt, held_out = network(images[:-HELD_OUT]), network(images[-HELD_OUT:])
        final_loss = nn.functional.cross_entropy(learnt, labels[:-HELD_OUT]).item()
        return final_loss, (held_out.argmax(dim=1) == labels[-HELD_OUT:]).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("checkpoint", type=Path, help="a file that all workers can read and write")
    parser.add_argument("--steps", type=int, default=240)
    arguments = parser.parse_args()
    distributed.init_process_group("gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()

    def say(step: int) -> None:
        if step % 60 == 0:
            print(f"step {step}, workers: {world_size}", flush=True)

    loss, accuracy = train(arguments.checkpoint, arguments.steps, say)
    if rank == 0:
        print(
            f"{arguments.steps} steps: loss {loss:.3f}, {accuracy:.1%} of the digits held out are "
            "recognised",
            flush=True,
        )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
