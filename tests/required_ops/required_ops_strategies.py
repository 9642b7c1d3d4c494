"""Values to test RequiredOps with: hypothesis strategies, and random models from a seed."""

import random
from dataclasses import replace
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st

from pipeline.model.ort_format import (
    Attribute,
    OrtGraph,
    OrtModel,
    OrtNode,
    RuntimeOptimization,
    SequenceType,
    TensorType,
    TypeInfo,
)
from pipeline.model.types import CPP_TYPES
from pipeline.required_ops import TYPE_NAMES, RequiredOps
from pipeline.required_ops.value import ALWAYS_KEPT, INPUTS, TRIPLE, TYPE_SLOTS, OpTypes

few = settings(max_examples=settings().max_examples // 4)
"""12 examples of each property, 500 with `--hypothesis-profile nightly`."""

OPERATORS = (
    ("ai.onnx", "Add"), ("ai.onnx", "Cast"), ("ai.onnx", "Conv"), ("ai.onnx", "Gather"), ("ai.onnx", "OneHot"),
    ("ai.onnx", "QuantizeLinear"), ("ai.onnx", "Reshape"), ("ai.onnx", "Where"), ("ai.onnx.ml", "ZipMap"),
    ("com.microsoft", "FusedConv"), ("com.microsoft", "QLinearAdd"), ("my.domain", "Custom.Op-1"),
)  # fmt: skip
SOME_TYPES = ("float", "int64_t", "uint8_t", "MLFloat16", "std::string")

_names = st.frozensets(st.sampled_from(SOME_TYPES), max_size=3)
_triples = st.frozensets(st.tuples(*[st.sampled_from(SOME_TYPES)] * 3).map(",".join), max_size=3)


@st.composite
def op_types(draw: st.DrawFn, key: tuple[str, str]) -> OpTypes:
    slots = TYPE_SLOTS[key]
    chosen = draw(st.lists(st.sampled_from(slots), min_size=1, unique=True))
    return {slot: draw(_triples if slot == TRIPLE else _names) for slot in chosen}


@st.composite
def required_ops(draw: st.DrawFn, kinds: str = "plain typed global everything") -> RequiredOps:
    """Values of the kinds asked for; all may lack operators."""
    kind = draw(st.sampled_from(kinds.split()))
    allowed = draw(st.frozensets(st.sampled_from(sorted(TYPE_NAMES)), min_size=1, max_size=4))
    if kind == "everything":
        return RequiredOps(everything=True, global_types=draw(st.sampled_from([None, allowed])))
    listed = draw(st.lists(st.tuples(st.sampled_from(OPERATORS), st.integers(1, 26)), max_size=8))
    operators: dict[tuple[str, int], frozenset[str]] = {}
    for (domain, op), opset in listed:
        operators[domain, opset] = operators.get((domain, opset), frozenset()) | {op}
    plain = RequiredOps(operators=operators)
    if kind == "global":
        return plain.with_global_types(allowed)
    if kind == "plain":
        return plain
    keys = sorted(key for key in plain.operator_keys() if key in TYPE_SLOTS)
    restricted = draw(st.lists(st.sampled_from(keys), unique=True)) if keys else []
    return replace(plain, types={key: draw(op_types(key)) for key in restricted})


# Random models -----------------------------------------------------------------------------------

_OPSETS = (1, 6, 7, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19, 21)
_CODES = (*CPP_TYPES, 14, 21, 22, 99)
_MODEL_OPERATORS = (
    *(("" if domain == "ai.onnx" else domain, op) for domain, op in TYPE_SLOTS),
    ("", "Reshape"), ("", "Shape"), ("", "NonMaxSuppression"), ("", "LSTM"), ("com.microsoft", "FusedConv"),
    ("com.microsoft", "Gelu"), ("ai.onnx.ml", "LabelEncoder"), ("my.domain", "Custom"),
)  # fmt: skip
_PRODUCED = ("com.microsoft:FusedConv:1", ":QLinearConv:10", ":MaxPool:12", "com.microsoft:QLinearAdd:1", ":Gather:13")


def random_model(seed: int) -> OrtModel:
    """A model as hostile as it is odd: any operator with any arguments and types, bodies, saved optimizations."""
    rng = random.Random(seed)
    return OrtModel(
        format_version="6",
        ir_version=10,
        opset_import={"": rng.choice(_OPSETS)},
        graph=_random_graph(rng, rng.randrange(4)),
    )


@cache
def _versions() -> dict[tuple[str, str], tuple[int, ...]]:
    """The real since-versions of operators: the proof looks up which of them an opset means."""
    from onnx import defs

    found: dict[tuple[str, str], set[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), set()).add(schema.since_version)
    return {key: tuple(sorted(versions)) for key, versions in found.items()}


def _random_graph(rng: random.Random, depth: int) -> OrtGraph:
    names = [f"v{k}" for k in range(rng.randint(1, 10))]
    nodes = tuple(_random_node(rng, names, k, depth) for k in range(rng.randint(0, 9)))
    records = [_random_record(rng, len(nodes)) for _ in range(rng.randint(0, 2))] if rng.random() < 0.3 else []
    return OrtGraph(
        inputs=tuple(names[:1]),
        outputs=tuple(names[-1:]),
        nodes=nodes,
        node_args={name: _random_type(rng) for name in names if rng.random() < 0.97},
        initializers={},
        sparse_initializers={},
        runtime_optimizations=tuple(records),
    )


def _random_type(rng: random.Random) -> TypeInfo:
    code = rng.choice(_CODES) if rng.random() < 0.3 else rng.choice((1, 1, 2, 3, 6, 7, 10))
    tensor = TensorType(code, rng.choice((None, (), (2,), (1, 3, 8, 8), ("n", None))))
    return SequenceType(tensor) if rng.random() < 0.05 else tensor


def _random_node(rng: random.Random, names: list[str], index: int, depth: int) -> OrtNode:
    domain, op = rng.choice(_MODEL_OPERATORS)
    bodies = {}
    if depth and rng.random() < 0.3:
        domain, op = "", rng.choice(("If", "Loop", "Scan"))
        bodies["body"] = Attribute(5, _random_graph(rng, depth - 1))
        if rng.random() < 0.2:
            bodies["bodies"] = Attribute(10, tuple(_random_graph(rng, depth - 1) for _ in range(2)))
    return OrtNode(
        name=rng.choice(("", f"node{index}")),
        op_type=op,
        domain=domain,
        since_version=rng.choice(_versions().get((domain, op), (1,))),
        index=index,
        inputs=tuple(rng.choice([*names, ""]) for _ in range(rng.randint(0, 4))),
        outputs=tuple(rng.choice(names) for _ in range(rng.randint(0, 2))),
        implicit_inputs=(),
        attributes=bodies,
        provider="",
    )


def _random_record(rng: random.Random, nodes: int) -> RuntimeOptimization:
    members = tuple(rng.choice([None, *range(nodes + 1)]) for _ in range(rng.randint(0, 3)))
    return RuntimeOptimization("Optimizer", "action", members, (rng.choice(_PRODUCED),))


def is_kept_anyway(key: tuple[str, str], slot: tuple[str, int], name: str) -> bool:
    """Whether a build keeps a type without being told."""
    return slot == (INPUTS, 0) and name in ALWAYS_KEPT.get(key, ())
