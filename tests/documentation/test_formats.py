"""The page on formats has every kind of frame, every tag and every key that there is."""

from __future__ import annotations

from actors import Actor, ChildSpec, Supervisor, method
from runtime import open_node
from runtime.node import internals_of
from runtime.store.file import TABLES
from runtime.wire import tags as wire_tags
from runtime.wire.frames import Kind
from tests.documentation.test_reference import GENERATED, page
from tests.house import ROOT


def test_every_kind_of_frame_and_every_tag_is_on_the_page() -> None:
    assert list(GENERATED.FRAMES) == [kind.name for kind in Kind]
    tags = {
        name
        for name, value in vars(wire_tags).items()
        if name.isupper() and isinstance(value, int) and value in wire_tags.OWN_TAGS
    }
    assert set(GENERATED.TAGS) == tags
    text = page("formats.md")
    assert all(f"| {kind.value} | `{kind.name}` |" in text for kind in Kind)
    assert f"{wire_tags.TUPLE:,}" in text
    assert TABLES.strip() in text


class Saver(Actor):
    """Leaves a key of each kind that an actor can."""

    async def on_start(self) -> None:
        await self.join("savers")

    @method
    async def note(self) -> None:
        await self.save(b"x" * 300_000, answer=None)


def double(number: int) -> int:
    return 2 * number


async def test_every_key_in_the_store_is_on_the_page() -> None:
    prefixes = [GENERATED.prefix(paths) for paths in GENERATED.KEYS]
    async with open_node("one", secret="a secret of the pages") as node:
        spec = ChildSpec(id="saver", actor=Saver)
        root = await node.options(name="root").singleton(Supervisor, [spec])
        assert root is not None
        await node.options(name="top").spawn(Supervisor, [])
        saver = await node.lookup("root/saver", Saver)
        await saver.note()
        async with await node.pool(None, double, size=1) as pool:
            async for _ in pool.map(double, [1], journal="doubles"):
                pass
        found = [entry.key for entry in (await internals_of(node).store.range("")).entries]
    unknown = [key for key in found if not key.startswith(tuple(prefixes))]
    assert unknown == []
    used = {prefix for prefix in prefixes if any(key.startswith(prefix) for key in found)}
    assert {"nodes/", "names/", "supervised/", "states/", "groups/", "journals/"} <= used


def test_the_constants_of_the_rooms_are_all_listed() -> None:
    """A room that begins to write keys of its own under another prefix is found here."""
    listed = {path.rpartition(".")[0] for paths in GENERATED.KEYS for path in paths.split("+")}
    writers = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "runtime").rglob("*.py")
        if " Put(" in path.read_text() or "[Put(" in path.read_text()
    }
    rooms = ("runtime.store.", "runtime.rendezvous.")
    assert {name for name in writers - listed if not name.startswith(rooms)} == {
        "runtime.groups.groups",
        "runtime.membership.expulsion_service",
        "runtime.membership.names",
        "runtime.membership.remote_store",
    }, "these write below the prefixes of others; what is new needs a line on the page"
