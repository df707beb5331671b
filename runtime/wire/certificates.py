"""Self-signed certificates for TLS, made without any library: a key of the curve P-256 and the
smallest X.509 certificate that TLS takes, as PEM. No I/O; randomness is passed in.

Peers do not trust such a certificate: they prove the cluster's secret over its hash (see
`runtime.wire.handshake`). It lives as long as one process, and its key signs one thing here, the
certificate itself, before anything listens; so it does not matter that this arithmetic takes a time
that depends on the key. TLS is OpenSSL's: it signs each handshake with this key. Python's `ssl` can
load a key but not make one, and a node that needs an extra package to be encrypted would be run
without.

Sources: FIPS 186-5 (ECDSA), SEC 1 section 2.3 and appendix C.4, RFC 5280, RFC 5480, X.690.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import textwrap

import attrs

RANDOM_BYTES = 96
"""Random bytes that `self_signed` needs: 40 for the key, 40 for the signature, 16 for the serial
number. 64 bits more than the order of the group has, so that the remainder is not biased (FIPS
186-5, A.2.1).
"""

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
"""The curve y² = x³ - 3x + b over the field of `_P` elements, the order of its group, and its
generator (SP 800-186). None is the point at infinity.
"""

Point = tuple[int, int]

_INTEGER, _BITS, _OCTETS, _OBJECT, _UTF8 = 0x02, 0x03, 0x04, 0x06, 0x0C
_UTC_TIME, _TIME, _SEQUENCE, _SET, _CONTEXT_0, _CONTEXT_1 = 0x17, 0x18, 0x30, 0x31, 0xA0, 0xA1

_EC_KEY = bytes.fromhex("2a8648ce3d0201")
_PRIME256V1 = bytes.fromhex("2a8648ce3d030107")
_ECDSA_SHA256 = bytes.fromhex("2a8648ce3d040302")
_COMMON_NAME = bytes.fromhex("550403")
"""Object identifiers, encoded."""


@attrs.frozen
class SelfSigned:
    """A certificate and its private key. `certificate` is DER, `pem` both of them."""

    certificate: bytes
    pem: str = attrs.field(repr=False)


def certificate_hash(certificate: bytes) -> bytes:
    """Return what both ends of a TLS connection bind their proofs to: the SHA-256 of the server's
    certificate (DER). This is `tls-server-end-point` of RFC 5929, with one hash for all
    certificates.
    """
    return hashlib.sha256(certificate).digest()


def self_signed(name: str, randomness: bytes) -> SelfSigned:
    """Make a new key and its certificate. The certificate is valid at any time, so that clocks do
    not matter.

    `name`: the subject, for display. `randomness`: `RANDOM_BYTES` unpredictable bytes, used for
    nothing else. Raises ValueError for another number of bytes.
    """
    if len(randomness) != RANDOM_BYTES:
        raise ValueError(f"a certificate takes {RANDOM_BYTES} random bytes, not {len(randomness)}")
    private, nonce = _scalar(randomness[:40]), _scalar(randomness[40:80])
    # Positive, and of one length (RFC 5280, 4.1.2.2).
    serial = int.from_bytes(randomness[80:], "big") >> 1 | 1 << 126
    x, y = _multiple(private, _G)
    public = _der(_BITS, b"\0\x04" + _bytes(x) + _bytes(y))
    algorithm = _der(_SEQUENCE, _der(_OBJECT, _ECDSA_SHA256))
    common_name = _der(_SEQUENCE, _der(_OBJECT, _COMMON_NAME) + _der(_UTF8, name.encode()))
    named = _der(_SEQUENCE, _der(_SET, common_name))
    # The end is the date that means "no expiry" (RFC 5280, 4.1.2.5).
    validity = _der(_UTC_TIME, b"700101000000Z") + _der(_TIME, b"99991231235959Z")
    key_type = _der(_SEQUENCE, _der(_OBJECT, _EC_KEY) + _der(_OBJECT, _PRIME256V1))
    facts = _der(
        _SEQUENCE,
        _der(_CONTEXT_0, _integer(2))
        + _integer(serial)
        + algorithm
        + named
        + _der(_SEQUENCE, validity)
        + named
        + _der(_SEQUENCE, key_type + public),
    )
    signature = _der(_BITS, b"\0" + _signature(facts, private, nonce))
    certificate = _der(_SEQUENCE, facts + algorithm + signature)
    key = _der(
        _SEQUENCE,
        _integer(1)
        + _der(_OCTETS, _bytes(private))
        + _der(_CONTEXT_0, _der(_OBJECT, _PRIME256V1))
        + _der(_CONTEXT_1, public),
    )
    return SelfSigned(certificate, _pem("EC PRIVATE KEY", key) + _pem("CERTIFICATE", certificate))


def _signature(data: bytes, private: int, nonce: int) -> bytes:
    """Sign with ECDSA and SHA-256, FIPS 186-5 section 6.4.1."""
    digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
    r = _multiple(nonce, _G)[0] % _N
    s = pow(nonce, -1, _N) * (digest + r * private) % _N
    # This has probability 2**-256 with good randomness. With bad randomness, the signature would
    # reveal the key.
    if not r or not s:
        raise ValueError("the randomness of this process is broken")
    return _der(_SEQUENCE, _integer(r) + _integer(s))


def _scalar(randomness: bytes) -> int:
    """Return a number from 1 to the order of the group, exclusive."""
    return 1 + int.from_bytes(randomness, "big") % (_N - 1)


def _multiple(factor: int, point: Point) -> Point:
    """Return `factor` times `point`, by doubling and adding."""
    total: Point | None = None
    added: Point | None = point
    while factor:
        if factor & 1:
            total = _sum(total, added)
        added = _sum(added, added)
        factor >>= 1
    assert total is not None, "factors are from 1 to the order, exclusive"
    return total


def _sum(one: Point | None, other: Point | None) -> Point | None:
    """Add two points: the group law in affine coordinates."""
    if one is None or other is None:
        return other if one is None else one
    (x1, y1), (x2, y2) = one, other
    if x1 == x2:
        if (y1 + y2) % _P == 0:
            return None
        slope = 3 * (x1 * x1 - 1) * pow(2 * y1, -1, _P)
    else:
        slope = (y2 - y1) * pow(x2 - x1, -1, _P)
    x3 = (slope * slope - x1 - x2) % _P
    return x3, (slope * (x1 - x3) - y1) % _P


def _bytes(number: int) -> bytes:
    return number.to_bytes(32, "big")


def _integer(number: int) -> bytes:
    # One bit more than the number needs, because the first bit is the sign.
    return _der(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _pem(label: str, data: bytes) -> str:
    text = "\n".join(textwrap.wrap(base64.b64encode(data).decode(), 64))
    return f"-----BEGIN {label}-----\n{text}\n-----END {label}-----\n"


def valid_until(certificate: bytes) -> float:
    """When a certificate (DER) ends, in seconds since 1970. Raises ValueError for what is none.

    Python's `ssl` shows this only of certificates of peers.
    """
    _, facts = _read(_read(certificate)[1])
    fields: list[tuple[int, bytes]] = []
    rest = facts
    while rest and len(fields) < 6:
        start, (tag, content) = rest, _read(rest)
        fields.append((tag, content))
        rest = start[_size(start) :]
    # The version is left out of version 1. Then: serial number, algorithm, issuer, validity.
    place = 4 if fields and fields[0][0] == _CONTEXT_0 else 3
    if len(fields) <= place:
        raise ValueError("this is not a certificate")
    validity = fields[place][1]
    tag, end = _read(validity[_size(validity) :])
    text = end.decode("ascii")
    if tag == _UTC_TIME:
        # Years of two digits are of 1950 to 2049 (RFC 5280, 4.1.2.5.1).
        text = ("19" if text[:2] >= "50" else "20") + text
    when = datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ")
    return when.replace(tzinfo=datetime.UTC).timestamp()


def _read(data: bytes) -> tuple[int, bytes]:
    """The tag and the content of the first value of `data`."""
    size = _size(data)
    return data[0], data[size - _content_size(data)[1] : size]


def _size(data: bytes) -> int:
    """The bytes of the first value, its head included."""
    head, content = _content_size(data)
    if head + content > len(data):
        raise ValueError("a value is cut off")
    return head + content


def _content_size(data: bytes) -> tuple[int, int]:
    """The bytes of the head and of the content of the first value."""
    if len(data) < 2:
        raise ValueError("a value is cut off")
    if data[1] < 0x80:
        return 2, data[1]
    count = data[1] & 0x7F
    return 2 + count, int.from_bytes(data[2 : 2 + count], "big")
