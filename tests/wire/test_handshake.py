"""The handshake, without sockets: who gets in, who does not, and what both sides are told."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import attrs
import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import (
    ExpelledError,
    HandshakeError,
    ProtocolError,
    ProtocolVersionError,
    UnderstudyError,
    WrongClusterError,
    WrongPeerError,
    WrongSecretError,
)
from actors.identifiers import NodeId
from runtime.wire.frames import Kind
from runtime.wire.handshake import (
    CONTROL_LIMIT,
    Acceptor,
    Channel,
    Dialer,
    Introduction,
    Peer,
    common_version,
)

SECRET = b"a secret of good length, for tests"
NONCE_A = bytes(range(32))
NONCE_B = bytes(range(32, 64))
ALICE = Introduction(
    "blue", Peer("alice", 7, "client", (), "host-1", frozenset({"segments"})), (1, 1)
)
BOB = Introduction(
    "blue",
    Peer(
        "bob",
        9,
        "node",
        ("tcp://10.0.0.2:7000", "unix:/run/bob"),
        "host-2",
        frozenset({"segments", "resume"}),
    ),
    (1, 1),
)

Frame = tuple[int, bytes]
Change = Callable[[int, Frame], Frame]


@attrs.define
class Outcome:
    """How a handshake ended on both sides, and what went over the wire."""

    dialer: Dialer
    acceptor: Acceptor
    frames: list[Frame]
    dialer_error: UnderstudyError | None = None
    acceptor_error: UnderstudyError | None = None

    @property
    def established(self) -> bool:
        return self.dialer.peer is not None and self.acceptor.peer is not None


def shake(
    dialer: Dialer, acceptor: Acceptor, change: Change = lambda index, frame: frame
) -> Outcome:
    """Carry the frames between both sides until neither has anything to say; `change` sits on the
    wire.
    """
    outcome = Outcome(dialer, acceptor, [])
    frame: Frame | None = dialer.start()
    to_acceptor = True
    while frame is not None:
        outcome.frames.append(frame)
        kind, control = change(len(outcome.frames) - 1, frame)
        try:
            frame = (
                acceptor.receive(kind, control) if to_acceptor else dialer.receive(kind, control)
            )
        except UnderstudyError as error:
            if to_acceptor:
                outcome.acceptor_error = error
            else:
                outcome.dialer_error = error
            break
        to_acceptor = not to_acceptor
    outcome.acceptor_error = outcome.acceptor_error or acceptor.error
    return outcome


def pair(
    *,
    dialer: Introduction = ALICE,
    acceptor: Introduction = BOB,
    secrets: tuple[bytes, bytes] = (SECRET, SECRET),
    expected: NodeId | None = None,
    bindings: tuple[bytes, bytes] = (b"", b""),
) -> tuple[Dialer, Acceptor]:
    return Dialer(dialer, secrets[0], NONCE_A, expected, Channel(bindings[0])), Acceptor(
        acceptor, secrets[1], NONCE_B, Channel(bindings[1])
    )


def changed(control: bytes, **fields: Any) -> bytes:
    """The same message with other fields; None takes one away."""
    merged = {**cbor2.loads(control), **fields}
    return cbor2.dumps({key: value for key, value in merged.items() if value is not None})


def refused_on_both_sides(outcome: Outcome, error: type[HandshakeError], *texts: str) -> None:
    assert type(outcome.acceptor_error) is error
    assert type(outcome.dialer_error) is error
    assert outcome.frames[-1][0] == Kind.REFUSED
    assert outcome.dialer.peer is None
    assert outcome.acceptor.peer is None
    for text in texts:
        assert text in str(outcome.acceptor_error)
        assert text in str(outcome.dialer_error)


def test_both_sides_learn_who_the_other_is_and_which_version_they_speak() -> None:
    outcome = shake(*pair(expected=NodeId("bob", 9)))
    assert [kind for kind, _ in outcome.frames] == [
        Kind.HELLO,
        Kind.CHALLENGE,
        Kind.PROOF,
        Kind.WELCOME,
    ]
    assert outcome.dialer.peer == BOB.peer
    assert outcome.acceptor.peer == ALICE.peer
    assert outcome.dialer.version == outcome.acceptor.version == 1
    assert outcome.acceptor.error is None


def test_nobody_is_established_before_the_other_has_proven_itself() -> None:
    dialer, acceptor = pair()
    challenge = acceptor.receive(*dialer.start())
    assert challenge is not None
    proof = dialer.receive(*challenge)
    assert proof is not None
    assert (dialer.peer, acceptor.peer) == (None, None)
    welcome = acceptor.receive(*proof)
    assert welcome is not None
    assert (dialer.peer, acceptor.peer) == (None, ALICE.peer)
    assert dialer.receive(*welcome) is None
    assert dialer.peer == BOB.peer


def test_a_wrong_secret_is_refused_with_the_next_step_on_both_sides() -> None:
    outcome = shake(*pair(secrets=(b"guessed", SECRET)))
    refused_on_both_sides(
        outcome,
        WrongSecretError,
        "'alice'",
        "'bob'",
        "'blue'",
        "UNDERSTUDY_SECRET",
        "--secret-file",
    )


def test_neither_the_secret_nor_a_proof_is_in_any_error_text() -> None:
    outcome = shake(*pair(secrets=(b"guessed", SECRET)))
    proof = cbor2.loads(outcome.frames[2][1])["proof"]
    for error in (outcome.acceptor_error, outcome.dialer_error):
        for hidden in (b"guessed", SECRET, proof, NONCE_A, NONCE_B):
            assert hidden.hex() not in str(error)
            assert repr(hidden)[2:-1] not in str(error)


def test_an_acceptor_shows_nothing_made_from_the_secret_to_a_stranger() -> None:
    frames = [
        shake(*pair(secrets=(b"guessed", secret))).frames for secret in (SECRET, b"another secret")
    ]
    assert frames[0] == frames[1]


def test_another_cluster_is_refused_before_any_proof() -> None:
    outcome = shake(*pair(dialer=attrs.evolve(ALICE, cluster="green")))
    refused_on_both_sides(outcome, WrongClusterError, "'green'", "'blue'", "'alice'", "'bob'")
    assert len(outcome.frames) == 2


def test_no_common_version_is_refused_and_both_ranges_are_named() -> None:
    outcome = shake(*pair(dialer=attrs.evolve(ALICE, versions=(3, 4))))
    refused_on_both_sides(outcome, ProtocolVersionError, "3 to 4", "1 to 1", "upgrade")


def test_a_hello_of_a_far_version_is_refused_for_its_version_even_if_its_other_fields_changed() -> (
    None
):
    hello = cbor2.dumps(
        {
            "magic": "understudy",
            "versions": [8, 9],
            "cluster": "blue",
            "name": "future",
            "role": "oracle",
        }
    )
    _, acceptor = pair()
    answer = acceptor.receive(Kind.HELLO, hello)
    assert answer is not None
    assert answer[0] == Kind.REFUSED
    assert isinstance(acceptor.error, ProtocolVersionError)


@pytest.mark.parametrize("expected", [NodeId("carol", 9), NodeId("bob", 8), NodeId("bob", 10)])
def test_another_node_or_another_incarnation_than_the_dialled_is_refused(
    expected: NodeId,
) -> None:
    outcome = shake(*pair(expected=expected))
    refused_on_both_sides(
        outcome, WrongPeerError, repr(expected[0]), str(expected[1]), "'bob' (incarnation 9)"
    )


def test_a_node_that_dials_itself_is_refused() -> None:
    refused_on_both_sides(shake(*pair(dialer=BOB)), WrongPeerError, "'bob'", "itself")


def test_an_earlier_incarnation_of_a_name_is_not_itself() -> None:
    earlier = attrs.evolve(BOB, peer=attrs.evolve(BOB.peer, incarnation=8))
    assert shake(*pair(dialer=earlier)).established


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster": "green"}, WrongClusterError),
        ({"version": 2}, ProtocolVersionError),
        ({"name": "carol"}, WrongPeerError),
        ({"incarnation": 10}, WrongPeerError),
        ({"name": "alice", "incarnation": 7}, WrongPeerError),
    ],
)
def test_a_dialer_checks_the_acceptor_itself_and_proves_nothing_to_the_wrong_one(
    fields: dict[str, object], error: type[HandshakeError]
) -> None:
    outcome = shake(
        *pair(expected=NodeId("bob", 9)),
        lambda index, frame: (frame[0], changed(frame[1], **fields)) if index == 1 else frame,
    )
    assert type(outcome.dialer_error) is error
    assert len(outcome.frames) == 2


def test_a_welcome_without_the_secret_is_a_wrong_secret_for_the_dialer() -> None:
    outcome = shake(
        *pair(),
        lambda index, frame: (
            (frame[0], changed(frame[1], proof=bytes(32))) if index == 3 else frame
        ),
    )
    assert type(outcome.dialer_error) is WrongSecretError
    assert "'bob'" in str(outcome.dialer_error)
    assert outcome.dialer.peer is None


def test_the_proofs_are_those_that_the_protocol_describes() -> None:
    (_, hello), (_, challenge), (_, proof), (_, welcome) = shake(
        *pair(bindings=(b"channel", b"channel"))
    ).frames

    def expected(part: bytes, *more: bytes) -> bytes:
        items = (hello, challenge, b"channel", *more)
        return hmac.digest(
            SECRET, part + b"".join(len(item).to_bytes(8, "big") + item for item in items), "sha256"
        )

    shown = cbor2.loads(proof)["proof"]
    assert shown == expected(b"dialer")
    assert cbor2.loads(welcome)["proof"] == expected(b"acceptor", shown)


def test_echoing_the_dialers_proof_is_no_welcome() -> None:
    dialer, acceptor = pair()
    challenge = acceptor.receive(*dialer.start())
    assert challenge is not None
    proof = dialer.receive(*challenge)
    assert proof is not None
    with pytest.raises(WrongSecretError):
        dialer.receive(Kind.WELCOME, proof[1])


def test_an_acceptor_takes_none_of_its_own_messages() -> None:
    frames = shake(*pair()).frames
    for kind, control in (frames[1], frames[3]):
        _, fresh = pair()
        with pytest.raises(ProtocolError):
            fresh.receive(kind, control)
    dialer, acceptor = pair()
    challenge = acceptor.receive(*dialer.start())
    assert challenge is not None
    with pytest.raises(ProtocolError):
        acceptor.receive(*challenge)


def test_the_proof_of_an_acceptor_is_worth_nothing_as_that_of_a_dialer() -> None:
    outcome = shake(*pair(), lambda index, frame: frame)
    welcome = outcome.frames[3][1]
    dialer, acceptor = pair()
    acceptor.receive(*dialer.start())
    refusal = acceptor.receive(Kind.PROOF, welcome)
    assert refusal is not None
    assert refusal[0] == Kind.REFUSED
    assert isinstance(acceptor.error, WrongSecretError)


def test_a_recorded_proof_does_not_open_a_later_connection() -> None:
    hello, _, proof, _ = shake(*pair()).frames
    later = Acceptor(BOB, SECRET, bytes(32))
    later.receive(*hello)
    refusal = later.receive(*proof)
    assert refusal is not None
    assert refusal[0] == Kind.REFUSED
    assert isinstance(later.error, WrongSecretError)
    assert later.peer is None


def test_a_recorded_welcome_does_not_convince_a_later_dialer() -> None:
    _, challenge, _, welcome = shake(*pair()).frames
    later = Dialer(ALICE, SECRET, bytes(32))
    later.start()
    later.receive(*challenge)
    with pytest.raises(WrongSecretError):
        later.receive(*welcome)


def test_a_relay_between_two_channels_is_found_by_their_binding() -> None:
    refused_on_both_sides(shake(*pair(bindings=(b"one", b"two"))), WrongSecretError)
    assert shake(*pair(bindings=(b"one", b"one"))).established


@pytest.mark.parametrize(
    ("dialers", "acceptors", "spoken"),
    [((1, 2), (1, 1), 1), ((1, 1), (1, 2), 1), ((1, 3), (2, 4), 3), ((2, 2), (1, 3), 2)],
)
def test_neighbouring_versions_speak_the_highest_they_share(
    dialers: tuple[int, int], acceptors: tuple[int, int], spoken: int
) -> None:
    outcome = shake(
        *pair(
            dialer=attrs.evolve(ALICE, versions=dialers),
            acceptor=attrs.evolve(BOB, versions=acceptors),
        )
    )
    assert outcome.established
    assert outcome.dialer.version == outcome.acceptor.version == spoken


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)).map(sorted),
    st.tuples(st.integers(1, 9), st.integers(1, 9)).map(sorted),
)
def test_the_common_version_is_the_largest_in_both_ranges(
    ours: list[int], theirs: list[int]
) -> None:
    both = set(range(ours[0], ours[1] + 1)) & set(range(theirs[0], theirs[1] + 1))
    assert common_version((ours[0], ours[1]), (theirs[0], theirs[1])) == max(both, default=None)


def test_a_lowered_version_range_is_noticed() -> None:
    sides = pair(
        dialer=attrs.evolve(ALICE, versions=(1, 2)), acceptor=attrs.evolve(BOB, versions=(1, 2))
    )
    outcome = shake(
        *sides,
        lambda index, frame: (
            (frame[0], changed(frame[1], versions=[1, 1])) if index == 0 else frame
        ),
    )
    refused_on_both_sides(outcome, WrongSecretError)


class Newer(Dialer):
    """A dialer of a later release: its HELLO has a field that this one does not know."""

    def start(self) -> tuple[Kind, bytes]:
        kind, control = super().start()
        self._hello = changed(control, compression=["zstd"], nested={"a": [1, 2.5, None]})
        return kind, self._hello


def test_unknown_fields_are_ignored_but_still_covered_by_the_proofs() -> None:
    assert shake(Newer(ALICE, SECRET, NONCE_A), pair()[1]).established
    refused_on_both_sides(
        shake(
            Newer(ALICE, SECRET, NONCE_A),
            pair()[1],
            lambda index, frame: (
                (frame[0], changed(frame[1], compression=["none"])) if index == 0 else frame
            ),
        ),
        WrongSecretError,
    )


def test_unknown_fields_of_unproven_messages_are_ignored() -> None:
    assert shake(
        *pair(),
        lambda index, frame: (frame[0], changed(frame[1], extra="x")) if index > 1 else frame,
    ).established


def agree_or_fail(outcome: Outcome) -> None:
    if outcome.established:
        assert outcome.dialer.peer == BOB.peer
        assert outcome.acceptor.peer == ALICE.peer
        assert outcome.dialer.version == outcome.acceptor.version == 1
    if outcome.acceptor.peer is not None:
        assert outcome.acceptor.peer == ALICE.peer
    if outcome.dialer.peer is not None:
        assert outcome.dialer.peer == BOB.peer


@pytest.mark.parametrize("message", [0, 1, 2, 3])
def test_no_flipped_bit_of_any_message_leaves_the_sides_with_different_facts(message: int) -> None:
    size = len(shake(*pair(expected=NodeId("bob", 9))).frames[message][1])
    for bit in range(size * 8):

        def flip(index: int, frame: Frame, bit: int = bit) -> Frame:
            control = bytearray(frame[1])
            if index == message:
                control[bit // 8] ^= 1 << bit % 8
            return frame[0], bytes(control)

        outcome = shake(*pair(expected=NodeId("bob", 9)), flip)
        agree_or_fail(outcome)
        assert not outcome.established


@given(
    message=st.integers(0, 3),
    start=st.integers(0, 300),
    removed=st.integers(0, 40),
    inserted=st.binary(max_size=40),
    kind=st.integers(0, 255),
)
def test_no_edit_of_any_message_leaves_the_sides_with_different_facts(
    message: int, start: int, removed: int, inserted: bytes, kind: int
) -> None:
    def edit(index: int, frame: Frame) -> Frame:
        if index != message:
            return frame
        control = frame[1]
        at = start % (len(control) + 1)
        return (kind if kind >= 200 else frame[0]), control[:at] + inserted + control[
            at + removed :
        ]

    agree_or_fail(shake(*pair(expected=NodeId("bob", 9)), edit))


@given(st.binary(max_size=300), st.sampled_from([*range(39, 46), 0, 255]))
def test_garbage_is_a_protocol_error_on_either_side_and_ends_the_handshake(
    control: bytes, kind: int
) -> None:
    dialer, acceptor = pair()
    hello = dialer.start()
    for side in (dialer, acceptor):
        with pytest.raises(ProtocolError, match="check that the other end"):
            side.receive(kind, control)
    for side, frame in ((dialer, acceptor_frame()), (acceptor, hello)):
        with pytest.raises(ProtocolError, match="nothing more"):
            side.receive(*frame)


def acceptor_frame() -> Frame:
    return shake(*pair()).frames[1]


@pytest.mark.parametrize("message", [0, 1, 2, 3])
def test_every_truncation_of_every_message_is_a_protocol_error(message: int) -> None:
    for length in range(len(shake(*pair()).frames[message][1])):
        outcome = shake(
            *pair(),
            lambda index, frame, length=length: (  # type: ignore[misc]
                frame[0],
                frame[1][:length] if index == message else frame[1],
            ),
        )
        error = outcome.dialer_error if message % 2 else outcome.acceptor_error
        assert type(error) is ProtocolError


def test_an_oversized_message_is_refused_unread() -> None:
    _, acceptor = pair()
    with pytest.raises(ProtocolError, match=str(CONTROL_LIMIT)):
        acceptor.receive(Kind.HELLO, changed(pair()[0].start()[1], padding=bytes(CONTROL_LIMIT)))


def with_entry(control: bytes, entry: bytes) -> bytes:
    """The same map with one more key and value, given as raw CBOR; without the entry it would be
    accepted.
    """
    return bytes([control[0] + 1]) + control[1:] + entry


HOSTILE = {
    "indefinite map": b"\x61a\xbf\xff",
    "indefinite text": b"\x61a\x7f\x61b\xff",
    "repeated key": b"\x64name\x65carol",
    "integer key": b"\x01\x02",
    "deep nesting": b"\x61a" + b"\x81" * 40 + b"\x00",
    "huge declared length": b"\x61a\x9b" + b"\x7f" * 8,
    "bad text": b"\x61a\x61\xff",
    "bignum tag": b"\x61a\xc2\x41\x01",
    "unknown tag": b"\x61a\xd9\x99\x99\x01",
}


@pytest.mark.parametrize("entry", HOSTILE.values(), ids=HOSTILE)
def test_cbor_that_is_not_plain_is_a_protocol_error(entry: bytes) -> None:
    dialer, acceptor = pair()
    with pytest.raises(ProtocolError, match="does not decode"):
        acceptor.receive(Kind.HELLO, with_entry(dialer.start()[1], entry))


def test_plain_cbor_in_an_unknown_field_is_none() -> None:
    dialer, acceptor = pair()
    assert acceptor.receive(Kind.HELLO, with_entry(dialer.start()[1], b"\x61a\x01")) is not None
    assert acceptor.error is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda hello: hello + b"\x00", "after its end"),
        (lambda hello: b"\x81" + hello, "not a map"),
    ],
)
def test_a_message_is_one_map_and_nothing_else(
    change: Callable[[bytes], bytes], complaint: str
) -> None:
    dialer, acceptor = pair()
    with pytest.raises(ProtocolError, match=complaint):
        acceptor.receive(Kind.HELLO, change(dialer.start()[1]))


@pytest.mark.parametrize(
    "tag",
    [
        *range(6),
        25,
        28,
        29,
        30,
        35,
        36,
        37,
        43000,
        52,
        54,
        100,
        256,
        258,
        260,
        261,
        1004,
        55799,
        70000,
    ],
)
def test_no_tag_is_decoded_before_the_peer_is_known(tag: int) -> None:
    dialer, acceptor = pair()
    with pytest.raises(ProtocolError, match="does not decode"):
        acceptor.receive(
            Kind.HELLO,
            with_entry(dialer.start()[1], b"\x61a\xda" + tag.to_bytes(4, "big") + b"\x80"),
        )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", "other"),
        ("magic", None),
        ("versions", [1]),
        ("versions", [2, 1]),
        ("versions", [True, True]),
        ("versions", "11"),
        ("cluster", 1),
        ("cluster", ""),
        ("name", "n" * 256),
        ("name", b"alice"),
        # As another line of a log, or what controls the terminal that shows it.
        ("name", "alice\nERROR"),
        ("name", "alice\x1b[2J"),
        ("cluster", "tests\x9b2J"),
        ("addresses", ["tcp:a:1\n"]),
        ("host", "h\u202e"),
        ("incarnation", -1),
        ("incarnation", True),
        ("incarnation", 1.0),
        ("role", "admin"),
        ("role", ["node"]),
        ("addresses", "abc"),
        ("addresses", [1]),
        ("addresses", ["a"] * 17),
        ("addresses", ["a" * 256]),
        ("host", "h" * 256),
        ("host", None),
        ("features", ["f"] * 65),
        ("features", [["f"]]),
        ("expected", ["bob"]),
        ("expected", ["bob", "9"]),
        ("nonce", bytes(31)),
        ("nonce", "n" * 32),
        ("nonce", None),
    ],
)
def test_a_field_of_a_wrong_type_or_length_is_a_protocol_error(field: str, value: object) -> None:
    dialer, acceptor = pair()
    kind, hello = dialer.start()
    with pytest.raises(ProtocolError, match="HELLO is malformed"):
        acceptor.receive(kind, changed(hello, **{field: value}))
    assert acceptor.error is None


@pytest.mark.parametrize("proof", [None, b"", bytes(31), bytes(33), "p" * 32])
def test_a_proof_of_a_wrong_shape_is_a_protocol_error_on_either_side(proof: object) -> None:
    for message in (2, 3):
        outcome = shake(
            *pair(),
            lambda index, frame, message=message: (  # type: ignore[misc]
                frame[0],
                changed(frame[1], proof=proof) if index == message else frame[1],
            ),
        )
        error = outcome.dialer_error if message == 3 else outcome.acceptor_error
        assert type(error) is ProtocolError


def test_nothing_is_taken_after_the_end() -> None:
    for outcome in (shake(*pair()), shake(*pair(secrets=(b"guessed", SECRET)))):
        for side in (outcome.dialer, outcome.acceptor):
            for kind, control in outcome.frames:
                with pytest.raises(ProtocolError, match="nothing more"):
                    side.receive(kind, control)


def test_a_dialer_that_has_not_started_takes_nothing_and_starts_only_once() -> None:
    dialer, _ = pair()
    with pytest.raises(ProtocolError):
        dialer.receive(*acceptor_frame())
    dialer.start()
    with pytest.raises(RuntimeError, match="another nonce"):
        dialer.start()


def test_a_refusal_with_an_unknown_code_is_a_handshake_error_with_its_text_on_one_line() -> None:
    dialer, _ = pair(expected=NodeId("bob", 9))
    dialer.start()
    with pytest.raises(
        HandshakeError, match=r"'bob'.*too many connections  ERROR forged.*'busy'"
    ) as caught:
        dialer.receive(
            Kind.REFUSED,
            cbor2.dumps({"code": "busy", "text": "too many connections\r\nERROR forged"}),
        )
    assert type(caught.value) is HandshakeError


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"code": 1, "text": ""},
        {"code": "busy", "text": "t" * 1001},
        {"code": "busy", "text": b"t"},
    ],
)
def test_a_malformed_refusal_is_a_protocol_error(fields: dict[str, object]) -> None:
    dialer, _ = pair()
    dialer.start()
    with pytest.raises(ProtocolError):
        dialer.receive(Kind.REFUSED, cbor2.dumps(fields))


def test_the_longest_names_still_fit_into_a_refusal() -> None:
    long = "\U0001f3ad" * 255
    dialer = Introduction(long[1:] + "x", Peer(long, 1, "node"))
    acceptor = Introduction(long, Peer("\U0001f3ac" * 255, 1, "node"))
    refused_on_both_sides(shake(*pair(dialer=dialer, acceptor=acceptor)), WrongClusterError)


@pytest.mark.parametrize("side", [Dialer, Acceptor])
def test_an_empty_secret_a_short_nonce_and_outsized_facts_are_refused_at_construction(
    side: type[Dialer] | type[Acceptor],
) -> None:
    with pytest.raises(ValueError, match="UNDERSTUDY_SECRET"):
        side(ALICE, b"", NONCE_A)
    with pytest.raises(ValueError, match="nonce"):
        side(ALICE, SECRET, NONCE_A[:31])
    with pytest.raises(ValueError, match="addresses"):
        side(
            attrs.evolve(BOB, peer=attrs.evolve(BOB.peer, addresses=("a" * 255,) * 16)),
            SECRET,
            NONCE_A,
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "n" * 256},
        {"incarnation": -1},
        {"incarnation": 2**64},
        {"role": "admin"},
        {"addresses": ("",)},
    ],
)
def test_a_peer_that_could_not_introduce_itself_cannot_be_made(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        attrs.evolve(BOB.peer, **fields)


@pytest.mark.parametrize("versions", [(0, 1), (2, 1)])
def test_a_version_range_must_be_one(versions: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="version"):
        Introduction("blue", BOB.peer, versions)


@pytest.mark.parametrize("stranger", [False, True])
def test_an_expulsion_counts_only_if_it_is_proven(stranger: bool) -> None:
    dialer = Dialer(ALICE, SECRET, bytes(32))
    acceptor = Acceptor(
        BOB, SECRET, bytes(32), judge=lambda peer: ExpelledError(f"not {peer.name}")
    )
    answer = acceptor.receive(*dialer.start())
    assert answer is not None
    answer = dialer.receive(*answer)
    assert answer is not None
    refused = acceptor.receive(*answer)
    assert refused is not None
    assert acceptor.peer is None
    assert isinstance(acceptor.error, ExpelledError)
    if stranger:
        # As one between the two could send it, with what has been on the wire.
        proof = cbor2.loads(answer[1])["proof"]
        refused = Kind.REFUSED, changed(refused[1], proof=proof)
    with pytest.raises(ExpelledError, match="not alice") as caught:
        dialer.receive(*refused)
    assert caught.value.proven != stranger


def test_an_expulsion_before_any_proof_is_the_word_of_a_stranger() -> None:
    for proof in (bytes(32), b"", 7):
        dialer = Dialer(ALICE, SECRET, bytes(32))
        dialer.start()
        refused = cbor2.dumps({"code": "expelled", "text": "go", "proof": proof})
        with pytest.raises(ExpelledError) as caught:
            dialer.receive(Kind.REFUSED, refused)
        assert not caught.value.proven
