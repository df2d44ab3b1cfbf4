"""A certificate that signs itself, for servers of a test: the key is drawn anew each time and kept nowhere.

Written out by hand, since the standard library reads certificates and makes none: X.509 (RFC 5280) in DER, over the
curve P-256 (FIPS 186-4), whose points are added as in any book. Not for anything but tests: it takes its time.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import secrets
import ssl
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["Certificate", "server_context", "write_certificate"]

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
A = P - 3
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
CURVE, EC_KEY, ECDSA_SHA256, COMMON_NAME = "1.2.840.10045.3.1.7", "1.2.840.10045.2.1", "1.2.840.10045.4.3.2", "2.5.4.3"
SUBJECT_KEY, KEY_USAGE, OTHER_NAMES, BASIC = "2.5.29.14", "2.5.29.15", "2.5.29.17", "2.5.29.19"

Point = tuple[int, int] | None
"""None is the one at infinity."""


class Certificate(NamedTuple):
    """PEM files: the certificate, which is its own authority, and its key."""

    certificate: Path
    key: Path


def write_certificate(folder: Path, *names: str) -> Certificate:
    """One that is good today for these names and addresses."""
    private = 1 + secrets.randbelow(N - 1)
    point = _times(private, G)
    assert point is not None
    public = b"\4" + b"".join(one.to_bytes(32, "big") for one in point)
    algorithm, now = _sequence(_oid(ECDSA_SHA256)), time.time()
    who = _sequence(_der(0x31, _sequence(_oid(COMMON_NAME), _der(0x0C, b"a test"))))
    spoken = b"".join(map(_name, names))
    told = _sequence(
        _version_3(),
        _integer(1 + secrets.randbits(64)),
        algorithm,
        who,
        _sequence(_at(now - 86400), _at(now + 86400)),
        who,
        _sequence(_sequence(_oid(EC_KEY), _oid(CURVE)), _der(3, b"\0" + public)),
        _der(
            0xA3,
            _sequence(
                _extension(OTHER_NAMES, _sequence(spoken)),
                _extension(BASIC, _sequence(_der(1, b"\xff")), critical=True),
                _extension(KEY_USAGE, _der(3, b"\x02\x84"), critical=True),  # to sign data, and certificates
                _extension(SUBJECT_KEY, _der(4, hashlib.sha256(public).digest()[:20])),
            ),
        ),
    )
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    whole = _sequence(told, algorithm, _der(3, b"\0" + _signed(told, private)))
    key = _sequence(_integer(1), _der(4, private.to_bytes(32, "big")), _der(0xA0, _oid(CURVE)))
    made.certificate.write_text(_pem("CERTIFICATE", whole))
    made.key.write_text(_pem("EC PRIVATE KEY", key))
    return made


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """For the end that has the key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    return context


def _signed(content: bytes, private: int) -> bytes:
    digest = int.from_bytes(hashlib.sha256(content).digest(), "big")
    while True:
        once = 1 + secrets.randbelow(N - 1)
        point = _times(once, G)
        assert point is not None
        r = point[0] % N
        s = pow(once, -1, N) * (digest + r * private) % N
        if r and s:
            return _sequence(_integer(r), _integer(s))


def _times(factor: int, point: Point) -> Point:
    total: Point = None
    while factor:
        if factor & 1:
            total = _sum(total, point)
        point = _sum(point, point)
        factor >>= 1
    return total


def _sum(one: Point, other: Point) -> Point:
    if one is None or other is None:
        return one or other
    if one[0] == other[0] and (one[1] + other[1]) % P == 0:
        return None
    if one == other:
        slope = (3 * one[0] ** 2 + A) * pow(2 * one[1], -1, P)
    else:
        slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, P)
    x = (slope**2 - one[0] - other[0]) % P
    return x, (slope * (one[0] - x) - one[1]) % P


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    length = len(content)
    if length < 128:
        return bytes([tag, length]) + content
    size = (length.bit_length() + 7) // 8
    return bytes([tag, 128 + size]) + length.to_bytes(size, "big") + content


def _sequence(*parts: bytes) -> bytes:
    return _der(0x30, *parts)


def _integer(value: int) -> bytes:
    return _der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _version_3() -> bytes:
    return _der(0xA0, _integer(2))


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    content = bytes([40 * first + second])
    for number in rest:
        digits = [number & 127]
        while number := number >> 7:
            digits.append(128 | number & 127)
        content += bytes(reversed(digits))
    return _der(6, content)


def _at(seconds: float) -> bytes:
    return _der(0x18, time.strftime("%Y%m%d%H%M%SZ", time.gmtime(seconds)).encode())


def _name(name: str) -> bytes:
    try:
        return _der(0x87, ipaddress.ip_address(name).packed)
    except ValueError:
        return _der(0x82, name.encode())


def _extension(kind: str, content: bytes, *, critical: bool = False) -> bytes:
    return _sequence(_oid(kind), _der(1, b"\xff") if critical else b"", _der(4, content))


def _pem(what: str, content: bytes) -> str:
    return f"-----BEGIN {what}-----\n{base64.encodebytes(content).decode()}-----END {what}-----\n"
