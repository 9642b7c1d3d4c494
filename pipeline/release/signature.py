"""Signs a bundle with a key and checks the signature, offline: OpenSSF Model Signing v1.0, and attested tests.

A signature is a Sigstore bundle v0.3 around an in-toto statement in a DSSE envelope that lists every file of the bundle
by its sha256; the `model_signing` program reads it. An attestation is an in-toto test result v0.1 in a DSSE envelope,
bound to the bundle by its digests: it says what the evidence of the manifest says, in a form that policy engines read.
The numbers stay in the manifest, which is one of its subjects.

Keys are on P-256, P-384 or P-521, signatures deterministic (RFC 6979): the same bundle and key give the same bytes.
Needs the package cryptography (extra `sign`).
"""

import base64
import binascii
import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from device_runner import files as runner_files
from device_runner import safe_text, untrusted_files
from device_runner.result import Status
from pipeline.accuracy import result as accuracy_result
from pipeline.check import library_proof
from pipeline.check.compare import OutputCheck
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.release.manifest import (
    ATTESTATION_FILE,
    MANIFEST_BYTES,
    MANIFEST_FILE,
    OWN_FILES,
    SEAL_FILE,
    SIGNATURE_FILE,
    Manifest,
    refuse_unproven,
    sealed,
    verify_bundle,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

log = logging.getLogger(__name__)

EXTRA = "sign"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
AnyPredicate = TypeVar("AnyPredicate")
"""What a statement says of its subjects."""

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


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """DSSE: what is signed in base64, its type, and the signatures.

    A signature is `sig`, in base64; `keyid` may name the key and is not trusted.
    """

    payload: str
    payload_type: str = msgspec.field(name="payloadType", default=PAYLOAD_TYPE)
    signatures: tuple[dict[str, str], ...]


def sealed_envelope(payload: bytes, key: "EllipticCurvePrivateKey", *, named: bool) -> Envelope:
    """An envelope with one signature; `named`: the key's fingerprint stands in it."""
    signed = key.sign(_signed_bytes(payload), _algorithm(key.curve.name))
    keyid = fingerprint(key.public_key()) if named else ""
    return Envelope(
        payload=base64.b64encode(payload).decode(),
        signatures=({"sig": base64.b64encode(signed).decode(), "keyid": keyid},),
    )


def opened_envelope(envelope: Envelope, key: "EllipticCurvePublicKey") -> bytes:
    """The payload of an envelope that has one signature, by this key. Raises ValueError that says what is wrong."""
    from cryptography.exceptions import InvalidSignature

    if (envelope.payload_type, len(envelope.signatures)) != (PAYLOAD_TYPE, 1):
        raise ValueError("it is no in-toto statement with one signature")
    try:
        payload = base64.b64decode(envelope.payload, validate=True)
        signed = base64.b64decode(envelope.signatures[0].get("sig", ""), validate=True)
    except binascii.Error as error:
        raise ValueError(f"its base64 is damaged ({error})") from error
    try:
        key.verify(signed, _signed_bytes(payload), _algorithm(key.curve.name, deterministic=False))
    except InvalidSignature:
        raise ValueError("its signature was not made with this key, or what was signed has changed") from None
    return payload


def _signed_bytes(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _algorithm(curve: str, *, deterministic: bool = True) -> "ECDSA":
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    return ECDSA(getattr(hashes, HASHES[curve])(), deterministic_signing=deterministic)


def fingerprint(public: "PublicKeyTypes") -> str:
    """The sha256 of a public key as PEM (SubjectPublicKeyInfo)."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def read_private_key(path: Path, passphrase: str | None) -> "EllipticCurvePrivateKey":
    """The private key of a PEM file. ConfigError for one that cannot be used, MissingError without cryptography."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise core_errors.missing_extra(EXTRA, "cryptography", "bundle sign", error) from error
    content = _key_bytes(path)
    if path.stat().st_mode & 0o044:  # as ssh looks at them
        log.warning("others on this computer can read the private key %s: chmod 600 it", safe_text.visible(str(path)))
    try:
        key = load_pem_private_key(content, passphrase.encode() if passphrase else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _bad_key(path, *_unreadable(content, str(error), passphrase)) from error
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name not in HASHES:
        raise _bad_key(path, OTHER_KIND)
    return key


def read_public_key(path: Path) -> "EllipticCurvePublicKey":
    """The public key of a PEM file. Raises as `read_private_key`."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise core_errors.missing_extra(EXTRA, "cryptography", "bundle verify --key", error) from error
    content = _key_bytes(path)
    try:
        key = load_pem_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if b"PRIVATE KEY-----" in content:
            raise _bad_key(path, "it is a private key", PUBLIC_REMEDY.format(path)) from error
        raise _bad_key(path, *_unreadable(content, str(error), None)) from error
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in HASHES:
        raise _bad_key(path, OTHER_KIND)
    return key


def public_digits(path: str | None, *, as_point: bool = False) -> str:
    """A public key in hexadecimal digits, as code has it: X.509, or an uncompressed point of X9.63; "" for none.

    Raises as `read_private_key`.
    """
    if not path:
        return ""
    key = read_public_key(Path(path))
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    if as_point:
        return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint).hex()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo).hex()


def _key_bytes(path: Path) -> bytes:
    try:
        return untrusted_files.read_regular(path, KEY_BYTES)
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


MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
IGNORED = (".git", ".gitattributes", ".github", ".gitignore")
"""What the specification leaves out of a signature; a bundle has none of them."""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the signed folder."""

    name: str
    digest: str
    algorithm: str


class Predicate(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of the subject: its files, and how its folder was listed."""

    resources: tuple[Resource, ...]
    serialization: dict[str, Any]


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """What a statement names: a bundle, a file of it or a library by its digests, a program by its package URL."""

    name: str
    digest: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    uri: str | msgspec.UnsetType = msgspec.UNSET


class Statement(msgspec.Struct, Generic[AnyPredicate], frozen=True, kw_only=True):
    """An in-toto statement on its subjects.

    A signature's is the folder, whose digest is that of the files' digests in the order of their names; those of test
    results are the bundle, by its digest, and its manifest.
    """

    type: str = msgspec.field(name="_type", default=STATEMENT_TYPE)
    subject: tuple[Descriptor, ...]
    predicate_type: str = msgspec.field(name="predicateType")
    predicate: AnyPredicate


class Material(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a verifier needs besides the key: the sha256 of it as PEM (`hint`), or certificates, the signer's first.

    A certificate is X.509 as DER in base64 (`rawBytes`).
    """

    public_key: dict[str, str] | msgspec.UnsetType = msgspec.field(name="publicKey", default=msgspec.UNSET)
    chain: dict[str, tuple[dict[str, str], ...]] = msgspec.field(name="x509CertificateChain", default={})
    tlog_entries: tuple[Any, ...] = msgspec.field(name="tlogEntries")


class SignatureBundle(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    media_type: str = msgspec.field(name="mediaType", default=MEDIA_TYPE)
    material: Material = msgspec.field(name="verificationMaterial")
    envelope: Envelope = msgspec.field(name="dsseEnvelope")


def sign_bundle(folder: Path, manifest: Manifest, key: "EllipticCurvePrivateKey") -> None:
    """Write the signature of a verified bundle into it: of all its files, also of an attestation that lies there."""
    payload = msgspec.json.encode(_statement(folder, manifest), order="sorted")
    material = Material(public_key={"hint": fingerprint(key.public_key())}, tlog_entries=())
    whole = SignatureBundle(material=material, envelope=sealed_envelope(payload, key, named=False))
    storage.write_bytes(folder / SIGNATURE_FILE, msgspec.json.encode(whole, order="sorted") + b"\n")


def verify_signature(folder: Path, manifest: Manifest, key: "EllipticCurvePublicKey") -> None:
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
        statement = signed_statement(untrusted_files.read_regular(path, OWN_FILES[SIGNATURE_FILE]), key)
    except (ValueError, OSError) as error:
        raise _refusal(folder, SIGNATURE_FILE, str(error)) from error
    actual = _statement(folder, manifest)
    listed, there = statement.predicate.resources, actual.predicate.resources
    if sorted(listed, key=lambda resource: resource.name) != list(there):
        names = sorted({resource.name for resource in {*listed} ^ {*there}}) or ["a file is listed twice"]
        changed = ", ".join(name[:100] for name in names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)
        raise _refusal(folder, SIGNATURE_FILE, f"it was made for other files than those that are here: {changed}")
    if [file.digest for file in statement.subject] != [actual.subject[0].digest]:
        raise _refusal(folder, SIGNATURE_FILE, "its digest of all files is not that of the files that it lists")


def signed_statement(content: bytes, key: "EllipticCurvePublicKey") -> Statement[Predicate]:
    """What the owner of a key signed, of the bytes of a signature file. Raises ValueError that says what is wrong.

    A file that brings certificates is of the key that the first of them is for; who issued them is not checked.
    """
    try:
        whole = untrusted_files.decode_json(content, SignatureBundle, unique=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the file cannot be read ({str(error)[:200]})") from error
    if whole.media_type != MEDIA_TYPE:
        raise ValueError(f"the file is no {MEDIA_TYPE}")
    material = whole.material
    if material.public_key:
        named = material.public_key.get("hint", "")
    elif certificates := material.chain.get("certificates"):
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm

        try:
            content = base64.b64decode(certificates[0].get("rawBytes", ""), validate=True)
            named = fingerprint(x509.load_der_x509_certificate(content).public_key())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ValueError(f"its certificate cannot be read ({str(error)[:200]})") from error
    else:
        raise ValueError("it names neither a key nor a certificate; identities of Sigstore are not supported")
    if named != fingerprint(key):
        raise ValueError(f"it names the key {named[:64]}, given is {fingerprint(key)}")
    try:
        statement = untrusted_files.decode_json(opened_envelope(whole.envelope, key), Statement[Predicate], unique=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"what was signed is no statement on a model ({str(error)[:200]})") from error
    if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise ValueError(f"what was signed is {statement.predicate_type[:200]}, not {PREDICATE_TYPE}")
    return statement


def _statement(folder: Path, manifest: Manifest) -> Statement[Predicate]:
    """What a signature of a verified bundle says: the manifest has the digests, which were compared with the files."""
    text = untrusted_files.read_regular(folder / MANIFEST_FILE, MANIFEST_BYTES)
    digests = {file.path: file.sha256 for file in manifest.files}
    digests[MANIFEST_FILE] = hashlib.sha256(text).hexdigest()
    digests[SEAL_FILE] = hashlib.sha256(sealed(text)).hexdigest()
    if (folder / ATTESTATION_FILE).is_file():
        digests[ATTESTATION_FILE] = storage.sha256_of(folder / ATTESTATION_FILE)
    root = hashlib.sha256(b"".join(bytes.fromhex(digests[name]) for name in sorted(digests)))
    return Statement(
        predicate_type=PREDICATE_TYPE,
        subject=(Descriptor(name=manifest.content.name, digest={"sha256": root.hexdigest()}),),
        predicate=Predicate(
            resources=tuple(
                Resource(name=name, digest=digest, algorithm="sha256") for name, digest in sorted(digests.items())
            ),
            serialization={
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": (*IGNORED, SIGNATURE_FILE),
            },
        ),
    )


def _refusal(folder: Path, file: str, why: str) -> CheckFailed:
    return CheckFailed(
        f"the {'signature' if file == SIGNATURE_FILE else 'attestation'} does not hold for this bundle",
        where=str(folder / file),
        why=why,
        remedy="get the bundle and the public key from their maker again",
    )


Signed = tuple[str, "AttestedTests | None"]
"""Who signed a bundle, by the sha256 of the public key as PEM, and what tests they attest; None for none."""

TESTS_PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
Outcome = Literal["PASSED", "WARNED", "FAILED"]


class AttestedTests(msgspec.Struct, frozen=True, kw_only=True):
    """The predicate: names of tests by their outcome. A test that could decide nothing is among those that warn."""

    result: Outcome
    configuration: tuple[Descriptor, ...]
    passed: tuple[str, ...] = msgspec.field(name="passedTests", default=())
    warned: tuple[str, ...] = msgspec.field(name="warnedTests", default=())
    failed: tuple[str, ...] = msgspec.field(name="failedTests", default=())


class MeasuredEvidence(msgspec.Struct, frozen=True):
    """What is read of a measured row of the evidence; `statistics` as JSON has them."""

    device: str
    model: str
    variant: str
    run: str
    status: Status
    checks: tuple[OutputCheck, ...] = ()
    statistics: dict[str, Any] | None = None


class Evidence(msgspec.Struct, frozen=True):
    """What is read of a manifest's evidence; a data set that the config names has its model, use and name."""

    created_at: str = ""
    checks: dict[str, tuple[OutputCheck, ...]] = {}
    measured: tuple[MeasuredEvidence, ...] = ()
    accuracy: tuple[accuracy_result.ArtifactAccuracy, ...] = ()
    datasets: tuple[dict[str, str], ...] = ()
    library_proofs: tuple[library_proof.LibraryProof, ...] = ()


def sign(folder: Path, manifest: Manifest, key: Path, passphrase: str | None = None) -> Signed:
    """Add the attestation of a verified bundle's tests and its signature to it, both at once or neither.

    Evidence without a test gives no attestation, and no file. Raises ConfigError for a key that cannot be used,
    MissingError without the package cryptography, CheckFailed for evidence that cannot be read, SpecError while another
    process replaces the bundle, and PipelineError for what cannot be written.
    """
    private = read_private_key(key, passphrase)
    try:
        evidence = msgspec.convert(manifest.evidence, Evidence)
    except msgspec.ValidationError as error:
        raise CheckFailed(
            "the evidence of this bundle cannot be read",
            where=str(folder / MANIFEST_FILE),
            why=str(error)[:200],
            remedy="make the bundle again with `ort-mobile bundle rebuild FOLDER`",
        ) from error
    outcomes = sorted({*_tests(evidence)})
    names = {kind: tuple(name for name, outcome in outcomes if outcome == kind) for kind in _ORDER}
    # The programs that made and tested it, its operator configs, and the libraries that ran
    content = manifest.content
    programs = sorted(content.made_with.items())
    digests = [(file.path, file.sha256) for file in content.files if file.path.startswith("operators/")]
    digests += [(proof.library.file, proof.library.sha256) for proof in evidence.library_proofs if proof.library.sha256]
    results = AttestedTests(
        result=next((outcome for outcome in _ORDER if names[outcome]), "PASSED"),
        configuration=(
            *(Descriptor(name=name, uri=f"pkg:pypi/{PACKAGES.get(name, name)}@{text}") for name, text in programs),
            *(Descriptor(name=name, digest={"sha256": digest}) for name, digest in digests),
        ),
        passed=names["PASSED"],
        warned=names["WARNED"],
        failed=names["FAILED"],
    )
    with storage.storage_errors(folder), runner_files.staging_folder(folder) as new:
        for path in (MANIFEST_FILE, SEAL_FILE, *(file.path for file in manifest.files)):
            storage.make_folder((new / path).parent)
            storage.share_file(folder / path, new / path)
        if outcomes:
            statement = Statement(
                predicate_type=TESTS_PREDICATE_TYPE, subject=_subjects(folder, manifest), predicate=results
            )
            envelope = sealed_envelope(msgspec.json.encode(statement, order="sorted"), private, named=True)
            storage.write_bytes(new / ATTESTATION_FILE, msgspec.json.encode(envelope, order="sorted") + b"\n")
        sign_bundle(new, manifest, private)
        runner_files.take_place(new, folder)
    return fingerprint(private.public_key()), results if outcomes else None


def remove_leftovers(folder: Path) -> None:
    """Put a bundle back that a killed process took away, and remove what one left beside it or, earlier, in it."""
    runner_files.restore_place(folder)
    with storage.storage_errors(folder):
        for name in (SIGNATURE_FILE, ATTESTATION_FILE):
            runner_files.remove_parts(folder / name)


def verify_signed(folder: Path, manifest: Manifest, key: Path) -> Signed:
    """Check that the owner of a public key signed this verified bundle and what it says of tests.

    Raises CheckFailed where there is no signature, or one that does not hold, and for an attestation by another key, of
    another bundle, and one that cannot be read; else as `sign`.
    """
    public = read_public_key(key)
    verify_signature(folder, manifest, public)
    path = folder / ATTESTATION_FILE
    if not path.is_file():
        return fingerprint(public), None
    try:
        envelope = untrusted_files.decode_json(
            untrusted_files.read_regular(path, OWN_FILES[ATTESTATION_FILE]), Envelope, unique=True
        )
        statement = untrusted_files.decode_json(
            opened_envelope(envelope, public), Statement[AttestedTests], unique=True
        )
    except (msgspec.DecodeError, ValueError, RecursionError, OSError) as error:
        raise _refusal(folder, ATTESTATION_FILE, str(error)[:200]) from error
    if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, TESTS_PREDICATE_TYPE):
        raise _refusal(
            folder, ATTESTATION_FILE, f"what was signed is {statement.predicate_type[:200]}, not {TESTS_PREDICATE_TYPE}"
        )
    if [file.digest for file in statement.subject] != [file.digest for file in _subjects(folder, manifest)]:
        raise _refusal(folder, ATTESTATION_FILE, "it is the attestation of another bundle")
    return fingerprint(public), statement.predicate


def verified_bundle(folder: Path, key: Path | None) -> Manifest:
    """The manifest of a bundle that is whole and may ship, signed by the owner of a public key where one is given.

    Raises as `verify_bundle`, `refuse_unproven` and `verify_signed`.
    """
    manifest = verify_bundle(folder)
    refuse_unproven(folder, manifest)
    if key:
        verify_signed(folder, manifest, key)
    return manifest


def results_text(result: AttestedTests) -> str:
    """The result in one line: counts by outcome, and what kinds of tests there were."""
    groups = {"passed": result.passed, "undecided": result.warned, "failed": result.failed}
    counts = ", ".join(f"{len(names)} {word}" for word, names in groups.items() if names) or "no test"
    kinds = Counter(name.partition("/")[0] for names in groups.values() for name in names)
    return f"{result.result}: {counts} ({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))})"


_ORDER: tuple[Outcome, ...] = ("FAILED", "WARNED", "PASSED")
"""The worst first: what a whole result is."""


def _tests(evidence: Evidence) -> Iterator[tuple[str, Outcome]]:
    """Each test with its outcome: outputs here and on devices, runs, accuracy budgets, libraries that ship."""
    for artifact, checks in evidence.checks.items():
        if checks:
            yield f"outputs/{artifact}", _of_checks(checks)
    for measured in evidence.measured:
        name = f"{measured.device}/{measured.model}/{measured.variant}/{measured.run}"
        if measured.status is not Status.SKIPPED:
            yield f"run/{name}", "PASSED" if measured.status is Status.OK else "FAILED"
        if measured.checks:
            yield f"device-outputs/{name}", _of_checks(measured.checks)
    for accuracy in evidence.accuracy:
        unknown = accuracy.result is None or not accuracy.result.computed
        refused = accuracy.result is not None and accuracy.result.refused
        if unknown or refused or (accuracy.result is not None and accuracy.result.max_drop is not None):
            outcome: Outcome = "FAILED" if refused else "WARNED" if unknown else "PASSED"
            yield f"accuracy/{accuracy.model}/{accuracy.variant}", outcome
    for proof in evidence.library_proofs:
        if proof.not_run:
            yield f"library/{proof.library.file}", "WARNED"
        for run in proof.rows:
            name = f"library/{proof.library.file}/{run.model}/{run.variant}/{run.run}/api-{run.api_level}"
            yield name, "FAILED" if run.failed else "WARNED" if run.findings else "PASSED"


def _of_checks(checks: Iterable[OutputCheck]) -> Outcome:
    rows = list(checks)
    if any(check.failed for check in rows):
        return "FAILED"
    return "WARNED" if any(check.unknown for check in rows) else "PASSED"


PACKAGES = {"ort-mobile": "ort-mobile-pipeline"}
"""Names of Python packages that differ from the program's."""


def _subjects(folder: Path, manifest: Manifest) -> tuple[Descriptor, ...]:
    return (
        Descriptor(name=manifest.content.name, digest={"sha256": manifest.content_sha256}),
        Descriptor(name=MANIFEST_FILE, digest={"sha256": storage.sha256_of(folder / MANIFEST_FILE)}),
    )
