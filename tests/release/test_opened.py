"""A bundle with files that the app's release does not open is refused, whoever made it and when."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from device_runner.spec import RunOptions
from pipeline.core.errors import CheckFailed
from pipeline.release.bundle import make_bundle
from pipeline.release.manifest import verify_bundle
from pipeline.release.opened import refuse_unopened
from tests.features.android.samples import shipped
from tests.onnx_samples import parsed_nodes


def test_a_file_that_the_release_does_not_read_is_named_with_the_release_that_does(tmp_path: Path) -> None:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph(parsed_nodes("y = Relu (x)"), "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    for release, opens in (("1.17", False), ("1.18", True)):
        ships = shipped(
            file="models/m.onnx", runs=(RunOptions(),), ort_release=release, min_api_level=None, basis="advised"
        )
        make_bundle(
            tmp_path / release, name="demo", sources={"models/m.onnx": tmp_path / "m.onnx"}, ships=(ships,),
            made_with={"onnxruntime": "1.31.1"}, evidence={},
        )  # fmt: skip
        manifest = verify_bundle(tmp_path / release)
        if opens:
            refuse_unopened(tmp_path / release, manifest)
            continue
        with pytest.raises(CheckFailed, match="does not open 1 of 1 files") as refused:
            refuse_unopened(tmp_path / release, manifest)
        assert "IR version 10" in refused.value.why
        assert "1.18 or later" in refused.value.remedy
