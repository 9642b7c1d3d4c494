"""What was tested of a bundle, as an in-toto test result v0.1 in a DSSE envelope, bound to the bundle by its digests.

It says what the evidence of the manifest says, in a form that policy engines read, under the signature of who made the
bundle. The numbers stay in the manifest, which is one of its subjects.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from device_runner.reading import decode_json, read_regular
from device_runner.result import Status, Struct
from pipeline.accuracy.result import ArtifactAccuracy
from pipeline.check.compare import OutputCheck
from pipeline.check.library_proof import LibraryProof, ProofRow
from pipeline.core.errors import CheckFailed
from pipeline.core.files import sha256_of, write_bytes
from pipeline.release.envelope import (
    STATEMENT_TYPE,
    Envelope,
    PublicKey,
    SignedSubject,
    SigningKey,
    opened_envelope,
    read_private_key,
    read_public_key,
    sealed_envelope,
)
from pipeline.release.manifest import ATTESTATION_FILE, MANIFEST_FILE, OWN_FILES, Manifest
from pipeline.release.signature import sign_bundle, verify_signature

PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
Outcome = Literal["PASSED", "WARNED", "FAILED"]


class Descriptor(Struct, frozen=True, kw_only=True):
    """What the tests ran with: a file of the bundle or a library by its digest, a program by its package URL."""

    name: str
    digest: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    uri: str | msgspec.UnsetType = msgspec.UNSET


class AttestedTests(Struct, frozen=True, kw_only=True):
    """The predicate: names of tests by their outcome. A test that could decide nothing is among those that warn."""

    result: Outcome
    configuration: tuple[Descriptor, ...]
    passed: tuple[str, ...] = msgspec.field(name="passedTests", default=())
    warned: tuple[str, ...] = msgspec.field(name="warnedTests", default=())
    failed: tuple[str, ...] = msgspec.field(name="failedTests", default=())


class TestsStatement(Struct, frozen=True, kw_only=True):
    """An in-toto statement on the results of tests. The subjects are the bundle, by its digest, and its manifest."""

    type: str = msgspec.field(name="_type", default=STATEMENT_TYPE)
    subject: tuple[SignedSubject, ...]
    predicate_type: str = msgspec.field(name="predicateType", default=PREDICATE_TYPE)
    predicate: AttestedTests


class _MeasuredRow(msgspec.Struct, frozen=True):
    """What is read of a measured row of the evidence."""

    device: str
    model: str
    variant: str
    run: str
    status: Status
    checks: tuple[OutputCheck, ...] = ()


class _Tested(msgspec.Struct, frozen=True):
    """What is read of a manifest's evidence."""

    checks: dict[str, tuple[OutputCheck, ...]] = {}
    measured: tuple[_MeasuredRow, ...] = ()
    accuracy: tuple[ArtifactAccuracy, ...] = ()
    library_proofs: tuple[LibraryProof, ...] = ()


@dataclass(frozen=True, slots=True)
class Signed:
    """Who signed a bundle, by the sha256 of the public key as PEM, and what tests they attest; None for none."""

    fingerprint: str
    tests: AttestedTests | None


def sign(folder: Path, manifest: Manifest, key: Path, passphrase: str | None = None) -> Signed:
    """Write the attestation of a verified bundle's tests and its signature into it.

    Raises ConfigError for a key that cannot be used, MissingError without the package cryptography.
    """
    private = read_private_key(key, passphrase)
    tests = attest_tests(folder, manifest, private)
    sign_bundle(folder, manifest, private)
    return Signed(private.fingerprint, tests)


def verify_signed(folder: Path, manifest: Manifest, key: Path) -> Signed:
    """Check that the owner of a public key signed this verified bundle and what it says of tests.

    Raises CheckFailed where there is no signature, or one that does not hold; else as `sign`.
    """
    public = read_public_key(key)
    verify_signature(folder, manifest, public)
    return Signed(public.fingerprint, verify_attestation(folder, manifest, public))


def attest_tests(folder: Path, manifest: Manifest, key: SigningKey) -> AttestedTests | None:
    """Write the attestation of a verified bundle into it; None, and no file, where its evidence has no test.

    Raises CheckFailed for evidence that cannot be read.
    """
    results = tested(folder, manifest)
    if not (results.passed or results.warned or results.failed):
        (folder / ATTESTATION_FILE).unlink(missing_ok=True)
        return None
    statement = TestsStatement(subject=_subjects(folder, manifest), predicate=results)
    payload = msgspec.json.encode(statement, order="sorted")
    envelope = sealed_envelope(payload, key, named=True)
    write_bytes(folder / ATTESTATION_FILE, msgspec.json.encode(envelope, order="sorted") + b"\n")
    return results


def verify_attestation(folder: Path, manifest: Manifest, key: PublicKey) -> AttestedTests | None:
    """The results that the owner of a key attests of this verified bundle; None where it brings none.

    Raises CheckFailed for an attestation by another key, of another bundle, and one that cannot be read.
    """
    path = folder / ATTESTATION_FILE
    if not path.is_file():
        return None
    try:
        envelope = decode_json(read_regular(path, OWN_FILES[ATTESTATION_FILE]), Envelope, unique=True)
        statement = decode_json(opened_envelope(envelope, key), TestsStatement, unique=True)
    except (msgspec.DecodeError, ValueError, RecursionError, OSError) as error:
        raise _refusal(folder, str(error)[:200]) from error
    if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise _refusal(folder, f"what was signed is {statement.predicate_type[:200]}, not {PREDICATE_TYPE}")
    if [file.digest for file in statement.subject] != [file.digest for file in _subjects(folder, manifest)]:
        raise _refusal(folder, "it is the attestation of another bundle")
    return statement.predicate


def results_text(result: AttestedTests) -> str:
    """The result in one line: counts by outcome, and what kinds of tests there were."""
    groups = {"passed": result.passed, "undecided": result.warned, "failed": result.failed}
    counts = ", ".join(f"{len(names)} {word}" for word, names in groups.items() if names) or "no test"
    kinds = Counter(name.partition("/")[0] for names in groups.values() for name in names)
    return f"{result.result}: {counts} ({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))})"


def tested(folder: Path, manifest: Manifest) -> AttestedTests:
    """What the evidence of a bundle says of tests, as names by outcome; CheckFailed where it cannot be read."""
    try:
        evidence = msgspec.convert(manifest.evidence, _Tested)
    except msgspec.ValidationError as error:
        raise CheckFailed(
            "the evidence of this bundle cannot be read",
            where=str(folder / MANIFEST_FILE),
            why=str(error)[:200],
            remedy="make the bundle again with `ort-mobile bundle rebuild FOLDER`",
        ) from error
    outcomes = sorted({*_tests(evidence)})
    names = {wanted: tuple(name for name, outcome in outcomes if outcome == wanted) for wanted in _ORDER}
    return AttestedTests(
        result=next((outcome for outcome in _ORDER if names[outcome]), "PASSED"),
        configuration=tuple(_configuration(manifest, evidence.library_proofs)),
        passed=names["PASSED"],
        warned=names["WARNED"],
        failed=names["FAILED"],
    )


_ORDER: tuple[Outcome, ...] = ("FAILED", "WARNED", "PASSED")
"""The worst first: what a whole result is."""


def _tests(evidence: _Tested) -> Iterator[tuple[str, Outcome]]:
    """Each test with its outcome: outputs here and on devices, runs, accuracy budgets, libraries that ship."""
    for artifact, checks in evidence.checks.items():
        if checks:
            yield f"outputs/{artifact}", _of_checks(checks)
    for row in evidence.measured:
        name = f"{row.device}/{row.model}/{row.variant}/{row.run}"
        if row.status is not Status.SKIPPED:
            yield f"run/{name}", "PASSED" if row.status is Status.OK else "FAILED"
        if row.checks:
            yield f"device-outputs/{name}", _of_checks(row.checks)
    for accuracy in evidence.accuracy:
        unknown = accuracy.result is None or not accuracy.result.computed
        refused = accuracy.result is not None and accuracy.result.refused
        if unknown or refused or (accuracy.result is not None and accuracy.result.max_drop is not None):
            outcome: Outcome = "FAILED" if refused else "WARNED" if unknown else "PASSED"
            yield f"accuracy/{accuracy.model}/{accuracy.variant}", outcome
    for proof in evidence.library_proofs:
        if proof.not_run:
            yield f"library/{proof.library.file}", "WARNED"
        yield from (_of_proof(proof.library.file, row) for row in proof.rows)


def _of_checks(checks: Iterable[OutputCheck]) -> Outcome:
    rows = list(checks)
    if any(check.failed for check in rows):
        return "FAILED"
    return "WARNED" if any(check.unknown for check in rows) else "PASSED"


def _of_proof(library: str, row: ProofRow) -> tuple[str, Outcome]:
    name = f"library/{library}/{row.model}/{row.variant}/{row.run}/api-{row.api_level}"
    return name, "FAILED" if row.failed else "WARNED" if row.findings else "PASSED"


def _configuration(manifest: Manifest, proofs: Sequence[LibraryProof]) -> Iterator[Descriptor]:
    """The programs that made and tested it, its operator configs, and the libraries that ran."""
    for name, version in sorted(manifest.content.made_with.items()):
        yield Descriptor(name=name, uri=f"pkg:pypi/{PACKAGES.get(name, name)}@{version}")
    for file in manifest.content.files:
        if file.path.startswith("operators/"):
            yield Descriptor(name=file.path, digest={"sha256": file.sha256})
    for proof in proofs:
        if proof.library.sha256:
            yield Descriptor(name=proof.library.file, digest={"sha256": proof.library.sha256})


PACKAGES = {"ort-mobile": "ort-mobile-pipeline"}
"""Names of Python packages that differ from the program's."""


def _subjects(folder: Path, manifest: Manifest) -> tuple[SignedSubject, ...]:
    return (
        SignedSubject(name=manifest.content.name, digest={"sha256": manifest.content_sha256}),
        SignedSubject(name=MANIFEST_FILE, digest={"sha256": sha256_of(folder / MANIFEST_FILE)}),
    )


def _refusal(folder: Path, why: str) -> CheckFailed:
    return CheckFailed(
        "the attestation does not hold for this bundle",
        where=str(folder / ATTESTATION_FILE),
        why=why,
        remedy="get the bundle and the public key from their maker again",
    )
