"""Statements of a console: lines are collected until they are a whole statement, and compiled with
`await` allowed at the top. No I/O.
"""

from __future__ import annotations

import ast
from codeop import CommandCompiler
from types import CodeType

import attrs


@attrs.frozen
class Statement:
    """One statement as it was typed. `error` says why there is no code: a SyntaxError, or what
    else the compiler raises for such a text. `filename` is its place in tracebacks.
    """

    source: str
    filename: str
    code: tuple[CodeType, ...] = ()
    error: Exception | None = None


class Statements:
    """Makes statements of lines.

    With `blank_line_ends`, as at a prompt, a block ends with a blank line. Without, as in a file,
    functions may have blank lines in them. At either, a line at the margin that is no part of a
    block ends it: what is pasted need not be changed.
    """

    def __init__(self, *, blank_line_ends: bool) -> None:
        self._blank_line_ends = blank_line_ends
        self._compiler = CommandCompiler()
        self._compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._lines: list[str] = []
        self._number = 0

    @property
    def unfinished(self) -> bool:
        """True within a statement: more lines are expected."""
        return bool(self._lines)

    def feed(self, text: str) -> list[Statement]:
        """Take a line, or several in one text; returns the statements that they complete."""
        found: list[Statement] = []
        for line in text.split("\n"):
            found.extend(self._feed(line))
        return found

    def end(self) -> list[Statement]:
        """No more lines come: what is there is a statement, or an error."""
        if not self._lines:
            return []
        lines, self._lines = self._lines, []
        cut_off = SyntaxError("the input ends in the middle of a statement")
        return [self._compiled([*lines, ""]) or self._statement(lines, error=cut_off)]

    def drop(self) -> None:
        """Forget an unfinished statement."""
        self._lines = []

    def _feed(self, line: str) -> list[Statement]:
        before = self._lines
        if before and not line.strip() and not self._blank_line_ends:
            self._lines = [*before, line]
            return []
        statement = self._compiled([*before, line])
        if statement is None:
            self._lines = [*before, line]
            return []
        self._lines = []
        if statement.error is not None and before and line[:1].strip():
            block = self._compiled([*before, ""])
            if block is not None and block.error is None:
                return [block, *self._feed(line)]
        return [statement]

    def _compiled(self, lines: list[str]) -> Statement | None:
        """The statement of these lines; None if more are needed."""
        try:
            code = self._compiler("\n".join(lines), self._filename(), "single")
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as error:
            # The last two: brackets, or operators, that are nested too deeply.
            return self._statement(lines, error=error)
        return self._statement(lines, code) if code is not None else None

    def _statement(
        self, lines: list[str], code: CodeType | None = None, error: Exception | None = None
    ) -> Statement:
        filename = self._filename()
        self._number += 1
        if error is not None:
            # The frames are the compiler's; where the mistake is, the error itself says.
            error.__traceback__ = None
        return Statement("\n".join(lines), filename, () if code is None else (code,), error)

    def _filename(self) -> str:
        # Each has a name of its own, by which tracebacks find its lines.
        return f"<shell {self._number + 1}>"


def one_liner(source: str, filename: str = "<-c>") -> Statement:
    """The statements of `understudy shell -c`, of which the value of a last expression is shown."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        tree = compile(source, filename, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        code = [compile(tree, filename, "exec", flags, dont_inherit=True)]
        if last is not None:
            shown = ast.Interactive(body=[last])
            code.append(compile(shown, filename, "single", flags, dont_inherit=True))
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        return Statement(source, filename, error=error.with_traceback(None))
    return Statement(source, filename, tuple(code))
