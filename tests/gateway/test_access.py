"""Who may ask: programs of this machine, or who has the token; no page of another site."""

from __future__ import annotations

import logging

import pytest

from runtime.gateway import application
from runtime.gateway.requests import check_exposure
from tests.gateway.conftest import World, gateway

ADD = "/v1/actors/counter/add"
TOKEN = "a-token-of-these-tests"


async def test_a_page_cannot_reach_the_gateway_under_a_name_of_its_own(world: World) -> None:
    for host in (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "10.0.0.1",
    ):
        answer = await world.http.ask("POST", ADD, b"{}", {"Host": host})
        assert answer.status == 403, host
        assert (await world.http.ask("GET", "/v1/openapi.json", None, {"Host": host})).status == 403
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8080", "127.1.2.3"):
        assert (await world.http.ask("POST", ADD, b"{}", {"Host": host})).status == 200, host


@pytest.mark.parametrize(
    ("named", "header", "status"),
    [
        ("http://localhost", "evil.example", 200),
        ("HTTP://127.0.0.1:80", "localhost", 200),
        ("http://evil.example", "localhost", 403),
        ("http://localhost@evil.example", "localhost", 400),
        ("http://evil.example@localhost", "localhost", 400),
        ("http://", "localhost", 400),
        ("ftp://localhost", "localhost", 404),
    ],
)
async def test_the_host_of_an_address_in_full_counts_and_not_that_of_the_header(
    world: World, named: str, header: str, status: int
) -> None:
    """RFC 9112, section 3.2.2."""
    answer = await world.http.ask("POST", f"{named}{ADD}", b"{}", {"Host": header})
    assert answer.status == status
    described = await world.http.ask("GET", f"{named}/v1/openapi.json?a=http://b/", None)
    assert described.status == status


async def test_an_address_in_full_without_a_path_is_the_page(world: World) -> None:
    assert (await world.http.ask("GET", "http://localhost", None)).status == 200
    assert (await world.http.ask("GET", "http://localhost?a=b", None)).status == 200


async def test_a_page_of_another_site_is_refused(world: World) -> None:
    own = f"127.0.0.1:{world.http.port}"
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"https://{own}.evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        # Which `urlsplit` refuses.
        {"Origin": "http://["},
        {"Origin": "http://[::1"},
        {"Origin": "http://"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answer = await world.http.ask("POST", ADD, b"{}", headers)
        assert (answer.status, answer.json["error"]) == (403, "OriginRefused"), headers
    asked = await world.http.ask("OPTIONS", ADD, None, {"Origin": "https://evil.example"})
    assert asked.status in (403, 405)
    assert not any("access-control" in name for name in asked.headers)
    assert (await world.http.ask("POST", ADD, b"{}", {"Origin": f"http://{own}"})).json == 1


async def test_a_token_is_required_where_one_is_set(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with gateway(world.node, token=TOKEN) as http:
        for given in ("", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN):
            answer = await http.ask("POST", ADD, b"{}", {"Authorization": given})
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in answer.body.decode()
        assert (await http.ask("POST", ADD, b"{}")).status == 401
        elsewhere = {"Referer": f"http://x/?token={TOKEN}", "Cookie": f"token={TOKEN}"}
        assert (await http.ask("POST", f"{ADD}?token={TOKEN}", b"{}", elsewhere)).status == 401
        assert (await http.ask("GET", "/v1/openapi.json")).status == 401
        assert (await http.ask("GET", "/other")).status == 401
        # Says nothing of the cluster, and asks for the token itself.
        assert (await http.ask("GET", "/")).status == 200
        right = {"Authorization": f"Bearer {TOKEN}", "Host": "any.example"}
        assert (await http.ask("POST", ADD, b"{}", right)).json == 1
        assert (await http.ask("GET", "/v1/openapi.json", None, right)).status == 200
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(application(world.node, token=TOKEN)._access)


async def test_other_names_are_allowed_by_name(world: World) -> None:
    app = application(world.node, hosts=("box.example:80",))
    assert app._access.hosts == {"box.example"}
    with pytest.raises(ValueError, match="ACTOR"):
        application(world.node, allow=("counter",))
    with pytest.raises(ValueError, match="16"):
        application(world.node, token="short")


def test_other_machines_need_a_token() -> None:
    check_exposure("127.0.0.1:80", None)
    check_exposure("localhost:80", None)
    check_exposure("0.0.0.0:80", TOKEN)
    for listen in ("0.0.0.0:80", "[::]:80", "10.0.0.1:80", "example.com:80"):
        with pytest.raises(ValueError, match="token"):
            check_exposure(listen, None)
