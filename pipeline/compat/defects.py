"""Sound artifacts that ONNX Runtime fails to load, run or replay: each defect as measured, with its releases.

Sources: extended builds of 1.21.0 over 5,514 artifacts; the wheels of 1.20.1 to 1.31.1. Where a
release was not tried, the finding is a warning.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from pipeline.compat.int8_sums import ReadWeight, left_out, overflowing
from pipeline.config import REPLAY_KEY
from pipeline.config.tables import BuildKind
from pipeline.core.abis import ARM32, ARM64
from pipeline.core.releases import Release
from pipeline.model.ort_format import OrtGraph, OrtModel, OrtNode

RUNTIME_STYLE_SINCE = Release(1, 11)


REPLAY_NEEDS_KEY_SINCE = Release(1, 30)


UNREPLAYABLE = frozenset({"MatMul", "dropSplitQDQ"})
"""Actions of QDQ records that ONNX Runtime writes without the operators they produce, and then refuses to replay.

"Not enough produced nodes in the runtime optimization record": measured with 1.21.0, 1.23.2, 1.28.0 (by default) and
1.31.1 (with the key).
"""


YOUNG_ACTIONS = {"1DQ_CPU": Release(1, 24)}
"""Actions of records that not every release has: an older one refuses the file ("Missing action 1DQ_CPU for transformer
QDQSelectorActionTransformer"; 1.20.1 to 1.23.2 do, 1.24.4 to 1.31.1 do not). Quantized Softmax and LeakyRelu have it.
"""


UNCOUNTED = frozenset({"com.microsoft:QLinearConcat"})
"""Operators that records produce and that then fail when they run in an extended build: "Each input must be (tensor,
scale, zero_point) tuple!". Their kernels ask how many variadic inputs a node has, which a build without schemas does
not count. Measured with an extended build of 1.21.0 (all of 3 artifacts); the full build runs them.
"""


def unreplayable(actions: Iterable[tuple[str, bool]]) -> tuple[str, ...]:
    """The actions among (action, whether it names what it produces) that fail when they are replayed."""
    return tuple(sorted({action for action, produces in actions if action in UNREPLAYABLE and not produces}))


class Circumstances(NamedTuple):
    """What of a library and its use decides whether a defect shows."""

    release: Release
    kind: BuildKind
    session_config: Mapping[str, str]
    abis: tuple[str, ...] = ()
    features: frozenset[str] | None = None
    """Of the processor, as Linux names them; None where any of the ABI may run it."""

    def on_arm64(self, feature: str, *, there: bool) -> bool:
        """Whether an arm64 processor with a feature, or one without it, may run the artifact."""
        return ARM64 in self.abis and (self.features is None or (feature in self.features) is there)

    @property
    def replays(self) -> bool:
        """Whether saved runtime optimizations are replayed: from 1.30 only when the app asks for it."""
        asked = self.release < REPLAY_NEEDS_KEY_SINCE or self.session_config.get(REPLAY_KEY) == "1"
        return self.kind is not BuildKind.MINIMAL and self.release >= RUNTIME_STYLE_SINCE and asked


class Defect(NamedTuple):
    """A defect: what marks an artifact (`find` gives the mark's words, "" without), when it shows, what then happens.

    `measured` None: in all releases. `depends`: on the processor or the values, so that it is never an error.
    """

    name: str
    find: Callable[[OrtModel, ReadWeight | None], str]
    shows: Callable[[Circumstances], bool]
    measured: frozenset[Release] | None
    what: str
    why: str
    remedy: str
    depends: bool = False


def marks_of(model: OrtModel, read: ReadWeight | None = None) -> dict[str, str]:
    """The defects that an artifact may meet, by name, with the words that say where; `read` reads int8 weights."""
    return {defect.name: mark for defect in DEFECTS if (mark := defect.find(model, read))}


def _unreplayable(model: OrtModel, _: ReadWeight | None) -> str:
    records = [record for graph in model.graph.walk() for record in graph.runtime_optimizations]
    return ", ".join(unreplayable((record.action, bool(record.produced_ops)) for record in records))


def _young(model: OrtModel, _: ReadWeight | None) -> str:
    actions = {record.action for graph in model.graph.walk() for record in graph.runtime_optimizations}
    return ", ".join(sorted(actions & YOUNG_ACTIONS.keys()))


def _uncounted(model: OrtModel, _: ReadWeight | None) -> str:
    produced = {
        op_id.rpartition(":")[0]
        for graph in model.graph.walk()
        for record in graph.runtime_optimizations
        for op_id in record.produced_ops
    }
    return ", ".join(sorted(produced & UNCOUNTED))


def _cleaned_up(model: OrtModel, _: ReadWeight | None) -> str:
    return next((name for graph in model.graph.walk() if (name := _identity_at(graph))), "")


def _identity_at(graph: OrtGraph) -> str:
    """The graph output before which loading puts an Identity without a version, "" where it puts none.

    A DequantizeLinear whose readers are all QuantizeLinear with its own parameters is taken out with them. Where a
    reader gave a graph output, and what was dequantized comes from no node or had several readers, an Identity is put
    in (qdq_final_cleanup.cc). Values of the parameters are not compared here: types and shapes are.
    """
    made = {output for node in graph.nodes for output in node.outputs}
    readers = _readers(graph)
    for node in graph.nodes:
        pairs = readers.get(node.outputs[0], []) if _is_linear(node, "DequantizeLinear") else []
        if not pairs or node.outputs[0] in graph.outputs:
            continue
        if not all(_undoes(graph, node, reader, readers) for reader in pairs):
            continue
        ends = [reader.outputs[0] for reader in pairs if reader.outputs[0] in graph.outputs]
        if ends and (node.inputs[0] not in made or len(pairs) > 1):
            return ends[0]
    return ""


def _readers(graph: OrtGraph) -> dict[str, list[OrtNode]]:
    """The nodes that read each value, in themselves or in their bodies."""
    readers: dict[str, list[OrtNode]] = {}
    for node in graph.nodes:
        for name in (*node.inputs, *node.implicit_inputs):
            readers.setdefault(name, []).append(node)
    return readers


def _is_linear(node: OrtNode, op_type: str) -> bool:
    return node.op_type == op_type and len(node.inputs) >= 2 and len(node.outputs) == 1


def _undoes(graph: OrtGraph, first: OrtNode, second: OrtNode, readers: Mapping[str, list[OrtNode]]) -> bool:
    """Whether a QuantizeLinear takes back what a DequantizeLinear did, and leads to one place only."""
    if not _is_linear(second, "QuantizeLinear") or len(first.inputs) != len(second.inputs):
        return False
    output = second.outputs[0]
    places = len(readers.get(output, ())) == (0 if output in graph.outputs else 1)
    return places and all(_alike(graph, *names) for names in zip(first.inputs[1:], second.inputs[1:], strict=True))


def _alike(graph: OrtGraph, one: str, other: str) -> bool:
    if one == other:
        return one in graph.initializers
    tensors = [graph.initializers.get(name) for name in (one, other)]
    known = [(tensor.dims, tensor.data_type) for tensor in tensors if tensor]
    return len(known) == 2 and known[0] == known[1]


FLOAT16 = 10
"""TensorProto.FLOAT16."""
HALF_KERNELS = frozenset({"Add", "Clip", "Conv", "Div", "GlobalAveragePool", "MaxPool", "Mul", "Relu", "Sub"})
"""Operators that the CPU computes in half precision on ARM processors that can alone (arm64_host.md 5.2)."""
MAX_POOL_NHWC = 12
"""The version of MaxPool from which on there is a kernel of half precision for channels last."""
DOT_PRODUCT, HALF_PRECISION = "asimddp", "asimdhp"
"""Features of ARM processors by Linux's names."""


def _half(model: OrtModel, _: ReadWeight | None) -> str:
    return _listed(_half_nodes(model))


def _half_pools(model: OrtModel, _: ReadWeight | None) -> str:
    nodes = _half_nodes(model)
    return _listed(node for node in nodes if node.op_type == "MaxPool" and node.since_version < MAX_POOL_NHWC)


def _half_nodes(model: OrtModel) -> Iterator[OrtNode]:
    for graph in model.graph.walk():
        halves = {name for name, info in graph.node_args.items() if getattr(info, "elem_type", 0) == FLOAT16}
        for node in graph.nodes:
            if node.domain == "" and node.op_type in HALF_KERNELS and not halves.isdisjoint(node.inputs[:1]):
                yield node


def _listed(nodes: Iterable[OrtNode]) -> str:
    found = list(nodes)
    if not found:
        return ""
    first = f"{found[0].op_type} '{found[0].name or next(iter(found[0].outputs), '')}'"
    return first + (f" and {len(found) - 1} more" if len(found) > 1 else "")


INT8_SUMS = (
    "int8 sums may overflow on ARM processors without dot product, such as Cortex-A53 ({mark})",
    "two products are added in 16 bits, and twice -128 by -128 does not fit (onnxruntime issue 31573); 0 of u8 is -128",
    "keep weights within -127 to 127, or quantize them to u8 (u8u8)",
)
"""What, why and remedy of `int8_sums.overflowing`."""

DEFECTS: tuple[Defect, ...] = (
    Defect(
        "unreplayable", _unreplayable, lambda c: c.replays, None,
        "ONNX Runtime cannot replay the fusions that it recorded ({mark})",
        "it wrote them without the operators that they produce, and fails to load that",
        "ship fixed style, or 1.30 and later without asking for replay",
    ),
    Defect(
        "young", _young, lambda c: c.replays and c.release < max(YOUNG_ACTIONS.values()), None,
        "ONNX Runtime before 1.24 does not know the recorded fusion {mark}",
        "a later release wrote it, and the older one refuses the file: Missing action {mark}",
        "convert with the onnxruntime of that release, ship fixed style, or ship 1.24 or later",
    ),
    Defect(
        "uncounted", _uncounted, lambda c: c.replays and c.kind is BuildKind.EXTENDED, frozenset({Release(1, 21)}),
        "an extended build fails to run the fusions to {mark} that it replays",
        "without operator schemas it does not count the inputs of operators with a variable number of them",
        "ship fixed style, or a full build",
    ),
    Defect(
        "identity", _cleaned_up, lambda c: c.kind is BuildKind.EXTENDED, frozenset({Release(1, 21)}),
        "an extended build fails to load DequantizeLinear and QuantizeLinear that undo each other before output {mark}",
        "it puts an Identity without a version in their place: Failed to find kernel for Identity(-1)",
        "take that pair out of the model, or ship a minimal or a full build",
    ),
    Defect(
        "int8-sums", lambda model, read: overflowing(model, read, replayed=False),
        lambda c: c.on_arm64(DOT_PRODUCT, there=False), None, *INT8_SUMS, depends=True,
    ),
    Defect(
        "replayed-int8-sums", lambda model, read: overflowing(model, read, replayed=True),
        lambda c: c.on_arm64(DOT_PRODUCT, there=False) and c.replays, None, *INT8_SUMS, depends=True,
    ),
    Defect(
        "int8-rows", lambda model, _: left_out(model),
        lambda c: ARM32 in c.abis, frozenset({Release(1, 17), Release(1, 29)}),
        "armeabi-v7a libraries leave out products of int8 by int8 ({mark})",
        "of an odd number of rows the last one lacks its last K mod 16 products",
        "quantize to u8 values (u8s8, u8u8), or ship arm64-v8a only", depends=True,
    ),
    Defect(
        "half-precision", _half,
        lambda c: c.on_arm64(HALF_PRECISION, there=False) or (bool(c.abis) and ARM64 not in c.abis), None,
        "nodes in half precision without Casts need a processor that computes it ({mark})",
        "the file was optimized on such a processor; others, such as Cortex-A53 and x86, have no kernel: no session",
        "convert on an x86-64 computer, which puts Casts around them, or compute in f32", depends=True,
    ),
    Defect(
        "half-pools", _half_pools, lambda c: c.on_arm64(HALF_PRECISION, there=True), frozenset({Release(1, 29)}),
        f"MaxPool in half precision before opset {MAX_POOL_NHWC} makes no session where the processor computes it "
        "({mark})",
        "loading puts it into the channels-last domain, which has no kernel of that version",
        f"convert the model to opset {MAX_POOL_NHWC} or later, or convert on an x86-64 computer, which puts Casts "
        "around it", depends=True,
    ),
)  # fmt: skip
