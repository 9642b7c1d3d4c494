"""Bundles: the same inputs give the same digest, and no byte can change unseen."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from device_runner.spec import ElementType, RunOptions
from pipeline.check.compare import Tolerance
from pipeline.check.library_proof import PROOFS, FindingKind, LibraryProof, ProofFinding, ProofRow, ProvenLibrary
from pipeline.core.errors import CheckFailed, ConfigError, Severity
from pipeline.core.files import sha256_of
from pipeline.release.bundle import make_bundle
from pipeline.release.kept import KeptReference, KeptTensor
from pipeline.release.manifest import (
    MANIFEST_FILE,
    SEAL_FILE,
    content_digest,
    refuse_unproven,
    sealed,
    verify_bundle,
)
from pipeline.release.sbom import SBOM_FILE
from tests.command import ort_mobile
from tests.features.android.samples import shipped

SHIPS = (shipped(file="models/m.ort", runs=(RunOptions(),), ort_release="1.31", min_api_level=None, basis="advised"),)


def bundle_in(folder: Path, seconds: float = 1.0, **more: Any) -> str:
    (folder / "m.ort").parent.mkdir(parents=True, exist_ok=True)
    (folder / "m.ort").write_bytes(bytes(range(256)) * 40)
    manifest = make_bundle(
        folder / "bundle",
        name="demo",
        sources={"models/m.ort": folder / "m.ort", "operators/required_operators.config": b"ai.onnx;13;Relu\n"},
        ships=SHIPS,
        made_with={"onnxruntime": "1.31.1"},
        evidence={"seconds": seconds},
        **more,
    )
    return manifest.content_sha256


def test_the_digest_depends_on_the_inputs_alone(tmp_path: Path) -> None:
    first = bundle_in(tmp_path / "a", seconds=1.0)
    old = os.umask(0o077)
    try:
        second = bundle_in(tmp_path / "other place", seconds=2.0)
    finally:
        os.umask(old)
    assert first == second
    assert verify_bundle(tmp_path / "other place" / "bundle").content_sha256 == first


def reseal(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest as somebody would who also writes new digests."""
    document = json.loads((bundle / MANIFEST_FILE).read_bytes())
    change(document)
    document["content_sha256"] = content_digest(document["content"])
    rewrite(bundle, json.dumps(document).encode())


def rewrite(bundle: Path, manifest: bytes) -> None:
    """Another manifest, with the seal that it needs."""
    (bundle / MANIFEST_FILE).write_bytes(manifest)
    (bundle / SEAL_FILE).write_bytes(sealed(manifest))


def replacing(old: str, new: str) -> Callable[[Path], None]:
    """A change of the manifest's text, sealed anew."""
    return lambda bundle: rewrite(bundle, (bundle / MANIFEST_FILE).read_bytes().replace(old.encode(), new.encode(), 1))


def listing(*paths: str) -> Callable[[Path], None]:
    """More listed files with the bytes of the model, with new digests."""
    content = bytes(range(256)) * 40
    entries = [{"path": path, "size_bytes": 10240, "sha256": hashlib.sha256(content).hexdigest()} for path in paths]
    return lambda bundle: reseal(bundle, lambda document: document["content"]["files"].extend(entries))


def shipping(file: str) -> Callable[[Path], None]:
    return lambda bundle: reseal(bundle, lambda document: document["content"]["ships"][0].update(file=file))


def made_at(instant: str) -> Callable[[Path], None]:
    return lambda bundle: reseal(bundle, lambda document: document.update(made_at=instant))


def linking(name: str) -> Callable[[Path], object]:
    """A file that lies elsewhere, behind a link."""
    return lambda bundle: (bundle / name).symlink_to((bundle / name).rename(bundle.parent / name))


def add_several(bundle: Path) -> None:
    (bundle / "models" / "extra.ort").write_bytes(b"x")
    (bundle / "empty").mkdir()
    (bundle / "link").symlink_to("models")


NESTED = "[" * 200_000 + "]" * 200_000
CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "model missing": (lambda bundle: (bundle / "models/m.ort").unlink(), "missing: models/m.ort"),
    "seal missing": (lambda bundle: (bundle / SEAL_FILE).unlink(), f"missing: {SEAL_FILE}"),
    "file, folder and link added": (add_several, "^added: empty/; added: link; added: models/extra.ort$"),
    "model truncated": (
        lambda bundle: os.truncate(bundle / "models/m.ort", 100), r"models/m.ort \(100 bytes instead of 10240\)",
    ),
    "huge manifest": (lambda bundle: os.truncate(bundle / MANIFEST_FILE, 40 << 30), MANIFEST_FILE),
    "huge seal": (lambda bundle: os.truncate(bundle / SEAL_FILE, 40 << 30), SEAL_FILE),
    "manifest a link": (linking(MANIFEST_FILE), f"^link: {MANIFEST_FILE}$"),
    "seal a link": (linking(SEAL_FILE), f"^link: {SEAL_FILE}$"),
    "content not of its digest": (replacing('"advised"', '"measured"'), "content part"),
    "endless evidence": (replacing('"seconds": 1.0', f'"seconds": {NESTED}'), f"unreadable: {MANIFEST_FILE}"),
    "a key twice": (replacing('"evidence": {', '"evidence": {}, "evidence": {'), "the key 'evidence' is there twice"),
    "path outside": (replacing('"path": "models/m.ort"', '"path": "../m.ort"'), "unreadable"),
    "absolute path": (replacing('"path": "models/m.ort"', '"path": "/etc/hostname"'), "unreadable"),
    "path outside by a detour": (replacing('"path": "models/m.ort"', '"path": "models/../../m.ort"'), "unreadable"),
    "no month 13": (made_at("2026-13-01T00:00:00.000Z"), "no moment: made_at is '2026-13-01"),
    "no 29 February": (made_at("2026-02-29T00:00:00.000Z"), "no moment: made_at is '2026-02-29"),
    "no hour 24": (made_at("2026-01-01T24:00:00.000Z"), "no moment"),
    "no year 0": (made_at("0000-01-01T00:00:00.000Z"), "no moment"),
    "a line end behind a moment": (made_at("2026-01-01T00:00:00.000Z\n"), r"no moment: made_at is '.*Z\\n'"),
    "a moment without a zone": (made_at("2026-01-01T00:00:00.000"), "unreadable.*made_at"),
    "of development": (
        lambda bundle: reseal(bundle, lambda document: document["content"]["ships"][0].pop("runs")),
        "unreadable.*`runs`",
    ),
    "ships what is outside": (shipping("../../../etc/passwd"), r"Expected `str` .* at `\$.content.ships\[0\].file`"),
    "ships what is not listed": (shipping("models/n.ort"), "ships, but is not listed: models/n.ort"),
    "listed twice": (listing("models/m.ort"), "listed 2 times: models/m.ort"),
    "two slashes": (listing("models//m.ort"), "not a plain path: models//m.ort"),
    "dot": (listing("./models/m.ort"), "not a plain path: ./models/m.ort"),
    "manifest listed": (listing("manifest.json"), "not a plain path: manifest.json"),
    "long name": (listing("a" * 5000), "not a plain path: " + "a" * 200),
    "deep path": (listing("m/" * 3000), "not a plain path: m/"),
    "text direction turned": (listing("models/n\u202etro.txt"), "not a plain path"),
    "file in capitals": (listing("models/M.ORT"), "one name on some file systems: models/M.ORT and models/m.ort"),
    "folder in capitals": (listing("Models/n.ort"), "one name on some file systems: Models and models"),
    "manifest in capitals": (listing("Manifest.json"), "one name on some file systems: Manifest.json and manifest."),
    "file as folder": (listing("models/m.ort/x"), "one name on some file systems: models/m.ort and models/m.ort"),
    "two forms of a letter": (
        listing("models/\u00e4", "models/a\u0308"), "one name on some file systems: models/a",
    ),
}  # fmt: skip
"""What somebody may do to a bundle, to a pattern of what is then said of it."""


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_bundle_is_refused_and_the_change_named(tmp_path: Path, change: str) -> None:
    bundle_in(tmp_path)
    reseal(tmp_path / "bundle", lambda document: None)
    verify_bundle(tmp_path / "bundle")
    make, finding = CHANGES[change]
    make(tmp_path / "bundle")
    with pytest.raises(CheckFailed, match="does not match its manifest") as caught:
        verify_bundle(tmp_path / "bundle")
    assert re.search(finding, caught.value.why)


def test_the_digest_of_the_maker_tells_a_bundle_from_another(tmp_path: Path) -> None:
    digest = bundle_in(tmp_path)
    assert verify_bundle(tmp_path / "bundle", digest.upper()).content_sha256 == digest
    reseal(tmp_path / "bundle", lambda document: document["content"].update(name="another"))
    verify_bundle(tmp_path / "bundle")
    with pytest.raises(CheckFailed, match="another bundle") as caught:
        verify_bundle(tmp_path / "bundle", digest)
    assert f"expected is {digest}" in caught.value.why


def test_the_digest_of_the_manifest_covers_evidence_and_that_of_the_content_does_not(tmp_path: Path) -> None:
    content = bundle_in(tmp_path)
    bundle = tmp_path / "bundle"
    whole = sha256_of(bundle / MANIFEST_FILE)
    results = [ort_mobile("bundle", "verify", bundle, "--digest", digest) for digest in (content, whole)]
    for digest, result in zip((content, whole), results, strict=True):
        assert f"{digest} (as expected)" in result.out
        assert result.out.count("(as expected)") == 1
    assert "covers README.md, models/m.ort, operators/required_operators.config\n" in results[0].out
    assert f"not what was measured and tested: {SBOM_FILE}, the evidence in manifest.json" in results[0].out
    reseal(bundle, lambda document: document["evidence"].update(seconds=0.001))
    verify_bundle(bundle, content)
    with pytest.raises(CheckFailed, match="another bundle"):
        verify_bundle(bundle, whole)


def test_that_a_bundle_must_not_ship_cannot_be_taken_out_under_its_digest(tmp_path: Path) -> None:
    digest = bundle_in(tmp_path, attest=lambda _: proof(failed=True))
    bundle = tmp_path / "bundle"
    reseal(bundle, lambda document: document["evidence"].pop(PROOFS))
    with pytest.raises(CheckFailed, match="do not ship"):
        refuse_unproven(bundle, verify_bundle(bundle, digest))
    reseal(bundle, lambda document: document["content"].pop("do_not_ship"))
    with pytest.raises(CheckFailed, match="another bundle"):
        verify_bundle(bundle, digest)


@pytest.mark.parametrize(("count", "end"), [(1000, "; and 980 more"), (20_000, "a bundle has at most 10,000")])
def test_findings_are_counted_and_the_first_are_named(tmp_path: Path, count: int, end: str) -> None:
    bundle_in(tmp_path)
    listing(*(f"models/{number}" for number in range(count)))(tmp_path / "bundle")
    with pytest.raises(CheckFailed) as caught:
        verify_bundle(tmp_path / "bundle")
    assert caught.value.why.endswith(end)
    assert len(caught.value.why) < 2000


UNPRIVILEGED = "--bounding-set=-dac_override,-dac_read_search,-fowner"


@pytest.mark.skipif(os.name != "posix", reason="permissions are another matter there")
@pytest.mark.parametrize("hidden", ["folder", "manifest", "file", "sub-folder without x"])
def test_what_cannot_be_looked_at_is_named_and_never_ok(tmp_path: Path, hidden: str) -> None:
    bundle_in(tmp_path)
    bundle = tmp_path / "bundle"
    place, mode = {
        "folder": (bundle / "hidden", 0),
        "manifest": (bundle / MANIFEST_FILE, 0),
        "file": (bundle / "models" / "m.ort", 0),
        "sub-folder without x": (bundle / "models", 0o400),
    }[hidden]
    if hidden == "folder":
        place.mkdir()
        (place / "evil").write_text("x")
    place.chmod(mode)
    command = [sys.executable, "-m", "pipeline", "bundle", "verify", str(bundle)]
    if os.geteuid() == 0:  # root reads everything: take that away from the child
        if not shutil.which("setpriv"):
            pytest.skip("root without setpriv cannot be bound by permissions")
        command = ["setpriv", UNPRIVILEGED, "--inh-caps=-all", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    place.chmod(0o700)
    assert done.returncode == 4
    assert "cannot be read: " in done.stderr
    assert place.name in done.stderr
    assert "Permission denied" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("version", [0, 2, 5])
def test_a_bundle_of_another_version_is_refused_by_name(tmp_path: Path, version: int) -> None:
    bundle_in(tmp_path)
    rewrite(tmp_path / "bundle", json.dumps({"version": version, "of": "another time"}).encode())
    with pytest.raises(ConfigError, match=f"this document has version {version}") as caught:
        verify_bundle(tmp_path / "bundle")
    assert (caught.value.where, "reads version 1" in caught.value.why) == (
        str(tmp_path / "bundle" / MANIFEST_FILE),
        True,
    )


def in_minutes(minutes: float) -> str:
    instant = datetime.now(UTC) + timedelta(minutes=minutes)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.parametrize("minutes", [12, 60 * 24 * 365, None])
def test_a_bundle_of_the_future_is_refused_until_it_is_made_again(tmp_path: Path, minutes: int | None) -> None:
    instant = in_minutes(minutes) if minutes else "9999-12-31T23:59:59.999Z"
    bundle_in(tmp_path)
    made_at(instant)(tmp_path / "bundle")
    refused = ort_mobile("bundle", "verify", tmp_path / "bundle", code=4)
    assert refused.err.startswith("error: this bundle was made at a time that has not come yet\n")
    assert instant in refused.err
    bundle_in(tmp_path)
    ort_mobile("bundle", "verify", tmp_path / "bundle")


def test_clocks_may_differ_a_little(tmp_path: Path) -> None:
    bundle_in(tmp_path)
    made_at(in_minutes(8))(tmp_path / "bundle")
    verify_bundle(tmp_path / "bundle")


def kept(folder: Path) -> tuple[KeptReference, dict[str, Path]]:
    """A reference of one input, whose file lies outside of the bundle."""
    (folder / "input_0.bin").write_bytes(bytes(8))
    tensor = KeptTensor(
        path="evidence/reference/m/input_0.bin",
        size_bytes=8,
        sha256=sha256_of(folder / "input_0.bin"),
        name="x",
        dtype=ElementType.FLOAT32,
        shape=(2,),
    )
    reference = KeptReference(model="m", inputs=(tensor,), tolerance=Tolerance(max_relative_error=1e-3))
    return reference, {tensor.path: folder / "input_0.bin"}


def test_references_are_proven_and_do_not_change_the_digest(tmp_path: Path) -> None:
    plain = bundle_in(tmp_path / "plain")
    reference, files = kept(tmp_path)
    assert bundle_in(tmp_path / "kept", references=(reference,), tensors=files) == plain
    bundle = tmp_path / "kept" / "bundle"
    assert verify_bundle(bundle).references == (reference,)
    (bundle / reference.inputs[0].path).write_bytes(bytes(7) + b"\1")
    with pytest.raises(CheckFailed) as caught:
        verify_bundle(bundle)
    assert caught.value.why == "changed: evidence/reference/m/input_0.bin"


def test_what_attests_a_bundle_sees_it_whole_and_stands_in_its_evidence(tmp_path: Path) -> None:
    seen = []

    def attest(bundle: Path) -> dict[str, object]:
        seen.append(verify_bundle(bundle).content_sha256)
        return {"proof": "it runs"}

    digest = bundle_in(tmp_path, attest=attest)
    assert seen == [digest]
    assert verify_bundle(tmp_path / "bundle").evidence == {"seconds": 1.0, "proof": "it runs"}


def proof(*, failed: bool) -> dict[str, Any]:
    finding = ProofFinding(
        severity=Severity.ERROR,
        code=FindingKind.MISSING_KERNEL,
        what="the library has no kernel for Erf",
        why="w",
        remedy="r",
    )
    row = ProofRow(
        targets=("phone",), model="m", variant="basic-fixed", file="models/m.ort", run="cpu", options=RunOptions(),
        api_level=27, failed=failed, findings=(finding,) if failed else (),
    )  # fmt: skip
    made = LibraryProof(bundle="0" * 64, library=ProvenLibrary(file="app.aar"), rows=(row, row))
    return {PROOFS: msgspec.to_builtins((made,))}


def test_a_bundle_whose_proof_failed_is_whole_and_must_not_ship(tmp_path: Path) -> None:
    bundle_in(tmp_path, attest=lambda _: proof(failed=True))
    verify_bundle(tmp_path / "bundle")
    refused = ort_mobile("bundle", "verify", tmp_path / "bundle", code=4)
    assert "do not ship this bundle: it failed in the library that ships" in refused.err
    assert refused.err.count("app.aar: m basic-fixed (cpu): the library has no kernel for Erf") == 1
    bundle_in(tmp_path, attest=lambda _: proof(failed=False))
    ort_mobile("bundle", "verify", tmp_path / "bundle")


def test_a_proof_that_is_none_is_refused(tmp_path: Path) -> None:
    bundle_in(tmp_path)
    reseal(tmp_path / "bundle", lambda document: document["evidence"].update({PROOFS: [{"rows": 3}]}))
    with pytest.raises(CheckFailed, match="the proofs in manifest"):
        refuse_unproven(tmp_path / "bundle", verify_bundle(tmp_path / "bundle"))


def test_an_error_while_attesting_leaves_the_old_bundle(tmp_path: Path) -> None:
    digest = bundle_in(tmp_path)

    def attest(_: Path) -> dict[str, object]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bundle_in(tmp_path, attest=attest)
    assert verify_bundle(tmp_path / "bundle").content_sha256 == digest
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "m.ort"]
