"""Use actors from a script without an event loop."""

from concurrent.futures import ThreadPoolExecutor

from actors import Actor, method
from runtime.blocking import open_local_cluster


class Words(Actor):
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    @method
    async def add(self, line: str) -> None:
        for word in line.lower().split():
            self.counts[word] = self.counts.get(word, 0) + 1

    @method
    async def most_common(self) -> tuple[str, int]:
        return max(self.counts.items(), key=lambda item: item[1])


LINES = ["To be or not to be", "that is the question", "whether it is nobler"] * 10


def main() -> None:
    with open_local_cluster(nodes=1) as cluster:
        words = cluster.options(name="words").spawn(Words)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(words.add, LINES))
        print(words.most_common())


if __name__ == "__main__":
    main()
