"""The secret of a cluster is in no environment, argument, log line, `repr` or output of a command,
where it was given in a file.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

import runtime
from actors import Actor, method
from runtime import open_node
from runtime.command_line.main import main
from runtime.node import internals_of

SECRET = "the-secret-that-nothing-shows-4711"

NAMES = re.compile(r"(^|_)(secrets?|passwords?)$")
"""Fields that hold a secret."""

COMMANDS = (
    ("status", "--json"),
    *(("list", what, "--json") for what in ("nodes", "links")),
    ("inspect", "looker"),
    ("inspect", "looker", "--json"),
    ("stack", "one"),
    ("logs", "one", "--json"),
    ("secret", "status"),
)


class Looker(Actor):
    """Looks at its own process."""

    @method
    def look(self) -> str:
        """Return what others could see of it, and what a program sees that it starts."""
        started = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
        arguments = Path("/proc/self/cmdline").read_bytes().decode(errors="replace")
        return "\n".join([json.dumps(dict(os.environ)), started, arguments, repr(vars(self))])

    @method
    async def fail(self) -> None:
        """Fail, where what its variables hold is kept for those who debug."""
        raise ValueError("on purpose")


def shown(text: str) -> bool:
    """True if the secret is in the text, in one of the forms in which bytes are written."""
    return SECRET in text or SECRET.encode().hex() in text


async def test_a_secret_in_a_file_is_shown_by_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    async with (
        open_node("one", secret=file) as one,
        open_node("two", secret=file, join=one.address),
    ):
        looker = await one.options(name="looker", isolation="process").spawn(Looker)
        assert not shown(await looker.look())
        with pytest.raises(ValueError, match="on purpose") as caught:
            await looker.fail()
        assert not shown(str(caught.value.__notes__))
        for words in COMMANDS:
            given = [*words, "--address", one.address, "--secret-file", str(file)]
            run = partial(CliRunner().invoke, main, given)
            done = await trio.to_thread.run_sync(run, abandon_on_cancel=True)
            assert done.exit_code == 0, (words, done.output)
            assert not shown(done.output), words
        internals = internals_of(one)
        assert internals.keyring.secrets() == (SECRET.encode(),)
        for thing in (one, internals, internals.keyring, *internals.links.values()):
            assert not shown(repr(thing))
    assert not shown(caplog.text)


def test_no_field_with_a_secret_is_in_a_repr() -> None:
    places = []
    for path in Path(runtime.__file__).parent.rglob("*.py"):
        text = path.read_text("utf-8")
        if not re.search("(secrets?|passwords?): ", text):
            continue
        for found in ast.walk(ast.parse(text)):
            if not isinstance(found, ast.ClassDef):
                continue
            if not any("attrs" in ast.unparse(one) for one in found.decorator_list):
                continue
            for field in found.body:
                if not isinstance(field, ast.AnnAssign) or not NAMES.search(
                    ast.unparse(field.target)
                ):
                    continue
                # A keyring shows nothing of what it holds.
                if "Keyring" not in ast.unparse(field) and "repr=False" not in ast.unparse(field):
                    places.append(f"{path.name}: {found.name}.{ast.unparse(field.target)}")
    assert places == []
