"""Attested tests: what the evidence says, bound to one bundle and one key, and shown without a larger claim."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from device_runner.spec import RunOptions
from pipeline.accuracy.result import AccuracyResult, ArtifactAccuracy
from pipeline.check.compare import OutputCheck
from pipeline.check.library_proof import PROOFS, LibraryProof, ProofRow, ProvenLibrary
from pipeline.release.manifest import ATTESTATION_FILE, SIGNATURE_FILE, verify_bundle
from pipeline.release.signature import TESTS_PREDICATE_TYPE, AttestedTests, read_private_key, results_text, sign_bundle
from tests.command import ort_mobile
from tests.features.updates.test_delta import bundle
from tests.release.test_signature import write_keys

GOOD = OutputCheck(output="y", passed=True)
UNKNOWN = OutputCheck(output="y", passed=False, unknown=True, reason="all outputs are equal")
WRONG = OutputCheck(output="y", passed=False, max_rel_error=0.5)
ROW = ProofRow(
    targets=("phone",), model="m", variant="basic-fixed", file="models/m.ort", run="cpu",
    options=RunOptions(), api_level=33,
)  # fmt: skip
PROOF = LibraryProof(bundle="", library=ProvenLibrary(file="app.aar", sha256="2" * 64), rows=(ROW,))


def evidence(*checks: OutputCheck, **more: Any) -> dict[str, Any]:
    """Evidence as a job writes it: one artifact that was checked, and ran on a device."""
    row = {"device": "local", "model": "m", "variant": "basic-fixed", "run": "cpu", "status": "ok", "rounds": 5}
    found = {"checks": {"m/basic-fixed": checks}, "measured": [row], PROOFS: [PROOF], **more}
    made: dict[str, Any] = msgspec.to_builtins(found)
    return made


def made(folder: Path, proofs: dict[str, Any], name: str = "bundle") -> Path:
    return bundle(folder, b"model of " + name.encode(), name, evidence=proofs)


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A signed bundle with evidence; key.pub lies beside it."""
    made(tmp_path, evidence(GOOD))
    ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", write_keys(tmp_path))
    return tmp_path / "bundle"


def statement(signed: Path) -> dict[str, Any]:
    envelope = json.loads((signed / ATTESTATION_FILE).read_bytes())
    payload: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return payload


def test_the_statement_is_on_this_bundle_and_names_its_tests(signed: Path) -> None:
    said = statement(signed)
    digest = json.loads((signed / "manifest.json").read_bytes())["content_sha256"]
    assert (said["_type"], said["predicateType"]) == ("https://in-toto.io/Statement/v1", TESTS_PREDICATE_TYPE)
    assert said["subject"][0] == {"name": "demo", "digest": {"sha256": digest}}
    assert said["predicate"]["result"] == "PASSED"
    assert said["predicate"]["passedTests"] == [
        "library/app.aar/m/basic-fixed/cpu/api-33",
        "outputs/m/basic-fixed",
        "run/local/m/basic-fixed/cpu",
    ]
    assert {one["name"] for one in said["predicate"]["configuration"]} == {"app.aar", "operators/o.config"}


def test_verify_says_who_attests_and_that_nothing_was_run_again(signed: Path) -> None:
    found = ort_mobile("bundle", "verify", signed, "--key", signed.parent / "key.pub")
    assert "signed by the owner of the key with sha256" in found.text
    assert "were not run again here: PASSED: 3 passed (1 library, 1 outputs, 1 run)" in found.text
    document = json.loads(ort_mobile("bundle", "verify", signed, "--key", signed.parent / "key.pub", "--json", "-").out)
    assert document["attested_tests"]["result"] == "PASSED"


def test_without_a_key_neither_a_maker_nor_a_test_is_claimed(signed: Path) -> None:
    found = ort_mobile("bundle", "verify", signed).text
    assert "where it is from is not proven" in found
    assert "attest" not in found


@pytest.mark.parametrize(
    ("checks", "result"), [((GOOD, GOOD), "PASSED"), ((GOOD, UNKNOWN), "WARNED"), ((UNKNOWN, WRONG), "FAILED")]
)
def test_the_worst_test_is_the_result(tmp_path: Path, checks: tuple[OutputCheck, ...], result: str) -> None:
    made(tmp_path, evidence(*checks))
    ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", write_keys(tmp_path))
    assert statement(tmp_path / "bundle")["predicate"]["result"] == result
    shown = ort_mobile("bundle", "verify", tmp_path / "bundle", "--key", tmp_path / "key.pub").text
    assert ("outputs/m/basic-fixed" in shown) == (result != "PASSED")


def test_what_could_not_run_is_no_passed_test(tmp_path: Path) -> None:
    proof = LibraryProof(bundle="", library=ProvenLibrary(file="app.aar"), not_run="this computer cannot")
    skipped = {"device": "d", "model": "m", "variant": "v", "run": "nnapi", "status": "skipped"}
    made(tmp_path, evidence(**{PROOFS: [proof], "measured": [skipped]}))
    ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", write_keys(tmp_path))
    predicate = statement(tmp_path / "bundle")["predicate"]
    assert (predicate["warnedTests"], predicate["passedTests"]) == (["library/app.aar"], [])


@pytest.mark.parametrize(("budget", "result"), [(0.01, "FAILED"), (None, "WARNED")])
def test_an_accuracy_that_could_not_be_computed_did_not_pass(tmp_path: Path, budget: float | None, result: str) -> None:
    unknown = AccuracyResult(
        model="m", metric="cosine", labelled=False, samples=12, data="d", value=None, max_drop=budget
    )
    own = ArtifactAccuracy(model="m", variant="basic-fixed", result=unknown)
    made(tmp_path, evidence(accuracy=[msgspec.to_builtins(own)]))
    ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", write_keys(tmp_path))
    predicate = statement(tmp_path / "bundle")["predicate"]
    assert predicate["result"] == result
    assert not any(name.startswith("accuracy/") for name in predicate["passedTests"])


def test_a_bundle_without_tests_attests_none(tmp_path: Path) -> None:
    made(tmp_path, {})
    ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", write_keys(tmp_path))
    assert not (tmp_path / "bundle" / ATTESTATION_FILE).exists()
    assert "attests no tests" in ort_mobile("bundle", "verify", tmp_path / "bundle", "--key", tmp_path / "key.pub").text


def test_evidence_of_another_form_is_not_attested(tmp_path: Path) -> None:
    made(tmp_path, {"checks": "all good"})
    ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", write_keys(tmp_path), code=4)
    assert not (tmp_path / "bundle" / SIGNATURE_FILE).exists()


def test_the_same_bundle_and_key_give_the_same_attestation(signed: Path) -> None:
    before = (signed / ATTESTATION_FILE).read_bytes()
    ort_mobile("bundle", "sign", signed, "--key", signed.parent / "key.pem")
    assert (signed / ATTESTATION_FILE).read_bytes() == before


def stripped(signed: Path) -> None:
    (signed / ATTESTATION_FILE).unlink()


def of_another_bundle(signed: Path) -> None:
    """The attestation of another bundle of the same maker, under a signature that covers it."""
    key = signed.parent / "key.pem"
    other = made(signed.parent, evidence(GOOD), "other")
    ort_mobile("bundle", "sign", other, "--key", key)
    (signed / ATTESTATION_FILE).write_bytes((other / ATTESTATION_FILE).read_bytes())
    sign_bundle(signed, verify_bundle(signed), read_private_key(key, None))


def copied(signed: Path) -> None:
    other = made(signed.parent, evidence(GOOD), "other")
    ort_mobile("bundle", "sign", other, "--key", signed.parent / "key.pem")
    (signed / ATTESTATION_FILE).write_bytes((other / ATTESTATION_FILE).read_bytes())


def by_another_key(signed: Path) -> None:
    signature = (signed / SIGNATURE_FILE).read_bytes()
    ort_mobile("bundle", "sign", signed, "--key", write_keys(signed.parent, "else"))
    (signed / SIGNATURE_FILE).write_bytes(signature)


def linked(signed: Path) -> None:
    (signed / ATTESTATION_FILE).rename(signed.parent / "elsewhere")
    (signed / ATTESTATION_FILE).symlink_to(signed.parent / "elsewhere")


ATTACKS: dict[Callable[[Path], None], str] = {
    stripped: "made for other files than those that are here: evidence/test-result.intoto.jsonl",
    of_another_bundle: "it is the attestation of another bundle",
    copied: "made for other files than those that are here: evidence/test-result.intoto.jsonl",
    by_another_key: "made for other files than those that are here: evidence/test-result.intoto.jsonl",
    linked: "added: evidence/test-result.intoto.jsonl",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused_with_the_reason(signed: Path, attack: Callable[[Path], None]) -> None:
    attack(signed)
    result = ort_mobile("bundle", "verify", signed, "--key", signed.parent / "key.pub", code=4)
    assert ATTACKS[attack] in result.err


def test_an_update_brings_its_attestation(tmp_path: Path) -> None:
    old, new = made(tmp_path, evidence(GOOD), "old"), made(tmp_path, evidence(GOOD), "new")
    ort_mobile("bundle", "sign", new, "--key", write_keys(tmp_path))
    ort_mobile("bundle", "delta", old, new, "--output", tmp_path / "d")
    ort_mobile("bundle", "apply", tmp_path / "d", old, "--key", tmp_path / "key.pub")
    assert (old / ATTESTATION_FILE).read_bytes() == (new / ATTESTATION_FILE).read_bytes()


def test_one_line_counts_every_outcome() -> None:
    mixed = AttestedTests(
        result="FAILED", configuration=(), passed=("run/a",), warned=("run/b",), failed=("outputs/c",)
    )
    assert results_text(mixed) == "FAILED: 1 passed, 1 undecided, 1 failed (1 outputs, 2 run)"


READ_BY_OTHERS = """
import json, sys
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey
key = SSlibKey("", "ecdsa", "ecdsa-sha2-nistp256", {"public": open(sys.argv[2]).read()})
document = json.load(open(sys.argv[1]))
key.keyid = document["signatures"][0]["keyid"]
Envelope.from_dict(document).verify([key], 1)
"""


@pytest.mark.slow
def test_others_read_the_envelope(signed: Path) -> None:
    words = [sys.executable, "-c", READ_BY_OTHERS, str(signed / ATTESTATION_FILE)]

    def theirs(key: str) -> int:
        return subprocess.run([*words, str(signed.parent / key)], capture_output=True, check=False).returncode

    write_keys(signed.parent, "else")
    assert (theirs("key.pub"), theirs("else.pub") != 0) == (0, True)
