"""What a model must not ask of onnxruntime: constants that no memory holds, nesting without end, indices out of bounds.

onnxruntime computes constants while it optimizes, inlines functions and visits bodies while it loads. A file of a
hundred bytes can so keep it busy for hours, take all memory, or (before 1.28) make it write where it must not; all
this is seen beforehand.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import ModelError
from pipeline.model.edit import constant_names, constant_tensors, plain_domain
from pipeline.model.ort_format import OrtGraph, Tensor, TensorType
from pipeline.model.types import BY_CODE, LAST_STORED_TYPE

if TYPE_CHECKING:
    import numpy as np
    import onnx


# FlatBuffers offsets and ONNX Runtime's verifier end at 2 GiB; the graph around the weights needs some of it.
MAX_WEIGHT_BYTES = (2 << 30) - (64 << 20)


def tensor_bytes(tensor: "onnx.TensorProto") -> int | None:
    """Bytes that the tensor's elements take, from type and dimensions; None for strings, unknown types, bad sizes."""
    element = BY_CODE.get(tensor.data_type)
    count = 1
    for dim in tensor.dims:
        count *= dim
        if dim < 0 or count > MAX_WEIGHT_BYTES:
            return None
    return (count * element.bits + 7) // 8 if element and element.bits else None


def unsound(tensor: "onnx.TensorProto") -> str:
    """Why the data in the message is not what the dimensions say; "" when it is, or cannot be judged."""
    if any(dim < 0 for dim in tensor.dims):
        return f"has a negative dimension: {list(tensor.dims)[:8]}"
    count = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        needed = tensor_bytes(tensor)
        if tensor.data_type == tensor.STRING:
            return "has strings as raw data"
        sound = needed is None or needed == len(tensor.raw_data)
        return "" if sound else f"has {len(tensor.raw_data)} bytes of data, its dimensions need {needed}"
    element = BY_CODE.get(tensor.data_type)
    given = len(getattr(tensor, element.field)) if element and element.field else count
    return "" if given == count else f"has {given} elements of data, its dimensions need {count}"


# Real exports nest functions and bodies less than ten deep. onnxruntime's time grows with the square of the depth of
# functions and worse; with the depth of bodies it doubles (1.21 to 1.28: 30 are hours, 18 a second).
MAX_FUNCTION_DEPTH = 100
MOST_INLINED = 1_000_000
"""Nodes of a model whose functions are inlined: the largest exports have some tens of thousands."""
# FlatBuffers' verifier, which onnxruntime runs over an ORT format file, ends at 64 tables in one another: measured with
# 1.31.1, a file with 18 bodies in one another loads and one with 19 does not.
MAX_BODY_DEPTH = 18
MAX_ONNX_BODY_DEPTH = 22
"""Of what is only judged: sessions of ONNX files have no such end, and 22 take seconds."""
WORDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "auto_pad": (
        frozenset(
            {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv", "AveragePool", "MaxPool", "LpPool"}
        ),
        frozenset({"", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}),
    ),
    "direction": (frozenset({"RNN", "GRU", "LSTM"}), frozenset({"forward", "reverse", "bidirectional"})),
}
"""Attributes of ONNX's operators that take some words only: with another no release makes a session (1.23.2, 1.32)."""
INDEX_TYPES = frozenset({3, 5, 6, 7})
RANGE_TYPES = frozenset({1, 5, 6, 7, 11})
# These stay in the graph however constant their inputs are: they are what quantized kernels are made of.
NEVER_FOLDED = frozenset({"QuantizeLinear", "DequantizeLinear"})


def computed_constants(graph: "onnx.GraphProto") -> list[str]:
    """Outputs of the nodes whose inputs are all constant, so that the optimizer can compute them."""
    constants = constant_names(graph) | {""}
    computed = []
    for node in graph.node:
        if node.op_type == "Constant":
            constants.update(node.output)
        elif node.op_type not in NEVER_FOLDED and node.input and constants.issuperset(node.input):
            constants.update(node.output)
            computed += node.output
    return computed


def check_constants(
    computed: Collection[str], size_of: Callable[[str], int], where: str, most: int = MAX_WEIGHT_BYTES
) -> None:
    """ModelError when a constant to be computed would take more than `most`: what an ORT format file can hold.

    `size_of` gives the bytes of a value as onnxruntime's own shape inference has it, 0 where that is not known.
    """
    for name in computed:
        size = size_of(name)
        if size > most:
            raise ModelError(
                "the model computes a constant of impossible size",
                where=where,
                why=f"{name[:80]!r} would take {size} bytes, and at most {most} are taken",
                remedy="export the model again with sensible constant shapes",
            )


def stored_bytes(type_info: object) -> int:
    """Bytes of a value by its type in an ORT format file; 0 when its shape is not known."""
    if not isinstance(type_info, TensorType) or type_info.shape is None:
        return 0
    return shaped_bytes(type_info.elem_type, [dim if isinstance(dim, int) else 0 for dim in type_info.shape])


def shaped_bytes(elem_type: int, shape: Iterable[int]) -> int:
    """Bytes of a tensor of that TensorProto.DataType and shape."""
    return math.prod(shape) * (BY_CODE[elem_type].bits if elem_type in BY_CODE else 0) // 8


def unstorable(graph: OrtGraph) -> str:
    """A constant of a type that the ORT format lacks, with its type, as in `'W' is of type int4`; "" where none is.

    ONNX Runtime writes such a file without a word, and no release loads it (quantization Q.7).
    """
    for part in graph.walk():
        for name, tensor in part.initializers.items():
            if tensor.data_type > LAST_STORED_TYPE:
                element = BY_CODE.get(tensor.data_type)
                return f"{name[:80]!r} is of type {element.ort if element else tensor.data_type}"
    return ""


BY_PATH = {"session.use_ort_model_bytes_directly": "0", "session.use_ort_model_bytes_for_initializers": "0"}
"""Session config entries of a file that no session opens with its weights where they lie."""
REFERRED_BYTES = 128
"""From this size on a session that uses weights where they lie takes a tensor for data of another file."""


def unmappable(graph: OrtGraph) -> bool:
    """Whether an attribute of a node is so large a tensor, as trees of doubles have them.

    With the second entry as "1" no release makes a session of such an ORT format file ("should be stored in
    */_ORT_MEM_ADDR_/*, but it is not regular file"); without, all do. Measured with 1.17 to 1.32.
    """
    nodes = (node for part in graph.walk() for node in part.nodes)
    values = (attribute.value for node in nodes for attribute in node.attributes.values())
    return any(isinstance(value, Tensor) and value.length >= REFERRED_BYTES for value in values)


def four_bit_constants(proto: "onnx.ModelProto") -> list[str]:
    """Constants of types that the ORT format lacks, those of bodies too."""
    return [name for name, tensor in constant_tensors(proto.graph) if tensor.data_type > LAST_STORED_TYPE]


UNSTORED = "the ORT format cannot hold the model's weights"
PACKED = (
    "levels extended and all make MatMulNBits of MatMul and Gemm with 4-bit weights, blocks along their inner axis "
    "(DequantizeLinear's axis 0), which holds bytes; --format onnx --level none ships the model itself"
)


def check_structure(proto: "onnx.ModelProto", where: str, depth: int = MAX_BODY_DEPTH) -> None:
    """ModelError for nesting without end, for constants that contradict themselves, and for what no release opens."""
    if not proto.HasField("ir_version"):
        raise ModelError(
            "the model has no IR version",
            where=where,
            why="ONNX Runtime opens none without",
            remedy="set ir_version, or export the model again",
        )
    _check_functions(proto, where, depth)
    for graph in _bodies(proto.graph, where, depth):
        _check_attributes(graph, where)
        for sparse in graph.sparse_initializer:
            # An index for each value, inside the dense tensor: releases before 1.28 write wherever the indices say
            if not _is_sound(sparse):
                raise ModelError(
                    "a sparse initializer contradicts itself",
                    where=where,
                    why=f"the indices of {sparse.values.name[:80]!r} do not fit its values and dimensions",
                    remedy="export the model with dense initializers",
                )
        # A Range whose constant step is zero never ends, and every run of it fails
        scalars = {t.name: t for t in graph.initializer if not t.dims and t.data_type in RANGE_TYPES}
        for node in graph.node if scalars else ():
            tensor = scalars.get(node.input[2]) if node.op_type == "Range" and len(node.input) == 3 else None
            step = _array(tensor) if tensor is not None else None
            if step is not None and not step.any():
                raise ModelError(
                    "the model counts with a step of zero",
                    where=where,
                    why=f"Range {node.name[:80]!r}",
                    remedy="export the model with another step",
                )


def _check_attributes(graph: "onnx.GraphProto", where: str) -> None:
    """ModelError for a value of an attribute with which no release makes a session."""
    for node in graph.node:
        for attribute in node.attribute if plain_domain(node.domain) == "" else ():
            operators, words = WORDS.get(attribute.name, (frozenset(), frozenset()))
            text = attribute.s.decode("utf-8", "replace")
            if node.op_type in operators and text not in words:
                value, takes = repr(text[:40]), f"it takes {', '.join(sorted(filter(None, words)))}"
            elif attribute.name == "block_size" and node.op_type in NEVER_FOLDED and attribute.i < 0:
                value, takes = str(attribute.i), "it takes 0 or more"
            else:
                continue
            raise ModelError(
                f"{attribute.name} of {node.op_type} {node.name[:80]!r} is {value}",
                where=where,
                why=takes,
                remedy="export the model again, or change the attribute",
            )


def refuse_context(operators: Iterable[str], where: str) -> None:
    """ModelError for what a provider has compiled already, by its operators."""
    if "EPContext" in operators:
        raise ModelError(
            "a context is compiled already",
            where=where,
            why="there is nothing left to convert, or to ask the compiler",
            remedy="name the model that it was made from; `prove` and `convert --context … --check` run contexts",
        )


def _bodies(graph: "onnx.GraphProto", where: str, most: int = MAX_BODY_DEPTH) -> "Iterator[onnx.GraphProto]":
    """The graph and all bodies in it; ModelError deeper than that."""
    stack = [(graph, 0)]
    while stack:
        current, depth = stack.pop()
        if depth > most:
            slow = "ONNX Runtime loads no ORT file deeper" if most == MAX_BODY_DEPTH else "each level doubles the time"
            raise ModelError(
                "the model's If, Loop or Scan bodies are nested too deep",
                where=where,
                why=f"they are nested over {most} deep; {slow}",
                remedy="export the model with fewer levels of control flow",
            )
        yield current
        for node in current.node:
            for attribute in node.attribute:
                bodies = [attribute.g, *attribute.graphs] if attribute.HasField("g") or attribute.graphs else []
                stack += [(body, depth + 1) for body in bodies if body.node]


def _is_sound(sparse: "onnx.SparseTensorProto") -> bool:
    dims = list(sparse.dims)
    if min(dims, default=0) < 1 or math.prod(dims) > MAX_WEIGHT_BYTES or sparse.indices.data_type not in INDEX_TYPES:
        return False
    indices = _array(sparse.indices)
    if indices is None or indices.shape[:1] != tuple(sparse.values.dims) or indices.shape[1:] not in {(), (len(dims),)}:
        return False
    limits = math.prod(dims) if indices.ndim == 1 else dims
    return bool((indices >= 0).all() and (indices < limits).all())


def _array(tensor: "onnx.TensorProto") -> "np.ndarray[Any, Any] | None":
    """The values of a tensor; None when its bytes do not fit its dimensions."""
    from onnx import numpy_helper

    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError):
        return None


def _check_functions(proto: "onnx.ModelProto", where: str, depth: int) -> None:
    """ModelError when local functions call one another deeper than MAX_FUNCTION_DEPTH, in a circle, or too often."""
    if not proto.functions:
        return
    bodies = {(f.domain, f.name): [(n.domain, n.op_type) for n in f.node] for f in proto.functions}
    waiting = {name: {called for called in body if called in bodies} for name, body in bodies.items()}
    sizes: dict[tuple[str, str], int] = {}
    for _ in range(MAX_FUNCTION_DEPTH):
        leaves = {name for name, others in waiting.items() if not others}
        sizes |= {name: sum(sizes.get(called, 1) for called in bodies[name]) for name in leaves}
        waiting = {name: others - leaves for name, others in waiting.items() if others}
        if not waiting:
            break
    nodes = sum(sizes.get((n.domain, n.op_type), 1) for graph in _bodies(proto.graph, where, depth) for n in graph.node)
    if not waiting and sizes and nodes > MOST_INLINED:
        raise ModelError(
            "the model's functions are too many nodes once they are inlined",
            where=where,
            why=f"{nodes} nodes in place of {len(proto.graph.node)}, and at most {MOST_INLINED} are taken",
            remedy="export the model again: functions that double one another are no network",
        )
    if waiting:
        raise ModelError(
            "the model's functions are nested too deep",
            where=where,
            why=f"they call one another more than {MAX_FUNCTION_DEPTH} deep, or in a circle",
            remedy="export the model without functions, or inline them with onnx.inliner",
        )
