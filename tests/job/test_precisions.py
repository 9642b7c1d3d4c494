"""The whole job in several precisions: variants, references, accuracy, what ships, and what costs only its variants."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import read_config
from tests.command import ort_mobile
from tests.configs import BASIC, MNIST, PHONE
from tests.job.test_job import EXAMPLE
from tests.onnx_samples import loud_spectrum, save
from tests.passes.quantized_models import write_digits

CONFIG = f"""
name = "digits"
{MNIST}
labels = "{EXAMPLE / "evaluation.npz"}"
{PHONE}
min_api_level = 29
[variants]
levels = ["all"]
styles = ["fixed"]
"""


def run(folder: Path, rest: str, *options: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, results.json and stderr of a job without measuring."""
    (folder / "digits.toml").write_text(CONFIG + rest)
    ended = ort_mobile("run", folder / "digits.toml", "--convert-only", "--output", folder / "out", *options, code=None)
    found = folder / "out" / "results.json"
    return ended.code, json.loads(found.read_text()) if found.is_file() else {}, ended.err


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A job that may choose quantized files only, within a budget."""
    folder = tmp_path_factory.mktemp("precisions")
    code, results, stderr = run(folder, 'precisions = ["int8-nnapi", "u8u8pc", "w4"]\n[accuracy]\nmax_drop = 0.02\n')
    assert code == 0, stderr
    return folder / "out", results


@pytest.mark.long
def test_each_precision_is_a_variant_with_the_steps_that_made_it(chosen: tuple[Path, dict[str, Any]]) -> None:
    _, results = chosen
    artifacts = {artifact["variant"]["precision"]: artifact for artifact in results["artifacts"]}
    assert artifacts["u8s8nnapi"]["file"] == "mnist.all-fixed-u8s8nnapi.ort"
    said = {(one["where"], one["what"]) for one in results["warnings"]}
    assert ("mnist", "ranges come from 3 calibration samples; 20 to 100 are usual") in said
    assert artifacts["u8u8pc"]["steps"] == ["static-qdq:activations=u8:per_channel=True:weights=u8"]


@pytest.mark.long
def test_outputs_are_compared_with_the_model_in_its_precision(chosen: tuple[Path, dict[str, Any]]) -> None:
    output, results = chosen
    assert all(check["passed"] for one in results["checks"] for check in one["checks"])
    assert (output / "reference" / "mnist@u8u8pc" / "output_0.bin").is_file()
    assert not (output / "reference" / "mnist").exists()


def test_accuracy_is_compared_with_the_float_original(chosen: tuple[Path, dict[str, Any]]) -> None:
    _, results = chosen
    measured = {one["variant"]: one["result"] for one in results["accuracy"]}
    for result in (measured["all-fixed-u8s8nnapi"], measured["all-fixed-u8u8pc"]):
        assert result["metric"] == "top-1"
        assert result["verdict"] == "within"
        assert result["reference_value"] > 0.95
        assert abs(result["drop"]) < 0.02


def test_the_bundle_says_what_was_done_to_the_model_and_what_it_cost(chosen: tuple[Path, dict[str, Any]]) -> None:
    output, _ = chosen
    manifest = json.loads((output / "bundle" / "manifest.json").read_text())
    (shipped,) = manifest["content"]["ships"]
    assert shipped["variant"]["precision"] in ("u8s8nnapi", "u8u8pc")
    assert shipped["steps"][0].startswith("static-qdq:")
    (kept,) = manifest["references"]
    assert kept["model"] == f"mnist@{shipped['variant']['precision']}"
    assert manifest["evidence"]["accuracy"][0]["result"]["samples"] == 360
    ort_mobile("bundle", "verify", output / "bundle")


def test_a_bundle_names_no_folder_of_the_computer(chosen: tuple[Path, dict[str, Any]]) -> None:
    output, results = chosen
    bundled = [path for path in (output / "bundle").rglob("*") if path.is_file()]
    assert not [path.name for path in bundled if str(output).encode() in path.read_bytes()]
    assert {row["result"]["model"] for row in results["accuracy"]} <= {row["file"] for row in results["artifacts"]}


@pytest.mark.long
def test_the_devices_own_answers_have_their_accuracy(tmp_path: Path) -> None:
    """The probe runs the labelled digits, and the metric is that of what it gave."""
    rest = (
        'precisions = ["u8u8pc"]\n[[runs]]\nprovider = "cpu"\n[measure]\nrounds = 2\nmin_seconds = 0.01\nmin_runs = 2\n'
    )
    (tmp_path / "digits.toml").write_text(CONFIG + rest)
    ort_mobile("run", tmp_path / "digits.toml", "--device", "local", "--output", tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    (row,) = results["rows"]
    (found,) = [check for check in row["checks"] if check["metric"]]
    here = results["accuracy"][0]["result"]
    assert found["metric"] == "top-1"
    assert found["value"] == pytest.approx(here["value"]), "the same kernels on the same computer"
    assert found["original_value"] == here["reference_value"]
    assert "On devices" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.long
def test_a_budget_that_is_not_shown_to_be_kept_refuses_the_artifact(tmp_path: Path) -> None:
    code, results, stderr = run(tmp_path, 'precisions = ["u8u8"]\n[accuracy]\nmax_drop = 0.0001\n')
    assert code == 4, stderr
    (withheld,) = results["withheld"]
    assert withheld["reason"] == "all-fixed-u8u8 was not shown to lose at most 0.0001 of top-1"
    assert not (tmp_path / "out" / "bundle").exists()


@pytest.mark.long
def test_an_overflow_does_not_ship_whatever_the_budget(tmp_path: Path) -> None:
    model = save(loud_spectrum(), tmp_path / "loud.onnx")
    arguments = ("run", "--model", model, "--precision", "fp16", "--quick", "--convert-only", "--max-drop", "0.02")
    ended = ort_mobile(*arguments, "--output", tmp_path / "out", code=4)
    for text in (ended.out, (tmp_path / "out" / "report.md").read_text()):
        words = " ".join(text.split())
        assert "Do not ship: nothing of loud may ship to" in words
        assert "half precision overflows at Pow" in words
        assert "set `[accuracy] max_drop`" not in words
    assert not (tmp_path / "out" / "bundle").exists()
    ort_mobile(*arguments[:-2], "--keep-float", "Power,Turn,Flat,Floor,Loudness", "--output", tmp_path / "kept")
    assert (tmp_path / "kept" / "bundle" / "manifest.json").is_file()


@pytest.mark.long
def test_a_precision_without_data_costs_its_variants_alone(tmp_path: Path) -> None:
    model = shutil.copy(EXAMPLE / "mnist.onnx", tmp_path)
    ort_mobile(
        "run", "--model", model, "--precision", "float,u8u8", "--quick", "--convert-only", "--output", tmp_path / "out"
    )
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {artifact["variant"]["precision"] for artifact in results["artifacts"]} == {""}
    reasons = {one["variant"]: one["reason"] for one in results["skipped"]}
    assert reasons.keys() == {"basic-fixed-u8u8", "all-fixed-u8u8"}
    assert "needs calibration data" in reasons["all-fixed-u8u8"]
    assert results["accuracy"] == []


IPHONE = f"""
name = "digits"
{MNIST}
[[models.transforms]]
do = "opset"
options = {{ version = 17 }}
[[targets]]
name = "iphone"
platform = "ios"
min_os_version = "16.0"
{BASIC}
precisions = ["auto"]
[[runs]]
provider = "coreml"
options = {{ ModelFormat = ["NeuralNetwork", "MLProgram"] }}
[[runs]]
provider = "cpu"
"""


@pytest.fixture(scope="module")
def for_iphones(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("iphone")
    (folder / "digits.toml").write_text(IPHONE)
    ort_mobile("run", folder / "digits.toml", "--convert-only", "--output", folder / "out")
    return folder / "out", json.loads((folder / "out" / "results.json").read_text())


@pytest.mark.long
def test_auto_asks_both_formats_of_coreml(for_iphones: tuple[Path, dict[str, Any]]) -> None:
    _, results = for_iphones
    notes = "\n".join(one["what"] for one in results["warnings"])
    assert "precision coreml-nn: fp16 dropped: 0 of 3 compute nodes" in notes
    assert "precision coreml-mlprogram: fp16 kept: 3 of 3 compute nodes in 1 partition" in notes
    assert "precision cpu-arm64: int8 (s8s8pc) kept" in notes
    kept = {artifact["variant"]["precision"] for artifact in results["artifacts"]}
    assert kept == {"", "fp16", "s8s8pc", "dyn8"}


@pytest.mark.long
def test_transforms_go_first_and_are_in_the_bundle(for_iphones: tuple[Path, dict[str, Any]]) -> None:
    output, results = for_iphones
    for artifact in results["artifacts"]:
        assert artifact["steps"][0] == "opset:version=17"
        assert len(artifact["steps"]) == 1 + bool(artifact["variant"]["precision"])
    assert all(check["passed"] for one in results["checks"] for check in one["checks"])
    (shipped,) = json.loads((output / "bundle" / "manifest.json").read_text())["content"]["ships"]
    assert shipped["steps"][0] == "opset:version=17"


def test_a_wrong_precision_is_shown_where_it_was_given(tmp_path: Path) -> None:
    code, _, stderr = run(tmp_path, 'precisions = ["float"]\n', "--precision", "fp61")
    assert code == 2
    assert "there is no precision 'fp61'" in stderr
    assert "--precision" in stderr
    assert "[variants]" not in stderr


def test_precisions_of_the_template_are_ready_to_use(tmp_path: Path) -> None:
    """`init` names them in comments: without the marks its config runs."""
    data = shutil.copytree(EXAMPLE, tmp_path / "example")
    ort_mobile("init", data / "mnist.onnx", "--test-data", data, "--output", tmp_path / "m.toml")
    text = (tmp_path / "m.toml").read_text()
    for line in ('precisions = ["float", "auto"]', "[accuracy]", "max_drop = 0.01"):
        assert text.count(f"\n# {line}") == 1
        text = text.replace(f"\n# {line}", f"\n{line}")
    (tmp_path / "m.toml").write_text(text)
    config = read_config(tmp_path / "m.toml")
    assert (config.variants.precisions, config.accuracy.max_drop) == (("float", "auto"), 0.01)


@pytest.mark.parametrize(
    ("rest", "message", "where"),
    [
        ('precisions = ["int9"]\n', "there is no precision 'int9'", "[variants] precisions"),
        ('[[models.transforms]]\ndo = "prune"\n', "there is no pass 'prune'", "models[0].transforms[0]"),
        (
            '[[models.transforms]]\ndo = "opset"\n[[models.transforms]]\ndo = "fp16"\noptions = { keep = true }\n',
            "wrong option of", "models[0].transforms",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_config_is_found_before_any_work(
    tmp_path: Path, rest: str, message: str, where: str
) -> None:
    code, results, stderr = run(tmp_path, rest)
    assert code == 2
    assert message in stderr
    assert where in stderr
    assert results == {}


GRAY = 'channels = "GRAY"'


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's digits as a folder for each class, as people have them."""
    return write_digits(tmp_path_factory.mktemp("images") / "digits")


def job(folder: Path, *more: str | Path) -> tuple[int, str]:
    ended = ort_mobile(
        "run", "--model", EXAMPLE / "mnist.onnx", "--convert-only", "--quick", "--output", folder, *more, code=None
    )
    return ended.code, ended.err


@pytest.mark.long
def test_the_bundle_has_the_int8_artifact_that_keeps_the_budget(tmp_path: Path, digits: Path) -> None:
    code, stderr = job(
        tmp_path / "out", "--test-data", digits, "--preprocess", GRAY, "--precision", "int8-nnapi", "--max-drop", "0.02"
    )
    assert code == 0, stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    found = [one["result"] for one in results["accuracy"]]
    assert {(one["metric"], one["labelled"], one["verdict"]) for one in found} == {("top-1", True, "within")}
    assert all(200 < one["samples"] < 320 for one in found), "one in four was for calibration"
    assert not [one for one in results["warnings"] if "calibration data" in one["what"]], "no sample served both"
    manifest = json.loads((tmp_path / "out" / "bundle" / "manifest.json").read_text())
    (shipped,) = manifest["content"]["ships"]
    assert shipped["variant"]["precision"] == "u8u8nnapi", "the default target begins below API level 29"
    assert "GRAY" in (tmp_path / "out" / "bundle" / "manifest.json").read_text(), "the app must do the same"


@pytest.mark.long
@pytest.mark.nightly
def test_a_budget_that_nothing_keeps_leaves_no_bundle(tmp_path: Path, digits: Path) -> None:
    code, stderr = job(
        tmp_path / "out",
        "--test-data",
        digits,
        "--preprocess",
        GRAY,
        "--precision",
        "int8-nnapi",
        "--max-drop",
        "0.0001",
    )
    assert code == 4, stderr
    assert not (tmp_path / "out" / "bundle").exists()


@pytest.mark.parametrize("option", [("--preprocess", GRAY), ("--labels", "labels.csv")])
def test_data_of_a_config_are_not_given_beside_it(tmp_path: Path, option: tuple[str, str]) -> None:
    (tmp_path / "c.toml").write_text('name = "c"\n')
    ended = ort_mobile("run", tmp_path / "c.toml", *option, code=2)
    assert "are for --model" in ended.err
