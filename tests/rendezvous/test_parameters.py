"""What a rendezvous is asked for, and what is refused with which text."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.rendezvous.parameters import AgentSettings, RendezvousParameters, RendezvousTimeout


def parameters(**options: Any) -> RendezvousParameters:
    return RendezvousParameters("file", "/tmp/somewhere", "job", 1, 2, **options)


@pytest.mark.parametrize(
    ("backend", "run_id", "least", "most", "text"),
    [
        ("", "job", 1, 1, "backend name must be a non-empty"),
        ("file", "", 1, 1, "run id must be a non-empty"),
        (
            "file",
            "job",
            0,
            1,
            r"minimum number of rendezvous nodes \(0\) must be greater than zero",
        ),
        ("file", "job", -1, 1, "greater than zero"),
        (
            "file",
            "job",
            3,
            2,
            r"maximum number of rendezvous nodes \(2\) must be greater than or equal to .* \(3\)",
        ),
    ],
)
def test_a_job_that_cannot_be_is_refused(
    backend: str, run_id: str, least: int, most: int, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        RendezvousParameters(backend, "", run_id, least, most)


@pytest.mark.parametrize("value", [True, 1, "1", "true", "True", "t", "yes", "Y"])
def test_what_means_yes(value: object) -> None:
    assert parameters(option=value).get_as_bool("option") is True


@pytest.mark.parametrize("value", [False, 0, "0", "false", "F", "no", "n"])
def test_what_means_no(value: object) -> None:
    assert parameters(option=value).get_as_bool("option") is False


@pytest.mark.parametrize("value", ["maybe", 2, 1.0, [], ""])
def test_what_is_neither_yes_nor_no_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="'option' does not represent a valid boolean value"):
        parameters(option=value).get_as_bool("option")


def test_options_have_defaults_where_they_were_not_given() -> None:
    found = parameters(given="7")
    assert (
        found.get("given"),
        found.get_as_int("given"),
        found.get("other"),
        found.get("other", 3),
    ) == ("7", 7, None, 3)
    assert (
        found.get_as_bool("other"),
        found.get_as_bool("other", True),
        found.get_as_int("other"),
        found.get_as_int("other", 5),
    ) == (
        None,
        True,
        None,
        5,
    )


@pytest.mark.parametrize("value", ["x", "1.5", 1.5, [], ""])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="'option' does not represent a valid integer value"):
        parameters(option=value).get_as_int("option")


@pytest.mark.parametrize("value", ["x", "nan", "inf", float("inf"), True, None, []])
def test_what_is_no_number_of_seconds_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="'join_timeout' is a number of seconds"):
        RendezvousTimeout.of(parameters(join_timeout=value))


def test_the_timeouts_are_those_of_the_contract() -> None:
    assert (
        RendezvousTimeout()
        == RendezvousTimeout.of(parameters())
        == RendezvousTimeout(600, 30, 30, 5)
    )


def test_the_launchers_timeout_is_another_name_for_that_of_joining() -> None:
    assert RendezvousTimeout.of(parameters(timeout="900")).join == 900
    with pytest.raises(ValueError, match="two names of one thing"):
        RendezvousTimeout.of(parameters(timeout=1, join_timeout=1))


@pytest.mark.parametrize("name", ["join", "close", "heartbeat"])
def test_timeouts_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match=rf"The {name} timeout \(0 s\) must be positive"):
        RendezvousTimeout(**{name: 0})


def test_the_last_call_may_be_left_out_but_not_be_negative() -> None:
    assert RendezvousTimeout(last_call=0).last_call == 0
    with pytest.raises(ValueError, match="last_call timeout"):
        RendezvousTimeout(last_call=-1)


def test_an_option_that_nobody_knows_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(
        ValueError, match="'file' has no option 'join_timout'; did you mean 'join_timeout'"
    ):
        AgentSettings.of(parameters(join_timout=3))
    with pytest.raises(
        ValueError, match=r"has no option 'xyz'; it has: close_timeout, .*, timeout"
    ):
        AgentSettings.of(parameters(xyz=3))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keep_alive_interval": 0}, "must be positive"),
        ({"keep_alive_max_attempt": 1}, "at least 2"),
        ({"retention": 10}, "longer than the lease"),
        ({"store_timeout": 0}, "must be positive"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        AgentSettings.of(parameters(**options))


def test_an_agent_is_dead_after_so_many_intervals() -> None:
    assert AgentSettings.of(parameters()).lease_seconds == 15
    assert (
        AgentSettings.of(
            parameters(keep_alive_interval="2", keep_alive_max_attempt="5")
        ).lease_seconds
        == 10
    )
