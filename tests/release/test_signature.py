"""Signatures of bundles: deterministic, read by others, and refused for every change, other keys and damaged files."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import CheckFailed
from pipeline.release.manifest import SIGNATURE_FILE, verify_bundle
from pipeline.release.signature import read_private_key, read_public_key, verify_signature
from tests.command import ort_mobile
from tests.release.test_bundle import bundle_in

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
