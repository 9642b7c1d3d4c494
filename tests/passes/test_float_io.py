"""Inputs and outputs of float32 in place of float64, float16 and bool."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.passes.base import NotApplicable
from tests.command import ort_mobile
from tests.onnx_samples import parsed_nodes
from tests.passes.real_models import assert_same, extract, run


def types(model: onnx.ModelProto) -> set[int]:
    return {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}


def made(folder: Path, text: str, takes: dict[str, int], gives: dict[str, int], opset: int = 17) -> Path:
    inputs, outputs = (
        [helper.make_tensor_value_info(name, kind, [2, 4]) for name, kind in kinds.items()] for kinds in (takes, gives)
    )
    graph = helper.make_graph(parsed_nodes(text), "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("name", ["face_embedding.fp16"])
def test_a_real_model_of_half_precision_takes_and_gives_floats(name: str, tmp_path: Path) -> None:
    path = extract(name, tmp_path)
    result = run(path, tmp_path, "float-io")
    assert TensorProto.FLOAT16 in types(onnx.load(path))
    assert TensorProto.FLOAT16 not in types(result.model.proto)
    assert_same(path, result, tmp_path)


MODELS: dict[str, tuple[str, dict[str, int], dict[str, int]]] = {
    "float64 in and out": ("y = Mul (x, x)", {"x": TensorProto.DOUBLE}, {"y": TensorProto.DOUBLE}),
    "an output that is read, too": (
        "y = Not (m) z = Where (y, x, x)", {"m": TensorProto.BOOL, "x": TensorProto.DOUBLE},
        {"y": TensorProto.BOOL, "z": TensorProto.DOUBLE},
    ),
    "an input that is given back": (
        "y = Identity (x)", {"x": TensorProto.BOOL}, {"x": TensorProto.BOOL, "y": TensorProto.BOOL}
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_outputs_stay(kind: str, tmp_path: Path) -> None:
    text, takes, gives = MODELS[kind]
    path = made(tmp_path, text, takes, gives)
    result = run(path, tmp_path, "float-io")
    assert types(result.model.proto) == {TensorProto.FLOAT}
    assert [value.name for value in result.model.proto.graph.input] == list(takes)
    assert [value.name for value in result.model.proto.graph.output] == list(gives)
    assert_same(path, result, tmp_path)


def test_a_body_reads_the_value_behind_the_cast(tmp_path: Path) -> None:
    branches = [
        helper.make_graph(parsed_nodes(text), "b", [], [helper.make_tensor_value_info("r", TensorProto.DOUBLE, [2, 4])])
        for text in ("r = Add (x, x)", "r = Neg (x)")
    ]
    nodes = [
        *parsed_nodes("s = ReduceSum <keepdims = 0> (x) c = Greater (s, zero)"),
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.DOUBLE, [2, 4]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.array(0.0), "zero")])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    result = run(path, tmp_path, "float-io")
    assert_same(path, result, tmp_path)
    given = np.full((2, 4), -1.5, "f4")
    (found,) = onnxruntime.InferenceSession(result.model.proto.SerializeToString()).run(None, {"x": given})
    assert found.dtype == np.float32
    assert (found == 1.5).all()


@pytest.mark.parametrize(("kind", "opset"), [(TensorProto.FLOAT, 17), (TensorProto.INT64, 17), (TensorProto.DOUBLE, 5)])
def test_what_it_cannot_do_is_refused(kind: int, opset: int, tmp_path: Path) -> None:
    with pytest.raises(NotApplicable):
        run(made(tmp_path, "y = Identity (x)", {"x": kind}, {"y": kind}, opset), tmp_path, "float-io")


def test_what_swift_refused_ships_behind_the_pass(tmp_path: Path) -> None:
    made(tmp_path, "y = Mul (x, x)", {"x": TensorProto.DOUBLE}, {"y": TensorProto.DOUBLE})
    (tmp_path / "c.toml").write_text(
        'name = "c"\n[[models]]\npath = "m.onnx"\ntransforms = [{ do = "float-io" }]\n'
        '[[targets]]\nname = "i"\nplatform = "ios"\nmin_os_version = "15.1"\n'
        '[variants]\nlevels = ["basic"]\nstyles = ["fixed"]\n'
    )
    said = ort_mobile("run", "c.toml", "--convert-only", "--output", "out", cwd=tmp_path).out
    assert "Ready to ship" in said
    assert "Swift cannot" not in said
    assert "the original's" in said
