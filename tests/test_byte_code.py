"""What the processes of `make test` import is compiled before they start, and only once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from _pytest.assertion import rewrite

from tests import byte_code

pytest_part: Any = rewrite


def test_a_file_is_compiled_as_pytest_wants_it_and_only_when_it_has_changed(tmp_path: Path) -> None:
    test = tmp_path / "test_one.py"
    test.write_text("def test_it(): assert 1 + 1 == 2")
    byte_code.compile_for_pytest(test)
    compiled = tmp_path / "__pycache__" / f"test_one{rewrite.PYC_TAIL}"
    # This is how pytest reads it, and compiles the file itself if it gets None.
    assert pytest_part._read_pyc(test, compiled) is not None
    first = compiled.stat().st_ino
    byte_code.compile_for_pytest(test)
    assert compiled.stat().st_ino == first
    test.write_text("def test_it(): assert 1 + 1 == 2 + 0")
    assert pytest_part._read_pyc(test, compiled) is None
    byte_code.compile_for_pytest(test)
    assert pytest_part._read_pyc(test, compiled) is not None
    # Pytest is to show what is wrong with it.
    test.write_text("def test_it(: pass")
    byte_code.compile_for_pytest(test)


def test_all_that_pytest_compiles_in_a_way_of_its_own_is_among_the_files() -> None:
    places = [
        Path(module.__file__)
        for module in [*sys.modules.values()]
        if isinstance(getattr(module, "__loader__", None), rewrite.AssertionRewritingHook)
        and module.__file__ is not None
    ]
    installed = Path(sys.prefix)
    ours = {
        place
        for place in places
        if place.is_relative_to(byte_code.ROOT) and not place.is_relative_to(installed)
    }
    assert Path(__file__) in ours
    assert ours <= {*byte_code.rewritten_files()}
