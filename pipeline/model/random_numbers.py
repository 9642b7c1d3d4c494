"""Which outputs of a model depend on numbers that it draws at random: no two runs give the same.

A seed does not help: it decides the first run of a session alone, and the C++ library of Android draws other numbers
for it than that of Linux (measured with RandomNormalLike, RandomUniform, Multinomial, Bernoulli and Dropout in the
wheel 1.32 and the Android library 1.29).
"""

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from pipeline.model.edit import all_nodes, attribute, plain_domain, read_names, subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

DRAWING = frozenset(
    {
        ("", "RandomNormal"),
        ("", "RandomNormalLike"),
        ("", "RandomUniform"),
        ("", "RandomUniformLike"),
        ("", "Multinomial"),
        ("", "Bernoulli"),
        ("com.microsoft", "Sampling"),
    }
)
"""Operators that always draw, by domain and name."""
DROPOUTS = {
    ("", "Dropout"): 2,
    ("com.microsoft", "BiasDropout"): 4,
    ("com.microsoft", "BitmaskDropout"): 2,
    ("com.microsoft", "BitmaskBiasDropout"): 4,
}
"""Those that draw while training, with the input that says so; without it they do not."""
FROM_SHAPES = frozenset({("", "Shape"), ("", "Size")})
"""Operators whose output does not depend on their input's numbers."""
BOOL = 9
"""TensorProto.BOOL."""
DRAWS = "draws other numbers in each run"
WITHOUT_CHANCE = (
    "export the model for inference where it should not draw (`model.eval()`), or with the random numbers as an input"
)


def random_outputs(model: "ModelProto") -> dict[str, str]:
    """Outputs of the main graph that depend on random numbers, each with the operator that draws, in words."""
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    if not any(_may_draw(inner) for node in nodes for inner in _with_bodies(node)):
        return {}
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    false = _false(subgraphs(model.graph))
    drawn: dict[str, str] = {}  # values that depend on random numbers, with the operator that draws
    for node in model.graph.node:  # in the order of their values
        if (plain_domain(node.domain), node.op_type) in FROM_SHAPES:
            continue
        causes = [_words(inner) for inner in _with_bodies(node) if _draws(inner, false)]
        causes += [drawn[name] for name in read_names([node]) if name in drawn]
        if cause := next(iter(causes), ""):
            drawn |= dict.fromkeys(node.output, cause)
    return {value.name: f"{drawn[value.name]} {DRAWS}" for value in model.graph.output if value.name in drawn}


def _with_bodies(node: "NodeProto") -> Iterator["NodeProto"]:
    """A node and all those in its bodies."""
    yield node
    for held in node.attribute:
        for body in [held.g, *held.graphs] if held.HasField("g") or held.graphs else ():
            yield from all_nodes(body)


def _may_draw(node: "NodeProto") -> bool:
    key = plain_domain(node.domain), node.op_type
    return key in DRAWING or key in DROPOUTS


def _draws(node: "NodeProto", false: Collection[str]) -> bool:
    key = plain_domain(node.domain), node.op_type
    mode = DROPOUTS.get(key)
    training = mode is not None and len(node.input) > mode and node.input[mode] not in ("", *false)
    return key in DRAWING or training


def _words(node: "NodeProto") -> str:
    return f"{node.op_type} {node.name or next(iter(node.output), '')!r}"


def _false(graphs: Iterable["GraphProto"]) -> set[str]:
    """The names of constants that are false."""
    from onnx import numpy_helper

    tensors = []
    for graph in graphs:
        tensors += [(tensor.name, tensor) for tensor in graph.initializer if tensor.data_type == BOOL]
        constants = [node for node in graph.node if node.op_type == "Constant" and node.output]
        tensors += [(node.output[0], tensor) for node in constants if (tensor := attribute(node, "value")) is not None]
    return {
        name
        for name, tensor in tensors
        if tensor.data_type == BOOL and not tensor.dims and not numpy_helper.to_array(tensor).any()
    }
