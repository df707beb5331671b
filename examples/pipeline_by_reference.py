"""Counts the pairs of letters in Python's own library on three nodes, while the driver has nothing
but references to the arrays.
"""

import sysconfig
from pathlib import Path

import trio

from actors import Actor, method
from runtime import Node, open_local_cluster

try:
    import numpy as np
except ImportError:
    raise SystemExit(
        "this example computes with numpy: pip install 'understudy-actors[numpy]'"
    ) from None

LETTERS = 26


def read_sources() -> np.ndarray:
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return np.frombuffer(b"\n".join(path.read_bytes() for path in paths), dtype=np.uint8)


def letters_of(text: np.ndarray) -> np.ndarray:
    """0 to 25 for letters, small or large, and -1 for all else."""
    letters = (text | 0x20).astype(np.int16) - ord("a")
    return np.where((letters >= 0) & (letters < LETTERS), letters, -1)


def pairs_of(letters: np.ndarray) -> np.ndarray:
    first, second = letters[:-1], letters[1:]
    return (first * LETTERS + second)[(first >= 0) & (second >= 0)]


def most_common(pairs: np.ndarray) -> list[str]:
    counts = np.bincount(pairs, minlength=LETTERS**2)
    return [
        f"{chr(97 + pair // LETTERS)}{chr(97 + pair % LETTERS)}"
        for pair in np.argsort(-counts, kind="stable")[:5].tolist()
    ]


class Reader(Actor):
    @method
    def read(self) -> np.ndarray:
        return read_sources()


class Letters(Actor):
    @method
    def only_letters(self, text: np.ndarray) -> np.ndarray:
        return letters_of(text)


class Pairs(Actor):
    @method
    def pairs(self, letters: np.ndarray) -> np.ndarray:
        return pairs_of(letters)

    @method
    def most_common(self, pairs: np.ndarray) -> list[str]:
        return most_common(pairs)


def received(node: Node) -> int:
    """Bytes that have come to the node over all its connections."""
    return sum(link["bytes_received"] for link in node.status()["links"])


async def main() -> None:
    async with open_local_cluster(nodes=3) as cluster:
        node = cluster.node
        reader = await node.options(on="worker-1").spawn(Reader)
        letters = await node.options(on="worker-2").spawn(Letters)
        pairs = await node.options(on="worker-3").spawn(Pairs)
        before = received(node)

        # Each call is under way before the one that makes its argument has returned; each array
        # goes from its node to the next.
        text = await reader.read.remote()
        only_letters = await letters.only_letters.remote(text.as_value())
        all_pairs = await pairs.pairs.remote(only_letters.as_value())
        common = await pairs.most_common(all_pairs.as_value())

        total = received(node) - before

        arrays = [read_sources()]
        arrays.append(letters_of(arrays[-1]))
        arrays.append(pairs_of(arrays[-1]))
        for name, reference, array in zip(
            ("text", "letters", "pairs"), (text, only_letters, all_pairs), arrays, strict=True
        ):
            print(f"{name:<8} {array.nbytes / 1e6:4.1f} MB, kept by {reference.owner}")
        print(f"the driver received {total:,} bytes")
        print("the most common pairs:", *common)
        print("as in a single process:", common == most_common(arrays[-1]))


if __name__ == "__main__":
    trio.run(main)
