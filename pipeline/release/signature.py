"""Signs a bundle with a key and checks the signature: OpenSSF Model Signing v1.0, offline.

The file is a Sigstore bundle v0.3 around an in-toto statement in a DSSE envelope that lists every file of the bundle by
its sha256; the `model_signing` program reads it. Keys are ECDSA on P-256, P-384 or P-521, signatures deterministic
(RFC 6979): the same bundle and key give the same bytes. Needs the package cryptography (extra `sign`).
"""

import base64
import binascii
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner.reading import read_regular
from device_runner.result import Struct
from pipeline.core.errors import CheckFailed, ConfigError, missing_extra
from pipeline.core.files import write_bytes
from pipeline.release.manifest import MANIFEST_FILE, SEAL_FILE, SIGNATURE_FILE, Manifest, sealed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey

EXTRA = "sign"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
IGNORED = (".git", ".gitattributes", ".github", ".gitignore")
"""What the specification leaves out of a signature; a bundle has none of them."""

KEY_BYTES = 1 << 16
SIGNATURE_BYTES = 64 << 20
HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""Curve to the hash that the specification signs with."""


class Resource(Struct, frozen=True, kw_only=True):
    """A file of the signed folder."""

    name: str
    digest: str
    algorithm: str


class Serialization(Struct, frozen=True, kw_only=True):
    """How the folder was listed."""

    method: str = "files"
    hash_type: str = "sha256"
    allow_symlinks: bool = False
    ignore_paths: tuple[str, ...] = ()


class Predicate(Struct, frozen=True, kw_only=True):
    """What is said of the subject: its files."""

    resources: tuple[Resource, ...]
    serialization: Serialization


class SignedSubject(Struct, frozen=True, kw_only=True):
    """The folder; its digest is that of the files' digests in the order of their names."""

    name: str
    digest: dict[str, str]


class Statement(Struct, frozen=True, kw_only=True):
    """An in-toto statement."""

    type: str = msgspec.field(name="_type", default=STATEMENT_TYPE)
    subject: tuple[SignedSubject, ...]
    predicate_type: str = msgspec.field(name="predicateType", default=PREDICATE_TYPE)
    predicate: Predicate


class EnvelopeSignature(Struct, frozen=True, kw_only=True):
    """A signature in base64."""

    sig: str
    keyid: str = ""


class Envelope(Struct, frozen=True, kw_only=True):
    """DSSE: what is signed in base64, its type, and the signatures."""

    payload: str
    payload_type: str = msgspec.field(name="payloadType", default=PAYLOAD_TYPE)
    signatures: tuple[EnvelopeSignature, ...]


class PublicKeyHint(Struct, frozen=True, kw_only=True):
    """The sha256 of the public key as PEM."""

    hint: str


class Material(Struct, frozen=True, kw_only=True):
    """What a verifier needs besides the key."""

    public_key: PublicKeyHint = msgspec.field(name="publicKey")
    tlog_entries: tuple[Any, ...] = msgspec.field(name="tlogEntries", default=())


class SignatureBundle(Struct, frozen=True, kw_only=True):
    """The whole file."""

    media_type: str = msgspec.field(name="mediaType", default=MEDIA_TYPE)
    material: Material = msgspec.field(name="verificationMaterial")
    envelope: Envelope = msgspec.field(name="dsseEnvelope")


def sign_bundle(folder: Path, manifest: Manifest, key: Path, passphrase: str | None = None) -> str:
    """Write the signature of a verified bundle into it; the sha256 of the public key, by which others name the key.

    Raises ConfigError for a key that cannot be read or used, MissingError without the package cryptography.
    """
    private = _private_key(key, passphrase)
    hint = _hint(private.public_key())
    payload = msgspec.json.encode(_statement(folder, manifest), order="sorted")
    signed = private.sign(_signed_bytes(payload), _algorithm(private.curve.name))
    envelope = Envelope(
        payload=base64.b64encode(payload).decode(),
        signatures=(EnvelopeSignature(sig=base64.b64encode(signed).decode()),),
    )
    whole = SignatureBundle(material=Material(public_key=PublicKeyHint(hint=hint)), envelope=envelope)
    write_bytes(folder / SIGNATURE_FILE, msgspec.json.encode(whole, order="sorted") + b"\n")
    return hint


def verify_signature(folder: Path, manifest: Manifest, key: Path) -> str:
    """Check that the owner of a public key signed exactly this verified bundle; the sha256 of the key.

    Raises CheckFailed where there is no signature, one by another key, or one of other files.
    """
    public = _public_key(key)
    whole = _read(folder)
    hint = _hint(public)
    if whole.material.public_key.hint != hint:
        raise _refusal(folder, f"it names the key {whole.material.public_key.hint[:64]}, given is {hint}")
    try:
        payload = base64.b64decode(whole.envelope.payload, validate=True)
        signed = base64.b64decode(whole.envelope.signatures[0].sig, validate=True)
    except binascii.Error as error:
        raise _refusal(folder, f"its base64 is damaged ({error})") from error
    if not _is_by(public, signed, payload):
        raise _refusal(folder, "its signature was not made with this key, or what was signed has changed")
    said, here = _statement_in(folder, payload), _statement(folder, manifest)
    if sorted(said.predicate.resources, key=lambda one: one.name) != list(here.predicate.resources):
        raise _refusal(folder, "it was made for other files than those that are here")
    if [one.digest for one in said.subject] != [here.subject[0].digest]:
        raise _refusal(folder, "its digest of all files is not that of the files that it lists")
    return hint


def _statement(folder: Path, manifest: Manifest) -> Statement:
    """What a signature of a verified bundle says: the manifest has the digests, which were compared with the files."""
    text = read_regular(folder / MANIFEST_FILE, SIGNATURE_BYTES * 4)
    digests = {file.path: file.sha256 for file in manifest.files}
    digests[MANIFEST_FILE] = hashlib.sha256(text).hexdigest()
    digests[SEAL_FILE] = hashlib.sha256(sealed(text)).hexdigest()
    root = hashlib.sha256(b"".join(bytes.fromhex(digests[name]) for name in sorted(digests)))
    return Statement(
        subject=(SignedSubject(name=manifest.content.name, digest={"sha256": root.hexdigest()}),),
        predicate=Predicate(
            resources=tuple(
                Resource(name=name, digest=digest, algorithm="sha256") for name, digest in sorted(digests.items())
            ),
            serialization=Serialization(ignore_paths=(*IGNORED, SIGNATURE_FILE)),
        ),
    )


def _read(folder: Path) -> SignatureBundle:
    path = folder / SIGNATURE_FILE
    if not path.is_file() or path.is_symlink():
        raise CheckFailed(
            "this bundle is not signed",
            where=str(folder),
            why=f"it has no {SIGNATURE_FILE}",
            remedy="ask its maker for the signed bundle; `ort-mobile sign` makes a signature",
        )
    try:
        whole = msgspec.json.decode(read_regular(path, SIGNATURE_BYTES), type=SignatureBundle)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise _refusal(folder, f"{SIGNATURE_FILE} cannot be read ({str(error)[:200]})") from error
    found = (whole.media_type, whole.envelope.payload_type, len(whole.envelope.signatures))
    if found != (MEDIA_TYPE, PAYLOAD_TYPE, 1):
        raise _refusal(folder, f"{SIGNATURE_FILE} is no signature by one key as OpenSSF Model Signing v1.0 has it")
    return whole


def _statement_in(folder: Path, payload: bytes) -> Statement:
    """What was signed. Names of subjects and paths that were left out do not matter: all files here must be listed."""
    try:
        found = msgspec.json.decode(payload, type=Statement)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(folder, f"what was signed is no statement on a model ({str(error)[:200]})") from error
    if (found.type, found.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise _refusal(folder, f"what was signed is {found.predicate_type[:200]}, not {PREDICATE_TYPE}")
    return found


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


def _hint(public: "EllipticCurvePublicKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _private_key(path: Path, passphrase: str | None) -> "EllipticCurvePrivateKey":
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise missing_extra(EXTRA, "cryptography", "sign", error) from error
    try:
        key = load_pem_private_key(_key_bytes(path), passphrase.encode() if passphrase else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _bad_key(path, str(error)) from error
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name not in HASHES:
        raise _bad_key(path, "it is no ECDSA key on P-256, P-384 or P-521")
    return key


def _public_key(path: Path) -> "EllipticCurvePublicKey":
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise missing_extra(EXTRA, "cryptography", "verify --key", error) from error
    try:
        key = load_pem_public_key(_key_bytes(path))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _bad_key(path, str(error)) from error
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in HASHES:
        raise _bad_key(path, "it is no ECDSA key on P-256, P-384 or P-521")
    return key


def _key_bytes(path: Path) -> bytes:
    try:
        return read_regular(path, KEY_BYTES)
    except OSError as error:
        raise _bad_key(path, error.strerror or str(error)) from error


def _bad_key(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "the key cannot be used",
        where=str(path),
        why=why,
        remedy="give a PEM file: `openssl ecparam -name prime256v1 -genkey -noout -out key.pem` makes a private one, "
        "`openssl ec -in key.pem -pubout -out key.pub` its public one; a passphrase comes from ORT_MOBILE_PASSPHRASE",
    )


def _refusal(folder: Path, why: str) -> CheckFailed:
    return CheckFailed(
        "the signature does not hold for this bundle",
        where=str(folder / SIGNATURE_FILE),
        why=why,
        remedy="get the bundle and the public key from their maker again",
    )
