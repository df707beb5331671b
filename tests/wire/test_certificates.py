"""Certificates of our own making: what others say of them."""

from __future__ import annotations

import datetime
import random
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from runtime.wire.certificates import _G, _N, RANDOM_BYTES, _multiple, self_signed, valid_until


@pytest.mark.parametrize(
    ("factor", "x"),
    [
        (1, 0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296),
        (2, 0x7CF27B188D034F7E8A52380304B51AC3C08969E277F21B35A60B48FC47669978),
        (5, 0x51590B7A515140D2D784C85608668FDFEF8C82FD1F5BE52421554A0DC3D033ED),
        (_N - 1, 0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296),
    ],
)
def test_multiples_of_the_generator_are_the_published_ones(factor: int, x: int) -> None:
    assert _multiple(factor, _G)[0] == x


def test_another_implementation_finds_key_and_signature_right() -> None:
    draw = random.Random(19)
    for turn in range(40):
        made = self_signed("understudy", draw.randbytes(RANDOM_BYTES))
        certificate = x509.load_der_x509_certificate(made.certificate)
        certificate.verify_directly_issued_by(certificate)
        key = serialization.load_pem_private_key(made.pem.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.public_key() == certificate.public_key(), turn
        assert certificate.subject.rfc4514_string() == "CN=understudy"
        assert certificate.not_valid_before_utc.year == 1970
        assert certificate.not_valid_after_utc.year == 9999


@pytest.mark.parametrize(
    "randomness", [bytes(RANDOM_BYTES), b"\xff" * RANDOM_BYTES, bytes(39) + b"\1" * 57]
)
def test_the_least_and_the_largest_numbers_are_encoded_well(
    randomness: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = self_signed("n", randomness)
    certificate = x509.load_der_x509_certificate(made.certificate)
    certificate.verify_directly_issued_by(certificate)
    path = tmp_path_factory.mktemp("pem") / "both.pem"
    path.write_text(made.pem)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)


def test_two_certificates_have_nothing_in_common() -> None:
    draw = random.Random(1)
    one, other = (self_signed("understudy", draw.randbytes(RANDOM_BYTES)) for _ in range(2))
    keys = [x509.load_der_x509_certificate(each.certificate) for each in (one, other)]
    assert keys[0].public_key() != keys[1].public_key()
    assert keys[0].serial_number != keys[1].serial_number


def test_too_little_randomness_makes_no_certificate() -> None:
    with pytest.raises(ValueError, match="96 random bytes, not 32"):
        self_signed("understudy", bytes(32))


def test_the_key_is_in_no_repr() -> None:
    made = self_signed("understudy", random.Random(2).randbytes(RANDOM_BYTES))
    assert "PRIVATE" not in repr(made)


def test_the_end_of_a_certificate_is_what_another_implementation_reads() -> None:
    draw = random.Random(7)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x" * 60)])
    # Years up to 2049 are written with two digits.
    for year in (1950, 1999, 2000, 2049, 2050, 9999):
        end = datetime.datetime(year, 11, 23, 12, 34, 56, tzinfo=datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(draw.getrandbits(150) | 1)
            .not_valid_before(datetime.datetime(1950, 1, 1))
            .not_valid_after(end)
            .sign(key, hashes.SHA256())
        )
        data = made.public_bytes(serialization.Encoding.DER)
        assert valid_until(data) == end.timestamp()
        for size in range(0, len(data), 7):
            with pytest.raises(ValueError, match=r"cut off|not a certificate"):
                valid_until(data[:size])


def test_a_garbled_certificate_raises_value_error_or_has_an_end_between_the_years_0_and_9999() -> (
    None
):
    draw = random.Random(8)
    certificate = self_signed("understudy", draw.randbytes(RANDOM_BYTES)).certificate
    refused = 0
    for _ in range(2000):
        wrong = bytearray(certificate)
        for _ in range(3):
            wrong[draw.randrange(200)] = draw.randrange(256)
        try:
            end = valid_until(bytes(wrong))
        except ValueError:
            refused += 1
        else:
            assert datetime.datetime.fromtimestamp(end, datetime.UTC)
    # The bytes that tell where the end stands are some of the first 200.
    assert 0 < refused < 2000
