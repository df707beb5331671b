"""Local clusters that keep their store in a directory: opened again on it, at each door, they have
what actors saved, also after the program was killed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from actors.errors import StoreDataError
from runtime import aio, blocking, open_local_cluster
from tests.cluster.actors_used import Ledger

pytestmark = pytest.mark.cluster


async def counted(directory: Path) -> tuple[int, str]:
    """Open the cluster, count on a worker, and end; returns the count and the address."""
    async with open_local_cluster(1, data_dir=directory) as cluster:
        ledger = await cluster.node.options(name="ledger", on="worker-1").spawn(Ledger)
        return await ledger.add(1), cluster.address


def counted_blocking(directory: Path) -> int:
    """Like `counted`, at the blocking door."""
    with blocking.open_local_cluster(1, data_dir=str(directory)) as cluster:
        return cluster.options(name="ledger", on="worker-1").spawn(Ledger).add(1)


async def counted_asyncio(directory: Path) -> int:
    """Like `counted`, at the door for asyncio."""
    async with aio.open_local_cluster(1, data_dir=directory) as cluster:
        ledger = await cluster.options(name="ledger", on="worker-1").spawn(Ledger)
        return await ledger.add(1)


KILLED = """
    import sys

    import trio

    from runtime import open_local_cluster
    from tests.cluster.actors_used import Ledger


    async def main() -> None:
        async with open_local_cluster(1, data_dir=sys.argv[1]) as cluster:
            ledger = await cluster.node.options(name="ledger", on="worker-1").spawn(Ledger)
            print(await ledger.add(1), flush=True)
            await trio.sleep_forever()


    if __name__ == "__main__":
        trio.run(main)
"""


def killed(directory: Path, script: Path) -> int:
    """A program that counts and is killed; returns its count."""
    script.write_text(textwrap.dedent(KILLED))
    with subprocess.Popen(
        [sys.executable, str(script), str(directory)], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        count = int(program.stdout.readline())
        program.kill()
    return count


@pytest.mark.timeout(120)
def test_what_actors_saved_is_there_when_the_cluster_is_opened_again_at_each_door(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "kept" / "here"
    first, address = trio.run(counted, directory)
    assert first == 1
    assert counted_blocking(directory) == 2
    assert asyncio.run(counted_asyncio(directory)) == 3
    assert killed(directory, tmp_path / "program.py") == 4
    # At once: the processes of the killed program are known to have ended.
    assert trio.run(counted, directory) == (5, address)
    for path in (directory, *directory.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, f"{path} is for its owner alone"


@pytest.mark.timeout(120)
async def test_two_clusters_do_not_share_a_directory(tmp_path: Path) -> None:
    async with open_local_cluster(0, data_dir=tmp_path):
        with pytest.raises(StoreDataError, match="is in use"):
            async with open_local_cluster(0, data_dir=tmp_path):
                pass


@pytest.mark.parametrize(
    ("data_dir", "store", "error", "says"),
    [
        (5, None, TypeError, "data_dir is the path of a directory, not 5"),
        (b"here", None, TypeError, "data_dir is the path of a directory"),
        ("", None, ValueError, "data_dir is empty"),
        ("here", "etcd://127.0.0.1:1", ValueError, "data_dir or store, not both"),
    ],
)
async def test_what_is_no_directory_is_refused_before_any_process_starts(
    data_dir: str, store: str | None, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        async with open_local_cluster(1, data_dir=data_dir, store=store):
            pass
    with pytest.raises(error, match=says):
        await trio.to_thread.run_sync(
            lambda: blocking.open_local_cluster(1, data_dir=data_dir, store=store)
        )
