"""Files are laid out by us: the same bytes every time, loadable, with weights from where they lie."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from pipeline.convert.request import SessionSettings
from pipeline.convert.steps import save_optimized
from pipeline.core.errors import ModelError
from pipeline.core.variant import Level
from pipeline.model.flatbuffer import Reader
from pipeline.model.onnx_model import ByteRange
from pipeline.model.ort_format import parse_ort, read_ort, resolver_of
from pipeline.model.ort_writer import ALIGNMENT, FilePlan, Weight
from tests.onnx_samples import conv_bn, linear, quantized

SAMPLES = {"linear": linear(), "conv_bn": conv_bn(), "quantized": quantized()}


def saved(model: onnx.ModelProto, folder: Path, level: Level = Level.ALL) -> bytes:
    path = folder / "stock.ort"
    settings = SessionSettings(level=level, save_records=level is Level.EXTENDED)
    save_optimized(model.SerializeToString(), settings, path, {}, ort_format=True, where="sample")
    return path.read_bytes()


def contents(data: bytes) -> dict[str, bytes]:
    tensors = parse_ort(data, "file").graph.initializers
    return {name: data[t.offset : t.offset + t.length] for name, t in tensors.items()}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("level", [Level.NONE, Level.EXTENDED, Level.ALL])
def test_the_canonical_form_says_the_same(name: str, level: Level, tmp_path: Path) -> None:
    stock = saved(SAMPLES[name], tmp_path, level)
    digest = FilePlan(stock).write(tmp_path / "m.ort")
    ours = (tmp_path / "m.ort").read_bytes()
    assert hashlib.sha256(ours).hexdigest() == digest
    before, after = parse_ort(stock, "stock"), parse_ort(ours, "ours")
    assert contents(ours) == contents(stock)
    assert after.graph.nodes == before.graph.nodes
    assert after.graph.node_args == before.graph.node_args
    assert after.graph.runtime_optimizations == before.graph.runtime_optimizations
    assert (after.graph.inputs, after.graph.outputs) == (before.graph.inputs, before.graph.outputs)
    assert msgspec.structs.replace(after, graph=before.graph) == before
    assert list(resolver_of(Reader(ours)).items()) == sorted(resolver_of(Reader(stock)).items())


def test_ten_conversions_give_the_same_bytes(tmp_path: Path) -> None:
    stock = [saved(SAMPLES["quantized"], tmp_path) for _ in range(10)]
    ours = {FilePlan(data).write(tmp_path / "m.ort") for data in stock}
    assert len(ours) == 1


def with_weight_behind(folder: Path) -> tuple[bytes, Weight]:
    """The linear model with `w` as a graph input, and `w` in a file of its own."""
    model = linear()
    tensor = model.graph.initializer.pop(0)
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, list(tensor.dims)))
    (folder / "w.bin").write_bytes(b"before" + tensor.raw_data + b"after")
    place = ByteRange(file=folder / "w.bin", offset=6, length=len(tensor.raw_data))
    message = onnx.TensorProto(name="w", data_type=1, dims=(128, 128), doc_string="d")
    return saved(model, folder, Level.NONE), (message, place)


def test_a_weight_is_put_behind_and_its_input_goes(tmp_path: Path) -> None:
    import onnxruntime

    skeleton, weight = with_weight_behind(tmp_path)
    FilePlan(skeleton, [weight]).write(tmp_path / "m.ort")
    model = read_ort(tmp_path / "m.ort")
    assert model.graph.inputs == ("x",)
    tensor = model.graph.initializers["w"]
    assert (tensor.dims, tensor.data_type, tensor.offset % ALIGNMENT) == ((128, 128), 1, 0)
    original = onnxruntime.InferenceSession(linear().SerializeToString(), providers=["CPUExecutionProvider"])
    ours = onnxruntime.InferenceSession(str(tmp_path / "m.ort"), providers=["CPUExecutionProvider"])
    x = np.ones((2, 128), np.float32)
    np.testing.assert_array_equal(ours.run(None, {"x": x})[0], original.run(None, {"x": x})[0])


def test_a_weight_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    skeleton, weight = with_weight_behind(tmp_path)
    plan = FilePlan(skeleton, [weight])
    (tmp_path / "w.bin").write_bytes(b"short")
    with pytest.raises(ModelError, match="bytes are gone"):
        plan.write(tmp_path / "m.ort")


def test_a_file_over_two_gigabytes_is_refused_before_it_is_written(tmp_path: Path) -> None:
    skeleton, _ = with_weight_behind(tmp_path)
    place = ByteRange(file=tmp_path / "w.bin", offset=0, length=(2 << 30) - 100)
    large = (onnx.TensorProto(name="w", data_type=1, dims=(1,)), place)
    with pytest.raises(ModelError, match="too large"):
        FilePlan(skeleton, [large])
