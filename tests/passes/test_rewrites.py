"""Rewrites as passes: without a provider every node of the form, with one only what it does not claim."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pipeline.core.errors import ConfigError
from pipeline.passes.base import NotApplicable
from pipeline.passes.registry import PASSES, REWRITES
from tests.advice.fix_cases import CASES, Make
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import model, value
from tests.passes.real_models import assert_same, extract, run

NAMES = [row.name for row in REWRITES]
ANY_PROVIDER = [(name, provider, make) for name, provider, make in CASES if name in NAMES]


@pytest.mark.parametrize(
    ("name", "provider", "make"), ANY_PROVIDER, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(ANY_PROVIDER)]
)
def test_what_a_provider_refuses_is_rewritten_for_it(name: str, provider: str, make: Make, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(make(), path)
    claimed_today = (name, provider) == ("pad-as-concat", "coreml-mlprogram")  # advice's cases are of 1.23
    result = run(path, tmp_path, name if claimed_today else f"{name}:provider={provider}")
    assert result.model.proto != onnx.load(path)
    assert_same(path, result, tmp_path)


def two_pads() -> onnx.ModelProto:
    """A Pad that NNAPI claims (constant, rank 4) and one that it does not (reflect)."""
    nodes = parsed_nodes("""
        a = Pad <mode = "constant"> (x, pads)  b = Pad <mode = "reflect"> (a, pads)  y = Relu (b)""")
    return model(nodes, [value("x", (1, 2, 6, 6))], ["y"], {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)})


def left(path: Path, folder: Path, step: str) -> list[str]:
    """The modes of the Pads that a step leaves."""
    result = run(path, folder, step)
    assert_same(path, result, folder)
    modes = [node.attribute[0].s for node in result.model.proto.graph.node if node.op_type == "Pad"]
    return [mode.decode() for mode in modes]


def test_a_provider_keeps_what_it_claims(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(two_pads(), path)
    assert left(path, tmp_path, "pad-as-concat:provider=nnapi") == ["constant"]
    assert left(path, tmp_path, "pad-as-concat") == []


def test_a_reduction_of_unknown_rank_is_left(tmp_path: Path) -> None:
    nodes = parsed_nodes("a = Reshape (x, sizes)  y = ReduceSumSquare <axes = [1]> (a)")
    path = tmp_path / "m.onnx"
    onnx.save(model(nodes, [value("x", (2, 3)), value("sizes", ("n",), onnx.TensorProto.INT64)], ["y"]), path)
    with pytest.raises(NotApplicable):
        run(path, tmp_path, "reductions")


REAL = {
    "mobilenet_v1.base": "clip-as-max-min",
    "convnext_tiny_slice.op20": "layer-norm",
    "einsum_attention.base": "einsum-as-matmul",
    "face_embedding.base": "prelu-by-relu",
    "densenet.base": "scaled-batch-norm",
    "unet.fp16": "f32",
    "ghostnet.base": "pool-as-mean",
}


@pytest.mark.parametrize("name", REAL)
def test_real_models_are_rewritten(name: str, tmp_path: Path) -> None:
    path = extract(name, tmp_path)
    sizes = ["fixed-dimensions:rest=1"] if name == "einsum_attention.base" else []
    result = run(path, tmp_path, *sizes, REAL[name])
    assert operators(result.model.proto) != operators(onnx.load(path))
    assert_same(path, result, tmp_path)


def operators(proto: onnx.ModelProto) -> Counter[tuple[str, int]]:
    """How often each operator occurs, and each type of weight."""
    nodes = Counter((node.op_type, 0) for node in proto.graph.node)
    return nodes + Counter(("", tensor.data_type) for tensor in proto.graph.initializer)


def test_weights_that_nobody_reads_any_more_go(tmp_path: Path) -> None:
    path = extract("densenet.base", tmp_path)
    proto = run(path, tmp_path, "scaled-batch-norm").model.proto
    assert not any(node.op_type == "BatchNormalization" for node in proto.graph.node)
    read = {name for node in proto.graph.node for name in node.input}
    assert {tensor.name for tensor in proto.graph.initializer} <= read


@pytest.mark.parametrize("name", NAMES)
def test_a_model_without_such_nodes_is_refused(name: str, tmp_path: Path) -> None:
    made = model(parsed_nodes("y = Sigmoid (x)"), [value("x", (2, 3))], ["y"])
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(NotApplicable, match=f"{name}: nothing to rewrite"):
        run(tmp_path / "m.onnx", tmp_path, name)


def test_a_provider_that_there_is_not_is_refused(tmp_path: Path) -> None:
    onnx.save(two_pads(), tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match="wrong option"):
        run(tmp_path / "m.onnx", tmp_path, "pad-as-concat:provider=nnpai")


def test_every_rewrite_is_a_row_of_the_registry() -> None:
    assert set(NAMES) <= PASSES.keys()
    assert all(PASSES[row.name].title[0].isupper() for row in REWRITES)


def test_the_model_that_a_rewrite_gets_may_have_weights_in_files(tmp_path: Path) -> None:
    made = two_pads()
    made.graph.node.append(helper.make_node("Mul", ["y", "w"], ["z"]))
    made.graph.initializer.append(numpy_helper.from_array(np.ones((1, 2, 10, 10), np.float32), "w"))
    del made.graph.output[:]
    made.graph.output.append(value("z", (1, 2, 10, 10)))
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    result = run(tmp_path / "m.onnx", tmp_path, "pad-as-concat:provider=nnapi")
    assert_same(tmp_path / "m.onnx", result, tmp_path)
