"""Every fix gains where it should, keeps the outputs, and leaves alone what it should."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from pipeline.advice.fixes import MODEL_FIXES, fixes_for
from pipeline.advice.verdict import FixOutcome
from pipeline.core.providers import on_any_chip
from pipeline.partition.answer import Settings
from pipeline.partition.graph import view
from pipeline.passes.edit import GraphFacts, Rule, rewrite
from pipeline.passes.rewrites.arithmetic import erf_by_exp
from pipeline.passes.rewrites.linear import (
    cropped_conv_transpose,
    einsum_as_matmul,
    explicit_pads,
    flat_matmul,
    plain_gemm,
)
from pipeline.passes.rewrites.moves import equal_resize, fewer_axes, pad_as_concat
from tests.advice.fix_cases import (
    CASES,
    MLP,
    NN,
    NNAPI,
    Make,
    Model,
    f32,
    i64,
    one,
    outputs,
    reflect,
    start,
    tried,
    weights,
)
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import model, quantized, value
from tests.values import present


@pytest.mark.parametrize(
    ("name", "provider", "make"), CASES, ids=[f"{name}-{p}-{i}" for i, (name, p, _) in enumerate(CASES)]
)
def test_fix_gains_and_keeps_the_outputs(name: str, provider: str, make: Make, tmp_path: Path) -> None:
    result, state = tried(name, make(), provider, tmp_path)
    assert result.outcome is FixOutcome.GAINS, result
    assert present(state).standing.coverage > 0
    exact = next(fix for fix in MODEL_FIXES if fix.name == name).exact
    assert result.error is not None
    assert result.error <= (0 if exact else 1e-5), result


def test_every_node_fix_has_a_case() -> None:
    named = {fix.name for fix in MODEL_FIXES if fix.helps & set(on_any_chip()) and not fix.name.startswith("opset")}
    assert named == {name for name, *_ in CASES}


@pytest.mark.parametrize("provider", list(on_any_chip()))
def test_no_fix_touches_a_model_that_is_taken_whole(provider: str, tmp_path: Path) -> None:
    made = one("Conv", inputs=("w", "b"), constants={"w": weights(3, 4, 3, 3), "b": weights(3)}, between=False)
    state, _ = start(made, provider, tmp_path)
    for fix in fixes_for(provider):
        if fix.edit and not fix.name.startswith("opset"):
            assert fix.edit(state.loaded.proto, state.known) is None, fix.name


def test_nodes_between_quantization_are_left_alone(tmp_path: Path) -> None:
    made = quantized(parsed_nodes("r = HardSwish (d)"))
    assert tried("activations", made, NNAPI, tmp_path)[0].outcome is FixOutcome.NOT_APPLICABLE


def test_operators_of_other_domains_are_left_alone(tmp_path: Path) -> None:
    node = helper.make_node("Neg", ["x"], ["y"], domain="my.ops")
    made = model([node], [value("x", (2, 3))], ["y"], domains=["my.ops"])
    settings = Settings(provider=MLP)
    known = GraphFacts(graph=view(one("Neg", (2, 3))), settings=settings)
    (neg,) = [fix.edit for fix in MODEL_FIXES if fix.name == "one-input"]
    assert neg is not None
    assert neg(made, known) is None


@pytest.mark.parametrize(
    ("name", "provider", "make"),
    [
        ("equal-resize", NNAPI, lambda: one("Resize", inputs=("", "s"), constants={"s": f32(1, 1, 1.5, 2)})),
        ("equal-resize", NNAPI, lambda: one("Resize", inputs=("", "s"), constants={"s": f32(1, 1, 2, 2)},
                                            mode="cubic")),
        ("equal-resize", NNAPI, lambda: one("Resize", inputs=("", "s"), constants={"s": f32(1, 1, 2, 2)},
                                            nearest_mode="ceil")),
        ("pad-as-concat", MLP, lambda: reflect(pads=(0, 0, -1, 0, 0, 0, 0, 0))),
        ("pad-as-concat", MLP, lambda: reflect(dims=("n", 2, "h", 6), mode="edge")),
        ("activations", NNAPI, lambda: one("Gelu", opset=20)),
        ("erf-by-exp", NNAPI, lambda: one("Gelu", opset=20, approximate="tanh")),
        ("gather-i32", NNAPI, lambda: one("Gather", (5, 3), inputs=("i",), constants={"i": i64(1, 0)})),
        ("f32", NNAPI, lambda: one("Relu")),
        ("cropped-conv-transpose", NNAPI, lambda: one("ConvTranspose", inputs=("w",),
                                                      constants={"w": weights(4, 2, 2, 2)}, strides=[2, 2])),
    ],
)  # fmt: skip
def test_fix_does_not_apply(name: str, provider: str, make: Make, tmp_path: Path) -> None:
    assert tried(name, make(), provider, tmp_path)[0].outcome is FixOutcome.NOT_APPLICABLE


def test_names_of_a_fix_clash_with_none(tmp_path: Path) -> None:
    made = reflect()
    made.graph.node[0].output[0] = made.graph.node[1].input[0] = "post__0"
    assert tried("pad-as-concat", made, MLP, tmp_path)[0].outcome is FixOutcome.GAINS


def rewritten(made: Model, provider: str, **rules: Rule) -> Model:
    """The model with rules applied to every node, claimed or not."""
    known = GraphFacts(graph=view(made), settings=Settings(provider=provider))
    return present(rewrite(made, known, rules))


def assert_same(made: Model, changed: Model, *, within: float = 0.0) -> None:
    shape = [dim.dim_value for dim in made.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(3).standard_normal(shape).astype(np.float32)}
    for expected, actual in zip(outputs(made, feeds), outputs(changed, feeds), strict=True):
        if within:
            np.testing.assert_allclose(actual, expected, rtol=within, atol=within)
        else:
            assert expected.tobytes() == actual.tobytes()


@settings(max_examples=25)
@given(
    data=st.data(), mode=st.sampled_from(["reflect", "edge", "constant"]), provider=st.sampled_from([NNAPI, NN, MLP])
)
def test_pads_are_bit_identical(data: Any, mode: str, provider: str) -> None:
    shape = data.draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    pads = [data.draw(st.integers(0, size - 1)) for size in [*shape, *shape]]
    pads[0] = max(pads[0], 1)
    made = one("Pad", shape, inputs=("pads",), constants={"pads": np.array(pads, np.int64)}, mode=mode, between=False)
    assert_same(made, rewritten(made, provider, Pad=pad_as_concat))


@pytest.mark.parametrize("opset", [11, 12, 13])
def test_resize_keeps_the_inputs_that_its_opset_requires(opset: int, tmp_path: Path) -> None:
    """Region and scales may be left out from opset 13 on: before, an empty name is no valid model."""
    made = one(
        "Resize", inputs=("roi", "s"), constants={"roi": f32(), "s": f32(1, 1, 2, 2)}, opset=opset,
        coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_floor",
    )  # fmt: skip
    result, state = tried("equal-resize", made, NNAPI, tmp_path)
    assert result.outcome is FixOutcome.GAINS, result.why
    assert result.error == 0
    (resize,) = [node for node in present(state).loaded.proto.graph.node if node.op_type == "Resize"]
    assert list(resize.input[1:]) == (["roi", "s"] if opset < 13 else ["", "s"])


@settings(max_examples=20)
@given(
    factors=st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda pair: pair != (1, 1)),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    rounding=st.sampled_from(["round_prefer_floor", "round_prefer_ceil"]),
    positions=st.sampled_from(["half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"]),
    by_size=st.booleans(),
)
def test_resize_modes_are_equal(
    factors: tuple[int, int], sizes: tuple[int, int], rounding: str, positions: str, by_size: bool
) -> None:
    grown = [1, 2, sizes[0] * factors[0], sizes[1] * factors[1]]
    constants = {"s": np.array(grown, np.int64)} if by_size else {"s": f32(1, 1, *factors)}
    made = one(
        "Resize", (1, 2, *sizes), opset=19, inputs=("", "", "s") if by_size else ("", "s"), constants=constants,
        nearest_mode=rounding, coordinate_transformation_mode=positions, between=False,
    )  # fmt: skip
    assert_same(made, rewritten(made, NNAPI, Resize=equal_resize))


@settings(max_examples=20)
@given(
    shapes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    scales=st.tuples(st.sampled_from([1.0, 0.5, -3.0]), st.sampled_from([1.0, 0.25])),
    flips=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    bias=st.sampled_from(["", "scalar", "row", "column", "full"]),
)
def test_gemm_keeps_its_result(
    shapes: tuple[int, int, int], scales: tuple[float, float], flips: tuple[int, int], bias: str
) -> None:
    rows, inner, columns = shapes
    sizes = {"scalar": (), "row": (1, columns), "column": (rows, 1), "full": (rows, columns)}
    constants = {"b": weights(*((columns, inner) if flips[1] else (inner, columns)))}
    constants |= {"c": np.asarray(weights(*sizes[bias]), np.float32)} if bias else {}
    made = one(
        "Gemm", (inner, rows) if flips[0] else (rows, inner), inputs=tuple(constants), constants=constants,
        alpha=scales[0], beta=scales[1], transA=flips[0], transB=flips[1], between=False,
    )  # fmt: skip
    known = GraphFacts(graph=view(made), settings=Settings(provider=NNAPI))
    changed = rewrite(made, known, {"Gemm": plain_gemm})
    assert changed is not None or (scales, flips[0], bias) == ((1.0, 1.0), 0, "") or not bias
    if changed is not None:
        assert_same(made, changed, within=1e-5)


@settings(max_examples=15)
@given(batch=st.lists(st.integers(1, 3), min_size=1, max_size=3), inner=st.integers(1, 4), columns=st.integers(1, 4))
def test_flat_products_are_equal(batch: list[int], inner: int, columns: int) -> None:
    made = one("MatMul", (*batch, 3, inner), inputs=("b",), constants={"b": weights(inner, columns)}, between=False)
    assert_same(made, rewritten(made, NNAPI, MatMul=flat_matmul), within=1e-5)


@settings(max_examples=25)
@given(data=st.data(), auto_pad=st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER"]))
def test_cropped_conv_transpose_is_equal(data: Any, auto_pad: str) -> None:
    kernel, stride, dilation = (data.draw(st.integers(1, 3)) for _ in range(3))
    attributes: dict[str, Any] = {"strides": [stride, stride], "dilations": [dilation, dilation]}
    if auto_pad == "NOTSET":
        pads = [data.draw(st.integers(0, 2)) for _ in range(4)]
        most = max(0, min(stride - 1, *pads[2:]))
        attributes |= {"pads": pads, "output_padding": [data.draw(st.integers(0, most))] * 2}
    else:
        attributes |= {"auto_pad": auto_pad}
    constants = {"w": weights(2, 3, kernel, kernel)}
    made = one("ConvTranspose", (1, 2, 6, 5), inputs=("w",), constants=constants, between=False, **attributes)
    known = GraphFacts(graph=view(made), settings=Settings(provider=MLP))
    changed = rewrite(made, known, {"ConvTranspose": cropped_conv_transpose})
    if changed is not None:
        assert_same(made, changed, within=1e-5)
    else:
        assert auto_pad != "NOTSET" or not any((*attributes["pads"], *attributes["output_padding"]))


INDICES = {"b": 2, "i": 3, "j": 4, "k": 1, "l": 2}


@settings(max_examples=25)
@given(left=st.permutations("bijl"), right=st.permutations("bjk"), result=st.permutations("bikl"))
def test_einsum_is_the_same_product(left: list[str], right: list[str], result: list[str]) -> None:
    equation = f"{''.join(left)},{''.join(right)}->{''.join(result)}"
    shapes = [[INDICES[index] for index in indices] for indices in (left, right)]
    node = helper.make_node("Einsum", ["x", "z"], ["y"], equation=equation)
    made = model([node], [value("x", shapes[0])], ["y"], {"z": weights(*shapes[1])})
    assert_same(made, rewritten(made, NNAPI, Einsum=einsum_as_matmul), within=1e-5)


@pytest.mark.parametrize("equation", ["ii,ij->ij", "ij,jk", "...i,ij->...j", "ij,jk->i", "ij,ij->ij", "ij,jk->ijk"])
def test_other_einsums_are_left_alone(equation: str) -> None:
    node = helper.make_node("Einsum", ["x", "z"], ["y"], equation=equation)
    made = model([node], [value("x", (3, 3)), value("z", (3, 3))], ["y"])
    known = GraphFacts(graph=view(made), settings=Settings(provider=NNAPI))
    assert rewrite(made, known, {"Einsum": einsum_as_matmul}) is None


@settings(max_examples=30)
@given(
    op_type=st.sampled_from(["Conv", "MaxPool", "AveragePool"]), size=st.integers(4, 9), kernel=st.integers(1, 4),
    stride=st.integers(1, 3), pad=st.sampled_from(["SAME_UPPER", "SAME_LOWER", "ceil"]), before=st.integers(0, 1),
)  # fmt: skip
def test_explicit_pads_give_the_same(op_type: str, size: int, kernel: int, stride: int, pad: str, before: int) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [kernel, kernel], "strides": [min(stride, kernel)] * 2}
    if pad != "ceil":
        attributes["auto_pad"] = pad
    elif op_type == "Conv":
        return
    else:
        pads = [min(before, kernel - 1)] * 2
        attributes |= {"ceil_mode": 1, "pads": [*pads, 0, 0]}
    constants = {"w": weights(3, 2, kernel, kernel)} if op_type == "Conv" else {}
    made = one(op_type, (1, 2, size, 7), inputs=tuple(constants), constants=constants, between=False, **attributes)
    known = GraphFacts(graph=view(made), settings=Settings(provider=NNAPI))
    changed = rewrite(made, known, {op_type: explicit_pads})
    if changed is not None:
        assert_same(made, changed, within=1e-6)


@settings(max_examples=40)
@given(data=st.data(), shape=st.lists(st.integers(1, 3), min_size=5, max_size=6))
def test_merged_axes_move_the_same_numbers(data: Any, shape: list[int]) -> None:
    perm = data.draw(st.permutations(range(len(shape))))
    made = one("Transpose", shape, perm=perm, between=False)
    known = GraphFacts(graph=view(made), settings=Settings(provider=NNAPI))
    changed = fewer_axes(made, known)
    if changed is not None:
        assert_same(made, changed)
        assert all(len(node.attribute[0].ints) <= 4 for node in changed.graph.node if node.op_type == "Transpose")
    else:
        assert len([size for size in shape if size > 1]) in (0, 5, 6)


def test_erf_is_within_its_bound() -> None:
    made = one("Erf", (4096,), between=False)
    values = np.linspace(-6, 6, 4096).astype(np.float32)
    values[:3] = 0, 1e-20, -1e-20
    changed = rewritten(made, NNAPI, Erf=erf_by_exp)
    np.testing.assert_allclose(outputs(changed, {"x": values})[0], outputs(made, {"x": values})[0], rtol=0, atol=5e-7)


def test_large_constants_are_not_computed_with() -> None:
    made = one("Gemm", (1, 4), inputs=("b",), constants={"b": weights(4, 5)}, alpha=2.0)
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((4, 1 << 21), np.float32), "b"))
    known = GraphFacts(graph=view(made), settings=Settings(provider=NNAPI))
    assert rewrite(made, known, {"Gemm": plain_gemm}) is None
