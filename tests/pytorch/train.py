"""The training of the example, which goes no further than the step that a file allows: `python
train.py PLACE STEPS`.

Each worker says in a file of its own who it is and where it began; the first one writes the
result at the end.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path

from torch import distributed

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
training = importlib.import_module("elastic_training")


def write(path: Path, **facts: object) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(json.dumps(facts))
    new.replace(path)


def main(place: Path, steps: int) -> None:
    distributed.init_process_group("gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    write(
        place / f"{os.getpid()}.worker",
        rank=rank,
        world_size=world_size,
        pid=os.getpid(),
        agent=os.getppid(),
        restarts=restarts,
    )

    def on_step(step: int) -> None:
        write(place / "progress", step=step, world_size=world_size)
        while step >= int((place / "limit").read_text()):
            time.sleep(0.01)

    loss, accuracy = training.train(place / "checkpoint.pt", steps, on_step)
    if rank == 0:
        write(place / "result", loss=loss, accuracy=accuracy, world_size=world_size)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
