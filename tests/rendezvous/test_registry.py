"""Back-ends by name."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from runtime.environment import Environment
from runtime.rendezvous import registry as registry_module
from runtime.rendezvous.back_ends import file
from runtime.rendezvous.parameters import RendezvousParameters
from runtime.rendezvous.registry import OpenableHandler, Registry, create_handler, default_registry


def parameters(
    backend: str = "file",
    endpoint: str = "/tmp/somewhere",
    least: int = 1,
    most: int = 1,
    **options: Any,
) -> RendezvousParameters:
    return RendezvousParameters(backend, endpoint, "job", least, most, **options)


def plugin(parameters: RendezvousParameters, environment: Environment) -> OpenableHandler:
    """A back-end that another distribution could bring."""
    return file(parameters, environment)


def test_the_house_has_four() -> None:
    assert default_registry().names() == ["etcd", "file", "static", "understudy"]


@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [
        ("understudy", "127.0.0.1:7400"),
        ("etcd", "127.0.0.1:2379"),
        ("etcd", "etcd://a:1,b:2"),
        ("file", "/x"),
    ],
)
def test_a_handler_knows_its_back_end_and_its_job(backend: str, endpoint: str) -> None:
    handler = create_handler(parameters(backend, endpoint))
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == (
        backend,
        "job",
        False,
    )


def test_an_unknown_back_end_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(
        ValueError, match="no rendezvous back-end 'understuddy'; did you mean 'understudy'"
    ):
        create_handler(parameters("understuddy"))
    with pytest.raises(
        ValueError, match="no rendezvous back-end 'c10d'; there are: etcd, file, static, understudy"
    ):
        create_handler(parameters("c10d"))


def test_a_name_has_one_creator() -> None:
    registry = Registry()
    registry.register("mine", file)
    registry.register("mine", file)
    with pytest.raises(ValueError, match="'mine' cannot be registered"):
        registry.register("mine", plugin)
    with pytest.raises(ValueError, match="non-empty"):
        registry.register("", file)


def test_a_creator_that_makes_another_back_end_is_refused() -> None:
    registry = Registry()
    registry.register("mine", lambda given, environment: file(parameters("file"), environment))
    with pytest.raises(RuntimeError, match="'file' was created, and 'mine' asked for"):
        registry.create_handler(parameters("mine"))


def test_other_distributions_bring_back_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = [
        EntryPoint("theirs", "tests.rendezvous.test_registry:plugin", registry_module.GROUP),
        EntryPoint("broken", "tests.rendezvous.no_such_module:plugin", registry_module.GROUP),
        EntryPoint("file", "tests.rendezvous.test_registry:plugin", registry_module.GROUP),
    ]
    monkeypatch.setattr(
        registry_module,
        "entry_points",
        lambda group: importlib.metadata.EntryPoints(found).select(group=group),
    )
    registry = default_registry()
    assert registry.names() == ["broken", "etcd", "file", "static", "theirs", "understudy"]
    assert registry.create_handler(parameters("theirs")).get_backend() == "theirs"
    assert (
        "ignoring the rendezvous back-end 'file' of tests.rendezvous.test_registry:plugin"
        in caplog.text
    )
    with pytest.raises(ValueError, match="'broken' cannot be loaded from tests"):
        registry.create_handler(parameters("broken"))


@pytest.mark.parametrize(
    ("backend", "endpoint", "text"),
    [
        ("understudy", "", "HOST:PORT of a node of the cluster; none was given"),
        ("understudy", "somewhere", "not an address; expected HOST:PORT"),
        ("etcd", "", "HOST:PORT"),
        ("etcd", "http://127.0.0.1:2379", "a store's address is etcd://"),
        ("file", "", "a (shared )?directory( that all agents share)?; none was given"),
    ],
)
def test_an_endpoint_that_is_none_is_refused(backend: str, endpoint: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        create_handler(parameters(backend, endpoint))


@pytest.mark.parametrize(
    ("least", "most", "options", "text"),
    [
        (1, 2, {"rank": 0}, "need a fixed number of nodes, not 1 to 2"),
        (2, 2, {}, "from 0 to 1; it is None"),
        (2, 2, {"rank": 2}, "it is 2"),
        (2, 2, {"rank": "x"}, "valid integer"),
        (2, 2, {"rank": 0, "rnk": 1}, "did you mean 'rank'"),
    ],
)
def test_fixed_ranks_are_checked_at_once(
    least: int, most: int, options: dict[str, object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        create_handler(parameters("static", "/tmp/x", least, most, **options))


async def test_a_handler_is_opened_before_it_is_used_and_only_once() -> None:
    handler = create_handler(parameters())
    with pytest.raises(RuntimeError, match="opened first"):
        await handler.next_rendezvous()
