"""A bundle is made of what its campaign recorded: changed, removed and added models and references are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.files import BUNDLE, REFERENCES, sha256_of
from pipeline.release.manifest import MANIFEST_FILE
from tests.command import ort_mobile
from tests.configs import PHONE
from tests.onnx_samples import save
from tests.ort_models import conv_relu
from tests.release.test_bundle import reseal
from tests.release.test_signature import write_keys
from tests.values import files_of

CONFIG = """
name = "demo"
[[models]]
path = "{model}"
name = "m"
{phone}
[variants]
levels = ["basic"]
styles = ["fixed"]
"""


def run(folder: Path) -> None:
    config = folder / "demo.toml"
    config.write_text(CONFIG.format(model=save(conv_relu(), folder / "m.onnx"), phone=PHONE))
    ort_mobile("run", config, "--convert-only", "--no-proof", "--output", folder / "out")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    run(folder)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of a job's folder, beside its output folder `out`."""
    return Path(shutil.copytree(made, tmp_path / "job"))


REFERENCE_CHANGES: dict[str, Callable[[Path], object]] = {
    "an output": lambda folder: (folder / "output_0.bin").write_bytes(b"\7" * (folder / "output_0.bin").stat().st_size),
    "an input": lambda folder: (folder / "input_0.bin").write_bytes(bytes((folder / "input_0.bin").stat().st_size)),
    "an output cut": lambda folder: (folder / "output_0.bin").write_bytes(b""),
    "an output too large to be kept": lambda folder: (folder / "output_0.bin").write_bytes(bytes(9 << 20)),
    "an output gone": lambda folder: (folder / "output_0.bin").unlink(),
    "all gone": shutil.rmtree,
    "swapped": lambda folder: shutil.copy(folder / "input_0.bin", folder / "output_0.bin"),
}


@pytest.mark.parametrize("change", REFERENCE_CHANGES)
def test_a_changed_reference_is_not_bundled_again(place: Path, change: str) -> None:
    before = files_of(place / "out" / BUNDLE)
    assert [name for name in before if name.startswith("evidence/reference/m/")]
    REFERENCE_CHANGES[change](place / "out" / REFERENCES / "m")
    refused = ort_mobile("bundle", "rebuild", place / "out", code=4)
    assert refused.err.count("error: a reference is not what the original model computed\n") == 1
    assert files_of(place / "out" / BUNDLE) == before


def test_the_campaign_that_runs_again_computes_its_references_again(place: Path) -> None:
    REFERENCE_CHANGES["all gone"](place / "out" / REFERENCES / "m")
    run(place)
    ort_mobile("bundle", "rebuild", place / "out")


def kept(document: dict[str, Any]) -> Any:
    return document["references"][0]


def without_reference(bundle: Path) -> None:
    shutil.rmtree(bundle / "evidence" / "reference")
    reseal(bundle, lambda document: document["references"].clear())


def without_outputs(bundle: Path) -> None:
    (bundle / "evidence/reference/m/output_0.bin").unlink()
    reseal(bundle, lambda document: kept(document).update(outputs=[]))


def of_another_model(bundle: Path) -> None:
    more = {"model": "n", "inputs": [], "outputs": []}
    reseal(bundle, lambda document: document["references"].append({**kept(document), **more}))


def other_bytes(path: str) -> Callable[[Path], None]:
    """Other bytes of a file, with the digest that they need."""

    def change(bundle: Path) -> None:
        old = sha256_of(bundle / path)
        content = bytearray((bundle / path).read_bytes())
        content[-1] ^= 1
        (bundle / path).write_bytes(content)
        text = (bundle / MANIFEST_FILE).read_text().replace(old, sha256_of(bundle / path))
        (bundle / MANIFEST_FILE).write_text(text)
        reseal(bundle, lambda document: None)

    return change


BUNDLE_CHANGES: dict[str, Callable[[Path], None]] = {
    "a model": other_bytes("models/m.basic-fixed.ort"),
    "an output": other_bytes("evidence/reference/m/output_0.bin"),
    "the tolerance": lambda bundle: reseal(
        bundle, lambda document: kept(document)["tolerance"].update(max_relative_error=1e9)
    ),
    "a shape": lambda bundle: reseal(bundle, lambda document: kept(document)["outputs"][0].update(shape=[1])),
    "no outputs": without_outputs,
    "no reference": without_reference,
    "one more": of_another_model,
}


@pytest.mark.parametrize("change", BUNDLE_CHANGES)
def test_a_bundle_that_its_campaign_did_not_make_is_not_signed_there(place: Path, change: str) -> None:
    bundle, key = place / "out" / BUNDLE, write_keys(place)
    BUNDLE_CHANGES[change](bundle)
    ort_mobile("bundle", "verify", bundle)
    before = files_of(bundle)
    refused = ort_mobile("bundle", "sign", bundle, "--key", key, code=4)
    assert "bundle rebuild FOLDER" in refused.err
    assert files_of(bundle) == before
    ort_mobile("bundle", "rebuild", place / "out")
    ort_mobile("bundle", "sign", bundle, "--key", key)


def test_a_bundle_elsewhere_is_signed_as_it_is(place: Path) -> None:
    shutil.copytree(place / "out" / BUNDLE, place / "elsewhere")
    ort_mobile("bundle", "sign", place / "elsewhere", "--key", write_keys(place))


@pytest.mark.parametrize("target", ["another bundle", "nothing"])
def test_a_bundle_that_is_a_link_is_refused_and_what_it_points_to_stays(place: Path, target: str) -> None:
    bundle = place / "out" / BUNDLE
    other = shutil.copytree(bundle, place / "other") if target != "nothing" else place / "nothing"
    shutil.rmtree(bundle)
    bundle.symlink_to(other)
    before = files_of(other)
    for words in (("bundle", "rebuild", place / "out"), ("run", place / "demo.toml", "--output", place / "out")):
        refused = ort_mobile(*words, code=2)
        assert "error: the bundle's folder is a symbolic link\n" in refused.err
        assert bundle.is_symlink()
        assert files_of(other) == before
    assert other.exists() == (target != "nothing")
    bundle.unlink()
    ort_mobile("bundle", "rebuild", place / "out")
    assert json.loads((bundle / "manifest.json").read_bytes())["content"]["name"] == "demo"
