"""What ONNX Runtime's WebGPU provider takes of a model: each node for which its table of kernels has a row.

`kernels.txt` is the table. ONNX Runtime looks at the operator, the version of its schema and the types of its
values, and at nothing else: shapes, attributes and constants never decide (docs/facts/webgpu.md, W.2.1). Every node
with a kernel is claimed, each alone. Two things send nodes back to the CPU: the option forceCpuNodeNames and, in the
layout NCHW only, ONNX Runtime's preference for small computations on shapes (GetCpuPreferredNodes in
onnxruntime/core/framework/fallback_cpu_capability.cc). In the default NHWC that preference has no effect: the provider
is asked twice, and in its second round nothing is a candidate any more.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

import msgspec

from pipeline.partition.answer import LoadForecast, Refusal, Settings, layout_window
from pipeline.partition.claiming import Claim
from pipeline.partition.graph import Graph, Node
from pipeline.partition.outline import answered
from pipeline.partition.units import plain_units

Release = tuple[int, int]
NEWEST: Release = (1, 30)
"""Whose kernels the whole table is."""
RELEASES: tuple[Release, ...] = ((1, 27), (1, 28), (1, 29), NEWEST)
"""Those that marks in the table are of, and the first."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A registration for versions of a schema; `last` None matches `first` alone.

    `types` are those of each constraint, `on_cpu` the inputs and outputs that stay in the CPU's memory: `in1`, `out0`.
    """

    first: int
    last: int | None
    types: Mapping[str, tuple[str, ...]]
    on_cpu: frozenset[str]

    def holds(self, version: int) -> bool:
        """Whether the registration holds for this version of the schema."""
        return version == self.first or (self.last is not None and self.first <= version <= self.last)


MARK = re.compile(r"(?P<word>[^!@]+)(?P<int64>!)?(@(?P<major>\d+)\.(?P<minor>\d+))?")


@cache
def kernels(release: Release = NEWEST, *, int64: bool = True) -> Mapping[tuple[str, str], tuple[Kernel, ...]]:
    """The kernels that a release registers, with or without enableInt64, by domain ("" for ai.onnx) and operator."""

    def present(words: str) -> Iterator[str]:
        for word in words.split(","):
            match = MARK.fullmatch(word)
            if match is None:
                raise ValueError(word)
            if (int(match["major"] or 0), int(match["minor"] or 0)) <= release and (int64 or not match["int64"]):
                yield match["word"]

    table: dict[tuple[str, str], list[Kernel]] = {}
    for line in Path(__file__).with_name("kernels.txt").read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, opsets, *constraints = line.split()
        pairs = dict(word.split("=") for word in constraints)
        on_cpu = frozenset(filter(None, pairs.pop("cpu", "").split(",")))
        types = {key: tuple(present(names)) for key, names in pairs.items()}
        domain, _, op_type = name.rpartition(":")
        for span in present(opsets):
            first, dash, last = span.rstrip("+").partition("-")
            end = None if span.endswith("+") else int(last if dash else first)
            table.setdefault((domain, op_type), []).append(Kernel(int(first), end, types, on_cpu))
    return {key: tuple(rows) for key, rows in table.items()}


def _release(settings: Settings) -> Release:
    """The release of the kernels; the plugin brings its own, whatever ONNX Runtime loads it."""
    return NEWEST if settings.webgpu.plugin else settings.ort_release


@lru_cache(maxsize=4096)
def formals(op_type: str, domain: str, version: int) -> list[list[tuple[str, str]]]:
    """The formal inputs and the formal outputs of an operator as (name, type constraint); the last stands for all more.

    Nothing for one that neither ONNX nor the installed ONNX Runtime knows.
    """
    import onnx.defs

    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
        return [[(formal.name, formal.type_str) for formal in side] for side in (schema.inputs, schema.outputs)]
    except onnx.defs.SchemaError:
        registered = _runtime_schemas().get((op_type, domain, version))
        sides = (registered.inputs, registered.outputs) if registered else ()
        return [[(formal.name, formal.typeStr) for formal in side] for side in sides]


@cache
def _runtime_schemas() -> Mapping[tuple[str, str, int], Any]:
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    return {(schema.name, schema.domain, schema.since_version): schema for schema in runtime.get_all_operator_schema()}


def bound_types(graph: Graph, node: Node) -> Mapping[str, str]:
    """The type of each constraint and formal of a node, by the first of its values that has one."""
    read, given = (
        tuple([graph.value(name).dtype if name else None for name in names]) for names in (node.inputs, node.outputs)
    )
    return _bound(node.op_type, node.domain, node.since_version, read, given)


@lru_cache(maxsize=8192)
def _bound(
    op_type: str, domain: str, version: int, read: tuple[str | None, ...], given: tuple[str | None, ...]
) -> Mapping[str, str]:
    types: dict[str, str] = {}
    for dtypes, side in zip((read, given), formals(op_type, domain, version), strict=False):
        for position, dtype in enumerate(dtypes if side else ()):
            if dtype is not None:
                formal, constraint = side[min(position, len(side) - 1)]
                types.setdefault(constraint, dtype)
                types.setdefault(formal, dtype)
    return types


def kernel_of(graph: Graph, node: Node, settings: Settings) -> Kernel | None:
    """The kernel for a node; None where the provider has none."""
    if (node.domain, node.op_type) not in kernels():
        return None
    types = tuple(bound_types(graph, node).items())
    release, int64 = _release(settings), settings.webgpu.int64
    return _kernel(node.domain, node.op_type, node.since_version, types, release, int64)


@lru_cache(maxsize=8192)
def _kernel(
    domain: str, op_type: str, version: int, bound: tuple[tuple[str, str], ...], release: Release, int64: bool
) -> Kernel | None:
    types = dict(bound)
    for kernel in kernels(release, int64=int64).get((domain, op_type), ()):
        if kernel.holds(version) and all(types[name] in taken for name, taken in kernel.types.items() if name in types):
            return kernel
    return None


@lru_cache(maxsize=4096)
def cpu_slots(op_type: str, domain: str, version: int) -> frozenset[str]:
    """The inputs and outputs of an operator that stay in the CPU's memory, whatever the types are: `in1`, `out0`."""
    rows = kernels().get((domain, op_type), ())
    return next((row.on_cpu for row in rows if row.holds(version)), frozenset())


QUANTIZED = re.compile(r"Q(Linear|uantizeLinear|Gemm|Attention)\w*|(MatMul|Conv)Integer\w*|Dynamic(Quantize\w+)")
"""Operators of quantized activations: WebGPU has a kernel for none of them."""

FROM_QUANTIZED = "ship the float model, or weights of 4 or 8 bits (precisions gpu4, gpu8)"
SIZES = "give the dimensions of the inputs sizes (--dimension): then level basic computes it"
REWRITES = {
    "Dropout": "drop it: for inference it does nothing",
    "ConstantOfShape": SIZES,
    "Size": SIZES,
    "NonMaxSuppression": "leave it at the model's end, where it costs one copy for each input",
    "FusedMatMul": "ship a file that was not optimized for the CPU: level basic",
    "FusedGemm": "ship a file that was not optimized for the CPU: level basic",
}
"""What helps with operators without any kernel."""


def no_kernel(graph: Graph, node: Node, settings: Settings) -> Refusal:
    """Why a node has no kernel, by the nearest that exists, and what gives it one."""
    key, version = (node.domain, node.op_type), node.since_version
    release = _release(settings)
    registered = kernels(release, int64=settings.webgpu.int64).get(key, ())
    if not registered:
        name = node.op_type if node.domain in ("", "com.microsoft") else f"{node.domain}.{node.op_type}"
        for later in RELEASES:
            if key in kernels(later):
                words = ".".join(map(str, later))
                text = f"no kernel for {name} before ONNX Runtime {words}"
                return Refusal("release", text, f"ship {words} or later")
        if QUANTIZED.fullmatch(node.op_type):
            return Refusal("quantized", f"no kernel for {name}", FROM_QUANTIZED)
        remedy = REWRITES.get(node.op_type, "write it with other operators, or leave it to the CPU")
        return Refusal("op", f"no kernel for {name}", remedy)
    fitting = [kernel for kernel in registered if kernel.holds(version)]
    if not fitting:
        spans = (
            (str(kernel.first), "" if kernel.last in (None, kernel.first) else f" to {kernel.last}")
            for kernel in registered
        )
        there = ", ".join(dict.fromkeys(map("".join, spans)))
        text = f"no kernel for {node.op_type} of opset {version}, there are some for {there}"
        return Refusal("opset", text, "convert the model to such an opset")
    types = bound_types(graph, node)
    refused = (
        name for kernel in fitting for name, taken in kernel.types.items() if types.get(name, "") not in ("", *taken)
    )
    constraint = next(refused, "")
    dtype = types.get(constraint, "")
    # A kernel for other types: which release adds this one, with enableInt64 or without
    text = f"no kernel for {node.op_type} of {dtype} at opset {version}"

    def first_with(*, int64: bool) -> Release | None:
        for later in (release, *(newer for newer in RELEASES if newer > release)):
            rows = kernels(later, int64=int64).get(key, ())
            if any(row.holds(version) and dtype in row.types.get(constraint, ()) for row in rows):
                return later
        return None

    since, without = first_with(int64=True), first_with(int64=False)
    words = ".".join(map(str, since or ()))
    if since and not without:
        remedy = f"set enableInt64=1, or {SIZES}"
        if since > release:
            text = f"{text}; enableInt64 adds it from ONNX Runtime {words} on"
            return Refusal("int64", text, f"ship {words} or later, and {remedy}")
        return Refusal("int64", f"{text}; enableInt64 adds it", remedy)
    if since and since > release:
        return Refusal("release", f"{text} before ONNX Runtime {words}", f"ship {words} or later")
    names = list(dict.fromkeys(name for kernel in fitting for name in kernel.types.get(constraint, ())))
    likely = [name for name in names if name in ("f32", "f16")] or names[:2]  # what a user would change to
    remedy = SIZES if dtype == "i64" else f"compute this part in {' or '.join(likely)}"
    return Refusal("type", f"{text}, there are some for {', '.join(names)}", remedy)


TABLE: Mapping[str, object] = {op_type: rows for (domain, op_type), rows in kernels().items() if not domain}
"""Operators of ai.onnx with a kernel: functions of a model with such a name are kept whole until it was asked."""

COPIES: Final = ("MemcpyFromHost", "MemcpyToHost")
NHWC: Final = "com.ms.internal.nhwc"
"""The domain of what computes in that layout."""

SMALL_CONSTANT: Final = 100
"""Elements up to which a constant may be read on the CPU (kSmallInitializerThreshold)."""
FEW_BITS = frozenset({"f16", "bf16", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"})
"""Types that keep a node on the GPU."""

PREFERRED = Refusal(
    "shape_on_cpu",
    "ONNX Runtime computes shapes on the CPU (layout NCHW): its inputs are there already",
    "leave preferredLayout at NHWC, where this has no effect, or give the dimensions of the inputs sizes",
)
FORCED = Refusal("forced", "forceCpuNodeNames names it", "leave it out of that option")


def claim(graph: Graph, settings: Settings, only: Container[int] | None = None) -> Claim:
    """What WebGPU claims of one graph, not of its bodies; `only` are the nodes that are still free."""
    window = layout_window(graph.opset, settings.ort_release) if settings.nhwc else None
    if window is not None:
        refusal = Refusal("opset", window, "convert the model to such an opset, or set preferredLayout=NCHW")
        return Claim(refusals=dict.fromkeys(graph.nodes, refusal))
    kernels_by_node = answered(graph, plain_units(graph), lambda shown, unit: kernel_of(shown, unit.target, settings))
    fitting = {index: kernels_by_node[index] for index in graph.order}
    preferred = frozenset[int]() if settings.nhwc else _preferred_on_cpu(graph, fitting, plugin=settings.webgpu.plugin)
    groups, refusals = [], dict[int, Refusal]()
    for index, kernel in fitting.items():
        node = graph.nodes[index]
        if only is not None and index not in only:
            continue
        if kernel is None:
            refusals[index] = no_kernel(graph, node, settings)
        elif node.name in settings.webgpu.cpu_nodes:
            refusals[index] = FORCED
        elif index in preferred:
            refusals[index] = PREFERRED
        else:
            groups.append((node,))
    return Claim(groups=tuple(groups), refusals=refusals)


def _preferred_on_cpu(graph: Graph, fitting: Mapping[int, Kernel | None], *, plugin: bool) -> frozenset[int]:
    """Nodes with a kernel that follow what lies in the CPU's memory, as Shape's output does, and read nothing else.

    Libraries have this from onnxruntime/core/framework, where an input that is left out is a value like others, in the
    GPU's memory; the plugin has a copy of its own, which skips it.
    """
    position_of = {index: position for position, index in enumerate(graph.order)}
    anywhere = {name for name, constant in graph.initializers.items() if constant.count <= SMALL_CONSTANT}
    anywhere |= set(graph.inputs) - (graph.initializers.keys() - (graph.overridable if plugin else ()))
    anywhere |= {""} if plugin else set()
    at_cpu: set[str] = set()
    waiting: list[tuple[int, int]] = []

    def give(node: Node, names: Iterable[str]) -> None:
        """Values that lie in the CPU's memory; what reads them becomes a candidate."""
        values = set(names)
        at_cpu.update(values)
        for edge in graph.out_edges[node.index]:
            if node.outputs[edge.source_slot] in values:
                heappush(waiting, (position_of[edge.consumer], edge.consumer))

    def reads_only(node: Node, kernel: Kernel) -> bool:
        """Whether a node reads what lies in the CPU's memory or in both, none of it in less than 32 bits of float."""
        return all(
            graph.value(name).dtype not in FEW_BITS
            # A kernel that reads the value at the CPU anyway gains nothing from being there.
            and (name in anywhere or (name in at_cpu and f"in{slot}" not in kernel.on_cpu))
            for slot, name in enumerate(node.inputs)
        )

    for index, kernel in fitting.items():
        if kernel is not None:
            node = graph.nodes[index]
            give(node, (name for slot, name in enumerate(node.outputs) if name and f"out{slot}" in kernel.on_cpu))
    preferred: set[int] = set()
    seen: set[int] = set()
    while waiting:
        _, index = heappop(waiting)
        if index in seen:
            continue
        seen.add(index)
        node, kernel = graph.nodes[index], fitting[index]
        if kernel is None or reads_only(node, kernel):
            give(node, node.outputs)
            preferred |= {index} if kernel else set()
    return frozenset(preferred)


class Memory:
    """What is written in the memory of the GPU, or of the CPU; who reads what in it, in which slot.

    Slots behind a node's inputs are what its bodies read.
    """

    def __init__(self) -> None:
        self.read: dict[str, list[tuple[Node, int]]] = {}
        self.written: set[str] = set()


def memories(graph: Graph, claimed: Container[int]) -> tuple[Memory, Memory]:
    """Those of GPU and CPU. A node on the GPU keeps some values at the CPU: bounds of Clip, the shape of Reshape."""
    gpu, cpu = Memory(), Memory()
    for index, node in graph.nodes.items():
        on_gpu = index in claimed
        at_cpu = cpu_slots(node.op_type, node.domain, node.since_version) if on_gpu else frozenset[str]()
        for slot, name in enumerate((*node.inputs, *node.implicit_inputs)):
            side = gpu if on_gpu and f"in{slot}" not in at_cpu else cpu
            side.read.setdefault(name, []).append((node, slot))
        for slot, name in enumerate(node.outputs):
            (gpu if on_gpu and f"out{slot}" not in at_cpu else cpu).written.add(name)
    for side in (gpu, cpu):
        side.read.pop("", None)
        side.written.discard("")
    return gpu, cpu


def _inputs(side: Memory) -> set[str]:
    """What nodes of a side read themselves; what their bodies read is copied when one is entered."""
    return {name for name, readers in side.read.items() if any(slot < len(node.inputs) for node, slot in readers)}


def shared_constants(graph: Graph, gpu: Memory, cpu: Memory) -> set[str]:
    """Constants that nodes of both sides read: a session has them in both memories for an ONNX file alone."""
    both = _inputs(gpu) & _inputs(cpu)
    return {name for name in both if name in graph.initializers or graph.constant(name) is not None}


def crossing(graph: Graph, gpu: Memory, cpu: Memory) -> tuple[set[str], set[str]]:
    """Values that go to the GPU, and those that go from it to the CPU.

    As ONNX Runtime inserts nodes for it (TransformerMemcpyImpl in onnxruntime/core/optimizer/transformer_memcpy.cc):
    one for each value that is made in one memory and read in the other, and for inputs, and in bodies for values from
    around, that both sides read. Other inputs of the model, and its outputs, are copied with or without a provider;
    what bodies read is the affair of the node that has them.
    """
    on_gpu, on_cpu = _inputs(gpu), _inputs(cpu)
    both = (on_gpu & on_cpu) - gpu.written - cpu.written - graph.initializers.keys()
    both -= {name for name in both if graph.constant(name) is not None}  # that of a graph around
    return both | (cpu.written & on_gpu), gpu.written & on_cpu


def copies(graph: Graph, _settings: Settings, claimed: Container[int]) -> int:
    """The copies between GPU and CPU that one inference makes, for a graph of which these nodes are claimed.

    Those that are nodes of the file already count, too.
    """
    written = sum(node.op_type in COPIES for node in graph.nodes.values())
    return written + sum(map(len, crossing(graph, *memories(graph, claimed))))


def estimated(graph: Graph, settings: Settings, claimed: Container[int]) -> bool:
    """Whether ONNX Runtime may insert other copies than `copies` counts.

    In the layout NHWC it inserts Transposes and moves those that there are, nodes of quantization with them, which it
    may drop; types for which the GPU has no Transpose then go to the CPU. It drops a Cast behind a Cast, and puts some
    around what the CPU computes in half precision.
    """
    nodes = graph.nodes.values()
    on_cpu = [node for node in nodes if node.index not in claimed]
    casts = {name for node in nodes if node.op_type == "Cast" for name in node.outputs}
    cast_at_cpu = {name for node in on_cpu if node.op_type == "Cast" for name in node.outputs}
    for node in nodes:
        before = cast_at_cpu if node.index in claimed else casts
        if node.op_type == "Cast" and not before.isdisjoint(node.inputs):
            return True
    if any(graph.value(name).dtype == "f16" for node in on_cpu for name in (*node.inputs, *node.outputs)):
        return True
    if settings.nhwc and any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in nodes):
        return True
    moved = any(
        node.op_type == "Transpose" or (node.index in claimed and (NHWC, node.op_type) in kernels()) for node in nodes
    )
    if not (settings.nhwc and moved):
        return False
    movable = {name for kernel in kernels()["", "Transpose"] for name in kernel.types["T"]}
    values = (graph.value(name) for node in nodes for name in node.outputs if name)
    return bool(on_cpu) or any(value.dtype not in movable and len(value.shape or (0, 0)) > 1 for value in values)


def forecast(rounds: Iterable[tuple[Graph, Claim]], settings: Settings) -> LoadForecast:
    """The claimed nodes of all rounds, or why the session cannot be made or ends the process."""
    counts: list[int] = []
    for graph, round_claim in rounds:
        claimed = round_claim.claimed
        counts.append(len(claimed))
        fatal = next(filter(has_nameless_bias, (graph.nodes[index] for index in sorted(claimed))), None)
        problem = None
        if fatal is not None:
            problem = msgspec.structs.replace(NAMELESS_BIAS, what=NAMELESS_BIAS.what.format(mark=fatal.label))
        if problem is None and settings.webgpu.graph_capture and copies(graph, settings, claimed):
            problem = CAPTURE
        if problem is not None:
            return LoadForecast.failing(problem)
    return LoadForecast(partitions=sum(counts), rounds=tuple(counts))


CAPTURE = Refusal(
    "capture",
    "enableGraphCapture needs every node on the GPU, and some stay on the CPU",
    "leave enableGraphCapture out, or have the nodes below claimed first",
)


NAMELESS_BIAS = Refusal(
    "crash",
    "WebGPU crashes the app: {mark} lists a bias without a name",
    "drop the empty input: `ort-mobile transform --do drop-empty-inputs`, or optimize the model at level basic",
)
"""The kernels read such a bias all the same when they run (W.5)."""


def has_nameless_bias(node: Node) -> bool:
    """Whether NAMELESS_BIAS is what happens with a node on the GPU."""
    return node.op_type in ("Conv", "ConvTranspose") and node.inputs[2:3] == ("",)


def unknown_names(settings: Settings, nodes: Iterable[str]) -> tuple[str, str]:
    """Names in forceCpuNodeNames that no node has, in words, and what to do about it; "" where every one has a node."""
    shown_names = sorted({*nodes} - {""})
    unknown = [name for name in settings.webgpu.cpu_nodes if name not in shown_names]
    close = get_close_matches(unknown[0], shown_names) if unknown else []
    meant = f"did you mean {' or '.join(map(repr, close))}?" if close else "give names of nodes, one a line"
    return ", ".join(map(repr, unknown)), meant
