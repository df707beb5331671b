"""Which name is suggested for one that is not there."""

from __future__ import annotations

from runtime.near_names import nearest


def test_a_child_is_found_by_its_own_name_and_others_by_how_they_are_written() -> None:
    names = ["top/a", "top/pool/a", "counter", "count", "b"]
    assert nearest("a", names) == ["top/a"]
    assert nearest("a", names, 3) == ["top/a", "top/pool/a"]
    assert nearest("countr", names) == ["counter"]
    assert nearest("pool/a", names) == ["top/pool/a"]
    assert nearest("a", ["b", "counter"]) == []
    assert nearest("counter", ["top/counter", "counters"], 2) == ["top/counter", "counters"]
