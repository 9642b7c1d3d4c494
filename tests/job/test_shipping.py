"""The gate before a bundle, as a user meets it: libraries that cannot load what ships, budgets, reduced builds."""

import json
from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.config import read_config
from pipeline.ort_build.request import campaign_digest
from pipeline.ort_build.run import BuildRecord, BuiltFile
from tests.command import ort_mobile
from tests.job.test_job import EXAMPLE
from tests.library.library_files import official_aar
from tests.onnx_samples import parsed_nodes

CONFIG = """
name = "demo"
[[models]]
path = "{model}"
[[models]]
path = "{young}"
[[targets]]
name = "phone"
platform = "android"
abis = ["arm64-v8a"]
{library}
[variants]
levels = ["basic"]
styles = ["fixed"]
[build]
max_library_bytes = {{ arm64-v8a = {budget} }}
"""


def young_model(path: Path) -> Path:
    """A model of opset 20 with an operator that 1.16 does not have."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph(parsed_nodes("y = Gelu (x)"), "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


def job(folder: Path, *, release: str = "1.28.0", budget: int = 10_000, named: bool = True) -> Path:
    aar = official_aar(folder / "app.aar", release)
    text = CONFIG.format(
        model=EXAMPLE / "mnist.onnx", young=young_model(folder / "young.onnx"), budget=budget,
        library=f'library = "{aar}"' if named else "",
    )  # fmt: skip
    path = folder / "demo.toml"
    path.write_text(text)
    return path


@pytest.mark.long
def test_what_the_library_cannot_load_does_not_ship(tmp_path: Path) -> None:
    config, out = job(tmp_path, release="1.16.3"), tmp_path / "out"
    ended = ort_mobile(
        "run", config, "--convert-only", "--output", out, ORT_MOBILE_CACHE=str(tmp_path / "cache"), code=4
    )
    assert "target phone: young basic-fixed: ONNX Runtime 1.16 has no Gelu of opset 20" in ended.err
    assert "ship ONNX Runtime 1.18 or later" in ended.err
    assert not (out / "bundle").exists()
    report = json.loads((out / "results.json").read_text())
    refused = [one for one in report["warnings"] if one["what"].startswith("no bundle: ")]
    assert [one["where"] for one in refused] == ["target phone: young basic-fixed"]
    assert {choice["model"] for choice in report["choices"]} == {"mnist", "young"}, "the other model lost nothing"
    again = ort_mobile("bundle", "rebuild", out, ORT_MOBILE_CACHE=str(tmp_path / "cache"), code=4)
    assert "no Gelu of opset 20" in again.err


YOUNG_KERNEL = """<ir_version: 9, opset_import: ["": 21]> g (float[4, 16] x) => (float[4, 8] y)
<float s = {0.05}, uint8 z = {128}, uint8[16, 8] w = {%s}> {
    q = QuantizeLinear (x, s, z)  p = QLinearMatMul (q, s, z, w, s, z, s, z)  y = DequantizeLinear (p, s, z)
}"""
"""QLinearMatMul of opset 21 is in 1.19, its kernel of the CPU came with 1.20; NNAPI takes it in any."""


@pytest.mark.long
def test_what_a_provider_takes_of_a_file_that_is_aware_of_it_needs_no_kernel_of_the_cpu(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(YOUNG_KERNEL % ", ".join(["7"] * 128)), tmp_path / "m.onnx")
    targets = """
[[targets]]
name = "{0}"
platform = "{0}"
ort_release = "1.19"
{1}"""
    text = 'name = "demo"\n[[models]]\npath = "m.onnx"\n' + "".join(
        targets.format(*row) for row in (("android", 'abis = ["arm64-v8a"]\nmin_api_level = 30'), ("ios", ""))
    )
    text += '[variants]\nlevels = ["basic"]\nstyles = ["fixed"]\naware = ["nnapi"]\n'
    text += '[[runs]]\nprovider = "nnapi"\nvariants = ["*-nnapi"]\n'
    (tmp_path / "demo.toml").write_text(text)
    ort_mobile("run", "demo.toml", "--convert-only", "--output", "out", cwd=tmp_path, code=4)
    report = json.loads((tmp_path / "out" / "results.json").read_text())
    told = {
        one["where"]: one["why"] for one in report["warnings"] if one["what"].startswith("ONNX Runtime 1.19 has no")
    }
    assert told == {
        "target android: m basic-fixed": "node 'p'",
        "target android: m basic-fixed-nnapi": "node 'p'; it runs only where nnapi takes the node",
        "target ios: m basic-fixed": "node 'p'",
        "target ios: m basic-fixed-nnapi": "node 'p'",
    }
    # no run was measured, so that the CPU is what is advised, and it has no kernel of either file
    assert {row["variant"] for row in report["choices"] if row["target"] == "android"} == {"basic-fixed-nnapi"}
    assert not (tmp_path / "out" / "bundle").exists()


@pytest.mark.long
def test_a_library_over_its_budget_fails_the_release(tmp_path: Path) -> None:
    config, out = job(tmp_path, budget=100), tmp_path / "out"
    ended = ort_mobile(
        "run", config, "--convert-only", "--output", out, ORT_MOBILE_CACHE=str(tmp_path / "cache"), code=4
    )
    assert "bytes over budget" in ended.err
    assert not (out / "bundle").exists()


def built(cache: Path, name: str, operators: str, size: int, campaign: str) -> None:
    """A build of the target on this computer, as `build run` leaves it."""
    folder = cache / "builds" / name
    (folder / "arm64-v8a").mkdir(parents=True)
    (folder / "arm64-v8a" / "libonnxruntime.so").write_bytes(bytes(size))
    record = BuildRecord(
        digest=name, source_digest="s", target="phone", campaign=campaign, version="1.31.1", kind="minimal",
        providers=(),
        operators=operators, seconds=1.0,
        files=(BuiltFile(file="arm64-v8a/libonnxruntime.so", abi="arm64-v8a", size_bytes=size, sha256=name),),
    )  # fmt: skip
    (folder / "build.json").write_bytes(msgspec.json.encode(record))


WITHOUT_GEMM = "ai.onnx;11;Conv\nai.onnx;12;MaxPool\nai.onnx;14;Relu,Reshape\nai.onnx;20;Gelu\n"


@pytest.mark.long
def test_a_build_of_this_computer_is_held_to_operators_and_budget(tmp_path: Path) -> None:
    cache, out = tmp_path / "cache", tmp_path / "out"
    config = job(tmp_path, named=False, budget=3_000)
    config.write_text(config.read_text().replace('platform = "android"', 'platform = "android"\nort_release = "1.31"'))
    own = read_config(config)
    campaign = campaign_digest(own, own.targets[0])
    built(cache, "a", "ai.onnx;11;Conv\n", 2_000, campaign)
    built(cache, "b", WITHOUT_GEMM, 5_000, campaign)
    ended = ort_mobile(
        "run", config, "--convert-only", "--output", out, process=True, ORT_MOBILE_CACHE=str(cache), code=4
    )
    assert "built without ai.onnx:Gemm" in ended.err
    assert "target phone is checked against build b of this computer" in ended.err
    again = ort_mobile("bundle", "rebuild", out, ORT_MOBILE_CACHE=str(cache), code=4)
    assert "2,000 bytes over budget" in again.err
    assert "+3,000  arm64-v8a: ai.onnx:Gelu, ai.onnx:MaxPool" in again.err, (
        "what the larger build added, with its price"
    )


@pytest.mark.long
def test_builds_of_other_projects_decide_nothing(tmp_path: Path) -> None:
    """They have the same target's name, and are for a config of another name, target or build."""
    cache, out = tmp_path / "cache", tmp_path / "out"
    config = job(tmp_path, named=False)
    config.write_text(config.read_text().replace('platform = "android"', 'platform = "android"\nort_release = "1.31"'))
    own = read_config(config)
    others = {
        "name": msgspec.structs.replace(own, name="another"),
        "target": msgspec.structs.replace(own, targets=(msgspec.structs.replace(own.targets[0], abis=("x86_64",)),)),
        "build": msgspec.structs.replace(own, build=msgspec.structs.replace(own.build, providers=("xnnpack",))),
    }
    for name, other in others.items():
        built(cache, name, WITHOUT_GEMM, 5_000, campaign_digest(other, other.targets[0]))
    ended = ort_mobile("run", config, "--convert-only", "--output", out, ORT_MOBILE_CACHE=str(cache))
    assert "built without" not in ended.err
    assert (out / "bundle" / "manifest.json").is_file(), ended.err


@pytest.mark.long
def test_what_loads_ships(tmp_path: Path) -> None:
    config, out = job(tmp_path), tmp_path / "out"
    ended = ort_mobile("run", config, "--convert-only", "--output", out, code=None)
    assert (out / "bundle" / "manifest.json").is_file(), ended.err
    assert "over budget" not in ended.err


@pytest.mark.long
def test_a_proof_that_was_left_out_is_a_reservation(tmp_path: Path) -> None:
    config, out = job(tmp_path), tmp_path / "out"
    ended = ort_mobile("run", config, "--convert-only", "--no-proof", "--output", out)
    assert "Ready to ship with reservations" in ended.out
    assert "- not proven in app.aar: the proof was left out by --no-proof; before a release run `ort-mobile prove" in (
        ended.out
    )
    (proof,) = json.loads((out / "results.json").read_text())["proofs"]
    assert (proof["rows"], proof["targets"]) == ([], ["phone"])
