"""What torchrun says, in our terms."""

from __future__ import annotations

import pytest

from runtime.elastic.reaper import fence_seconds
from runtime.rendezvous.parameters import back_end_of
from runtime.rendezvous.registry import create_handler
from runtime.torchrun.agent import parameters_of


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("10.0.0.1:7400", "understudy"),
        ("a:7400,b:7400", "understudy"),
        ("etcd://10.0.0.1:2379", "etcd"),
        ("/shared/jobs", "file"),
        ("./jobs", "file"),
    ],
)
def test_the_endpoint_says_which_back_end_it_is_for(endpoint: str, expected: str) -> None:
    assert back_end_of(endpoint) == expected


def test_the_timeout_that_torch_adds_gives_way_to_the_one_that_was_asked_for() -> None:
    ours = parameters_of("h:1", "job", 1, 2, None, {"timeout": 900, "join_timeout": "60"})
    assert ours.config == {"join_timeout": "60"}
    assert parameters_of("h:1", "job", 1, 2, None, {"timeout": 900}).config == {"timeout": 900}


def test_the_error_of_a_missing_endpoint_says_what_it_may_be() -> None:
    with pytest.raises(
        ValueError, match=r"--rdzv-endpoint is missing: HOST:PORT .* etcd:// .* directory"
    ):
        parameters_of("", "job", 1, 2, None, {})


def test_an_option_that_nobody_knows_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match="did you mean 'last_call_timeout'"):
        create_handler(
            parameters_of("h:1", "job", 1, 2, None, {"timeout": 900, "last_call_timout": "3"})
        )


def test_workers_of_a_stopped_agent_are_gone_before_its_lease_is() -> None:
    # The latest renewal may be an interval old when the agent stops.
    assert fence_seconds(15.0, 5.0) + 5.0 < 15.0
