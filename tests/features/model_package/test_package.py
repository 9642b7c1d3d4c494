"""A bundle as ONNX Runtime's model package: the wheel opens it, picks by provider, and gives the bundle's outputs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from device_runner.spec import ExecutionMode, OptimizationLevel, RunOptions
from pipeline.features.model_package.writer import model_package
from pipeline.release.bundle import make_bundle
from tests.command import ort_mobile
from tests.features.android.samples import NNAPI, bundle, manifest, npu_context, shipped, signature
from tests.features.apple.samples import COREML, for_ios
from tests.ort_models import conv_relu

CPU = RunOptions(
    intra_op_threads=2, inter_op_threads=3, execution_mode=ExecutionMode.PARALLEL, cpu_arena=False,
    memory_pattern=False, optimization_level=OptimizationLevel.EXTENDED,
    session_config={"session.intra_op.allow_spinning": "0"},
)  # fmt: skip


def packaged(folder: Path, *more: str, code: int = 0) -> dict[str, Any]:
    """What the command says of the package in `folder`/package."""
    done = ort_mobile(
        "bundle", "package", folder / "bundle", "--output", folder / "package", "--json", "-", *more, code=code
    )
    return json.loads(done.out) if code == 0 else {"error": done.err}


def opened(folder: Path, component: str) -> tuple[str, onnxruntime.InferenceSession]:
    """The variant that the CPU gets, and its session."""
    if not hasattr(onnxruntime, "ModelPackageContext"):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no ModelPackageContext: releases from 1.32 on do")
    context = onnxruntime.ModelPackageContext(str(folder / "package"))
    selected = context.select_component(component, onnxruntime.ModelPackageOptions(onnxruntime.SessionOptions()))
    return selected.get_selected_variant_name(), selected.create_session()


def test_the_wheel_opens_the_variant_of_its_provider_with_equal_outputs_and_options(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(runs=(COREML, CPU), file="models/m.ort"),))
    said = packaged(tmp_path)
    assert said["variants"] == ["m/coreml", "m/cpu"]
    assert said["lost"] == []
    name, session = opened(tmp_path, "m")
    assert name == "cpu"
    x = np.linspace(-3, 3, 64, dtype=np.float32).reshape(1, 1, 8, 8)
    expected = onnxruntime.InferenceSession(str(tmp_path / "bundle/models/m.ort")).run(None, {"x": x})
    np.testing.assert_array_equal(np.asarray(session.run(None, {"x": x})), np.asarray(expected))
    options = session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert (options.enable_mem_pattern, options.enable_cpu_mem_arena) == (False, False)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_providers_and_options_are_those_of_the_bundle_and_each_file_is_there_once(tmp_path: Path) -> None:
    bundle(tmp_path, (for_ios(runs=(COREML, CPU), file="models/m.ort"),))
    packaged(tmp_path)
    variants = json.loads((tmp_path / "package/manifest.json").read_text())["components"]["m"]["variants"]
    assert {name: row["ep"] for name, row in variants.items()} == {
        "coreml": "CoreMLExecutionProvider", "cpu": "CPUExecutionProvider",
    }  # fmt: skip
    assert variants["coreml"]["executor_info"]["ort"]["provider_options"] == {"ModelFormat": "MLProgram"}
    assert sorted(path.name for path in (tmp_path / "package/models").iterdir()) == ["m.ort"]
    assert (tmp_path / "package/models/m.ort").read_bytes() == (tmp_path / "bundle/models/m.ort").read_bytes()


def sized(folder: Path, size: int) -> Path:
    """The model of an input size, whose weights lie in m.weights beside it."""
    folder.mkdir()
    proto = conv_relu()
    for value in (*proto.graph.input, *proto.graph.output):
        for axis in (2, 3):
            value.type.tensor_type.shape.dim[axis].dim_value = size
    file = folder / f"m-{size}.onnx"
    onnx.save(proto, file, save_as_external_data=True, location="m.weights", size_threshold=0)
    return file


def test_weights_that_sizes_share_are_there_once_and_the_wheel_opens_all(tmp_path: Path) -> None:
    files = {size: sized(tmp_path / str(size), size) for size in (8, 12)}
    assert len({file.with_name("m.weights").read_bytes() for file in files.values()}) == 1
    ships = [
        for_ios(f"m-{size}", file=f"models/m-{size}.onnx", weights="models/m.weights", runs=(COREML, CPU))
        for size in files
    ]
    sources = {shipped.file: files[size] for size, shipped in zip(files, ships, strict=True)}
    make_bundle(
        tmp_path / "bundle",
        name="Demo app",
        sources={**sources, "models/m.weights": files[8].with_name("m.weights")},
        ships=tuple(ships),
        made_with={"onnxruntime": "1.32.0"},
        evidence={},
        models=tuple(signature(f"m-{size}") for size in files),
    )
    assert packaged(tmp_path)["variants"] == ["m-8/coreml", "m-8/cpu", "m-12/coreml", "m-12/cpu"]
    assert sorted(path.name for path in (tmp_path / "package/models").iterdir()) == [
        "m-12.onnx", "m-8.onnx", "m.weights",
    ]  # fmt: skip
    for size, file in files.items():
        name, session = opened(tmp_path, f"m-{size}")
        x = np.linspace(-3, 3, size * size, dtype=np.float32).reshape(1, 1, size, size)
        (expected,) = onnxruntime.InferenceSession(str(file)).run(None, {"x": x})
        assert name == "cpu"
        np.testing.assert_array_equal(np.asarray(session.run(None, {"x": x})[0]), np.asarray(expected))


def test_what_a_package_cannot_have_is_said(tmp_path: Path) -> None:
    bundle(tmp_path, (shipped(runs=(NNAPI, CPU, RunOptions()), file="models/m.ort"),))
    lost = packaged(tmp_path)["lost"]
    assert lost == [
        "m/nnapi: without flags of NNAPI", "m: cpu of m.ort is left out: a session takes its provider's first variant",
    ]  # fmt: skip


def test_a_context_is_a_variant_that_the_provider_of_the_npu_judges(tmp_path: Path) -> None:
    context = npu_context()
    made = model_package(tmp_path, manifest([shipped(runs=(CPU,))], [signature()], [context]), "phone")
    assert made.variants == ["m/SM8650", "m/cpu"]
    variant = made.manifest["components"]["m"]["variants"]["SM8650"]  # type: ignore[index]
    assert variant["compatibility_string"] == context.compatibility
    assert (variant["ep"], variant["device"]) == ("QNNExecutionProvider", "npu")
    assert {context.file, context.binary} <= set(made.files)


def test_custom_operators_and_a_folder_that_is_there_are_refused(tmp_path: Path) -> None:
    bundle(tmp_path, (shipped(runs=(CPU,), file="models/m.ort"),))
    (tmp_path / "package").mkdir()
    assert "this folder is there already" in packaged(tmp_path, code=2)["error"]
    (tmp_path / "ops").mkdir()
    bundle(tmp_path / "ops", (shipped(runs=(RunOptions(custom_ops=("ops.so",)),), file="models/m.ort"),))
    assert "m needs custom operators" in packaged(tmp_path / "ops", code=2)["error"]
