"""A pipeline that counts the words of files, and survives the death of a worker, of a whole
supervisor and of a node.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import trio

from actors import Actor, ChildSpec, DynamicSupervisor, Supervisor, UnderstudyError, method
from runtime import Node, draw_tree, open_local_cluster


def count_words(path: str) -> dict[str, int]:
    return dict(Counter(Path(path).read_text(encoding="utf-8").split()))


def summary(parts: Iterable[dict[str, int]]) -> str:
    words = sum(map(Counter, parts), Counter())
    common = sorted(words, key=lambda word: (-words[word], word))[:3]
    return f"{len(words)} words, the most common are {' '.join(common)}"


class Crawler(Actor):
    @method(idempotent=True)
    def files(self) -> list[str]:
        return sorted(str(path) for path in Path(json.__file__).parent.glob("*.py"))


class Parser(Actor):
    @method(idempotent=True)
    async def parse(self, path: str) -> dict[str, int]:
        if path.endswith("decoder.py") and not await self.saved():
            await self.save("this file has killed me once")
            self.nursery.start_soon(self.choke, path)
        await trio.sleep(0.1)  # as if it were more work
        return count_words(path)

    async def choke(self, path: str) -> None:
        raise RuntimeError(f"{path} is poison")


class Index(Actor):
    """Saves what it has before it says so: what it has answered survives it."""

    async def on_start(self) -> None:
        self.files = await self.saved() or {}

    @method(idempotent=True)
    async def add(self, path: str, words: dict[str, int]) -> None:
        await self.save({**self.files, path: words})
        self.files[path] = words

    @method(idempotent=True)
    async def all(self) -> list[dict[str, int]]:
        return list(self.files.values())


class Sink(Actor):
    @method(idempotent=True)
    async def write(self, parts: list[dict[str, int]]) -> str:
        return summary(parts)


PARSER = ChildSpec.of("parser", Parser).changed(labels={"for": "parsers"})
STORES = [
    ChildSpec.of("index", Index).changed(name="index", on="driver"),
    ChildSpec.of("sink", Sink).changed(name="sink", on="driver"),
]
PIPELINE = [
    ChildSpec.of("crawler", Crawler).changed(on="driver"),
    ChildSpec.of("parsers", DynamicSupervisor, PARSER, intensity=5).changed(on="driver"),
    ChildSpec.of("storage", Supervisor, STORES, strategy="rest-for-one").changed(on="driver"),
]


async def surely(call, *arguments):
    """Call until there is an answer: all of these methods may run twice, and whatever dies here is
    started again.
    """
    while True:
        try:
            return await call(*arguments)
        except UnderstudyError:
            await trio.sleep(0.05)


async def show(title: str, node: Node) -> None:
    print(f"{title}\n{draw_tree(await node.tree(), columns=('state', 'strategy', 'restarts'))}\n")


async def main() -> None:
    async with open_local_cluster(nodes=0) as cluster:
        node, stored = cluster.node, trio.Event()
        for name in ("left", "right"):
            await cluster.start_node(name, labels={"for": "parsers"})
        await node.options(name="pipeline").singleton(Supervisor, PIPELINE, intensity=5)
        parsers = await node.lookup("pipeline/parsers", DynamicSupervisor)
        index = await node.lookup("index", Index)
        files = await (await node.lookup("pipeline/crawler", Crawler)).files()

        async def work(parser: Parser, paths: list[str]) -> None:
            for path in paths:
                await surely(index.add, path, await surely(parser.parse, path))
                stored.set()

        async with trio.open_nursery() as nursery:
            workers = [await parsers.spawn(), await parsers.spawn()]
            await show("before:", node)
            for number, parser in enumerate(workers):
                nursery.start_soon(
                    work, parser, files[number::2]
                )  # the second one meets the poison
            cluster.process((await parsers.children())[0].node).kill()  # the node of the first one
            await stored.wait()
            await node.stop(
                await node.lookup("pipeline/storage")
            )  # a supervisor, with the index and the sink
        report = await surely((await node.lookup("sink", Sink)).write, await surely(index.all))
        await show("after:", node)
        print("as in a single process:", report == summary(map(count_words, files)))


if __name__ == "__main__":
    logging.getLogger("understudy").setLevel(
        logging.CRITICAL
    )  # What dies below dies on purpose, and the log would tell of it.
    trio.run(main)
