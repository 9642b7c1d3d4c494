"""Keys and DSSE envelopes: a payload, signed with an ECDSA key and checked with its public one, offline.

Keys are on P-256, P-384 or P-521, signatures deterministic (RFC 6979): the same payload and key give the same bytes.
Needs the package cryptography (extra `sign`).
"""

import base64
import binascii
import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner.reading import read_regular, visible
from device_runner.result import Struct
from pipeline.core.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

log = logging.getLogger(__name__)

EXTRA = "sign"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
KEY_BYTES = 1 << 16
OTHER_KIND = "it is no ECDSA key on P-256, P-384 or P-521"
KEY_REMEDY = (
    "give a PEM file: `openssl ecparam -name prime256v1 -genkey -noout -out key.pem` makes a private one, "
    "`openssl ec -in key.pem -pubout -out key.pub` its public one"
)
PUBLIC_REMEDY = "keep it secret, and give its public key: `openssl ec -in {} -pubout -out key.pub` makes it"
HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""Curve to the hash that OpenSSF Model Signing v1.0 signs with."""


class EnvelopeSignature(Struct, frozen=True, kw_only=True):
    """A signature in base64; `keyid` may name the key and is not trusted."""

    sig: str
    keyid: str = ""


class Envelope(Struct, frozen=True, kw_only=True):
    """DSSE: what is signed in base64, its type, and the signatures."""

    payload: str
    payload_type: str = msgspec.field(name="payloadType", default=PAYLOAD_TYPE)
    signatures: tuple[EnvelopeSignature, ...]


class SignedSubject(Struct, frozen=True, kw_only=True):
    """What a statement is about: a name, and digests by algorithm."""

    name: str
    digest: dict[str, str]


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key, and the sha256 of its public key as PEM, by which others name it."""

    private: "EllipticCurvePrivateKey"
    fingerprint: str


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key, and its sha256 as PEM."""

    public: "EllipticCurvePublicKey"
    fingerprint: str


def sealed_envelope(payload: bytes, key: SigningKey, *, named: bool) -> Envelope:
    """An envelope with one signature; `named`: the key's fingerprint stands in it."""
    signed = key.private.sign(_signed_bytes(payload), _algorithm(key.private.curve.name))
    return Envelope(
        payload=base64.b64encode(payload).decode(),
        signatures=(EnvelopeSignature(sig=base64.b64encode(signed).decode(), keyid=key.fingerprint if named else ""),),
    )


def opened_envelope(envelope: Envelope, key: PublicKey) -> bytes:
    """The payload of an envelope that has one signature, by this key. Raises ValueError that says what is wrong."""
    if (envelope.payload_type, len(envelope.signatures)) != (PAYLOAD_TYPE, 1):
        raise ValueError("it is no in-toto statement with one signature")
    try:
        payload = base64.b64decode(envelope.payload, validate=True)
        signed = base64.b64decode(envelope.signatures[0].sig, validate=True)
    except binascii.Error as error:
        raise ValueError(f"its base64 is damaged ({error})") from error
    if not _is_by(key.public, signed, payload):
        raise ValueError("its signature was not made with this key, or what was signed has changed")
    return payload


def _signed_bytes(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _is_by(public: "EllipticCurvePublicKey", signed: bytes, payload: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signed, _signed_bytes(payload), _algorithm(public.curve.name, deterministic=False))
    except InvalidSignature:
        return False
    return True


def _algorithm(curve: str, *, deterministic: bool = True) -> "ECDSA":
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    return ECDSA(getattr(hashes, HASHES[curve])(), deterministic_signing=deterministic)


def fingerprint(public: "PublicKeyTypes") -> str:
    """The sha256 of a public key as PEM (SubjectPublicKeyInfo)."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def certified_fingerprint(certificate: str) -> str:
    """The fingerprint of the key that an X.509 certificate (DER in base64) is for; ValueError for no certificate.

    Who issued it, and until when, is not checked.
    """
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return fingerprint(x509.load_der_x509_certificate(base64.b64decode(certificate, validate=True)).public_key())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"its certificate cannot be read ({str(error)[:200]})") from error


def read_private_key(path: Path, passphrase: str | None) -> SigningKey:
    """The private key of a PEM file. ConfigError for one that cannot be used, MissingError without cryptography."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise missing_extra(EXTRA, "cryptography", "bundle sign", error) from error
    content = _key_bytes(path)
    if path.stat().st_mode & 0o044:  # as ssh looks at them
        log.warning("others on this computer can read the private key %s: chmod 600 it", visible(str(path)))
    try:
        key = load_pem_private_key(content, passphrase.encode() if passphrase else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _bad_key(path, *_unreadable(content, str(error), passphrase)) from error
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name not in HASHES:
        raise _bad_key(path, OTHER_KIND)
    return SigningKey(key, fingerprint(key.public_key()))


def read_public_key(path: Path) -> PublicKey:
    """The public key of a PEM file. Raises as `read_private_key`."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise missing_extra(EXTRA, "cryptography", "bundle verify --key", error) from error
    content = _key_bytes(path)
    try:
        key = load_pem_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if b"PRIVATE KEY-----" in content:
            raise _bad_key(path, "it is a private key", PUBLIC_REMEDY.format(path)) from error
        raise _bad_key(path, *_unreadable(content, str(error), None)) from error
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in HASHES:
        raise _bad_key(path, OTHER_KIND)
    return PublicKey(key, fingerprint(key))


def _key_bytes(path: Path) -> bytes:
    try:
        return read_regular(path, KEY_BYTES)
    except OSError as error:
        raise _bad_key(path, error.strerror or str(error)) from error


def _unreadable(content: bytes, why: str, passphrase: str | None) -> tuple[str, str]:
    """Why a PEM file was not read, and what to do, as far as its lines show."""
    if b"PRIVATE KEY-----" not in content:
        if b"PUBLIC KEY-----" in content:
            return "it is a public key", "give the private key that it belongs to"
        return "it is no PEM file of a key", KEY_REMEDY
    if not passphrase and b"ENCRYPTED" in content:
        return "it has a passphrase", "put the passphrase into the environment variable ORT_MOBILE_PASSPHRASE"
    if passphrase and b"ENCRYPTED" in content:
        return (
            "the passphrase in ORT_MOBILE_PASSPHRASE does not open it",
            "set ORT_MOBILE_PASSPHRASE to that of this key",
        )
    if passphrase:
        return "it has no passphrase, and ORT_MOBILE_PASSPHRASE has one", "unset ORT_MOBILE_PASSPHRASE, or give the key"
    return why[:300], KEY_REMEDY


def _bad_key(path: Path, why: str, remedy: str = KEY_REMEDY) -> ConfigError:
    return ConfigError("the key cannot be used", where=str(path), why=why, remedy=remedy)
