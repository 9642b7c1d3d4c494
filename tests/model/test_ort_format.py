"""The reader of the ORT format, judged by the generated classes of the installed wheel."""

import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ModelError
from pipeline.model.flatbuffer import Reader
from pipeline.model.ort_format import (
    MapType,
    OrtGraph,
    OrtModel,
    OrtNode,
    SequenceType,
    Tensor,
    TensorType,
    TypeInfo,
    parse_ort,
    read_ort,
    resolver_of,
)
from tests.ort_models import LEVELS, MODELS, conv_relu, converted


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ort")


# What the judge says, in the shape of our values --------------------------------------------------


def judge(path: Path) -> dict[str, Any]:
    import onnxruntime.tools.ort_format_model  # noqa: F401 - puts the generated classes on the path
    from ort_flatbuffers_py import fbs

    root = fbs.InferenceSession.InferenceSession.GetRootAs(path.read_bytes(), 0)
    model = root.Model()
    imports = [model.OpsetImport(k) for k in range(model.OpsetImportLength())]
    return {
        "format": root.OrtVersion().decode(),
        "ir": model.IrVersion(),
        "imports": {item.Domain().decode(): item.Version() for item in imports},
        "graph": judge_graph(model.Graph()),
        "resolver": judge_resolver(root.KernelTypeStrResolver()),
    }


def each(owner: Any, name: str) -> list[Any]:
    return [getattr(owner, name)(k) for k in range(getattr(owner, f"{name}Length")())]


def words(owner: Any, name: str) -> tuple[str, ...]:
    return tuple(text.decode() for text in each(owner, name))


def text(value: bytes | None) -> str:
    return (value or b"").decode()


def judge_graph(graph: Any) -> dict[str, Any]:
    records = graph.RuntimeOptimizations()
    return {
        "inputs": words(graph, "Inputs"),
        "outputs": words(graph, "Outputs"),
        "nodes": [judge_node(node) for node in each(graph, "Nodes")],
        "types": {text(arg.Name()): judge_type(arg.Type()) for arg in each(graph, "NodeArgs")},
        "tensors": {text(tensor.Name()): judge_tensor(tensor) for tensor in each(graph, "Initializers")},
        "sparse": {text(s.Values().Name()): tuple(each(s, "Dims")) for s in each(graph, "SparseInitializers")},
        "records": [
            (text(entry.OptimizerName()), text(record.ActionId()), words(record, "ProducedOpIds"))
            for entry in (each(records, "Records") if records else [])
            for record in each(entry, "RuntimeOptimizationRecords")
        ],
    }


def judge_node(node: Any) -> tuple[Any, ...]:
    attributes = {text(item.Name()): (item.Type(), judge_value(item)) for item in each(node, "Attributes")}
    named = (text(node.Name()), text(node.OpType()), text(node.Domain()), text(node.ExecutionProviderType()))
    names = (words(node, "Inputs"), words(node, "Outputs"), words(node, "ImplicitInputs"))
    return (*named, node.SinceVersion(), node.Index(), *names, attributes)


def judge_value(item: Any) -> Any:
    readers = {
        1: item.F, 2: item.I, 3: lambda: text(item.S()), 4: lambda: judge_tensor(item.T()),
        5: lambda: judge_graph(item.G()), 6: lambda: tuple(each(item, "Floats")), 7: lambda: tuple(each(item, "Ints")),
        8: lambda: words(item, "Strings"),
    }  # fmt: skip
    return readers[item.Type()]()


def judge_tensor(tensor: Any) -> tuple[Any, ...]:
    raw = tensor.RawDataAsNumpy() if tensor.RawDataLength() else b""
    return tuple(each(tensor, "Dims")), tensor.DataType(), bytes(raw), words(tensor, "StringData")


def judge_type(info: Any) -> Any:
    from ort_flatbuffers_py import fbs

    if info is None or info.Value() is None:
        return None
    kind = {1: "TensorTypeAndShape", 2: "SequenceType", 3: "MapType"}[info.ValueType()]
    value = getattr(getattr(fbs, kind), kind)()
    value.Init(info.Value().Bytes, info.Value().Pos)
    if kind == "SequenceType":
        return "sequence", judge_type(value.ElemType())
    if kind == "MapType":
        return "map", value.KeyType(), judge_type(value.ValueType())
    shape = value.Shape()
    return value.ElemType(), None if shape is None else tuple(judge_dim(dim) for dim in each(shape, "Dim"))


def judge_dim(dim: Any) -> int | str | None:
    value = dim.Value()
    return {0: None, 1: value.DimValue(), 2: text(value.DimParam()) or None}[value.DimType()] if value else None


def judge_resolver(resolver: Any) -> dict[str, Any]:
    return {
        text(entry.OpId()): {
            text(arg.KernelTypeStr()): tuple((item.ArgType() == 1, item.Index()) for item in each(arg, "Args"))
            for arg in each(entry, "KernelTypeStrArgs")
        }
        for entry in each(resolver, "OpKernelTypeStrArgs")
    }


# Our values in the shape of the judge's ----------------------------------------------------------


def ours(path: Path) -> dict[str, Any]:
    model = read_ort(path)
    return {
        "format": model.format_version,
        "ir": model.ir_version,
        "imports": model.opset_import,
        "graph": our_graph(model.graph, path.read_bytes()),
        "resolver": resolver_of(Reader(path.read_bytes())),
    }


def our_graph(graph: OrtGraph, data: bytes) -> dict[str, Any]:
    return {
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "nodes": [our_node(node, data) for node in graph.nodes],
        "types": {name: our_type(info) for name, info in graph.node_args.items()},
        "tensors": {name: our_tensor(tensor, data) for name, tensor in graph.initializers.items()},
        "sparse": {name: item.dims for name, item in graph.sparse_initializers.items()},
        "records": [(item.optimizer, item.action, item.produced_ops) for item in graph.runtime_optimizations],
    }


def our_node(node: OrtNode, data: bytes) -> tuple[Any, ...]:
    attributes = {name: (item.type, our_value(item.value, data)) for name, item in node.attributes.items()}
    named = (node.name, node.op_type, node.domain, node.provider)
    return (*named, node.since_version, node.index, node.inputs, node.outputs, node.implicit_inputs, attributes)


def our_value(value: Any, data: bytes) -> Any:
    if isinstance(value, OrtGraph):
        return our_graph(value, data)
    return our_tensor(value, data) if isinstance(value, Tensor) else value


def our_tensor(tensor: Tensor, data: bytes) -> tuple[Any, ...]:
    return tensor.dims, tensor.data_type, data[tensor.offset : tensor.offset + tensor.length], tensor.strings


def our_type(info: TypeInfo) -> Any:
    match info:
        case SequenceType():
            return "sequence", our_type(info.element)
        case MapType():
            return "map", info.key_type, our_type(info.value)
        case TensorType():
            return info.elem_type, info.shape
    return None


VARIANTS = [(level, False) for level in LEVELS] + [("extended", True)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("level", "runtime"), VARIANTS)
def test_every_value_is_the_judges(folder: Path, name: str, level: str, runtime: bool) -> None:
    path = converted(folder, name, level=level, runtime=runtime)
    assert ours(path) == judge(path)


@pytest.mark.parametrize("name", ["mnist.base", "mnist.qdq_u8u8", "silero_like_vad_if.base", "lstm_classifier.dyn"])
def test_real_models_read_as_the_judge_reads_them(folder: Path, oracle: Path, name: str) -> None:
    from tests.ort_models import convert

    source = extracted(oracle / "real.zip", f"{name}.onnx", folder)
    path = convert(source, folder / f"{name}.ort", level="extended")
    assert ours(path) == judge(path)


def extracted(archive: Path, member: str, folder: Path) -> Path:
    with zipfile.ZipFile(archive) as opened:
        found = next(name for name in opened.namelist() if name.endswith(member))
        target = folder / Path(found).name
        target.write_bytes(opened.read(found))
    return target


def test_the_models_hold_what_the_reader_must_know(folder: Path) -> None:
    """Guards the tests above: without these parts they would compare nothing of interest."""
    read = {name: read_ort(converted(folder, name, level="none")) for name in MODELS}
    assert isinstance(read["sequences"].graph.node_args["s"], SequenceType)
    assert read["four_bits"].graph.initializers["w"].data_type == 22
    assert read["four_bits"].graph.initializers["w"].length == 4
    assert read["texts"].graph.initializers["w"].strings == ("one", "two")
    assert read["sparse"].graph.sparse_initializers["w"].dims == (2, 3)
    assert [len(graph.nodes) for graph in read["control_flow"].graph.walk()] == [2, 1, 1, 1, 1]
    assert read["quantized"].graph.node_args["x"] == TensorType(1, ("batch", 4))
    assert all(model.format_version == "6" for model in read.values())


def test_runtime_optimizations_name_their_nodes_and_products(folder: Path) -> None:
    (record,) = read_ort(converted(folder, "conv_relu", level="extended", runtime=True)).graph.runtime_optimizations
    assert record.optimizer == "ConvActivationFusion"
    assert record.produced_ops == ("com.microsoft:FusedConv:1",)
    assert record.nodes[0] == 0
    assert 1 in record.nodes


# What is no ORT format model ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why", "remedy"),
    [
        (b"", "empty", "convert"),
        (b"ORT", "identifier", "convert"),
        (conv_relu().SerializeToString(), "ONNX model", "convert"),
        (b"\x10\0\0\0ODTC" + bytes(64), "training", "inference"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS", "git lfs pull"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "gzip", "decompress"),
        (b"PK\x03\x04" + bytes(30), "zip", "unpack"),
        (b"\x08\0\0\0ORTM", "truncated", "convert"),
        (b"\x0c\0\0\0ORTM" + bytes(200), "damaged", "convert"),
    ],
)
def test_foreign_files_are_refused_by_name_with_a_remedy(tmp_path: Path, content: bytes, why: str, remedy: str) -> None:
    path = tmp_path / "model.ort"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_ort(path)
    assert caught.value.where == str(path)
    assert why in caught.value.why
    assert remedy in caught.value.remedy


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.ort", tmp_path):
        with pytest.raises(ModelError, match=r"none\.ort|directory"):
            read_ort(path)


@pytest.fixture(scope="session")
def donors(folder: Path) -> list[bytes]:
    names = ("conv_relu", "control_flow", "sparse", "texts", "sequences", "four_bits")
    return [converted(folder, name, level="extended", runtime=True).read_bytes() for name in names]


def outcome(data: bytes) -> OrtModel | None:
    try:
        return parse_ort(data, "fuzzed")
    except ModelError:
        return None


def test_types_of_inner_values_may_be_left_out(donors: list[bytes]) -> None:
    for donor in donors:
        whole, bare = parse_ort(donor, "whole").graph, parse_ort(donor, "bare", inner_types=False).graph
        borders = {*whole.inputs, *whole.outputs}
        assert bare.node_args == {name: kind for name, kind in whole.node_args.items() if name in borders}
        assert [node.operator for node in bare.nodes] == [node.operator for node in whole.nodes]
        assert bare.initializers == whole.initializers


def test_every_truncation_of_a_model_is_refused_or_read(donors: list[bytes]) -> None:
    """Bytes at the end may be ones that nothing refers to; the first half always is essential."""
    data = donors[0]
    read = [cut for cut in range(0, len(data), 3) if outcome(data[:cut]) is not None]
    assert all(cut > len(data) // 2 for cut in read)


@pytest.mark.parametrize("beside", [1, 2, 3])
def test_an_offset_beside_a_text_is_refused_not_read_from_its_second_letter(donors: list[bytes], beside: int) -> None:
    data = bytearray(donors[0])
    text = data.index(struct.pack("<I", 4) + b"Conv")
    words = range(0, len(data) - 3, 4)
    pointers = [at for at in words if at + struct.unpack_from("<I", data, at)[0] == text]
    assert pointers
    for at in pointers:
        struct.pack_into("<I", data, at, text - at + beside)
    assert outcome(bytes(data)) is None


@pytest.mark.parametrize("dim", [0, -1, 2**62])
def test_a_constant_whose_bytes_do_not_fit_its_shape_is_refused(donors: list[bytes], dim: int) -> None:
    data = bytearray(donors[0])
    model = parse_ort(bytes(data), "a donor")
    dims = next(tensor.dims for tensor in model.graph.initializers.values() if len(tensor.dims) > 1)
    place = data.index(struct.pack(f"<I{len(dims)}q", len(dims), *dims))
    struct.pack_into("<q", data, place + 4, dim)
    with pytest.raises(ModelError, match=rf"a constant of shape \[{dim}, .* bytes"):
        parse_ort(bytes(data), "a donor")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_models_give_a_value_or_a_model_error(donors: list[bytes], data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from(donors)))
    places = st.integers(0, len(damaged) - 1)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(places)] = data.draw(st.sampled_from([0, 1, 4, 127, 128, 255]))
    outcome(bytes(damaged))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_wild_offsets_give_a_value_or_a_model_error(donors: list[bytes], data: st.DataObject) -> None:
    """Offsets of four bytes that point anywhere: into the middle of things, at each other, in circles."""
    damaged = bytearray(data.draw(st.sampled_from(donors)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(2, (len(damaged) - 4) // 4)) * 4
        offset = data.draw(st.one_of(st.integers(0, len(damaged)), st.integers(2**31 - 8, 2**32 - 1)))
        struct.pack_into("<I", damaged, place, offset)
    outcome(bytes(damaged))


def nested_graphs(levels: int, copies: int = 2) -> bytes:
    """Each graph's one node has a list that names the next graph several times: copies**levels paths."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)

    def table(**fields: tuple[str, int]) -> int:
        """Fields are `slotN`: ("offset" or "int32", value)."""
        builder.StartObject(16)
        for name, (kind, value) in fields.items():
            slot = int(name.removeprefix("slot"))
            if kind == "offset":
                builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                builder.PrependInt32Slot(slot, value, 0)
        end: int = builder.EndObject()
        return end

    def vector(*targets: int) -> int:
        builder.StartVector(4, len(targets), 4)
        for target in targets:
            builder.PrependUOffsetTRelative(target)
        end: int = builder.EndVector()
        return end

    graph = table(slot3=("int32", 1))
    for _ in range(levels):
        attribute = table(slot2=("int32", 10), slot12=("offset", vector(*[graph] * copies)))
        node = table(slot10=("offset", vector(attribute)))
        graph = table(slot2=("offset", vector(node)))
    model = table(slot7=("offset", graph))
    version = builder.CreateString("6")
    builder.Finish(table(slot0=("offset", version), slot1=("offset", model)), file_identifier=b"ORTM")
    return bytes(builder.Output())


@pytest.mark.parametrize("levels", [40, 63, 400])
def test_graphs_that_share_bodies_do_not_explode(levels: int) -> None:
    with pytest.raises(ModelError, match=r"overlap|deep"):
        parse_ort(nested_graphs(levels), "bomb")


def test_a_few_shared_bodies_are_read() -> None:
    """Shows that the file above is well formed, so that its refusal is for its size alone."""
    model = parse_ort(nested_graphs(2), "small bomb")
    assert len(list(model.graph.walk())) == 1 + 2 + 4


def test_depth_is_bounded() -> None:
    """ONNX Runtime's own verifier stops at some 20 levels."""
    assert len(list(parse_ort(nested_graphs(63, copies=1), "deep").graph.walk())) == 64
    with pytest.raises(ModelError, match="64 deep"):
        parse_ort(nested_graphs(64, copies=1), "too deep")


def test_hostile_files_of_the_oracle_give_a_value_or_a_model_error(oracle: Path, tmp_path: Path) -> None:
    read = {}
    with zipfile.ZipFile(oracle / "hostile.zip") as archive:
        for name in archive.namelist():
            if name.endswith((".ort", "ort_named_onnx.onnx")):
                read[Path(name).name] = outcome(archive.read(name))
    assert len(read) > 20
    assert {"ort_trunc_10.ort", "ort_text.ort", "onnx_named_ort.ort", "ort_root_huge.ort"} <= {
        name for name, model in read.items() if model is None
    }
    assert read["ort_named_onnx.onnx"] is not None
    assert read["ort_op_unknown.ort"] is not None
