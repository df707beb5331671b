"""A worker that needs no torch: `python waiting.py PLACE` says who it is and waits until a file
there tells it to end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(place: Path) -> None:
    names = {"rank": "RANK", "world_size": "WORLD_SIZE", "restarts": "TORCHELASTIC_RESTART_COUNT"}
    told = {name: int(os.environ[variable]) for name, variable in names.items()} | {
        "pid": os.getpid(),
        "agent": os.getppid(),
    }
    new = place / f"{os.getpid()}.new"
    new.write_text(json.dumps(told))
    new.rename(place / f"{os.getpid()}.worker")
    while not (place / "finish").exists() and not (place / f"finish-{os.getpid()}").exists():
        if (place / f"fail-{os.getpid()}").exists():
            raise ValueError("on purpose")
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
