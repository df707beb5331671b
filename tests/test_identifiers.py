"""Identifiers of nodes and actors against the plain tuples that peers and the store send."""

import cbor2
from hypothesis import given
from hypothesis import strategies as st

from actors.identifiers import ActorId, NodeId
from runtime.wire.codec import Codec
from runtime.wire.handshake import Peer


@given(st.text(), st.integers(0, 2**63))
def test_an_identifier_is_written_and_found_like_the_plain_tuple(name: str, number: int) -> None:
    plain = (name, number)
    for made in (NodeId(name, number), ActorId(name, number)):
        assert cbor2.dumps(made) == cbor2.dumps(plain)
        assert cbor2.dumps([{made: [made]}]) == cbor2.dumps([{plain: [plain]}])
        # As a key of a table: what a message says is looked up without being converted.
        assert {made: 1}.get(plain) == 1  # type: ignore[call-overload]
        assert {plain: 1}.get(made) == 1
        assert (made < ("m", 5)) == (plain < ("m", 5))


def test_what_is_read_back_is_a_plain_tuple_that_equals_it() -> None:
    node = NodeId("a", 7)
    back = cbor2.loads(cbor2.dumps({node: node}))
    assert back == {("a", 7): ["a", 7]}
    assert NodeId(*back[node]) == node


def test_an_identifier_given_to_a_call_arrives_as_what_it_was() -> None:
    # Named tuples travel as they are; the frames of services hold plain tuples (see above).
    codec = Codec(sentinel=b"sentinel")
    for made in (NodeId("a", 7), ActorId("a", 7)):
        back = codec.decode(codec.encode(made, []), [])
        assert type(back) is type(made)
        assert back == made


def test_a_peer_has_its_identity_ready_and_is_compared_without_it() -> None:
    peer = Peer("a", 7, "node")
    assert type(peer.identity) is NodeId
    assert peer.identity == ("a", 7)
    assert peer.identity is peer.identity
    assert "identity" not in repr(peer)
    assert peer == Peer("a", 7, "node") != Peer("a", 8, "node")
