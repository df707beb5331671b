"""Failpoints as a text, which the environment variable `UNDERSTUDY_FAULTS` has; what they do to
calls is in `tests/calls/test_faults.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from runtime.testing import Faults


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reply-lots=0.1", "there is no fault point 'reply-lots'"),
        ("reply-lost=2", "from 0 to 1"),
        ("reply-lost=often", "'reply-lost=often' is not a fault"),
        ("slow=1@-1", "at least 0"),
        ("slow=1@nan", "at least 0"),
        ("=0.1", "there is no fault point ''"),
    ],
)
def test_a_text_that_names_no_faults_is_refused_with_what_is_wrong_in_it(
    text: str, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        Faults.parse(text)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"times": 0}, "from 1 on"),
        ({"times": -1}, "from 1 on"),
        ({"times": "1"}, "from 1 on"),
        ({"times": True}, "from 1 on"),
        ({"probability": "x"}, "from 0 to 1"),
        ({"seconds": "1"}, "at least 0"),
        ({"method": ""}, "the name of one"),
        ({"method": 3}, "the name of one"),
    ],
)
def test_values_with_which_a_fault_could_not_happen_are_refused_when_it_is_added(
    given: dict[str, Any], expected: str
) -> None:
    faults = Faults()
    with pytest.raises(ValueError, match=expected):
        faults.add("reply-lost", **given)
    assert faults.active == []


def test_a_text_may_name_several_faults() -> None:
    faults = Faults.parse("reply-lost=0.25, slow=0.5@0.2,cut")
    assert [(fault.point, fault.probability, fault.seconds) for fault in faults.active] == [
        ("reply-lost", 0.25, 0.1),
        ("slow", 0.5, 0.2),
        ("cut", 1.0, 0.1),
    ]
