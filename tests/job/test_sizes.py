"""A dimension of several sizes: an open model, one for each size, and their weights in one file up to the bundle."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest

from pipeline.release.manifest import MANIFEST_FILE, SEAL_FILE, content_digest, encode_manifest, read_manifest, sealed
from tests import onnx_samples
from tests.command import ort_mobile
from tests.features.sizes import two_sizes

CONFIG = """
name = "sizes"
[[models]]
path = "a.onnx"
dimensions = {{ {sizes} }}
[variants]
levels = ["basic"]
styles = ["fixed"]
[[runs]]
provider = {providers}
[measure]
rounds = 1
min_runs = 2
min_seconds = 0.01
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx_samples.save(onnx_samples.linear(64), tmp_path / "a.onnx")
    return tmp_path


def config(folder: Path, sizes: str, *providers: str) -> Path:
    file = folder / "c.toml"
    file.write_text(CONFIG.format(sizes=sizes, providers=json.dumps(providers)), "utf-8")
    return file


@pytest.mark.long
@pytest.mark.parametrize("style", ["fixed", "onnx"])
def test_each_size_is_converted_checked_measured_and_bundled_with_the_open_model(style: str, folder: Path) -> None:
    file = config(folder, "batch = [2, 4] }\npadding = { x = -1.5", "cpu", "nnapi")
    file.write_text(file.read_text("utf-8").replace("fixed", style), "utf-8")
    told = ort_mobile("run", file, "--output", folder / "out").err
    assert "a ships once for each size to be run on cpu, which needs none of them: a-2, a-4" in told
    document = json.loads((folder / "out" / "results.json").read_text("utf-8"))
    names = ["a", "a-2", "a-4"]
    assert [row["model"] for row in document["rows"]] == names
    assert all(check["passed"] for row in document["rows"] for check in row["checks"])
    inputs = {model["name"]: model["inputs"][0] for model in document["models"]}
    assert inputs["a"] == inputs["a-4"]  # the open one is checked with the largest
    assert inputs["a"] != inputs["a-2"]
    manifest = json.loads((folder / "out" / "bundle" / "manifest.json").read_text("utf-8"))
    assert len(list((folder / "out" / "bundle" / "models").glob("*.weights"))) == (style == "onnx")
    shapes = {model["model"]: model["inputs"][0]["shape"][0] for model in manifest["content"]["models"]}
    assert shapes == {"a": "batch", "a-2": 2, "a-4": 4}
    assert [(model["size_of"], model["padding"]) for model in manifest["content"]["models"]] == [
        ("", {"x": -1.5}), ("a", {"x": -1.5}), ("a", {"x": -1.5}),
    ]  # fmt: skip


@pytest.mark.long
def test_the_cpu_takes_the_open_model_alone(folder: Path) -> None:
    ort_mobile("run", config(folder, "batch = [2, 4]", "cpu"), "--convert-only", "--output", folder / "out")
    assert [file.name for file in (folder / "out" / "artifacts").glob("*.ort")] == ["a.basic-fixed.ort"]


@pytest.mark.long
def test_sizes_of_two_models_of_one_name_are_those_of_each(folder: Path) -> None:
    (folder / "b").mkdir()
    onnx_samples.save(onnx_samples.linear(64, seed=5), folder / "b" / "a.onnx")
    more = 'batch = [2, 4] }\n[[models]]\npath = "b/a.onnx"\ndimensions = { batch = [8, 16]'
    ort_mobile("run", config(folder, more, "cpu", "nnapi"), "--convert-only", "--output", folder / "out")
    manifest = json.loads((folder / "out" / "bundle" / "manifest.json").read_text("utf-8"))
    assert {row["model"]: row["size_of"] for row in manifest["content"]["models"]} == {
        "a-1": "", "a-1-2": "a-1", "a-1-4": "a-1", "a-2": "", "a-2-8": "a-2", "a-2-16": "a-2"
    }  # fmt: skip
    code = ort_mobile("release", "snippet", folder / "out" / "bundle", "--for", "cpp").out
    assert "size_of_a_1(" in code
    assert "size_of_a_2(" in code


def test_a_model_with_the_name_of_anothers_size_is_refused(folder: Path) -> None:
    more = 'batch = [2, 4] }\n[[models]]\npath = "a.onnx"\nname = "a-2"\ndimensions = { batch = 3'
    done = ort_mobile("run", config(folder, more, "nnapi"), "--output", folder / "out", code=2)
    assert "two models are called a-2" in done.err
    assert not (folder / "out" / "artifacts").exists()


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ("batch = []", "length >= 1"),
        ("batch = [1, 0]", ">= 1"),
        ("batch = [1, 2], width = [3]", "batch has 2, width has 1"),
        ("bach = [1, 2]", "did you mean 'batch'?"),
        ("batch = [2, 4, 2]", "the size 2 is there twice"),
        ("batch = [2, 4] }\npadding = { z = 0", "the model has no input 'z'"),
        ("batch = [2, 4] }\npadding = { x = 1e39", "1e+39 is no float32 number"),
        ("batch = [2, 4] }\npadding = { x = nan", "nan is no finite number"),
        ("batch = 2 }\npadding = { x = 0", "no dimension has a list of sizes"),
    ],
)
def test_sizes_that_cannot_be_are_one_error(sizes: str, why: str, folder: Path) -> None:
    for providers in (("cpu",), ("nnapi",)):
        done = ort_mobile("run", config(folder, sizes, *providers), "--output", folder / "out", code=2)
        assert why in done.err
        assert not (folder / "out" / "artifacts").exists()


NAMES = ["m", "m-4x8", "m-2x3"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a model in two sizes."""
    return two_sizes(tmp_path_factory.mktemp("shared"), shared=True)


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "bundle"))


def weights_of(folder: Path) -> Path:
    (file,) = folder.glob("*.weights")
    return file


def outside(file: Path) -> set[str]:
    proto = onnx.load(file, load_external_data=False)
    return {entry.value for t in proto.graph.initializer for entry in t.external_data if entry.key == "location"}


def test_the_weights_are_once_in_artifacts_and_bundle(made: Path) -> None:
    weights = weights_of(made / "models")
    assert weights.stat().st_size == 2048
    assert sorted(file.name for file in (made / "models").iterdir()) == [
        "m-2x3.basic-onnx.onnx", "m-4x8.basic-onnx.onnx", weights.name, "m.basic-onnx.onnx",
    ]  # fmt: skip
    assert all(outside(file) == {weights.name} for file in (made / "models").glob("*.onnx"))
    content = read_manifest(made).content
    assert weights.name.startswith(f"m-{next(f.sha256 for f in content.files if f.path.endswith('.weights'))[:12]}.")
    assert [(row.model, row.weights) for row in content.ships] == [(name, f"models/{weights.name}") for name in NAMES]
    results = json.loads((made.parent / "results.json").read_text("utf-8"))
    checks = [check for row in results["checks"] for check in row["checks"]]
    assert [check["passed"] for check in checks] == [True] * 3
    assert f"are in `models/{weights.name}`: keep both files in one folder" in (made / "README.md").read_text("utf-8")
    ort_mobile("bundle", "verify", made)


@pytest.mark.long
def test_an_update_carries_them_once_and_what_they_have_in_common_not_at_all(made: Path, tmp_path: Path) -> None:
    newer = two_sizes(tmp_path, shared=True, last=7.0)
    assert weights_of(newer / "models").name != weights_of(made / "models").name
    done = ort_mobile("bundle", "delta", made, newer, "--output", tmp_path / "d", "--json", "-")
    forms = {row["path"]: row["how"] for row in done.document()["files"] if row["path"].endswith(".weights")}
    assert forms == {f"models/{weights_of(newer / 'models').name}": "patch"}
    shutil.copytree(made, tmp_path / "app")
    ort_mobile("bundle", "apply", tmp_path / "d", tmp_path / "app")
    assert weights_of(tmp_path / "app" / "models").read_bytes() == weights_of(newer / "models").read_bytes()


def test_a_cut_or_another_file_of_weights_is_one_finding(bundle: Path) -> None:
    weights = weights_of(bundle / "models")
    content = weights.read_bytes()
    weights.write_bytes(content[:-4])
    cut = ort_mobile("bundle", "verify", bundle, code=4).err
    assert f"changed: models/{weights.name} (2044 bytes instead of 2048)" in cut
    weights.write_bytes(bytes(len(content)))
    assert f"changed: models/{weights.name}" in ort_mobile("bundle", "verify", bundle, code=4).err
    weights.unlink()
    done = ort_mobile("bundle", "verify", bundle, code=4)
    assert f"(1 finding)\nwhere: {bundle}\nwhy: missing: models/{weights.name}" in done.err


@pytest.mark.parametrize(
    ("place", "why"),
    [("../m.weights", "at `$.content.ships[0].weights`"), ("models/other.weights", "ships, but is not listed"),
     ("README.md", "not beside its model: README.md")],
)  # fmt: skip
def test_weights_elsewhere_are_refused_in_a_manifest(place: str, why: str, bundle: Path) -> None:
    manifest = read_manifest(bundle)
    ships = (msgspec.structs.replace(manifest.content.ships[0], weights=place), *manifest.content.ships[1:])
    content = msgspec.structs.replace(manifest.content, ships=ships)
    text = encode_manifest(msgspec.structs.replace(manifest, content=content, content_sha256=content_digest(content)))
    (bundle / MANIFEST_FILE).write_bytes(text)
    (bundle / SEAL_FILE).write_bytes(sealed(text))
    done = ort_mobile("bundle", "verify", bundle, code=4)
    assert why in done.err
    assert done.err.count("error:") == 1


@pytest.mark.parametrize("how", ["cut", "gone", "outside"])
def test_a_model_whose_weights_are_not_as_it_says_does_not_run(how: str, bundle: Path, tmp_path: Path) -> None:
    """In a session of this computer, as in an app: there is no verified bundle around these files."""
    model, weights = bundle / "models" / "m-2x3.basic-onnx.onnx", weights_of(bundle / "models")
    if how == "cut":
        weights.write_bytes(weights.read_bytes()[:-4])
    else:
        weights.rename(tmp_path / "m.weights")
    if how == "outside":
        proto = onnx.load(model, load_external_data=False)
        for entry in (entry for tensor in proto.graph.initializer for entry in tensor.external_data):
            entry.value = "../../m.weights" if entry.key == "location" else entry.value
        model.write_bytes(proto.SerializeToString())
    done = ort_mobile("perf", model, "--rounds", "1", "--min-runs", "2", "--json", "-", code=1)
    (failure,) = done.document()["failures"]
    assert "xternal" in failure["message"]


def convert(folder: Path, *words: object, code: int = 0) -> tuple[str, list[dict[str, Any]]]:
    for batch in (2, 4):
        model = onnx_samples.linear(64)
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
        onnx_samples.save(model, folder / f"a-{batch}.onnx")
    models = (folder / "a-2.onnx", folder / "a-4.onnx")
    done = ort_mobile("convert", *models, "--output", folder / "out", "--no-config", "--check", *words, code=code)
    return done.out, json.loads(ort_mobile("convert", *models, "--output", folder / "out", "--no-config", *words,
                                           "--json", "-", code=code).out)["artifacts"] if not code else []  # fmt: skip


def test_convert_puts_weights_of_several_models_into_one_file(tmp_path: Path) -> None:
    text, rows = convert(tmp_path, "--level", "basic", "--style", "onnx,fixed", "--share-weights")
    weights = weights_of(tmp_path / "out")
    assert f"weights of 2 artifacts, once: {weights.name}, 16.0 KiB" in text
    assert (
        "weights of their own: a-2.basic-fixed.ort, a-4.basic-fixed.ort (files in ORT format cannot share them" in text
    )
    assert "4 of 4 give" in text
    shared = Counter((row["style"], row.get("weights", "")) for row in rows)
    assert shared == {("onnx", weights.name): 2, ("fixed", ""): 2}
    assert outside(tmp_path / "out" / "a-2.basic-onnx.onnx") == {weights.name}


def test_providers_before_1_23_get_files_with_their_weights_in_them(tmp_path: Path) -> None:
    text, rows = convert(tmp_path, "--level", "basic", "--style", "onnx", "--share-weights", "--ort-release", "1.22")
    assert "weights of their own: a-2.basic-onnx.onnx, a-4.basic-onnx.onnx" in text
    assert not list((tmp_path / "out").glob("*.weights"))
    assert {row.get("weights", "") for row in rows} == {""}


def test_files_in_ort_format_alone_share_nothing(tmp_path: Path) -> None:
    onnx_samples.save(onnx_samples.linear(64), tmp_path / "a.onnx")
    done = ort_mobile("convert", tmp_path / "a.onnx", "--output", tmp_path / "out", "--share-weights", code=2)
    assert "files in ORT format have their weights in them" in done.err
