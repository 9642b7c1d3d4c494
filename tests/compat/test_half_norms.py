"""Normalizations in half precision that some releases do not load: the cases are as measured with their wheels."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.helper import make_tensor_value_info as value

from device_runner.spec import OptimizationLevel, RunOptions
from pipeline.compat.defects import Runtime
from pipeline.compat.half_norms import DISABLE_KEY, FUSION
from pipeline.compat.rules import ArtifactFacts, check_artifact, facts_of
from pipeline.core.errors import Finding, errors
from pipeline.core.releases import Release
from pipeline.model.onnx_view import read_onnx
from tests.onnx_samples import parsed_nodes

MEAN = "{y}p = Pow ({x}, {k})  {y}v = ReduceMean<axes=[{axis}]>({y}p)  {y}e = Add ({y}v, eps)  {y}s = Sqrt ({y}e)"
NORM = MEAN + "  {y}n = Div ({x}, {y}s)  {y} = Mul ({y}n, g)  "
SUBTRACTED = "{y}m = ReduceMean<axes=[-1]>({x})  {y}d = Sub ({x}, {y}m)  "
BIASED = SUBTRACTED + NORM.replace("{x}", "{y}d").replace("{y} =", "{y}g =") + "{y} = Add ({y}g, b)  "
PRODUCT = "a = MatMul (n, w)  "
CONVOLUTION = "i = Constant<value_ints=[0]>()  r = Unsqueeze (n, i)  o = Conv (r, c)  a = Squeeze (o, i)  "


def norm(form: str, x: str, y: str, k: str = "two", axis: int = -1) -> str:
    return form.format(x=x, y=y, k=k, axis=axis)


def judged(text: str, folder: Path, opset: int = 13, kind: str = "f2") -> ArtifactFacts:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    weights: dict[str, Any] = {"two": 2.0, "other": 2.0, "third": 3.0, "eps": 1e-5, "g": [0.5] * 16, "b": [0.25] * 16}
    weights["c"] = [[[1.0], [0.5]]] * 2
    tensors = [numpy_helper.from_array(np.array(given, kind), name) for name, given in weights.items()]
    tensors.append(numpy_helper.from_array(np.ones((16, 16), kind), "w"))
    nodes = parsed_nodes(text)
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes, "g", [value("x", code, [2, 16])], [value("y", code, [2, 16])], [t for t in tensors if t.name in read]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "m.onnx")
    return facts_of(read_onnx(folder / "m.onnx"), "m")


def found(
    facts: ArtifactFacts, minor: int = 26, use: RunOptions | None = None, abi: str = "x86_64"
) -> tuple[Finding, ...]:
    findings = check_artifact(facts, Runtime(release=Release(1, minor), abis=(abi,)), use or RunOptions())
    return tuple(finding for finding in findings if "half precision" in finding.what)


@pytest.mark.parametrize(
    ("text", "opset", "fails"),
    [
        (norm(NORM, "x", "n") + PRODUCT + norm(NORM, "a", "y"), 13, True),
        (norm(NORM, "x", "n") + PRODUCT + norm(NORM, "a", "y", "other"), 13, True),  # equal constants become one
        (norm(NORM, "x", "n") + PRODUCT + norm(NORM, "a", "y", "third"), 13, False),
        (norm(NORM, "x", "n") + "y = MatMul (n, w)", 13, False),
        (norm(NORM, "x", "n") + "a = MatMul (n, w)  y = Mul (a, two)", 13, True),
        (norm(NORM, "x", "n") + "a = Relu (n)  " + norm(NORM, "a", "y"), 13, False),  # every constant has two readers
        (norm(NORM, "x", "n", axis=0) + PRODUCT + norm(NORM, "a", "y", axis=0), 13, False),
        (norm(NORM, "x", "n", axis=1) + PRODUCT + norm(NORM, "a", "y", axis=1), 13, True),
        (norm(BIASED, "x", "n") + PRODUCT + norm(BIASED, "a", "y"), 13, True),
        (norm(BIASED, "x", "n") + PRODUCT + norm(BIASED, "a", "y"), 17, False),  # LayerNormalization takes them first
        (norm(NORM, "x", "n") + PRODUCT + norm(BIASED, "a", "y"), 17, False),
        (norm(NORM, "x", "n") + CONVOLUTION + norm(NORM, "a", "y"), 13, True),
        (norm(NORM, "x", "n") + "q = Greater (n, x)  a = Where (q, n, third)  " + norm(NORM, "a", "y"), 13, True),
        (norm(NORM, "x", "n") + "a = Max (n, third)  " + norm(NORM, "a", "y"), 13, True),  # alone among nodes in float
        (norm(NORM, "x", "n") + "m = Max (n, third)  a = Max (m, n)  " + norm(NORM, "a", "y"), 13, False),
        (
            norm(NORM, "x", "n") + "m = Max (n, third)  i = Min (m, n)  a = Mul (i, third)  " + norm(NORM, "a", "y"),
            13,
            True,
        ),  # of its two readers one computes in float
        (
            norm(NORM, "x", "n")
            + "t = Transpose (w)  o = MatMul (n, t)  u = Transpose (w)  a = MatMul (o, u)  "
            + norm(NORM, "a", "y"),
            13,
            False,
        ),  # equal nodes become one
    ],
)
def test_an_exponent_that_several_nodes_read_fails_where_the_session_fuses(
    text: str, opset: int, fails: bool, tmp_path: Path
) -> None:
    assert bool(errors(found(judged(text, tmp_path, opset)))) is fails


FAILING = norm(NORM, "x", "n") + PRODUCT + norm(NORM, "a", "y")
CONVOLVED = norm(NORM, "x", "n") + CONVOLUTION + norm(NORM, "a", "y")


def test_only_some_releases_fail_and_only_in_half_precision(tmp_path: Path) -> None:
    facts = judged(FAILING, tmp_path)
    assert [bool(errors(found(facts, minor))) for minor in (22, 23, 27, 28)] == [False, True, True, False]
    assert not found(judged(FAILING, tmp_path, kind="f4"))


@pytest.mark.parametrize(
    "use",
    [
        RunOptions(optimization_level=OptimizationLevel.EXTENDED),
        RunOptions(session_config={DISABLE_KEY: f"Other;{FUSION}"}),
    ],
)
def test_sessions_without_the_fusion_load_it(use: RunOptions, tmp_path: Path) -> None:
    assert not found(judged(FAILING, tmp_path), use=use)


def test_it_is_a_warning_where_another_provider_may_take_the_nodes(tmp_path: Path) -> None:
    findings = found(judged(FAILING, tmp_path), use=RunOptions(provider="xnnpack"))
    assert findings
    assert not errors(findings)


@pytest.mark.parametrize("text", [FAILING, CONVOLVED])
def test_arm64_fails_but_where_a_convolution_in_half_precision_has_the_only_constant(text: str, tmp_path: Path) -> None:
    """As the wheels of 1.23 to 1.27 for arm64 do on a Cortex-A76 (CONVOLVED loads) and a Cortex-A53 (both fail)."""
    (finding,) = found(judged(text, tmp_path), abi="arm64-v8a")
    assert bool(errors([finding])) is (text is FAILING)


def test_it_fails_on_arm64_processors_without_half_precision(tmp_path: Path) -> None:
    old = Runtime(release=Release(1, 26), abis=("arm64-v8a",), features=frozenset({"asimd"}))
    assert errors(check_artifact(judged(FAILING, tmp_path), old))
