"""Bills of materials: valid, the same bytes for the same bundle, with what is known and without what is not."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from device_runner.spec import ElementType, RunOptions
from pipeline.accuracy.result import AccuracyResult, ArtifactAccuracy
from pipeline.campaign.statistics.groups import Statistics
from pipeline.model.signature import TensorInfo
from pipeline.release.manifest import AppRule, ModelSignature, Shipped, verify_bundle
from pipeline.release.sbom import SBOM_FILE
from tests.features.android.samples import npu_context
from tests.features.updates.test_delta import bundle
from tests.release.test_bundle import SHIPS

TENSOR = TensorInfo(name="x", dtype=ElementType.FLOAT32, shape=(1, "n", None))
MODEL = ModelSignature(model="m", inputs=(TENSOR,), outputs=(TENSOR,), license="Apache-2.0")
RULE = AppRule(
    target="phone", lowest_release="1.29.0", below_release="1.30", format_version=6, providers=("cpu",),
    signature_sha256="3" * 64, library_license="MIT",
)  # fmt: skip
TIMES = Statistics(
    samples=500, median_ns=2e6, mean_ns=2.1e6, sd_ns=1e5, min_ns=1_900_000, max_ns=3_000_000, p90_ns=2_500_000,
    p90_bounds_ns=(2_400_000, 2_700_000), round_medians_ns=(1.9e6, 2.0e6, 2.1e6, 2.0e6, 2.05e6),
)  # fmt: skip
ACCURACY = ArtifactAccuracy(
    model="m", variant="basic-fixed",
    result=AccuracyResult(
        model="m", metric="top-1", labelled=True, samples=72, data="/home/me/digits.npz", value=0.98, drop=0.005,
        drop_low=-0.01, drop_high=0.02,
    ),
)  # fmt: skip
EVIDENCE = {
    "created_at": "2026-11-22T13:08:54.665Z",
    "measured": [
        {"device": "pixel", "model": "m", "variant": "basic-fixed", "run": "cpu", "status": "ok", "statistics": TIMES}
    ],
    "accuracy": [ACCURACY],
    "datasets": [{"model": "m", "use": "test", "name": "digits.npz"}],
}


def shipped(**changes: Any) -> tuple[Shipped, ...]:
    return (msgspec.structs.replace(SHIPS[0], **{"library": "android:1.29.0", **changes}),)


def bill(folder: Path, **more: Any) -> dict[str, Any]:
    given = {"models": (MODEL,), "requires": (RULE,), "evidence": msgspec.to_builtins(EVIDENCE), **more}
    made = bundle(folder, b"model", **{"ships": shipped(), "made_with": {"ort-mobile": "1"}, **given})
    verify_bundle(made)
    found: dict[str, Any] = json.loads((made / SBOM_FILE).read_bytes())
    return found


def parts(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part for part in found["components"] if part["type"] == kind]


def test_models_and_libraries_have_licences_digests_and_names(tmp_path: Path) -> None:
    found = bill(tmp_path)
    (model,), (library,) = parts(found, "machine-learning-model"), parts(found, "library")
    manifest = verify_bundle(tmp_path / "bundle")
    assert model["hashes"] == [{"alg": "SHA-256", "content": manifest.content.files[1].sha256}]
    assert model["licenses"] == [{"expression": "Apache-2.0"}]
    assert model["pedigree"]["ancestors"][0]["hashes"][0]["content"] == "0" * 64
    assert library["purl"] == "pkg:maven/com.microsoft.onnxruntime/onnxruntime-android@1.29.0"
    assert library["licenses"] == [{"expression": "MIT"}]
    assert found["dependencies"][1] == {"ref": "models/m.ort", "dependsOn": [library["bom-ref"]]}


def test_figures_have_their_intervals(tmp_path: Path) -> None:
    (model,) = parts(bill(tmp_path), "machine-learning-model")
    metrics = {one["type"]: one for one in model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]}
    assert metrics["top-1"] == {"type": "top-1", "value": "0.98", "slice": "72 samples of digits.npz"}
    drop = metrics["top-1, drop from the original"]
    assert drop["confidenceInterval"] == {"lowerBound": "-0.01", "upperBound": "0.02"}
    median = metrics["latency, median, ms"]
    low, high = (float(median["confidenceInterval"][bound]) for bound in ("lowerBound", "upperBound"))
    assert 1.9 < low < float(median["value"]) < high < 2.2
    assert metrics["latency, p90, ms"]["confidenceInterval"] == {"lowerBound": "2.4", "upperBound": "2.7"}
    assert model["modelCard"]["modelParameters"] == {
        "inputs": [{"format": "x float32[1, n, ?]"}],
        "outputs": [{"format": "x float32[1, n, ?]"}],
        "datasets": [{"ref": "data: digits.npz"}],
    }


def test_an_unknown_licence_is_said_and_never_guessed(tmp_path: Path) -> None:
    unlicensed = msgspec.structs.replace(MODEL, license="")
    found = bill(tmp_path, models=(unlicensed,), requires=())
    for part in (*parts(found, "machine-learning-model"), *parts(found, "library")):
        assert "licenses" not in part
        assert {"name": "ort-mobile:license", "value": "unknown: the config has none"} in part["properties"]


def test_a_licence_without_an_identifier_is_a_name(tmp_path: Path) -> None:
    own = msgspec.structs.replace(MODEL, license="Example & Sons, all rights reserved")
    (model,) = parts(bill(tmp_path, models=(own,)), "machine-learning-model")
    assert model["licenses"] == [{"license": {"name": "Example & Sons, all rights reserved"}}]


def test_a_library_of_the_apps_own_is_no_package(tmp_path: Path) -> None:
    (library,) = parts(bill(tmp_path, ships=shipped(library="my lib.aar", library_kind="minimal")), "library")
    assert (library["name"], library["purl"]) == ("my lib.aar", "pkg:generic/my%20lib.aar")
    assert {"name": "ort-mobile:build", "value": "minimal"} in library["properties"]


def test_the_same_bundle_gives_the_same_bytes_and_another_one_another_serial(tmp_path: Path) -> None:
    first, second = bill(tmp_path / "a"), bill(tmp_path / "b")
    assert first == second
    assert bill(tmp_path / "c", ships=shipped(min_api_level=30))["serialNumber"] != first["serialNumber"]


def test_nothing_of_the_makers_computer_is_in_it(tmp_path: Path) -> None:
    assert "/home/me" not in json.dumps(bill(tmp_path))


def with_context(folder: Path) -> dict[str, Any]:
    """The bill of a bundle that has a context for an NPU, too."""
    context = npu_context(file="models/c.onnx", binary="models/c_qnn.bin")
    sources = {"models/m.ort": b"model", context.file: b"wrapper", context.binary: b"binary"}
    return bill(folder, contexts=(context,), sources=sources)


def test_the_gpu_plugin_of_a_computer_is_in_it_with_its_telemetry(tmp_path: Path) -> None:
    runs = (RunOptions(provider="webgpu"),)
    found = bill(tmp_path / "linux", ships=shipped(platform="linux", library="", runs=runs))
    (plugin,) = (part for part in parts(found, "library") if part["name"] == "onnxruntime-ep-webgpu")
    assert "ORT_DISABLE_TELEMETRY" in json.dumps(plugin["properties"])
    assert any(plugin["bom-ref"] in row.get("dependsOn", ()) for row in found["dependencies"])
    android = bill(tmp_path / "android", ships=shipped(runs=runs))
    assert "onnxruntime-ep-webgpu" not in json.dumps(android)


@pytest.mark.parametrize(
    ("options", "sends"),
    [
        ({"ort_release": "1.29"}, True),
        ({"ort_release": "1.28"}, False),
        ({"ort_release": "1.29", "library_kind": "extended"}, False),
        ({"ort_release": "1.29", "library": "my.aar"}, False),
    ],
)
def test_official_builds_that_can_report_say_so(tmp_path: Path, options: dict[str, str], *, sends: bool) -> None:
    found = bill(tmp_path, ships=shipped(runs=(RunOptions(provider="webgpu"),), **{"library": "", **options}))
    (library,) = parts(found, "library")
    assert ("ort-mobile:telemetry" in json.dumps(library["properties"])) is sends


def test_contexts_and_what_qualcomm_must_bring_are_in_it(tmp_path: Path) -> None:
    found = with_context(tmp_path)
    models = {part["bom-ref"] for part in parts(found, "machine-learning-model")}
    assert {"models/c.onnx", "models/c_qnn.bin"} <= models
    plugin, runtime = "com.qualcomm.qti:onnxruntime-android-qnn:2.7.0", "com.qualcomm.qti:qnn-runtime:2.51.0"
    licences = {part["bom-ref"]: part["licenses"] for part in parts(found, "library") if "qualcomm" in part["bom-ref"]}
    assert licences == {
        plugin: [{"license": {"id": "MIT"}}], runtime: [{"license": {"name": "Qualcomm AI Stack License"}}],
    }  # fmt: skip
    needs = {row["ref"]: row.get("dependsOn", []) for row in found["dependencies"]}
    assert {plugin, runtime} <= set(needs["models/c.onnx"])


@pytest.mark.slow
def test_a_bill_with_contexts_is_valid_by_the_published_schema(tmp_path: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(with_context(tmp_path))) is None


@pytest.mark.slow
@pytest.mark.parametrize("evidence", [EVIDENCE, {}])
def test_it_is_valid_by_the_published_schema(tmp_path: Path, evidence: dict[str, Any]) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    given = {"evidence": msgspec.to_builtins(evidence), **({} if evidence else {"models": (), "requires": ()})}
    text = json.dumps(bill(tmp_path, **given))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    broken = text.replace('"performanceMetrics"', '"figures"').replace('"CycloneDX"', '"Another"')
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(broken) is not None
