"""Vectors of a job, and what comes of giving them again."""

import json
from pathlib import Path

import msgspec
import onnx
import pytest

from pipeline.core.errors import CheckFailed, ExitCode
from pipeline.core.files import sha256_of
from pipeline.release.manifest import MANIFEST_FILE, SEAL_FILE, Manifest, encode_manifest, read_manifest, sealed
from tests.command import ort_mobile
from tests.features.app_data import samples
from tests.features.vectors.test_classes import CLASSIFIER, SETTINGS

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job."""
    folder = tmp_path_factory.mktemp("job")
    onnx.save(samples.classifier(), folder / "classifier.onnx")
    samples.labels(folder)
    samples.pictures(folder)
    (folder / "pictures.toml").write_text(CLASSIFIER + SETTINGS, "utf-8")
    ort_mobile("run", folder / "pictures.toml", "--output", folder / "out", "--device", "local")
    return folder


def written(bundle: Path, manifest: Manifest) -> None:
    text = encode_manifest(manifest)
    (bundle / MANIFEST_FILE).write_bytes(text)
    (bundle / SEAL_FILE).write_bytes(sealed(text))


def test_a_bundle_keeps_small_vectors_which_its_files_give_again(made: Path) -> None:
    bundle = made / "out/bundle"
    (kept,) = read_manifest(bundle).vectors
    tensors = [tensor for vector in kept.vectors for tensor in (*vector.inputs, *vector.outputs)]
    assert len(kept.vectors) > 1
    assert sum(tensor.size_bytes for tensor in tensors) <= 64 << 10
    assert [tensor.name for tensor in kept.vectors[0].outputs] == ["labels", "scores"]
    ort_mobile("bundle", "verify", bundle)
    done = ort_mobile("bundle", "replay", bundle, "--device", "local", "--json", "-")
    (replay,) = json.loads(done.out)["replays"]
    assert (replay["vectors"], replay["equal"]) == (len(kept.vectors), len(kept.vectors))


def test_another_answer_is_told_apart(made: Path, tmp_path: Path) -> None:
    bundle = made / "out/bundle"
    manifest = read_manifest(bundle)
    scores = next(tensor for tensor in manifest.vectors[0].vectors[0].outputs if tensor.name == "scores")
    file = bundle / scores.path
    before = file.read_bytes()
    file.write_bytes(bytes(reversed(before)))
    try:
        text = encode_manifest(manifest).decode().replace(scores.sha256, sha256_of(file))
        (bundle / MANIFEST_FILE).write_text(text)
        (bundle / SEAL_FILE).write_bytes(sealed(text.encode()))
        done = ort_mobile("bundle", "replay", bundle, "--device", "local", code=ExitCode.CHECK_FAILED)
        assert "1 outputs differ" in done.out
    finally:
        file.write_bytes(before)
        written(bundle, manifest)


def test_vectors_of_what_does_not_ship_are_no_bundles(made: Path) -> None:
    bundle = made / "out/bundle"
    manifest = read_manifest(bundle)
    other = msgspec.structs.replace(manifest.vectors[0], target="another")
    try:
        written(bundle, msgspec.structs.replace(manifest, vectors=(other,)))
        with pytest.raises(CheckFailed, match="does not match") as refused:
            read_manifest(bundle)
        assert "vectors of what does not ship" in refused.value.why
    finally:
        written(bundle, manifest)


def test_a_config_leaves_them_out(made: Path) -> None:
    config = (made / "pictures.toml").read_text("utf-8") + "\n[release]\nvectors = false\n"
    (made / "without.toml").write_text(config, "utf-8")
    ort_mobile("run", made / "without.toml", "--output", made / "without", "--device", "local")
    assert read_manifest(made / "without/bundle").vectors == ()
    assert ort_mobile("bundle", "replay", made / "without/bundle").out == "the bundle keeps no vectors\n"
