"""Models load lean, bad ones are refused with the reason, and preparation does what it says."""

import os
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from pipeline.core.errors import ConfigError, ModelError
from pipeline.model.guards import four_bit_constants, tensor_bytes
from pipeline.model.onnx_model import LeanModel, LoadedModel, content_digest, load_model, prepare_model, range_digests
from pipeline.model.onnx_view import read_onnx
from pipeline.model.sources import SourceModel
from tests.onnx_samples import linear, make, parsed_nodes, save, save_external, value, weight


@pytest.fixture
def _lean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every model as a large one."""
    monkeypatch.setattr("pipeline.model.onnx_model.LEAN_MINIMUM_BYTES", 0)


def load(path: Path) -> LoadedModel:
    return load_model(SourceModel(path=str(path)), path.parent / "work")


def bytes_of(model: LeanModel, name: str) -> bytes:
    place = model.weights[name]
    return place.file.read_bytes()[place.offset : place.offset + place.length]


@pytest.mark.usefixtures("_lean")
@pytest.mark.parametrize("external", [False, True])
def test_large_weights_stay_where_they_lie(tmp_path: Path, external: bool) -> None:
    model = linear()
    path = save_external(model, tmp_path / "m.onnx") if external else save(model, tmp_path / "m.onnx")
    loaded = load(path)
    assert set(loaded.weights) == {"w"}
    assert bytes_of(loaded, "w") == model.graph.initializer[0].raw_data
    assert loaded.proto.graph.initializer[1].raw_data == model.graph.initializer[1].raw_data
    assert loaded.proto.ByteSize() < 2000


def test_a_small_model_is_read_whole(tmp_path: Path) -> None:
    assert load(save(linear(), tmp_path / "m.onnx")).proto == linear()
    assert load(save_external(linear(), tmp_path / "e.onnx")).proto.graph.initializer == linear().graph.initializer


@pytest.mark.usefixtures("_lean")
def test_a_model_behind_a_link_is_read_whole_when_its_folder_is_another(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    save(linear(), tmp_path / "blobs" / "0123")
    (tmp_path / "model.onnx").symlink_to(tmp_path / "blobs" / "0123")
    assert load(tmp_path / "model.onnx").proto == linear()


@pytest.mark.usefixtures("_lean")
def test_a_file_name_that_is_no_text_does_no_harm(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.onnx"))
    assert load(save(linear(), path)).proto == linear()


BAD_FILES = {
    "empty": (b"", "empty"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
    "gzip": (b"\x1f\x8b\x08\x00 and so on", "gunzip"),
    "html": (b"<!DOCTYPE html><html>", "download"),
    "json": (b'{"irVersion": 8}', "binary format"),
    "ort": (b"\x18\x00\x00\x00ORTM\x00\x00", "ORT format model already"),
    "cut": (linear(8).SerializeToString()[:200], "cut off"),
    "text": (b"just some text in a file", "it is a text file, and no ONNX model"),
    "text cut in a letter": (b"a" + "ä".encode() * 200, "it is a text file, and no ONNX model"),
    "damaged": (b"\x08\x08" + b"just some text in a file", "cut off or damaged"),
    "no graph": (onnx.ModelProto(ir_version=8).SerializeToString(), "no graph"),
    "graph of garbage": (b"\x08\x08\x3a\x03\x0a\x01\x0f", "no protobuf message"),
    "a name of bytes": (linear(8).SerializeToString().replace(b"MatMul", b"Mat\xffMu"), "UTF-8: b'Mat\\xffMu'"),
}


@pytest.mark.parametrize(("content", "said"), BAD_FILES.values(), ids=BAD_FILES)
def test_what_is_no_model_is_refused_with_the_reason(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert said in f"{caught.value.why} {caught.value.remedy}"
    assert caught.value.where == str(path)


def test_a_missing_file_and_a_folder_are_no_models(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.onnx", tmp_path):
        with pytest.raises(ModelError, match="no such model file"):
            load(path)


def test_a_comment_that_is_no_text_does_no_harm(tmp_path: Path) -> None:
    model = linear(8)
    model.graph.node[0].doc_string = "Gr\u00f6\u00dfe"
    path = tmp_path / "m.onnx"
    path.write_bytes(
        model.SerializeToString().replace("\u00f6\u00df".encode(), "\u00f6\u00df\u00f6\u00df".encode("latin-1"))
    )
    assert len(load(path).proto.graph.node) == 3


def external(**entries: str) -> onnx.ModelProto:
    """A model whose weight says that it lies at these places."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    return make(parsed_nodes("y = Identity (w)"), [], [value("y", [4])], [tensor])


REFUSED = [
    {}, {"location": ""}, {"location": "/etc/passwd"}, {"location": "../w.bin"}, {"location": "a/../../w.bin"},
    {"location": "http://example.org/w.bin"}, {"location": "C:\\w.bin"}, {"location": "missing.bin"}, {"location": "."},
    {"location": "link.bin"}, {"location": "*/_ORT_MEM_ADDR_/*"}, {"location": "w.bin\0"},
    {"location": "w.bin", "offset": "-1"}, {"location": "w.bin", "offset": "1e3"},
    {"location": "w.bin", "offset": "60"}, {"location": "w.bin", "offset": str(2**70)},
    {"location": "w.bin", "length": "17"}, {"location": "w.bin", "length": "8"},
]  # fmt: skip


@pytest.mark.parametrize("entries", REFUSED, ids=str)
def test_external_data_has_to_lie_whole_inside_the_models_folder(tmp_path: Path, entries: dict[str, str]) -> None:
    (tmp_path / "outside.bin").write_bytes(bytes(64))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "w.bin").write_bytes(bytes(64))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(ModelError) as caught:
        load(save(external(**entries), folder / "m.onnx"))
    assert "external data of 'w'" in caught.value.what
    assert caught.value.why


def test_weights_outside_need_not_say_where_they_begin_to_be_read_as_an_artifact(tmp_path: Path) -> None:
    model = read_onnx(save(external(location="w.bin"), tmp_path / "m.onnx"))
    assert [(tensor.offset, tensor.length) for tensor in model.graph.initializers.values()] == [(0, 0)]


@pytest.mark.parametrize("kind", ["TYPE_PROTO", "UNDEFINED"])
def test_an_attribute_that_is_no_number_or_text_is_read_as_nothing(tmp_path: Path, kind: str) -> None:
    model = make(parsed_nodes("y = Softmax <axis = 1> (x)"), [value("x", [1, 2])], [value("y", [1, 2])], [])
    model.graph.node[0].attribute[0].type = onnx.AttributeProto.AttributeType.Value(kind)
    (node,) = read_onnx(save(model, tmp_path / "m.onnx")).graph.nodes
    assert node.attributes["axis"].value is None


def test_an_artifact_that_refers_to_an_attribute_outside_of_functions_is_refused(tmp_path: Path) -> None:
    model = make(parsed_nodes("y = Softmax <axis = 1> (x)"), [value("x", [1, 2])], [value("y", [1, 2])], [])
    model.graph.node[0].attribute[0].ref_attr_name = "outer"
    with pytest.raises(ModelError, match=r"(?s)no ONNX model.*axis"):
        read_onnx(save(model, tmp_path / "m.onnx"))


def test_external_data_below_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(bytes(range(64)))
    loaded = load(save(external(location="sub/w.bin", offset="8"), tmp_path / "m.onnx"))
    assert loaded.proto.graph.initializer[0].raw_data == bytes(range(8, 24))


def test_a_model_over_two_gigabytes_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    model = external(location="w.bin")
    model.graph.initializer[0].dims[:] = [600 << 20]
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(2400 << 20)
    with pytest.raises(ModelError, match=r"cannot be used|too large") as caught:
        load(save(model, tmp_path / "m.onnx"))
    assert caught.value.remedy


def test_initializers_leave_the_inputs_and_the_ir_version_follows(tmp_path: Path) -> None:
    model = linear()
    model.ir_version = 3
    assert prepare_model(load(save(model, tmp_path / "m.onnx")), {}).proto.ir_version == 3, "it has no such inputs"
    model.graph.input.append(value("w", [128, 128]))
    prepared = prepare_model(load(save(model, tmp_path / "m.onnx")), {})
    assert [i.name for i in prepared.proto.graph.input] == ["x"]
    assert prepared.proto.ir_version == 4
    assert prepared.operators == {"ai.onnx:Add": 1, "ai.onnx:MatMul": 1, "ai.onnx:Relu": 1}


def test_dimensions_are_fixed_by_name_everywhere(tmp_path: Path) -> None:
    loaded = load(save(linear(), tmp_path / "m.onnx"))
    assert prepare_model(loaded, {}).dynamic == ("x[0] batch",)
    prepared = prepare_model(loaded, {"batch": 4})
    assert prepared.dynamic == ()
    for info in (prepared.proto.graph.input[0], prepared.proto.graph.output[0]):
        assert info.type.tensor_type.shape.dim[0].dim_value == 4
    assert loaded.proto == linear(), "the loaded model is not touched"


def test_a_dimension_without_a_name_is_fixed_by_its_place(tmp_path: Path) -> None:
    model = linear()
    model.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    loaded = load(save(model, tmp_path / "m.onnx"))
    assert prepare_model(loaded, {}).dynamic == ("x[0]",)
    assert prepare_model(loaded, {"x[0]": 2}).dynamic == ()


def test_an_unknown_dimension_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    loaded = load(save(linear(), tmp_path / "m.onnx"))
    with pytest.raises(ConfigError) as caught:
        prepare_model(loaded, {"bacth": 1})
    assert caught.value.remedy == "did you mean 'batch'?"


@pytest.mark.usefixtures("_lean")
def test_the_content_digest_knows_weights_and_not_where_they_lie(tmp_path: Path) -> None:
    def digest(path: Path) -> str:
        model = prepare_model(load(path), {})
        places = range_digests(model.weights.values())
        return content_digest(model, {name: places[place] for name, place in model.weights.items()})

    inline, other = save(linear(), tmp_path / "a.onnx"), save(linear(seed=5), tmp_path / "b.onnx")
    apart = save_external(linear(), tmp_path / "c.onnx")
    assert digest(inline) == digest(apart)
    assert digest(inline) != digest(other)


@given(st.sampled_from([1, 7, 9, 10, 11, 16, 22]), st.lists(st.integers(0, 9), max_size=4))
def test_tensor_bytes_agree_with_onnx(kind: int, dims: list[int]) -> None:
    tensor = TensorProto(data_type=kind, dims=dims)
    count = 1
    for dim in dims:
        count *= dim
    bits = 4 if kind == TensorProto.INT4 else helper.tensor_dtype_to_np_dtype(kind).itemsize * 8
    assert tensor_bytes(tensor) == (count * bits + 7) // 8


def test_sizes_that_cannot_be_have_no_bytes() -> None:
    for dims in ([-1], [2**40, 2**40], [2**62]):
        assert tensor_bytes(TensorProto(data_type=1, dims=dims)) is None
    assert tensor_bytes(TensorProto(data_type=8, dims=[2])) is None
    assert tensor_bytes(weight("w", 2, 3)) == 24


def test_only_data_in_other_files_counts_as_outside(tmp_path: Path) -> None:
    """Providers up to 1.22 refuse external data; a lean model's weights, which lie in its own file, are none."""
    nodes = parsed_nodes("m = MatMul (x, inside)  y = MatMul (m, outside)")
    x, y = (value(name, [1200, 1200]) for name in "xy")
    model = make(nodes, [x], [y], [weight(name, 1200, 1200) for name in ("inside", "outside")])
    onnx.external_data_helper.set_external_data(model.graph.initializer[1], "w.bin")
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load_model(SourceModel(path=str(tmp_path / "m.onnx")), tmp_path / "work")
    assert set(loaded.weights) == {"inside", "outside"}
    assert loaded.outside == {"outside"}


def test_constants_of_four_bits_are_found_in_bodies_by_the_names_that_nodes_read() -> None:
    packed = helper.make_tensor("", TensorProto.INT4, [2], b"\x21", raw=True)
    branch = helper.make_graph([helper.make_node("Constant", [], ["w"], value=packed)], "b", [], [])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    model = helper.make_model(helper.make_graph([node, helper.make_node("Constant", [], [])], "g", [], []))
    assert four_bit_constants(model) == ["w", "w"]
