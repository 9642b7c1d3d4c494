"""What a WebGPU session takes and then fails on, crashes on or computes wrongly, by its graph.

WebGPU's kernels are chosen by operator, opset and types alone (docs/facts/webgpu.md, W.2.1); what a kernel cannot do
shows at its first run, and in an ORT format file no copies are inserted between the memories of GPU and CPU. Each row
of `RULES`, which all commands ask, was measured with ONNX Runtime 1.29.0 for Android and with plugin 0.4.0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from pipeline.core import errors as core_errors
from pipeline.core.errors import Finding, Severity
from pipeline.partition.answer import Settings, layout_window
from pipeline.partition.claiming import claim, copies_of
from pipeline.partition.graph import Graph, Node, bodies, named
from pipeline.partition.outline import left_over
from pipeline.partition.provider_claims import FileRun
from pipeline.partition.units import Unit, plain_units
from pipeline.providers.webgpu.kernels import (
    NAMELESS_BIAS,
    QUANTIZED,
    crossing,
    has_nameless_bias,
    memories,
    shared_constants,
    unknown_names,
)
from pipeline.providers.webgpu.layout import moved_to_cpu

MOST_NAMED = 4
OF_QUANTIZED = "webgpu-quantized"
"""The rule that is about what copies cost: such a model runs."""


@dataclass(frozen=True, kw_only=True)
class GpuFile:
    """A graph of a file, main or a body, as WebGPU is given it, in ORT format or not.

    `half` says whether the GPU has shader-f16, None: unknown.
    """

    graph: Graph
    ort_format: bool
    settings: Settings
    half: bool | None

    @cached_property
    def claimed(self) -> frozenset[int]:
        """The indices of the nodes that run on the GPU."""
        return claim(self.graph, self.settings).claimed

    def shape(self, node: Node, slot: int) -> tuple[int | None, ...] | None:
        """The shape of an input, be it a constant."""
        name = node.inputs[slot] if slot < len(node.inputs) else ""
        constant = self.graph.constant(name)
        return self.graph.value(name).shape if constant is None else constant.dims

    def dtype(self, name: str) -> str | None:
        """The type of a value, be it a constant."""
        constant = self.graph.constant(name)
        return self.graph.value(name).dtype if constant is None else constant.dtype

    def rank(self, node: Node, slot: int = 0) -> int | None:
        """The number of dimensions of an input; None where it is not known."""
        shape = self.shape(node, slot)
        return None if shape is None else len(shape)


def _nodes(holds: Callable[[GpuFile, Node], bool]) -> Callable[[GpuFile], str]:
    def find(file: GpuFile) -> str:
        def spared(shown: Graph, unit: Unit) -> bool:
            return not holds(replace(file, graph=shown), unit.target)

        units = (unit.target for unit in left_over(file.graph, plain_units(file.graph), spared))
        held = [node for node in units if node.index in file.claimed and holds(file, node)]
        return named(sorted(held, key=lambda node: node.index), MOST_NAMED)

    return find


def _alone(file: GpuFile) -> str:
    """Nodes of an ORT format file that read in one memory what is made in the other, without a copy between."""
    if not file.ort_format:
        return ""
    graph = file.graph
    gpu, cpu = memories(graph, file.claimed)
    alone = shared_constants(graph, gpu, cpu).union(*crossing(graph, gpu, cpu))
    readers = [node for side in (gpu, cpu) for name in alone for node, _ in side.read.get(name, ())]
    return named({node.index: node for node in readers}.values(), MOST_NAMED)


def _moved(file: GpuFile) -> str:
    """Nodes of an ORT format file behind or before which the session sets a Transpose that goes to the CPU."""
    return named(moved_to_cpu(file.graph, file.settings, file.claimed), MOST_NAMED) if file.ort_format else ""


def vector(size: int) -> int:
    """How many elements a shader of so many channels takes at once (GetMaxComponents)."""
    return next(components for components in (4, 2, 1) if size % components == 0)


def _grouped(file: GpuFile, node: Node) -> bool:
    """A Conv of groups whose shader takes so many outputs at once as divide them all, and not those of a group.

    It does from four outputs in a group on (onnxruntime/core/providers/webgpu/nn/conv.cc). In NCHW all are right.
    """
    group = node.attributes.get("group", 1)
    if node.op_type not in ("Conv", "FusedConv") or not file.settings.nhwc or group == 1:
        return False
    features = (file.shape(node, 1) or (None,))[0]
    return features is not None and features // group >= 4 and (features // group) % vector(features) != 0


def _softmax(file: GpuFile, node: Node) -> bool:
    """A Softmax over several axes, as one of opset 12 and before is, whose last does not divide as they together do."""
    shape = file.shape(node, 0)
    if node.op_type != "Softmax" or node.since_version >= 13 or not shape:
        return False
    joined = shape[int(node.attributes.get("axis", 1)) % len(shape) :]
    last = joined[-1] if joined else None
    if last is None:
        return False
    # An even dimension makes the product even, whatever the others are.
    known = [size for size in joined if size is not None]
    return last % vector(prod(known)) != 0


def _thirds(file: GpuFile, node: Node) -> bool:
    """A Conv whose shader reads channels by threes and writes them by fours: the library mixes the two up.

    Measured with 3 to 66 channels: wrong where they are a multiple of 3, not of 4 and more than 3, outputs are one of
    4, and the kernel is larger than one element. In NCHW all are right.
    """
    if node.op_type not in ("Conv", "FusedConv") or not file.settings.nhwc or node.attributes.get("group", 1) != 1:
        return False
    features, channels, *kernel = file.shape(node, 1) or (0, 0)
    if None in (features, channels, *kernel) or set(kernel) <= {1}:
        return False
    return bool(channels and features and channels > 3 and channels % 3 == 0 and channels % 4 and features % 4 == 0)


def _quantized(file: GpuFile) -> str:
    nodes = [node for node in file.graph.nodes.values() if QUANTIZED.fullmatch(node.op_type)]
    if not nodes:
        return ""
    copies = copies_of(file.graph, file.settings, file.claimed) or 0
    return f"{len(nodes)} nodes quantize ({named(nodes, MOST_NAMED)}), which costs {copies} copies per inference"


def _other_axes(file: GpuFile, node: Node) -> bool:
    """Whether a linear Resize scales other axes than the last two; False where sizes are not known."""
    if node.op_type != "Resize" or node.attributes.get("mode") not in ("linear", b"linear"):
        return False
    shape, scaled = file.shape(node, 0), file.graph.value(node.first_output).shape
    scales = file.graph.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if scales is not None and scales.count:
        changed = [scale != 1 for scale in scales.numbers()]
    elif shape and scaled and len(shape) == len(scaled):
        changed = [None not in (a, b) and a != b for a, b in zip(shape, scaled, strict=True)]
    else:
        return False
    return any(changed[:-2])


def _empty(file: GpuFile, node: Node) -> bool:
    """Whether it reads or makes a tensor without elements: of its data, not of its settings (a Resize's `roi`)."""
    data = node.inputs if node.op_type in ("MatMul", "Gemm", "Concat") else node.inputs[:1]
    shapes = [file.graph.value(name).shape for name in (*data, *node.outputs) if name]
    shapes += [constant.dims for name in data if (constant := file.graph.constant(name))]
    return any(shape is not None and 0 in shape for shape in shapes)


REDUCTIONS = frozenset((
    "ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
))  # fmt: skip


def _unable(file: GpuFile, node: Node) -> bool:
    """What a kernel is registered for and refuses when it runs (W.5)."""
    rank, attributes = file.rank(node), node.attributes
    match node.op_type:
        case "MaxPool":
            return len(node.outputs) > 1 or attributes.get("storage_order") == 1
        case "Conv" | "FusedConv":
            return rank is not None and (rank > 5 or (rank == 5 and attributes.get("group", 1) != 1))
        case "ConvTranspose":
            return rank is not None and rank > 4
        case "BatchNormalization":
            return attributes.get("training_mode") == 1 or len([name for name in node.outputs if name]) > 1
        case "GridSample":
            return rank is not None and rank > 4
        case "Resize":
            linear = attributes.get("mode") in ("linear", b"linear")
            return attributes.get("antialias") == 1 or (rank is not None and rank > 4 and linear)
        case "Softmax":
            return _softmax(file, node) or (
                node.since_version < 13 and attributes.get("axis") == 0 and rank not in (None, 1)
            )
    return node.op_type in REDUCTIONS and rank is None and file.graph.value(node.inputs[0]).dtype is not None


def _rule(
    name: str, find: Callable[[GpuFile], str], what: str, remedy: str
) -> core_errors.FindingRule[Sequence[GpuFile]]:
    """A way to fail: what of a file's graphs shows it in words ("" where nothing does), what happens, the remedy."""

    def applies(parts: Sequence[GpuFile]) -> Mapping[str, object]:
        mark = next(filter(None, map(find, parts)), "")
        return {"mark": mark} if mark else {}

    return core_errors.FindingRule(
        applies, Severity.ERROR, what, remedy=remedy, code=f"webgpu-{name.replace(' ', '-')}"
    )


def _nameless(parts: Sequence[GpuFile]) -> Mapping[str, object]:
    names, remedy = unknown_names(
        parts[0].settings, (node.name for part in parts for node in part.graph.nodes.values())
    )
    return {"names": names, "remedy": remedy} if names else {}


MOVED = _rule(
    "moved",
    _moved,
    "WebGPU fails at the first run or gives garbage in the layout NHWC: a session moves a Transpose to {mark}, of a "
    "type for which the GPU has none, and an ORT format file copies nothing between GPU and CPU",
    "set preferredLayout=NCHW, or ship the format .onnx (variants `*-onnx`)",
)

RULES: tuple[core_errors.FindingRule[Sequence[GpuFile]], ...] = (
    core_errors.FindingRule(
        _nameless, Severity.ERROR, "forceCpuNodeNames names {names}, and the file has no such node",
        "WebGPU ignores such a name", "{remedy}", "webgpu-forced",
    ),
    _rule(
        "empty bias", _nodes(lambda _, node: has_nameless_bias(node)), NAMELESS_BIAS.what, NAMELESS_BIAS.remedy,
    ),
    _rule(
        "empty tensor", _nodes(_empty), "WebGPU fails, or crashes the app: {mark} has a tensor without elements",
        "give its dimensions sizes above 0, or leave it to the CPU (forceCpuNodeNames, of an .onnx file)",
    ),
    _rule(
        "fused sum", _nodes(lambda _, node: node.op_type == "FusedConv" and "".join(node.inputs[3:]) != ""),
        "WebGPU computes wrong numbers: {mark} adds a fourth input (a residual), which it ignores",
        "ship level basic, or the format .onnx: level all fuses this for the CPU",
    ),
    _rule(
        "channels", _nodes(_thirds),
        "WebGPU computes wrong numbers in the layout NHWC: the input channels of {mark} are a multiple of 3, not of 4",
        "set preferredLayout=NCHW, or pad the channels to a multiple of 4 with weights of 0",
    ),
    _rule(
        "groups", _nodes(_grouped),
        "WebGPU computes wrong numbers in the layout NHWC: the outputs of a group of {mark} do not divide as all do",
        "set preferredLayout=NCHW, or pad the outputs of each group to a multiple of 4 with weights of 0",
    ),
    _rule(
        "normalization",  # it takes its rows for channels
        _nodes(lambda file, node: (
            node.op_type == "BatchNormalization" and not file.settings.nhwc and file.rank(node) == 2
        )),
        "WebGPU computes wrong numbers in the layout NCHW: {mark} has two dimensions",
        "leave preferredLayout at NHWC, or ship level basic, which may fold it into the Gemm before it",
    ),
    _rule(
        "resize", _nodes(_other_axes),
        "WebGPU computes wrong numbers: {mark} scales linearly along other axes than the last two",
        "resize in NCHW (a Transpose before and behind), or leave it to the CPU (forceCpuNodeNames, of an .onnx file)",
    ),
    _rule(
        "memories", _alone,
        "WebGPU fails at the first run or gives garbage: an ORT format file copies nothing between GPU and CPU, and "
        "{mark} would read in one memory what is made in the other",
        "make the file for WebGPU (`convert --ep webgpu`, variants `*-webgpu`), which writes the copies into it (from "
        "level extended on it may need preferredLayout=NCHW), or ship the format .onnx (variants `*-onnx`)",
    ),
    MOVED,
    _rule(
        "fused layout",
        lambda file: named((
            node for node in file.graph.nodes.values()
            if file.ort_format and file.settings.nhwc and node.op_type == "FusedConv"
        ), MOST_NAMED),
        "WebGPU does not load it: an ORT format file cannot change the layout of {mark}",
        "set preferredLayout=NCHW, or ship level basic, or the format .onnx",
    ),
    _rule(
        "opset",
        lambda file: (layout_window(file.graph.opset, file.settings.ort_release) or "") if file.settings.nhwc else "",
        "WebGPU takes no node: {mark}",
        "convert the model to a later opset, or set preferredLayout=NCHW",
    ),
    _rule(
        "quantized", _quantized, "WebGPU has no quantized operators: {mark}",
        "ship the float or fp16 model to GPUs, or 4-bit or 8-bit weights (MatMulNBits)",
    ),
    _rule(
        "half",
        _nodes(lambda file, node: file.half is False and any(
            file.dtype(name) == "f16" for name in (*node.inputs, *node.outputs)
        )),
        "this GPU has no half precision (shader-f16), which {mark} computes in",
        "ship the float model to this class of devices",
    ),
    _rule(
        # Sums that 16 bits do not hold, which CPUs add up in 32: 256 squared is infinite.
        "half sums",
        _nodes(lambda file, node: (
            node.op_type in ("ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")
            and file.graph.value(node.inputs[0]).dtype == "f16"
        )),
        "WebGPU overflows in half precision: {mark} adds up squares (infinite from 256 on) or exponentials (from 11)",
        "keep it in float: the pass fp16 of the float model does, or a Cast before and behind it",
    ),
    _rule(
        "kernel", _nodes(_unable), "WebGPU takes {mark}, and the first run fails",
        "leave it to the CPU (forceCpuNodeNames, of an .onnx file), or write it otherwise",
    ),
)  # fmt: skip


def _parts(graph: Graph, settings: Settings, *, ort_format: bool, half: bool | None = None) -> Sequence[GpuFile]:
    graphs = (graph, *(body for _, body in bodies(graph)))
    return [GpuFile(graph=part, ort_format=ort_format, settings=settings, half=half) for part in graphs]


def moved(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Why a file of this graph in ORT format does not run, its copies aside, where the .onnx file does."""
    yield from core_errors.findings((MOVED,), _parts(graph, settings, ort_format=True), "")


def run_findings(run: FileRun) -> Iterator[Finding]:
    """Why a session does not run a file, the bodies of its graph included, each as an error."""
    parts = _parts(run.graph, run.settings, ort_format=run.ort_format, half=run.half)
    yield from core_errors.findings(RULES, parts, run.where)
