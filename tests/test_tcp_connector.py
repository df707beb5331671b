"""The order in which the addresses of a name are dialled; tests/links has the dialling."""

from __future__ import annotations

import pytest

from runtime.tcp_connector import of_both_families


@pytest.mark.parametrize(
    ("found", "dialled"),
    [
        (["10.0.0.1"], ["10.0.0.1"]),
        (["::1", "::2", "10.0.0.1", "10.0.0.2"], ["::1", "10.0.0.1", "::2", "10.0.0.2"]),
        (["10.0.0.1", "10.0.0.2"], ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_the_first_two_addresses_of_a_name_are_of_both_families(
    found: list[str], dialled: list[str]
) -> None:
    assert of_both_families(found) == dialled
