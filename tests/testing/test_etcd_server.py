"""The local etcd of users' tests: its members end with the block, and can be killed and started."""

from __future__ import annotations

import pytest

from actors.errors import StoreError
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.gateway import Gateway
from runtime.testing import open_etcd
from tests.etcd import needs_etcd


async def answers(address: str) -> bool:
    """Whether the etcd there has a leader and answers a read."""
    gateway = Gateway(EtcdAddress.parse(address))
    try:
        await gateway.ask("/v3/kv/range", {"key": "AA=="}, seconds=5.0)
    except StoreError:
        return False
    finally:
        gateway.close()
    return True


@needs_etcd
async def test_a_member_that_was_killed_starts_again_on_its_files_and_ends_with_the_block() -> None:
    async with open_etcd() as etcd:
        assert await answers(etcd.address)
        etcd.kill()
        assert not await answers(etcd.address)
        await etcd.start()
        await etcd.ready()
        assert await answers(etcd.address)
    assert not await answers(etcd.address)


async def test_without_the_program_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreError, match="apt-get install etcd-server"):
        async with open_etcd():
            pytest.fail("an etcd has started without a program")
