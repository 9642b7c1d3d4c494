"""Signatures as OpenSSF Model Signing v1.0 has them: the same each time, read by others and of others; no fault passes.

The published ones are those of the `model_signing` program, one of each method by each of its releases, with the files
that they sign and the keys. The specification's valid vectors are of the same files and keys, and its invalid ones are
valid ones with a fault; every fault of `BROKEN` is put into the published ones, too.
"""

import base64
import datetime as dt
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from device_runner.files import cache_folder, scratch_folder, staging_folder
from pipeline.core.errors import CheckFailed, DiskError
from pipeline.core.files import sha256_of, write_bytes
from pipeline.release.manifest import SIGNATURE_FILE, verify_bundle
from pipeline.release.signature import (
    read_private_key,
    read_public_key,
    sealed_envelope,
    signed_statement,
    verify_signature,
)
from tests.command import ort_mobile
from tests.python_packages import download
from tests.release.test_bundle import bundle_in, proof
from tests.stops import STOPPED, stops
from tests.values import files_of

CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}


def write_keys(
    folder: Path,
    name: str = "key",
    curve: ec.EllipticCurve = CURVES["P-256"],
    lock: KeySerializationEncryption | None = None,
) -> Path:
    """A private key as PEM, with its public one beside it as NAME.pub."""
    key = ec.generate_private_key(curve)
    private = folder / f"{name}.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock or NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    private.with_suffix(".pub").write_bytes(public)
    return private


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A signed bundle; key.pub lies beside it."""
    bundle_in(tmp_path)
    ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", write_keys(tmp_path))
    return tmp_path / "bundle"


@pytest.mark.parametrize("curve", CURVES)
def test_the_same_bundle_and_key_give_the_same_bytes(tmp_path: Path, curve: str) -> None:
    key = write_keys(tmp_path, curve=CURVES[curve])
    bundle_in(tmp_path / "a")  # made once: the manifest says when, and is signed
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = []
    for place in ("a", "b"):
        ort_mobile("bundle", "sign", tmp_path / place / "bundle", "--key", key)
        found.append((tmp_path / place / "bundle" / SIGNATURE_FILE).read_bytes())
        ort_mobile("bundle", "verify", tmp_path / place / "bundle", "--key", tmp_path / "key.pub")
    assert found[0] == found[1]


def test_any_changed_byte_of_any_file_is_found(signed: Path) -> None:
    key = signed.parent / "key.pub"
    for file in sorted(file for file in signed.rglob("*") if file.is_file()):
        before = file.read_bytes()
        for place in {0, len(before) // 2, len(before) - 1}:
            changed = bytearray(before)
            changed[place] ^= 1
            file.write_bytes(changed)
            result = ort_mobile("bundle", "verify", signed, "--key", key, code=None)
            # The last byte of the signature's JSON is a line end: another blank there changes nothing that is said.
            assert result.code == 4 or (file.name == SIGNATURE_FILE and changed[place] == 0x0B), (file, place)
        file.write_bytes(before)
    ort_mobile("bundle", "verify", signed, "--key", key)


def other_key(bundle: Path) -> None:
    ort_mobile("bundle", "sign", bundle, "--key", write_keys(bundle.parent, "other"))


def claimed_key(bundle: Path) -> None:
    """Signed by another key, with the hint of the right one."""
    hint = json.loads((bundle / SIGNATURE_FILE).read_bytes())["verificationMaterial"]
    other_key(bundle)
    document = json.loads((bundle / SIGNATURE_FILE).read_bytes())
    (bundle / SIGNATURE_FILE).write_text(json.dumps({**document, "verificationMaterial": hint}))


def stripped(bundle: Path) -> None:
    (bundle / SIGNATURE_FILE).unlink()


def made_again(bundle: Path) -> None:
    """Another bundle, whole in itself, under the old signature."""
    signature = (bundle / SIGNATURE_FILE).read_bytes()
    bundle_in(bundle.parent, seconds=9.0)
    (bundle / SIGNATURE_FILE).write_bytes(signature)


def linked(bundle: Path) -> None:
    (bundle / SIGNATURE_FILE).rename(bundle.parent / "elsewhere")
    (bundle / SIGNATURE_FILE).symlink_to(bundle.parent / "elsewhere")


def two_signatures(bundle: Path) -> None:
    document = json.loads((bundle / SIGNATURE_FILE).read_bytes())
    document["dsseEnvelope"]["signatures"] *= 2
    (bundle / SIGNATURE_FILE).write_text(json.dumps(document))


@pytest.mark.parametrize("attack", [other_key, claimed_key, stripped, made_again, linked, two_signatures])
def test_attacks_are_refused(signed: Path, attack: Callable[[Path], None]) -> None:
    attack(signed)
    ort_mobile("bundle", "verify", signed, "--key", signed.parent / "key.pub", code=4)


def test_a_full_disk_leaves_the_signature_that_was_there(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_of(signed)

    def full(path: Path, content: bytes) -> None:
        if path.name == SIGNATURE_FILE:
            raise DiskError("cannot write", why="No space left on device")
        write_bytes(path, content)

    monkeypatch.setattr("pipeline.core.files.write_bytes", full)
    ort_mobile("bundle", "sign", signed, "--key", write_keys(signed.parent, "other"), code=3)
    assert files_of(signed) == before
    assert not list(signed.parent.glob(".*"))


@pytest.mark.parametrize(
    "left", [f".{SIGNATURE_FILE}.abcd_123.part", "evidence/.test-result.intoto.jsonl.00000000.part"]
)
def test_what_a_killed_signing_left_in_the_bundle_goes_with_the_next(signed: Path, left: str) -> None:
    (signed / left).write_bytes(b"half")
    ort_mobile("bundle", "verify", signed, code=4)
    ort_mobile("bundle", "sign", signed, "--key", signed.parent / "key.pem")
    ort_mobile("bundle", "verify", signed, "--key", signed.parent / "key.pub")


@pytest.mark.parametrize(
    "left", [f".{SIGNATURE_FILE}.part", f".{SIGNATURE_FILE}.abcd_1234.part", "models/.m.ort.abcd_123.part"]
)
def test_what_signing_never_writes_is_not_removed(signed: Path, left: str) -> None:
    (signed / left).write_bytes(b"of somebody")
    ort_mobile("bundle", "sign", signed, "--key", signed.parent / "key.pem", code=4)
    assert (signed / left).is_file()


def test_while_a_bundle_is_replaced_it_is_not_signed(signed: Path) -> None:
    before = files_of(signed)
    with staging_folder(signed):
        refused = ort_mobile("bundle", "sign", signed, "--key", write_keys(signed.parent, "other"), code=2)
    assert refused.err.startswith("error: another process is replacing this\n")
    assert files_of(signed) == before


@pytest.mark.parametrize("actions", STOPPED)
@pytest.mark.parametrize("key", ["first", "second"])
def test_a_signing_that_is_stopped_leaves_a_whole_bundle_and_the_next_one_ends(
    tmp_path: Path, key: str, actions: tuple[str, ...]
) -> None:
    start = tmp_path / "start"
    bundle_in(start, attest=lambda _: proof(failed=False))
    write_keys(start, "second")
    if key == "second":
        ort_mobile("bundle", "sign", start / "bundle", "--key", write_keys(start, "first"))
    else:
        write_keys(start, "first")
    left = stops(tmp_path, ("bundle", "sign", "bundle", "--key", f"{key}.pem"), actions)
    old, new = files_of(start / "bundle"), files_of(left[-1].again / "bundle")
    assert len(left) > 30
    for stop in left:
        assert not stop.traced, stop.name
        assert files_of(stop.after / "bundle") in (old, new), stop.name
        assert (files_of(stop.again / "bundle"), stop.again_code) == (new, 0), stop.name
        assert sorted(path.name for path in stop.again.iterdir()) == sorted(path.name for path in start.iterdir())
    ort_mobile("bundle", "verify", left[0].again / "bundle", "--key", start / f"{key}.pub")


def test_damaged_signatures_are_refused_and_never_crash(tmp_path: Path) -> None:
    bundle_in(tmp_path)
    write_keys(tmp_path)

    @given(st.binary(max_size=300) | st.text().map(lambda text: json.dumps({"mediaType": text}).encode()))
    def is_refused(content: bytes) -> None:
        (tmp_path / "bundle" / SIGNATURE_FILE).write_bytes(content)
        manifest = verify_bundle(tmp_path / "bundle")
        with pytest.raises(CheckFailed):
            verify_signature(tmp_path / "bundle", manifest, read_public_key(tmp_path / "key.pub"))

    is_refused()


def test_a_locked_key_needs_its_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle_in(tmp_path)
    key = write_keys(tmp_path, lock=BestAvailableEncryption(b"right"))
    for passphrase, why in (
        ("", "it has a passphrase"),
        ("wrong", "the passphrase in ORT_MOBILE_PASSPHRASE does not open it"),
    ):
        if passphrase:
            monkeypatch.setenv("ORT_MOBILE_PASSPHRASE", passphrase)
        refused = ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", key, code=2)
        assert f"why: {why}\n" in refused.err
        assert not (tmp_path / "bundle" / SIGNATURE_FILE).exists()
    ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", key, ORT_MOBILE_PASSPHRASE="right")
    ort_mobile("bundle", "verify", tmp_path / "bundle", "--key", tmp_path / "key.pub")


def test_the_wrong_half_of_a_key_is_named(tmp_path: Path) -> None:
    bundle_in(tmp_path)
    key = write_keys(tmp_path)
    public = ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", tmp_path / "key.pub", code=2)
    assert "why: it is a public key\n" in public.err
    private = ort_mobile("bundle", "verify", tmp_path / "bundle", "--key", key, code=2)
    assert "why: it is a private key\n" in private.err
    needless = ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", key, code=2, ORT_MOBILE_PASSPHRASE="x")
    assert "unset ORT_MOBILE_PASSPHRASE" in needless.err


def test_an_empty_digest_checks_nothing_and_is_refused(tmp_path: Path) -> None:
    bundle_in(tmp_path)
    ort_mobile("bundle", "verify", tmp_path / "bundle", "--digest", "", code=2)


def test_keys_that_the_standard_does_not_have_are_refused(tmp_path: Path) -> None:
    bundle_in(tmp_path)
    key = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "ed.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "text.pem").write_text("no key")
    for name in ("ed.pem", "text.pem", "missing.pem"):
        ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", tmp_path / name, code=2)
    assert not (tmp_path / "bundle" / SIGNATURE_FILE).exists()


def test_a_changed_bundle_is_not_signed(tmp_path: Path) -> None:
    bundle_in(tmp_path)
    (tmp_path / "bundle/models/m.ort").write_bytes(b"x")
    ort_mobile("bundle", "sign", tmp_path / "bundle", "--key", write_keys(tmp_path), code=4)


@pytest.mark.slow
def test_the_standards_own_program_agrees(signed: Path) -> None:
    program = [sys.executable, "-m", "model_signing"]
    keys, signature = ("--public_key", str(signed.parent / "key.pub")), ("--signature", str(signed / SIGNATURE_FILE))

    def theirs(*words: str) -> int:
        return subprocess.run([*program, *words], capture_output=True, check=False).returncode

    assert theirs("verify", "key", str(signed), *signature, *keys) == 0
    model = signed / "models/m.ort"
    before = model.read_bytes()
    model.write_bytes(before + b"x")
    assert theirs("verify", "key", str(signed), *signature, *keys) != 0
    model.write_bytes(before)
    assert theirs("sign", "key", str(signed), *signature, "--private_key", str(signed.parent / "key.pem")) == 0
    ort_mobile("bundle", "verify", signed, "--key", signed.parent / "key.pub")


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o644, True), (0o640, True)])
def test_a_private_key_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    key = write_keys(tmp_path)
    key.chmod(mode)
    read_private_key(key, None)
    assert ("can read the private key" in caplog.text) == warned


PUBLISHED = "rh-model-signing==1.0.5"
"""A distribution of `model_signing` whose source archive has the program's own tests (Apache-2.0)."""
PUBLISHED_SHA256 = "3acb7b250935f0935069b2b35ca5722ffa1e52a07682cdcc6a5510685349b268"
KEYS = "keys/certificate"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a signed bundle and its keys; tests must not change it."""
    folder = tmp_path_factory.mktemp("signed")
    bundle_in(folder)
    ort_mobile("bundle", "sign", folder / "bundle", "--key", write_keys(folder))
    return folder


def document(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "bundle" / SIGNATURE_FILE).read_bytes())
    return found


def certificate(key: Path) -> str:
    """A certificate for the owner of a key, signed by themselves, as DER in base64."""
    private = load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a maker of models")])
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(private.public_key())
        .serial_number(1).not_valid_before(start).not_valid_after(start + dt.timedelta(days=3650))
        .sign(private, hashes.SHA256())
    )  # fmt: skip
    return base64.b64encode(made.public_bytes(Encoding.DER)).decode()


def certified(place: Path, key: str = "key.pem") -> dict[str, Any]:
    chain = {"certificates": [{"rawBytes": certificate(place / key)}]}
    return {**document(place), "verificationMaterial": {"x509CertificateChain": chain, "tlogEntries": []}}


def test_other_writers_order_and_indent_differently(place: Path) -> None:
    text = json.dumps(document(place), indent=4, sort_keys=False).encode()
    assert signed_statement(text, read_public_key(place / "key.pub")).predicate.resources


def test_a_certificate_names_the_key(place: Path) -> None:
    said = signed_statement(json.dumps(certified(place)).encode(), read_public_key(place / "key.pub"))
    assert said.subject[0].name == "demo"


def without(*keys: str) -> Callable[[Path], dict[str, Any]]:
    def made(place: Path) -> dict[str, Any]:
        found = document(place)
        inner = found
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]
        return found

    return made


def of_another(place: Path) -> dict[str, Any]:
    write_keys(place, "other")
    return certified(place, "other.pem")


def no_certificate(place: Path) -> dict[str, Any]:
    found = certified(place)
    found["verificationMaterial"]["x509CertificateChain"]["certificates"] = [{"rawBytes": "bm90IG9uZQ=="}]
    return found


def with_material(material: dict[str, Any]) -> Callable[[Path], dict[str, Any]]:
    return lambda place: {**document(place), "verificationMaterial": {**material, "tlogEntries": []}}


def another_predicate(place: Path) -> dict[str, Any]:
    """A statement of another kind, signed as it should be."""
    found = document(place)
    payload = json.loads(base64.b64decode(found["dsseEnvelope"]["payload"]))
    content = json.dumps({**payload, "predicateType": "https://example.com/another/v1"}).encode()
    envelope = sealed_envelope(content, read_private_key(place / "key.pem", None), named=False)
    return {**found, "dsseEnvelope": {**found["dsseEnvelope"], "payload": envelope.payload,
                                      "signatures": [{"sig": envelope.signatures[0]["sig"]}]}}  # fmt: skip


def another_type(place: Path) -> dict[str, Any]:
    found = document(place)
    found["dsseEnvelope"]["payloadType"] = "text/plain"
    return found


BROKEN: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "no envelope": (without("dsseEnvelope"), "dsseEnvelope"),
    "no material": (without("verificationMaterial"), "verificationMaterial"),
    "no log entries": (without("verificationMaterial", "tlogEntries"), "tlogEntries"),
    "no resources": (lambda place: {**document(place), "dsseEnvelope": {}}, "payload"),
    "another media type": (lambda place: {**document(place), "mediaType": "text/plain"}, "the file is no application"),
    "another predicate": (another_predicate, "what was signed is https://example.com/another/v1"),
    "another payload type": (another_type, "no in-toto statement"),
    "a certificate for another key": (of_another, "it names the key"),
    "a certificate that is none": (no_certificate, "its certificate cannot be read"),
    "an identity": (with_material({"certificate": {"rawBytes": ""}}), "identities of Sigstore are not supported"),
    "no certificates": (with_material({"x509CertificateChain": {"certificates": []}}), "neither a key nor"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_documents_are_refused_with_the_reason(place: Path, fault: str) -> None:
    make, reason = BROKEN[fault]
    with pytest.raises(ValueError, match=reason):
        signed_statement(json.dumps(make(place)).encode(), read_public_key(place / "key.pub"))


@pytest.fixture(scope="module")
def published() -> Path:
    """The published signatures, a folder each with the files that they are of, and `keys`; fetched once."""
    folder = cache_folder() / "packages"
    archive = download(PUBLISHED, folder, source=True)
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == PUBLISHED_SHA256
    unpacked = archive.with_name(archive.name.removesuffix(".tar.gz"))
    if not unpacked.is_dir():
        with tarfile.open(archive) as members, scratch_folder(f".{unpacked.name}.", folder) as work:
            members.extractall(work, filter="data")
            (work / unpacked.name).rename(unpacked)
    return unpacked / "scripts/tests"


ACCEPTED = ("v1.1.0-certificate", "v1.1.0-elliptic-key")
EARLIER = "tlogEntries|hint"
"""Fields that the specification demands (two of its invalid vectors lack one), and releases before it did not write."""
OUTCOMES = {
    **dict.fromkeys(ACCEPTED, ""),
    **{f"v{release}-certificate": EARLIER for release in ("0.2.0", "0.3.1", "1.0.0", "1.0.1")},
    **{f"v{release}-elliptic-key": EARLIER for release in ("0.3.1", "1.0.0", "1.0.1")},
    **{f"v{release}-sigstore": "identities of Sigstore" for release in ("0.3.1", "1.0.0", "1.0.1", "1.1.0")},
}
"""Each published signature and why it is refused; "" for those that hold."""


@pytest.mark.network
def test_every_published_signature_holds_or_is_refused_with_the_reason(published: Path, tmp_path: Path) -> None:
    key = read_public_key(published / KEYS / "signing-key-pub.pem")
    write_keys(tmp_path)
    other = read_public_key(tmp_path / "key.pub")
    assert {file.parent.name for file in published.glob("*/model.sig")} == set(OUTCOMES)
    for name, reason in OUTCOMES.items():
        content = (published / name / "model.sig").read_bytes()
        if reason:
            with pytest.raises(ValueError, match=reason):
                signed_statement(content, key)
            continue
        said = signed_statement(content, key)
        digests = {one.name: one.digest for one in said.predicate.resources}
        assert digests == {file: sha256_of(published / name / file) for file in ("signme-1", "signme-2")}
        root = hashlib.sha256(b"".join(bytes.fromhex(digests[file]) for file in sorted(digests))).hexdigest()
        assert [one.digest for one in said.subject] == [{"sha256": root}]
        with pytest.raises(ValueError, match="it names the key"):
            signed_statement(content, other)


@pytest.mark.network
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_published_signature_with_any_fault_is_refused(published: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "bundle").mkdir()
    shutil.copy(published / name / "model.sig", tmp_path / "bundle" / SIGNATURE_FILE)
    for file, own in (("signing-key.pem", "key.pem"), ("signing-key-pub.pem", "key.pub")):
        shutil.copy(published / KEYS / file, tmp_path / own)
    key = read_public_key(tmp_path / "key.pub")
    for make, reason in BROKEN.values():
        with pytest.raises(ValueError, match=reason):
            signed_statement(json.dumps(make(tmp_path)).encode(), key)
    for part in ("payload", "sig"):
        text = (tmp_path / "bundle" / SIGNATURE_FILE).read_text()
        found = re.search(rf'"{part}": ?"([^"]{{40}})', text)
        assert found
        place = found.end(1) - 1
        changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
        with pytest.raises(ValueError, match=r"\w"):
            signed_statement(changed.encode(), key)
