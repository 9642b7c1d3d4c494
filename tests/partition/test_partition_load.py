"""What is foreseen of making a session; the failures are those of a real build of 1.23.2."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Settings
from pipeline.partition.judge import PartitionRequest, judge
from tests.command import ort_mobile
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import NNAPI_NCHW, answer, chain, model, quantized, value
from tests.values import present


def test_claims_that_build_are_counted(tmp_path: Path) -> None:
    load = present(answer(chain("Relu", "Erf", "Relu"), tmp_path, NNAPI_NCHW).load)
    assert (load.partitions, load.error, load.estimate) == (2, None, False)


def test_quantized_concat_of_two_model_inputs_cannot_be_built(tmp_path: Path) -> None:
    """NNAPI learns a u8 input's scale from its consumer's first place only (ep_rules D.7)."""
    nodes = parsed_nodes("e = DequantizeLinear (x1, scale, zero)  r = Concat <axis = 1> (d, e)")
    made = quantized(nodes)
    made.graph.input.append(value("x1", (1, 4, 6, 6), TensorProto.UINT8))
    given = answer(made, tmp_path, NNAPI_NCHW)
    assert given.claimed == 4
    assert given.load is not None
    assert "'x1' is u8" in (given.load.error or "")
    assert given.load.remedy


def test_gemm_without_quantize_behind_it_ends_the_session(tmp_path: Path) -> None:
    nodes = parsed_nodes("d = DequantizeLinear (x, s, z)  e = DequantizeLinear (w, s, z)  y = Gemm (d, e)")
    constants = {"w": np.ones((4, 5), np.uint8), "s": np.float32(1), "z": np.uint8(0)}
    made = model(nodes, [value("x", (3, 4), TensorProto.UINT8)], ["y"], constants)
    given = answer(made, tmp_path, NNAPI_NCHW)
    assert given.partitions == ()
    assert "no session is made" in (present(given.load).error or "")


def test_functions_the_cpu_cannot_run_bring_a_second_round(tmp_path: Path) -> None:
    load = present(answer(chain("Relu", "HardSwish"), tmp_path, NNAPI_NCHW).load)
    assert load.rounds == (1, 1)


CONV = {"w": np.ones((4, 2, 3, 3), np.float32)}


@pytest.mark.parametrize(
    ("node", "constants", "flags"),
    [
        (helper.make_node("LeakyRelu", ["x"], ["y"]), {}, ()),
        (helper.make_node("Conv", ["x", "w"], ["y"], group=2), CONV, ()),
        (helper.make_node("LRN", ["x"], ["y"], size=3), {}, ("USE_NCHW",)),
    ],
    ids=["LeakyRelu", "grouped Conv", "LRN"],
)
def test_what_the_builder_needs_level_29_for_does_not_load_below(
    node: onnx.NodeProto, constants: dict[str, np.ndarray], flags: tuple[str, ...], tmp_path: Path
) -> None:
    """Claimed at 28, as the genuine library does, which then fails (tests/android_host/test_genuine_loads.py)."""
    made = model([node], [value("x", (1, 4, 6, 6))], ["y"], constants)
    errors = {}
    for level in (28, 29):
        settings = Settings(provider="nnapi", ort_release=(1, 28), api_level=level, nnapi_flags=flags)
        given = answer(made, tmp_path, settings)
        assert given.claimed == 1
        assert given.load is not None
        errors[level] = given.load.code, bool(given.load.error)
    assert errors == {28: ("level", True), 29: (None, False)}


def quantized_image(nodes: list[onnx.NodeProto], batch: int = 1, opset: int = 13) -> onnx.ModelProto:
    """From DequantizeLinear to QuantizeLinear with equal parameters: the nodes read `d` and give `r`."""
    around = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["d"]),
        *nodes,
        helper.make_node("QuantizeLinear", ["r", "scale", "zero"], ["y"]),
    ]
    constants = {"scale": np.float32(0.5), "zero": np.uint8(0), "twice": np.array([1, 1, 2, 2], np.float32)}
    return model(around, [value("x", (batch, 4, 6, 6), TensorProto.UINT8)], ["y"], constants, opset=opset)


RESIZE = helper.make_node(
    "Resize", ["d", "", "twice"], ["r"],
    mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
)  # fmt: skip


@pytest.mark.parametrize("release", [(1, 23), (1, 28), (1, 29)])
def test_a_quantized_resize_of_nothing_is_undone_by_the_layout(release: tuple[int, int], tmp_path: Path) -> None:
    codes = []
    for batch in (0, 1):
        load = answer(quantized_image([RESIZE], batch), tmp_path, Settings(provider="nnapi", ort_release=release)).load
        codes.append(load and load.code)
    assert codes == ["layout", None]


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)])
@pytest.mark.parametrize("release", [(1, 23), (1, 28)])
def test_a_transpose_before_a_quantized_maxpool_is_undone_by_the_layout(
    perm: tuple[int, ...], release: tuple[int, int], tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Transpose", ["d"], ["t"], perm=perm),
        helper.make_node("MaxPool", ["t"], ["r"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    load = present(answer(quantized_image(nodes), tmp_path, Settings(provider="nnapi", ort_release=release)).load)
    assert load.code == "layout"


@pytest.mark.parametrize(("opset", "code"), [(13, None), (18, "build")])
def test_an_even_split_with_sizes_of_opset_18_ends_the_process(opset: int, code: str | None, tmp_path: Path) -> None:
    """NNAPI's builder reads the attribute that only the other form of Split-18 has."""
    node = helper.make_node("Split", ["x", "sizes"], ["y0", "y1"], axis=0)
    made = model([node], [value("x", (4, 3))], ["y0", "y1"], {"sizes": np.array([2, 2])}, opset=opset)
    given = answer(made, tmp_path, NNAPI_NCHW)
    assert (given.claimed, given.load and given.load.code) == (1, code)


def test_an_inlined_function_reads_the_copy_of_its_call(tmp_path: Path) -> None:
    """Both Adds are one partition, with the original `d`; what HardSwish becomes lies beside it and reads its own."""
    dequantize = [helper.make_node("DequantizeLinear", ["x", "scale", "zero"], [name]) for name in ("d", "f", "g")]
    nodes = [
        *dequantize,
        *parsed_nodes("""
            a = Add (d, f)  y0 = QuantizeLinear (a, scale, zero)  h = HardSwish (d)
            q = QuantizeLinear (h, scale, zero)  e = DequantizeLinear (q, scale, zero)  b = Add (e, g)
            y1 = QuantizeLinear (b, scale, zero)"""),
    ]
    constants = {"scale": np.float32(0.5), "zero": np.uint8(3)}
    made = model(nodes, [value("x", (1, 4, 6, 6), TensorProto.UINT8)], ["y0", "y1"], constants)
    given = answer(made, tmp_path, NNAPI_NCHW)
    assert (given.error, given.partitions) == (None, (("d", "f", "a", "y0", "e", "g", "b", "y1"),))
    assert present(given.load).rounds == (1, 1)


@pytest.mark.parametrize("api_level", [27, 31])
def test_a_graph_of_quantized_functions_is_answered(api_level: int) -> None:
    """47 functions of HardSwish and their like between shared Q and DQ; its batch is open, so nothing is claimed."""
    path = str(Path(__file__).with_name("quantized_functions.onnx"))
    settings = Settings(provider="nnapi", ort_release=(1, 23), api_level=api_level)
    request = PartitionRequest(source=SourceModel(path=path), settings=settings, likely=True)
    given = judge(request)
    assert (given.error, given.nodes, given.partitions) == (None, 95, ())
    assert present(given.fixed).claimed == {27: 25, 31: 43}[api_level]


def convolutions(middle: str, end: str = "", output: str = "d") -> onnx.ModelProto:
    """Convolutions with scales by channel, which NNAPI leaves to the CPU below API level 29, with something between."""
    nodes = parsed_nodes(f"""
        xq = QuantizeLinear (x, s, z)  a = QLinearConv (xq, s, z, w, ws, wz, s, z)  {middle}
        c = QLinearConv (b, s, z, w, ws, wz, s, z)  d = DequantizeLinear (c, s, z)  {end}""")
    constants = {"s": np.float32(0.1), "z": np.uint8(128), "w": np.ones((4, 4, 1, 1), np.int8)}
    constants |= {"ws": np.full(4, 0.1, np.float32), "wz": np.zeros(4, np.int8)}
    return model(nodes, [value("x", (1, 4, 8, 8))], [output], constants)


GROUP = "ad = DequantizeLinear (a, s, z)  t = Tanh (ad)  b = QuantizeLinear (t, s, z)"


@pytest.mark.parametrize(
    ("middle", "crashes"),
    [
        ("b = Identity (a)", False),
        (GROUP, True),
        (f"{GROUP.replace('b =', 'bq =')}  b = MaxPool <kernel_shape = [1, 1]> (bq)", True),
        ("ad = DequantizeLinear (a, s, z)  t = Erf (ad)  b = QuantizeLinear (t, s, z)", False),
    ],
)
def test_a_file_with_convolutions_left_to_the_cpu_may_crash(tmp_path: Path, middle: str, crashes: bool) -> None:
    """As measured with the Android library 1.29.0 at API level 28."""
    path = tmp_path / "m.onnx"
    onnx.save(convolutions(middle), path)
    ort_mobile("convert", path, "--level", "extended", "--style", "fixed", "--output", tmp_path / "out")
    request = PartitionRequest(
        source=SourceModel(path=str(tmp_path / "out" / "m.extended-fixed.ort")),
        settings=Settings(provider="nnapi", api_level=28),
    )
    load = judge(request).load
    assert load is not None
    assert bool(load.error) == crashes
    assert ("open the file with level extended" in (load.remedy or "")) == crashes


def test_a_partition_that_joins_two_values_of_the_cpu_may_crash(tmp_path: Path) -> None:
    """The Add of two convolutions, whose nodes NNAPI takes one by one in a provider-aware file."""
    second = "b = QLinearConv (a, s, z, w, ws, wz, s, z)"
    made = convolutions(second, "e = DequantizeLinear (a, s, z)  f = Add (e, d)", "f")
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    ort_mobile("convert", path, "--level", "extended", "--style", "fixed", "--output", tmp_path / "out")
    source = SourceModel(path=str(tmp_path / "out" / "m.extended-fixed.ort"))
    load = present(judge(PartitionRequest(source=source, settings=Settings(provider="nnapi", api_level=28))).load)
    assert "crashes on another layout" in (load.error or "")
