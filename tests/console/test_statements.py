"""Lines become statements: at a prompt, from a file, pasted, cut off, and what does not compile."""

from __future__ import annotations

import pytest

from runtime.console.statements import Statement, Statements, one_liner


def fed(text: str, *, prompt: bool = True) -> list[Statement]:
    """All statements of a text, to its end."""
    statements = Statements(blank_line_ends=prompt)
    found = [one for line in text.splitlines() for one in statements.feed(line)]
    return [*found, *statements.end()]


def sources(found: list[Statement]) -> list[str]:
    """What they are made of; none may be an error."""
    assert [one.error for one in found] == [None] * len(found)
    return [one.source for one in found]


def test_each_line_at_the_margin_is_a_statement() -> None:
    assert sources(fed("a = 1\nawait b\n\nc")) == ["a = 1", "await b", "", "c"]


def test_a_block_ends_with_a_blank_line_at_a_prompt_and_without_one_in_a_file() -> None:
    block = "async def f():\n    await g()"
    assert sources(fed(f"{block}\n\nf")) == [block + "\n", "f"]
    assert sources(fed(f"{block}\n\n    return 1\nf", prompt=False)) == [
        f"{block}\n\n    return 1\n",
        "f",
    ]


@pytest.mark.parametrize("prompt", [True, False])
def test_a_line_at_the_margin_ends_the_block_before_it(prompt: bool) -> None:
    text = "for x in y:\n    a\nelse:\n    b\nprint(x)"
    assert sources(fed(text, prompt=prompt)) == ["for x in y:\n    a\nelse:\n    b\n", "print(x)"]


def test_a_text_of_several_lines_is_taken_line_by_line() -> None:
    statements = Statements(blank_line_ends=True)
    assert sources(statements.feed("a\nif b:\n    c\nd")) == ["a", "if b:\n    c\n", "d"]
    assert not statements.unfinished


def test_an_unfinished_statement_can_be_dropped() -> None:
    statements = Statements(blank_line_ends=True)
    assert statements.feed("f(") == []
    assert statements.unfinished
    statements.drop()
    assert sources(statements.feed("a")) == ["a"]
    assert statements.end() == []


@pytest.mark.parametrize(
    "text", ["a b", "x = (", "'''never closed", "f(\n" * 200, "a\x00b", "(" * 100_000, "return 1"]
)
def test_what_does_not_compile_is_an_error_and_not_the_end(text: str) -> None:
    statements = Statements(blank_line_ends=True)
    found = [*statements.feed(text), *statements.end()]
    assert isinstance(found[-1].error, Exception)
    assert found[-1].code == ()
    assert sources(statements.feed("a")) == ["a"]


def test_each_has_a_name_of_its_own() -> None:
    found = fed("a\nb c\nd")
    assert len({one.filename for one in found}) == 3
    assert found[2].code[0].co_filename == found[2].filename


def test_a_one_liner_shows_its_last_expression_alone() -> None:
    shown: list[object] = []
    code = one_liner("a = 2; a + 1; a * 5").code
    assert len(code) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.displayhook", shown.append)
        scope: dict[str, object] = {}
        for one in code:
            exec(one, scope)
    assert shown == [10]
    assert one_liner("").error is None
    assert isinstance(one_liner("a b").error, SyntaxError)
    assert isinstance(one_liner("(" * 100_000).error, Exception)
