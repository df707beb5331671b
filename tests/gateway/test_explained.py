"""Each answer over HTTP that is no value names the command that explains it, and it does."""

from __future__ import annotations

import ast
import inspect
import json
from importlib import import_module

import pytest
from click.testing import CliRunner

from actors import errors
from runtime.command_line.explain import ELSEWHERE, sections
from runtime.command_line.main import main
from runtime.gateway.problems import OF_SERVERS, explaining
from runtime.gateway.requests import Access
from runtime.gateway.server import BUSY
from runtime.plain_calls.service import IS_STREAM, NO_STREAM
from tests.failures.error_examples import check_answer
from tests.gateway.conftest import World, gateway

ADD, COUNT = "/v1/actors/counter/add", "/v1/actors/counter/count"

MISTAKES: dict[str, tuple[str, str, bytes | None, dict[str, str]]] = {
    "BadBody": ("POST", ADD, b"{", {}),
    "MediaType": ("POST", ADD, b"{}", {"Content-Type": "text/plain"}),
    "BadHeader": ("POST", ADD, b"{}", {"Understudy-Timeout": "soon"}),
    "BadPath": ("POST", "/v1/actors/%ff/add", b"{}", {}),
    "PathNotFound": ("GET", "/v2", None, {}),
    "RequestMethod": ("GET", ADD, None, {}),
    "NotAcceptable": ("POST", ADD, b"{}", {"Accept": "text/html"}),
    "StreamMethod": ("POST", COUNT, b'{"to": 1}', {"Accept": "application/json"}),
    "NoStreamMethod": ("POST", ADD, b"{}", {"Accept": "text/event-stream"}),
    "KeyOfStream": ("POST", COUNT, b'{"to": 1}', {"Idempotency-Key": "k"}),
    "HostRefused": ("POST", ADD, b"{}", {"Host": "elsewhere.example"}),
    "OriginRefused": ("POST", ADD, b"{}", {"Origin": "http://elsewhere.example"}),
    "ActorNotFoundError": ("POST", "/v1/actors/nobody/add", b"{}", {}),
    "MethodNotExposedError": ("POST", "/v1/actors/counter/secret", b"{}", {}),
    "BadArgumentsError": ("POST", ADD, b'{"amount": "many"}', {}),
}


def is_explained(name: str) -> bool:
    done = CliRunner().invoke(main, ["explain", name])
    return done.exit_code == 0 and done.output.startswith(f"{name}, ")


async def test_an_answer_that_is_no_value_names_what_explains_it(world: World) -> None:
    for error, (verb, path, body, headers) in MISTAKES.items():
        answer = await world.http.ask(verb, path, body, headers)
        assert answer.json["error"] == error
        assert answer.json["explain"] == f"understudy explain {error}"
        assert is_explained(error)
        if error not in ("ActorNotFoundError", "BadArgumentsError"):
            check_answer(error, answer.json)
    # What the method raised is the user's, and has no page here.
    raised = await world.http.call("counter", "fail", {"text": "no"})
    assert raised.json["explain"] == "understudy explain RemoteError"
    twice = (f"POST {ADD} HTTP/1.1", "Host: localhost", *["Idempotency-Key: k"] * 2)
    answered = await world.http.raw("\r\n".join([*twice, "Connection: close", "", ""]).encode())
    assert b'"explain":"understudy explain HeaderTwice"' in answered
    check_answer("HeaderTwice", json.loads(answered.partition(b"\r\n\r\n")[2]))
    async with gateway(world.node, token="a token of some length") as http:
        refused = await http.ask("POST", ADD, b"{}")
    assert refused.json["explain"] == "understudy explain TokenRequired"
    check_answer("TokenRequired", refused.json)


async def test_a_failure_of_the_gateway_is_an_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(Access, "check", fail)
    answer = (await world.http.ask("GET", "/healthz")).json
    assert (answer["error"], answer["outcome"]) == ("GatewayFailure", "unknown")
    assert answer["explain"] == "understudy explain GatewayFailure"
    check_answer("GatewayFailure", answer)


def names_in_the_code() -> set[str]:
    """The second argument of each call that makes an answer, where it is a text."""
    found = set()
    for module in ("gateway.application", "gateway.requests", "dashboard.application"):
        for node in ast.walk(ast.parse(inspect.getsource(import_module(f"runtime.{module}")))):
            match node:
                case ast.Call(
                    func=ast.Name("ProblemError" | "Problem" | "_refuse"),
                    args=[_, ast.Constant(str(name)), *_],
                ):
                    found.add(name)
    return found


def test_each_error_of_the_servers_has_its_explanation_and_no_other_has() -> None:
    assert names_in_the_code() | {IS_STREAM, NO_STREAM, "TooManyConnections"} == OF_SERVERS
    others = {name for name in sections() if not hasattr(errors, name)}
    assert others == OF_SERVERS | ELSEWHERE.keys()
    assert b"understudy explain TooManyConnections" in BUSY


@pytest.mark.parametrize(
    ("error", "outcome", "explained"),
    [
        ("ActorDiedError", "unknown", "ActorDiedError"),
        ("ActorDiedError", "raised", "RemoteError"),
        ("ErrorOfANewerNode", "not executed", "NotExecutedError"),
        ("TooSlowError", "unknown", "OutcomeUnknownError"),
        ("Mapping", "unknown", "OutcomeUnknownError"),
        ("__doc__", "not executed", "NotExecutedError"),
    ],
)
def test_an_error_without_an_explanation_has_that_of_its_outcome(
    error: str, outcome: str, explained: str
) -> None:
    assert explaining(error, outcome) == f"understudy explain {explained}"
