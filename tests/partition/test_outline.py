"""Nodes that are alike are judged once: the claims are those of judging each by itself."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.core.providers import on_any_chip
from pipeline.partition import outline
from pipeline.partition.answer import make_settings
from pipeline.partition.claiming import Claim, claim
from pipeline.partition.graph import Graph, view
from pipeline.partition.provider_claims import FileRun
from pipeline.partition.units import Case, unique_dq
from pipeline.providers.coreml import claims as coreml
from pipeline.providers.webgpu.runs import run_findings
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import model, value


def line(kind: str, constants: Sequence[object], dtype: type = np.int64, **attributes: Any) -> onnx.ModelProto:
    """Nodes of one kind that differ by the numbers of their second input alone."""
    names = ["x", *(f"v{place}" for place in range(len(constants) - 1)), "y"]
    weights: dict[str, Any] = {f"w{place}": np.array(numbers, dtype) for place, numbers in enumerate(constants)}
    nodes = [
        helper.make_node(kind, [a, f"w{place}"], [b], **attributes) for place, (a, b) in enumerate(pairwise(names))
    ]
    return model(nodes, [value("x", (2, 3, 4, 4))], ["y"], weights)


def neighbours() -> onnx.ModelProto:
    """Casts alike, of which one follows an ArgMax, and one gives an output of the graph."""
    nodes = parsed_nodes("""
        a = ArgMax <axis = 1> (x)  b = Cast <to = 6> (a)  c = Cast <to = 6> (i)  d = Cast <to = 6> (i)
        e = Relu (x)  f = Relu (e)  g = Relu (f)""")
    inputs = [value("x", (1, 4)), helper.make_tensor_value_info("i", TensorProto.INT64, (1, 1))]
    return model(nodes, inputs, ["b", "c", "d", "g"], {})


def quantized() -> onnx.ModelProto:
    """Relu nodes alike, of which some are in a quantized group; scales differ."""
    nodes = parsed_nodes("""
        a = DequantizeLinear (x, s, z)  b = Relu (a)  c = QuantizeLinear (b, s, z)
        d = DequantizeLinear (c, t, z)  e = Relu (d)  f = QuantizeLinear (e, s, z)
        g = DequantizeLinear (f, s, z)  h = Relu (g)  i = Relu (h)  j = Relu (i)""")
    weights = {"s": np.float32(0.5), "t": np.float32(0.25), "z": np.uint8(0)}
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 4))]
    return model(nodes, inputs, ["j"], weights)


def attributes() -> onnx.ModelProto:
    """One operator, one type, another attribute, which provider and kernel ask about; one value read twice."""
    nodes = parsed_nodes("""
        a = LeakyRelu <alpha = 0.5> (x)  b = LeakyRelu <alpha = 0.25> (a)  c = Add (b, b)  d = Add (c, b)
        e = Add (d, d)
        f = Softmax <axis = 1> (e)  g = Softmax <axis = -1> (f)  h = Softmax <axis = 1> (g)
        i = Transpose <perm = [0, 2, 1, 3]> (h)  j = Transpose <perm = [0, 2, 1, 3]> (i)
        k = AveragePool <kernel_shape = [1, 1]> (j)  y = AveragePool <kernel_shape = [1, 1], ceil_mode = 1> (k)""")
    return model(nodes, [value("x", (1, 3, 4, 4))], ["y"], {})


def types() -> onnx.ModelProto:
    """Equal but for a type or a shape."""
    nodes = parsed_nodes("""
        a = Relu (x)  b = Relu (h)  c = Relu (a)  d = Relu (open)  e = Relu (d)  f = Sigmoid (deep)  g = Sigmoid (x)""")
    inputs = [
        value("x", (1, 4)), value("open", ("n", 4)), value("deep", (1, 1, 1, 1, 1, 2)),
        helper.make_tensor_value_info("h", TensorProto.FLOAT16, (1, 4)),
    ]  # fmt: skip
    return model(nodes, inputs, ["b", "c", "e", "f", "g"], {})


def odd_names() -> onnx.ModelProto:
    """Refused nodes alike, whose names texts show otherwise, or which have some at all."""
    made = parsed_nodes("a = Softplus (x)  b = Softplus (a)  c = Softplus (b)  d = Softplus (c)  y = Softplus (d)")
    for node, name in zip(made, ("it's", "", "⟦0⟧", "plain", "n" * 100), strict=True):
        node.name = name
        node.input[:] = [{"a": "⟦1⟧", "c": "v" * 90}.get(read, read) for read in node.input]
        node.output[:] = [{"a": "⟦1⟧", "c": "v" * 90}.get(given, given) for given in node.output]
    return model(made, [value("x", (1, 2, 3, 4, 5, 6))], ["y"], {})


def ranks() -> onnx.ModelProto:
    """Refusals that name values: ranks, types and dimensions that a provider does not take."""
    kinds = ("Relu", "Sigmoid", "Add", "Transpose", "Concat", "Reshape")
    nodes, names = [], ["x"]
    for kind in kinds * 3:
        names.append(f"v{len(names)}" + "w" * (len(names) * 6))
        inputs = [names[-2], *({"Add": [names[-2]], "Reshape": ["same"]}.get(kind, []))]
        attributes: dict[str, Any] = {"axis": 0} if kind == "Concat" else {}
        nodes.append(helper.make_node(kind, inputs, names[-1:], **attributes))
    nodes[3::6] = [helper.make_node("Transpose", node.input, node.output, perm=range(6)) for node in nodes[3::6]]
    weights = {"same": np.array([0, 0, 0, 0, 0, 0])}
    return model(nodes, [value("x", (1, 2, 3, 4, 5, "n"))], names[-1:], weights)


MODELS = {
    "odd_names": odd_names(),
    "ranks": ranks(),
    "reshapes": line("Reshape", [[2, 3, 4, 4], [2, -1, 4, 4], [0, 3, 4, 4], [2, 3, 16, 1], [2, 3, 4, 4]]),
    "powers": line("Pow", [2.0, 3.0, 2.0, 0.5], np.float32),
    "gathers": line("Gather", [[0, 1], [1, 0], [-1, 0], [0, 0]], axis=0),
    "neighbours": neighbours(),
    "quantized": quantized(),
    "attributes": attributes(),
    "types": types(),
}
SETTINGS = [
    *(make_settings(provider) for provider in on_any_chip()),
    *(make_settings(provider, release="1.21", api_level=27, coreml_version=5) for provider in on_any_chip()),
    make_settings("nnapi", nnapi_flags=("USE_NCHW",), stop_ops="Softmax"),
]


def said(made: onnx.ModelProto) -> list[tuple[Claim, list[str]]]:
    graph = unique_dq(view(made))
    return [
        (
            claim(graph, settings),
            [
                finding.what
                for finding in run_findings(FileRun(graph=graph, settings=settings, where="m", ort_format=False))
            ],
        )
        for settings in SETTINGS
    ]


@pytest.mark.parametrize("name", MODELS)
def test_claims_are_those_of_each_node_by_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = said(MODELS[name])
    monkeypatch.setattr(outline, "_alike", lambda _, units: [[unit] for unit in units])
    assert at_once == said(MODELS[name])
    assert any(row.groups or row.refusals for row, _ in at_once)


def graph_of(count: int) -> Graph:
    names = ["x", *(f"v{place}" for place in range(count - 1)), "y"]
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)]
    return view(model(nodes, [value("x", (1, 4))], ["y"], {}))


def test_nodes_that_are_alike_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(case: Case) -> object:
        asked.append(case.node.first_output)
        return judged(case)

    judged = coreml.refusal
    monkeypatch.setattr(coreml, "refusal", counted)
    (group,) = claim(graph_of(50), make_settings("coreml-mlprogram")).groups
    assert len(group) == 50
    assert len(asked) == 1


def test_settings_that_refuse_the_same_share_their_groups() -> None:
    graph = graph_of(50)
    for settings in SETTINGS:
        claim(graph, settings)
    assert len(graph.groups) == 1
