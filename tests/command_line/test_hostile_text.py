"""What a cluster says is shown as text: it moves no cursor, begins no line, and sets no title."""

from __future__ import annotations

import datetime
import json
import logging
import re
import sys
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from actors import ChildSpec, Supervisor, method
from actors.errors import BadArgumentsError, RemoteError
from actors.options import SpawnOptions
from runtime import open_node
from runtime.command_line import call as call_command
from runtime.command_line.main import main
from runtime.command_line.node_answers import Answers
from runtime.logs.formats import MOST_WRITTEN, JsonFormatter, TextFormatter
from runtime.node import Node, internals_of
from tests import villain
from tests.live_pair import SECRET

EVIL = "evil\x1b]0;title\x07\x1b[2J\x9b31m\u202e\nFAKE line\rFAKE line\u2028FAKE line"


class Villain(villain.Villain):
    """Says such text wherever it can."""

    evil = EVIL

    @method
    async def log(self) -> None:
        logging.getLogger("villain").warning("%s", EVIL)

    @method
    async def fail(self) -> None:
        raise ValueError(EVIL)

    @method
    async def say(self) -> str:
        return EVIL

    async def on_inspect(self) -> object:
        return EVIL


def check(output: str, words: tuple[str, ...]) -> None:
    # Without the colours of the commands themselves.
    for line in re.sub(r"\x1b\[\d+m", "", output).split("\n"):
        assert line.isprintable(), f"{words} printed {line!r}"
        assert not line.startswith("FAKE"), f"{words} printed a line of its own"


async def test_no_command_prints_what_controls_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    async with (
        open_node("w1", secret=SECRET, trace_references=True) as node,
        trio.open_nursery() as nursery,
    ):
        villain = await node.options(name="villain").spawn(Villain)
        await node.options(name="boss").spawn(
            Supervisor, [ChildSpec.of("child", Villain).changed(name="child")]
        )
        await villain.log()
        kept = await villain.keep()
        child = await node.lookup("child", Villain)
        with pytest.raises(RemoteError):
            await child.crash()
        nursery.start_soon(villain.stand)
        await villain.begin()
        shown = await _shown(node, file)
        nursery.cancel_scope.cancel()
        del kept
    # They were shown, all of them.
    for words in (("logs",), ("call", "villain", "fail"), ("list", "deaths"), ("stack", "villain")):
        assert "\\x1b]0;title" in shown[words], (words, shown[words])


async def _shown(node: Node, file: Path) -> dict[tuple[str, ...], str]:
    found: dict[tuple[str, ...], str] = {}
    reach = ("--address", node.address, "--secret-file", str(file))
    for words in (
        ("status",),
        ("list", "actors"),
        ("list", "deaths"),
        ("list", "calls"),
        ("top",),
        ("tree",),
        ("logs",),
        ("stack", "villain"),
        ("stack", "w1", "--all"),
        ("inspect", "villain"),
        ("refs", "--where"),
        ("why", "villain"),
        ("call", "villain", "fail"),
        ("call", "nobody", "fail"),
        ("secret", "status"),
        ("expel", "--list"),
    ):
        with trio.fail_after(60):
            # With colours: click takes some of what controls a terminal out for a file.
            result = await trio.to_thread.run_sync(
                lambda words=words: CliRunner().invoke(main, [*words, *reach], color=True)  # type: ignore[misc]
            )
        check(result.output, words)
        found[words] = result.output
    return found


def test_a_result_is_for_a_terminal_without_and_for_a_file_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text = call_command._text(f"first\n\tsecond{EVIL}")
    assert isinstance(text, str)
    assert text.split("\n")[1].startswith("        secondevil\\x1b")
    assert all(line.isprintable() for line in text.split("\n"))
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert call_command._text(EVIL) == EVIL


def test_a_node_that_does_not_answer_is_named_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    Answers(silent={EVIL: EVIL}, left_out={EVIL: 3}).warn()
    check(capsys.readouterr().err, ("warn",))


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x1b[2J", "a\x7f", "a\x9b31m", "a\u2028b", "a\u202eb", "a\u2066b", "a\x00"]
)
async def test_no_name_has_control_characters(name: str) -> None:
    with pytest.raises(ValueError, match="control characters"):
        SpawnOptions(name=name)
    with pytest.raises(ValueError, match="control characters"):
        async with open_node(name):
            raise AssertionError("it is open")


def test_a_long_log_line_is_cut_before_it_is_looked_through() -> None:
    # To escape 10 MiB character by character takes seconds of the event loop.
    record = logging.LogRecord("villain", logging.ERROR, "", 0, "%s", ("\x1b" * 10**6,), None)
    text = TextFormatter(times=False).format(record)
    assert text.startswith("ERROR villain: " + r"\x1b" * 1000)
    assert re.search(r"\.\.\. \[[0-9,]+ more characters are left out\]$", text)
    assert len(text) < 5 * MOST_WRITTEN
    line = json.loads(JsonFormatter().format(record))
    assert len(line["message"]) < MOST_WRITTEN + 100


def test_a_log_line_controls_no_terminal() -> None:
    formatter = TextFormatter(times=False)
    record = logging.LogRecord(
        "villain", logging.ERROR, "", 0, "%s", (f"first\n\tsecond{EVIL}",), None
    )
    try:
        raise ValueError(EVIL)
    except ValueError:
        record.exc_info = sys.exc_info()
    text = formatter.format(record)
    assert "first\n  \tsecondevil\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\u202e\n" in text
    first, *others = text.split("\n")
    assert all(line.replace("\t", "").isprintable() for line in [first, *others])
    # None of them can pose as another record.
    assert first.startswith("ERROR villain: ")
    assert all(line.startswith("  ") for line in others)
    assert len(JsonFormatter().format(record).splitlines()) == 1


def test_a_certificate_that_a_stranger_has_made_controls_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, EVIL)])
    uris = ["understudy://a/node/w%1b%5b2J", "understudy://a/node/\x1b]0;title\x07"]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 7)
        .not_valid_before(now - datetime.timedelta(1))
        .not_valid_after(now + datetime.timedelta(99))
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(one) for one in uris]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "odd\x1b[2J.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    for command in ("info", "expiry"):
        # Not by `CliRunner`: where no terminal reads it, click takes escapes out by itself.
        with pytest.raises(SystemExit):
            main(["tls", command, str(file)], color=True)
        shown = capsys.readouterr().out
        assert "99" in shown or "98" in shown
        assert all(line.isprintable() for line in shown.split("\n"))
        assert "FAKE line" not in [line.strip() for line in shown.splitlines()]


async def test_names_of_many_are_checked_where_they_start(tmp_path: Path) -> None:
    async with open_node("w1", secret=SECRET) as node:
        service = internals_of(node).endpoint.node_service("w1", node.incarnation)
        path = f"{Villain.__module__}:{Villain.__qualname__}"
        for names in (["good", EVIL], ["@node"], [""], ["x" * 256], [b"bytes"], [7]):
            with pytest.raises((RemoteError, BadArgumentsError)):
                await service.spawn_many(path, [()] * len(names), names, SpawnOptions())
        assert not [name for name in internals_of(node).cells if not name.startswith("@")]
