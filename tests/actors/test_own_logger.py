"""What handlers, filters and record factories of `logging` raise ends no code that logs through a
logger of Understudy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from actors.own_logger import own_logger


class Unprintable:
    def __repr__(self) -> str:
        raise LookupError("no text")


class BrokenHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("the handler's own")


class BrokenFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise LookupError("no tenant is set")


class LoggerOfAProgram(logging.Logger):
    def shout(self) -> str:
        return self.name.upper()


@pytest.fixture
def handlers() -> Iterator[list[logging.Handler]]:
    """The root logger's handlers, which are as before at the end."""
    handlers = logging.getLogger().handlers
    before = list(handlers)
    yield handlers
    handlers[:] = before


@pytest.fixture(name="factory")
def restored_factory() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(before)


def test_a_handler_that_raises_is_reported_on_stderr(
    handlers: list[logging.Handler], capsys: pytest.CaptureFixture[str]
) -> None:
    handlers.insert(0, BrokenHandler())
    own_logger("understudy.tests").warning("node %s has left", "north")
    printed = capsys.readouterr().err
    assert "RuntimeError: the handler's own" in printed
    assert "node %s has left" in printed
    with pytest.raises(RuntimeError, match="own"):
        logging.getLogger("of_the_program").warning("its own loggers raise as before")


def test_so_is_a_filter_that_raises(
    handlers: list[logging.Handler], capsys: pytest.CaptureFixture[str]
) -> None:
    handler = logging.StreamHandler()
    handler.addFilter(BrokenFilter())
    handlers.insert(0, handler)
    own_logger("understudy.tests").warning("%r came", Unprintable())
    assert "LookupError: no tenant is set" in capsys.readouterr().err


@pytest.mark.usefixtures("factory")
def test_a_record_factory_that_raises_loses_no_line(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object, **kwargs: object) -> logging.LogRecord:
        raise LookupError("no request")

    logging.setLogRecordFactory(broken)
    own_logger("understudy.tests").warning("node %s has left", "north")
    assert [record.getMessage() for record in caplog.records] == ["node north has left"]
    assert caplog.records[0].filename == "test_own_logger.py"
    assert "LookupError: no request" in capsys.readouterr().err


def test_a_logger_of_a_class_that_the_program_has_set_keeps_its_methods(
    handlers: list[logging.Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root.manager, "loggerClass", LoggerOfAProgram)
    logger = own_logger("understudy.tests.classed")
    assert isinstance(logger, LoggerOfAProgram)
    assert logger.shout() == "UNDERSTUDY.TESTS.CLASSED"
    assert own_logger("understudy.tests.classed") is logger
    handlers.insert(0, BrokenHandler())
    logger.warning("goes on")


def test_the_line_names_the_code_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    own_logger("understudy.tests").warning("here")
    assert caplog.records[0].filename == "test_own_logger.py"
    assert caplog.records[0].funcName == "test_the_line_names_the_code_that_logs"
