"""Weights left where they lie: the files say the same as the ones that onnxruntime saves in one session."""

import hashlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from pipeline.compat.defects import weight_reader
from pipeline.convert.cache import semantic_digest
from pipeline.convert.engine import Optimizer
from pipeline.convert.request import OptimizerPlatform, SessionSettings, needs_of_file, session_settings
from pipeline.convert.steps import OrtParts, changes_large_weights, optimize, save_optimized
from pipeline.core.variant import Level, Style, Variant
from pipeline.model.flatbuffer import Reader
from pipeline.model.onnx_model import ByteRange, LeanModel, LoadedModel, load_model, prepare_model
from pipeline.model.ort_format import OrtGraph, OrtModel, Tensor, read_ort, resolver_of
from pipeline.model.ort_writer import FilePlan
from pipeline.model.sources import SourceModel
from pipeline.passes.base import PassContext
from tests.onnx_samples import conv_bn, linear, quantized, save
from tests.ort_models import ORT_STYLES

SAMPLES: dict[str, Callable[[], onnx.ModelProto]] = {"linear": linear, "conv_bn": conv_bn, "quantized": quantized}
VARIANTS = [Variant(level=level, style=style) for level in Level if level is not Level.LAYOUT for style in ORT_STYLES]
# Each kind of the oracle's real models that is quick: folding, control flow, recurrence, half precision, QDQ, opsets.
REAL = ["mnist.base", "mnist.qdq_s8s8", "mlp_tabular.ir3", "silero_like_vad_if.base", "fsrcnn.qdq_s8s8",
        "face_embedding.fp16", "blazeface.base", "lstm_classifier.dyn"]  # fmt: skip


@pytest.fixture(autouse=True)
def _lean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every model for a large one, and everything over 1 KiB for a large weight."""
    monkeypatch.setattr("pipeline.model.onnx_model.LEAN_MINIMUM_BYTES", 0)
    monkeypatch.setattr("pipeline.model.onnx_model.LARGE_BYTES", 1024)


def load(path: Path, folder: Path) -> LoadedModel:
    return prepare_model(load_model(SourceModel(path=str(path)), folder), {})


def says(path: Path) -> dict[str, object]:
    """Everything that a file says, but for the numbers of nodes and the order of lists that have none."""
    model, data = read_ort(path), path.read_bytes()
    return {
        "head": [getattr(model, name) for name in model.__struct_fields__ if name != "graph"],
        "resolver": resolver_of(Reader(data)),
        **_graph(model.graph, data),
    }


def _value(value: object, data: bytes) -> object:
    if isinstance(value, Tensor):
        content = hashlib.sha256(data[value.offset : value.offset + value.length]).hexdigest()
        return (value.dims, value.data_type, value.strings or content)
    if isinstance(value, OrtGraph):
        return sorted(_graph(value, data).items())
    return tuple(_value(part, data) for part in value) if isinstance(value, tuple) else value


def _graph(graph: OrtGraph, data: bytes) -> dict[str, object]:
    nodes = [
        repr((n.operator, n.since_version, n.inputs, n.outputs, sorted(n.implicit_inputs), n.provider,
              sorted((name, a.type, _value(a.value, data)) for name, a in n.attributes.items())))
        for n in graph.nodes
    ]  # fmt: skip
    used = {name for n in graph.nodes for name in (*n.inputs, *n.outputs)} | {*graph.inputs, *graph.outputs}
    return {
        "ends": (graph.inputs, graph.outputs),
        "nodes": sorted(nodes),
        "initializers": sorted((name, _value(t, data)) for name, t in graph.initializers.items()),
        "types": sorted((name, repr(info)) for name, info in graph.node_args.items() if name in used),
        "records": sorted(repr((r.optimizer, r.action, r.produced_ops)) for r in graph.runtime_optimizations),
    }


def assert_all_say_the_same(path: Path, folder: Path) -> list[OrtParts]:
    """Convert every way and hold each against the one that onnxruntime saves by itself."""
    model = load(path, folder)
    optimizer = Optimizer(model, PassContext(folder=folder, where=path.name))
    parts = []
    for variant in VARIANTS:
        part = optimizer.parts(session_settings(variant, OptimizerPlatform.UNSPECIFIED))
        FilePlan(part.skeleton, part.weights).write(folder / "ours.ort")
        beyond = variant.level not in {Level.NONE, Level.BASIC}
        settings = SessionSettings(level=variant.level, save_records=beyond and variant.style is Style.RUNTIME)
        extra = {"session.model_external_initializers_file_folder_path": str(model.folder)}
        message = model.proto.SerializeToString()
        save_optimized(message, settings, folder / "stock.ort", extra, ort_format=True, where=path.name)
        assert says(folder / "ours.ort") == says(folder / "stock.ort"), variant.name
        needs = needs_of_file(read_ort(folder / "ours.ort"), weight_reader(folder / "ours.ort"))
        assert needs == needs_of_file(part.read(inner_types=True), part.int8_weights), variant.name
        ours, stock = (
            semantic_digest(read_ort(p), p.read_bytes()) for p in (folder / "ours.ort", folder / "stock.ort")
        )
        assert ours == stock == _digest(part, optimizer), variant.name
        parts.append(part)
    return parts


def _digest(part: OrtParts, optimizer: Optimizer) -> str:
    from pipeline.convert.cache import semantic_digest

    model: OrtModel = part.read()
    return semantic_digest(model, part.skeleton, optimizer.known(part))


@pytest.mark.parametrize("name", SAMPLES)
def test_lean_files_say_what_stock_files_say(name: str, tmp_path: Path) -> None:
    parts = assert_all_say_the_same(save(SAMPLES[name](), tmp_path / "m.onnx"), tmp_path)
    assert parts[0].weights, "the way with weights apart was taken"


@pytest.mark.parametrize("name", REAL)
def test_lean_files_of_real_models_say_what_stock_files_say(name: str, oracle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(oracle / "real.zip") as archive:
        path = Path(archive.extract(f"{name}.onnx", tmp_path))
    assert_all_say_the_same(path, tmp_path)


def test_weights_that_nothing_changes_are_not_copied(tmp_path: Path) -> None:
    model = load(save(linear(), tmp_path / "m.onnx"), tmp_path)
    assert not changes_large_weights(model)
    optimized = optimize(model, SessionSettings(level=Level.ALL), PassContext(folder=tmp_path, where="m"))
    assert optimized.weights == model.weights


def test_folded_weights_lie_in_a_file_of_their_own(tmp_path: Path) -> None:
    model = load(save(conv_bn(), tmp_path / "m.onnx"), tmp_path)
    assert changes_large_weights(model)
    work = tmp_path / "work"
    work.mkdir()
    optimized = optimize(model, SessionSettings(level=Level.BASIC), PassContext(folder=work, where="m"))
    assert {place.file.parent for place in optimized.weights.values()} == {work}
    assert not changes_large_weights(optimized)


def test_a_weight_that_is_an_output_stays_one(tmp_path: Path) -> None:
    model = linear()
    model.graph.output.append(onnx.helper.make_tensor_value_info("w", 1, [128, 128]))
    assert_all_say_the_same(save(model, tmp_path / "m.onnx"), tmp_path)


def test_a_guess_that_is_wrong_costs_nothing_but_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for guess in (True, False):
        monkeypatch.setattr("pipeline.convert.steps.changes_large_weights", lambda _, guess=guess: guess)
        for name, make in SAMPLES.items():
            folder = tmp_path / f"{name}-{guess}"
            folder.mkdir()
            assert_all_say_the_same(save(make(), folder / "m.onnx"), folder)


def test_the_work_folder_may_be_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(conv_bn(), tmp_path / "m.onnx")
    (tmp_path / "far away").mkdir()
    monkeypatch.chdir(tmp_path / "far away")
    assert_all_say_the_same(Path(os.path.relpath(path)), tmp_path / "far away")


def test_weights_named_from_another_folder_are_read_in(tmp_path: Path) -> None:
    """The scratch folder lies below the model's: its files are not where their names say, seen from the model's."""
    scratch = tmp_path / "out" / "work"
    scratch.mkdir(parents=True)
    numbers = bytes(range(64))
    (scratch / "new.weights").write_bytes(numbers)
    made = linear(4)
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    for entry, content in {"location": "new.weights", "offset": "0", "length": "64"}.items():
        tensor.external_data.add(key=entry, value=content)
    place = ByteRange(file=scratch / "new.weights", offset=0, length=64)
    for folder in (tmp_path, scratch):
        model = LeanModel(proto=made, folder=folder, weights={tensor.name: place})
        optimized = optimize(model, SessionSettings(level=Level.BASIC), PassContext(folder=scratch, where="model"))
        (kept,) = (each for each in optimized.proto.graph.initializer if each.name == tensor.name)
        where = optimized.weights.get(kept.name)
        data = where.file.read_bytes()[where.offset : where.offset + where.length] if where else kept.raw_data
        assert data == numbers
