"""Signs a bundle with a key and checks the signature: OpenSSF Model Signing v1.0, offline.

The file is a Sigstore bundle v0.3 around an in-toto statement in a DSSE envelope that lists every file of the bundle by
its sha256; the `model_signing` program reads it. The same bundle and key give the same bytes.
"""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from device_runner.reading import decode_json, read_regular
from device_runner.result import Struct
from pipeline.core.errors import CheckFailed
from pipeline.core.files import sha256_of, write_bytes
from pipeline.release.envelope import (
    STATEMENT_TYPE,
    Envelope,
    PublicKey,
    SignedSubject,
    SigningKey,
    certified_fingerprint,
    opened_envelope,
    sealed_envelope,
)
from pipeline.release.manifest import (
    ATTESTATION_FILE,
    MANIFEST_BYTES,
    MANIFEST_FILE,
    OWN_FILES,
    SEAL_FILE,
    SIGNATURE_FILE,
    Manifest,
    sealed,
)

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
IGNORED = (".git", ".gitattributes", ".github", ".gitignore")
"""What the specification leaves out of a signature; a bundle has none of them."""


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


class Statement(Struct, frozen=True, kw_only=True):
    """An in-toto statement on a folder, whose digest is that of the files' digests in the order of their names."""

    type: str = msgspec.field(name="_type", default=STATEMENT_TYPE)
    subject: tuple[SignedSubject, ...]
    predicate_type: str = msgspec.field(name="predicateType", default=PREDICATE_TYPE)
    predicate: Predicate


class PublicKeyHint(Struct, frozen=True, kw_only=True):
    """The sha256 of the public key as PEM."""

    hint: str


class Certificate(Struct, frozen=True, kw_only=True):
    """An X.509 certificate as DER in base64."""

    raw: str = msgspec.field(name="rawBytes")


class CertificateChain(Struct, frozen=True, kw_only=True):
    """Certificates, the signer's first."""

    certificates: tuple[Certificate, ...]


class Material(Struct, frozen=True, kw_only=True):
    """What a verifier needs besides the key: its name or a certificate for it."""

    public_key: PublicKeyHint | msgspec.UnsetType = msgspec.field(name="publicKey", default=msgspec.UNSET)
    chain: CertificateChain | msgspec.UnsetType = msgspec.field(name="x509CertificateChain", default=msgspec.UNSET)
    tlog_entries: tuple[Any, ...] = msgspec.field(name="tlogEntries")


class SignatureBundle(Struct, frozen=True, kw_only=True):
    """The whole file."""

    media_type: str = msgspec.field(name="mediaType", default=MEDIA_TYPE)
    material: Material = msgspec.field(name="verificationMaterial")
    envelope: Envelope = msgspec.field(name="dsseEnvelope")


def sign_bundle(folder: Path, manifest: Manifest, key: SigningKey) -> None:
    """Write the signature of a verified bundle into it: of all its files, also of an attestation that lies there."""
    payload = msgspec.json.encode(_statement(folder, manifest), order="sorted")
    material = Material(public_key=PublicKeyHint(hint=key.fingerprint), tlog_entries=())
    whole = SignatureBundle(material=material, envelope=sealed_envelope(payload, key, named=False))
    write_bytes(folder / SIGNATURE_FILE, msgspec.json.encode(whole, order="sorted") + b"\n")


def verify_signature(folder: Path, manifest: Manifest, key: PublicKey) -> None:
    """Check that the owner of a public key signed exactly this verified bundle.

    Raises CheckFailed where there is no signature, one by another key, or one of other files.
    """
    path = folder / SIGNATURE_FILE
    if not path.is_file() or path.is_symlink():
        raise CheckFailed(
            "this bundle is not signed",
            where=str(folder),
            why=f"it has no {SIGNATURE_FILE}",
            remedy="ask its maker for the signed bundle; `ort-mobile bundle sign` makes a signature",
        )
    try:
        statement = signed_statement(read_regular(path, OWN_FILES[SIGNATURE_FILE]), key)
    except (ValueError, OSError) as error:
        raise _refusal(folder, str(error)) from error
    here = _statement(folder, manifest)
    if changed := _differing(statement.predicate.resources, here.predicate.resources):
        raise _refusal(folder, f"it was made for other files than those that are here: {changed}")
    if [file.digest for file in statement.subject] != [here.subject[0].digest]:
        raise _refusal(folder, "its digest of all files is not that of the files that it lists")


def signed_statement(content: bytes, key: PublicKey) -> Statement:
    """What the owner of a key signed, of the bytes of a signature file. Raises ValueError that says what is wrong.

    A file that brings certificates is of the key that the first of them is for; who issued them is not checked.
    """
    try:
        whole = decode_json(content, SignatureBundle, unique=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the file cannot be read ({str(error)[:200]})") from error
    if whole.media_type != MEDIA_TYPE:
        raise ValueError(f"the file is no {MEDIA_TYPE}")
    named = _named_key(whole.material)
    if named != key.fingerprint:
        raise ValueError(f"it names the key {named[:64]}, given is {key.fingerprint}")
    try:
        statement = decode_json(opened_envelope(whole.envelope, key), Statement, unique=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"what was signed is no statement on a model ({str(error)[:200]})") from error
    if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise ValueError(f"what was signed is {statement.predicate_type[:200]}, not {PREDICATE_TYPE}")
    return statement


def _named_key(material: Material) -> str:
    """The fingerprint of the key that the material names."""
    if material.public_key:
        return material.public_key.hint
    if material.chain and material.chain.certificates:
        return certified_fingerprint(material.chain.certificates[0].raw)
    raise ValueError("it names neither a key nor a certificate; identities of Sigstore are not supported")


def _statement(folder: Path, manifest: Manifest) -> Statement:
    """What a signature of a verified bundle says: the manifest has the digests, which were compared with the files."""
    text = read_regular(folder / MANIFEST_FILE, MANIFEST_BYTES)
    digests = {file.path: file.sha256 for file in manifest.files}
    digests[MANIFEST_FILE] = hashlib.sha256(text).hexdigest()
    digests[SEAL_FILE] = hashlib.sha256(sealed(text)).hexdigest()
    if (folder / ATTESTATION_FILE).is_file():
        digests[ATTESTATION_FILE] = sha256_of(folder / ATTESTATION_FILE)
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


def _differing(listed: tuple[Resource, ...], here: tuple[Resource, ...]) -> str:
    """The names of files in which two lists differ, three at most; "" where they are the same in any order."""
    if sorted(listed, key=lambda resource: resource.name) == list(here):
        return ""
    names = sorted({resource.name for resource in set(listed) ^ set(here)}) or ["a file is listed twice"]
    return ", ".join(name[:100] for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _refusal(folder: Path, why: str) -> CheckFailed:
    return CheckFailed(
        "the signature does not hold for this bundle",
        where=str(folder / SIGNATURE_FILE),
        why=why,
        remedy="get the bundle and the public key from their maker again",
    )
