"""Sound artifacts that ONNX Runtime fails to load, run or replay: each defect as measured, with its releases.

Sources: extended builds of 1.21.0 over 5,514 artifacts; the wheels of 1.20.1 to 1.31.1. Where a release was not tried,
the finding is a warning. Sums of int8 products that the kernels for ARM get wrong are read from files in ORT format
(facts: arm64_host.md 5.1, 5.5): MLAS on arm64 processors without dot product adds the products at k and k + 8 of a
block of 16 in 16 bits, and twice -128 by -128 does not fit. Unsigned values are made signed first: 0 is -128 there. Its
32-bit kernel leaves out the last products of the last row where rows are odd and values are signed.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from device_runner.spec import OptimizationLevel, RunOptions
from pipeline.compat.half_norms import DISABLE_KEY, FUSION, HALF_ON_ARM64, MEASURED, half_norms
from pipeline.config import tables as config_tables
from pipeline.core import abis as core_abis
from pipeline.core import releases as ort_releases
from pipeline.core.releases import Release
from pipeline.model import onnx_view, ort_format
from pipeline.model import types as onnx_types

if TYPE_CHECKING:
    import numpy as np

    from pipeline.compat.two_classes import OneScore


BLOCK, APART = 16, 8
"""Products of a block along K, and how far apart those are that are added in 16 bits first."""
LOWEST = -128

POSITIONS: Mapping[str, tuple[int, int]] = {
    "QLinearConv": (0, 3),
    "QLinearMatMul": (0, 3),
    "QGemm": (0, 3),
    "MatMulInteger": (0, 1),
    "MatMulIntegerToFloat": (0, 1),
    "DynamicQuantizeMatMul": (0, 1),
}
"""Operators that multiply by int8 weights, with the positions of values and weights among their inputs."""
CONVOLUTIONS = frozenset({"Conv", "QLinearConv"})
REPLAYED = frozenset({"Conv", "MatMul", "Gemm"})
"""What becomes one of them when an app replays saved runtime optimizations."""
SIGNED, EIGHT_BITS = frozenset({onnx_types.INT8}), frozenset({onnx_types.UINT8, onnx_types.INT8, onnx_types.FLOAT})
"""Types of values that are multiplied by int8 weights; DynamicQuantizeMatMul makes uint8 of floats."""

ReadWeight = Callable[[ort_format.Tensor], "np.ndarray[Any, np.dtype[np.int8]]"]

Int8Product = tuple[ort_format.OrtNode, str, ort_format.Tensor]
"""An operator of 8-bit values by int8 weights: its node, the values' name, and the weights."""


def _name(node: ort_format.OrtNode) -> str:
    return node.name or next(iter(node.outputs), node.op_type)


def weight_reader(file: Path) -> ReadWeight:
    """Reads int8 weights of a file in ORT format, in their shape."""

    def read(tensor: ort_format.Tensor) -> "np.ndarray[Any, np.dtype[np.int8]]":
        import numpy as np

        values = np.fromfile(file, dtype=np.int8, count=tensor.length, offset=tensor.offset)
        return values.reshape(tensor.dims)

    return read


def overflowing(model: ort_format.OrtModel, read: ReadWeight | None, *, replayed: bool) -> str:
    """The first operator whose weights have -128 where two products are added in 16 bits; "" without one.

    `replayed` asks for those that exist only after saved runtime optimizations are replayed. Whether the sum overflows
    depends on the values, too: where both are -128, or 0 if unsigned, often the zero of what was behind a Relu.
    """
    for graph in model.graph.walk():
        if replayed:
            products = _to_be_fused(graph) if graph.runtime_optimizations else iter(())
        else:
            products = _fused(graph, EIGHT_BITS)
        for node, _, weights in products:
            if read and _overflows(node, weights, read):
                return _name(node)
    return ""


def left_out(model: ort_format.OrtModel) -> str:
    """The first matrix product with odd rows (or not known) whose K is no multiple of 16; "" without one."""
    for graph in model.graph.walk():
        for node, values, weights in _fused(graph, SIGNED):
            dims = weights.dims or (0,)
            depth = dims[-1 if _transposed(node) or len(dims) < 2 else -2]
            info = graph.node_args.get(values)
            shape = info.shape if isinstance(info, ort_format.TensorType) else None
            rows = shape[-2] if shape and len(shape) > 1 else 1 if shape else None
            odd = not isinstance(rows, int) or rows < 0 or rows % 2 == 1
            if node.op_type != "QLinearConv" and depth % BLOCK and odd:
                return _name(node)
    return ""


def _fused(graph: ort_format.OrtGraph, kinds: frozenset[int]) -> Iterator[Int8Product]:
    for node in graph.nodes:
        values, weights = (_input(node, at) for at in POSITIONS.get(node.op_type, (-1, -1)))
        if _type(graph, values) in kinds and _type(graph, weights) == onnx_types.INT8 and weights in graph.initializers:
            yield node, values, graph.initializers[weights]


def _to_be_fused(graph: ort_format.OrtGraph) -> Iterator[Int8Product]:
    linear = (node for node in graph.nodes if node.op_type == "DequantizeLinear" and node.inputs and node.outputs)
    before = {node.outputs[0]: node.inputs[0] for node in linear}
    for node in graph.nodes:
        values, weights = (before.get(_input(node, at), "") for at in (0, 1))
        tensor = graph.initializers.get(weights)
        if (
            node.op_type in REPLAYED
            and tensor
            and tensor.data_type == onnx_types.INT8
            and _type(graph, values) in EIGHT_BITS
        ):
            yield node, values, tensor


def _input(node: ort_format.OrtNode, position: int) -> str:
    return node.inputs[position] if 0 <= position < len(node.inputs) else ""


def _type(graph: ort_format.OrtGraph, name: str) -> int:
    tensor, info = graph.initializers.get(name), graph.node_args.get(name)
    return tensor.data_type if tensor else info.elem_type if isinstance(info, ort_format.TensorType) else 0


def _transposed(node: ort_format.OrtNode) -> bool:
    given = node.attributes.get("transB")
    return given is not None and bool(given.value)


def _overflows(node: ort_format.OrtNode, weights: ort_format.Tensor, read: ReadWeight) -> bool:
    """Whether weights of a matrix product, which are there, have -128 where two products of a block are added."""
    import numpy as np

    dims, group, convolves = weights.dims, node.attributes.get("group"), node.op_type in CONVOLUTIONS
    if weights.length != math.prod(dims) or len(dims) < (3 if convolves else 1):
        return False
    if convolves and dims[1] <= 1 and group is not None and group.value == dims[0]:
        return False  # a depthwise convolution has its own kernel
    array = read(weights)
    # The weights of each output along K; a convolution's are in the order of channels last.
    if convolves:
        rows = np.moveaxis(array, 1, -1).reshape(array.shape[0], -1)
    elif array.ndim < 2:
        rows = array.reshape(1, -1)
    else:
        along = array if _transposed(node) else np.swapaxes(array, -1, -2)
        rows = along.reshape(-1, along.shape[-1])
    lowest = rows == LOWEST
    if rows.shape[1] <= APART or not lowest.any():
        return False
    padded = np.pad(lowest, ((0, 0), (0, -rows.shape[1] % BLOCK))).reshape(rows.shape[0], -1, 2, APART)
    return bool((padded[:, :, 0] & padded[:, :, 1]).any())


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


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """What an app loads an artifact with. `providers` are the library's, None when unknown; `plugins` come beside.

    `system` is the one that the library was built for (android, linux), "" when it is not known; `abis` are those
    that the app ships, by Android's names. `features` are of the processor, as Linux names them; None where any of the
    ABIs may run it. `shader_f16`: whether the device's GPU computes in half precision. `asks_replay`: whether the app
    asks for saved runtime optimizations.
    """

    release: Release
    kind: config_tables.BuildKind = config_tables.BuildKind.FULL
    providers: frozenset[str] | None = None
    plugins: frozenset[str] = frozenset()
    system: str = ""
    abis: tuple[str, ...] = ()
    features: frozenset[str] | None = None
    shader_f16: bool | None = None
    asks_replay: bool = False

    def on_sme(self) -> bool:
        """Whether an Android phone with SME may run the artifact: what is known is known of Snapdragons."""
        return self.system in ("", "android") and self.on_arm64(SME, there=True)

    def on_arm64(self, feature: str, *, there: bool) -> bool:
        """Whether an arm64 processor with a feature, or one without it, may run the artifact."""
        return core_abis.ARM64 in self.abis and (self.features is None or (feature in self.features) is there)

    @property
    def replays(self) -> bool:
        """Whether saved runtime optimizations are replayed: from 1.30 only when the app asks for it."""
        asked = self.release < REPLAY_NEEDS_KEY_SINCE or self.asks_replay
        return self.kind is not config_tables.BuildKind.MINIMAL and self.release >= RUNTIME_STYLE_SINCE and asked


class Defect(NamedTuple):
    """A defect: what marks an artifact (`find` gives the mark's words, "" without), when it shows, what then happens.

    `measured` None: in all releases. `depends`: on the processor or the values, so that it is never an error. `needs`
    is the extension without whose code a library does not have it, `mended` the first release of a line that is mended
    (1.24.4; the line itself has it). `onnx`: of ONNX files, which a session optimizes again for
    its CPU; others of ORT format; None of both. `avoided`: whether the settings of a session do without it.
    """

    name: str
    find: Callable[[ort_format.OrtModel, ReadWeight | None], str]
    shows: Callable[[Runtime], bool]
    measured: frozenset[Release] | None
    what: str
    why: str
    remedy: str
    depends: bool = False
    needs: str = ""
    mended: str = ""
    onnx: bool | None = False
    avoided: Callable[[RunOptions], bool] = lambda _: False


def marks_of(model: ort_format.OrtModel, read: ReadWeight | None = None) -> dict[str, str]:
    """The defects that an artifact may meet, by name, with the words that say where; `read` reads int8 weights."""
    onnx = model.format_version == onnx_view.ONNX_FORMAT
    return {
        defect.name: mark for defect in DEFECTS if defect.onnx in (onnx, None) and (mark := defect.find(model, read))
    }


def library_defects(release: str, processor: Runtime, extensions: Collection[str]) -> Iterator[Defect]:
    """The defects that a library has for every model that does what they are about, by its exact release and its code.

    `extensions` are those of arm64 that it has code for.
    """
    for defect in DEFECTS:
        mended = bool(defect.mended) and ort_releases.numbers_of(release) >= ort_releases.numbers_of(defect.mended)
        if defect.needs in extensions and defect.shows(processor) and not mended:
            yield defect


def _records(model: ort_format.OrtModel) -> Iterator[ort_format.RuntimeOptimization]:
    return (record for graph in model.graph.walk() for record in graph.runtime_optimizations)


def _identity_at(graph: ort_format.OrtGraph) -> str:
    """The graph output before which loading puts an Identity without a version, "" where it puts none.

    A DequantizeLinear whose readers are all QuantizeLinear with its own parameters is taken out with them. Where a
    reader gave a graph output, and what was dequantized comes from no node or had several readers, an Identity is put
    in (qdq_final_cleanup.cc). Values of the parameters are not compared here: types and shapes are.
    """
    if all(node.op_type != "DequantizeLinear" for node in graph.nodes):
        return ""
    computed = {output for node in graph.nodes for output in node.outputs}
    readers: dict[str, list[ort_format.OrtNode]] = {}  # in themselves or in their bodies
    for node in graph.nodes:
        for name in (*node.inputs, *node.implicit_inputs):
            readers.setdefault(name, []).append(node)
    for node in graph.nodes:
        pairs = readers.get(node.outputs[0], []) if _is_linear(node, "DequantizeLinear") else []
        if not pairs or node.outputs[0] in graph.outputs:
            continue
        if not all(_undoes(graph, node, reader, readers) for reader in pairs):
            continue
        ends = [reader.outputs[0] for reader in pairs if reader.outputs[0] in graph.outputs]
        if ends and (node.inputs[0] not in computed or len(pairs) > 1):
            return ends[0]
    return ""


def _is_linear(node: ort_format.OrtNode, op_type: str) -> bool:
    return node.op_type == op_type and len(node.inputs) >= 2 and len(node.outputs) == 1


def _undoes(
    graph: ort_format.OrtGraph,
    first: ort_format.OrtNode,
    second: ort_format.OrtNode,
    readers: Mapping[str, list[ort_format.OrtNode]],
) -> bool:
    """Whether a QuantizeLinear takes back what a DequantizeLinear did, and leads to one place only."""
    if not _is_linear(second, "QuantizeLinear") or len(first.inputs) != len(second.inputs):
        return False
    output = second.outputs[0]
    places = len(readers.get(output, ())) == (0 if output in graph.outputs else 1)
    return places and all(_alike(graph, *names) for names in zip(first.inputs[1:], second.inputs[1:], strict=True))


def _alike(graph: ort_format.OrtGraph, first: str, second: str) -> bool:
    if first == second:
        return first in graph.initializers
    tensors = [graph.initializers.get(name) for name in (first, second)]
    infos = [(tensor.dims, tensor.data_type) for tensor in tensors if tensor]
    return len(infos) == 2 and infos[0] == infos[1]


HALF_KERNELS = frozenset({"Add", "Conv", "Div", "GlobalAveragePool", "MaxPool", "Mul", "Relu", "Sub"})
"""Operators that the CPU computes in half precision on ARM processors that can alone (arm64_host.md 5.2).

Not Clip: from version 12 on every processor has its kernel, before none (measured with 1.20.1 and 1.32.0).
"""
MAX_POOL_NHWC = 12
"""The version of MaxPool from which on there is a kernel of half precision for channels last."""
DOT_PRODUCT, HALF_PRECISION = "asimddp", "asimdhp"
"""Features of ARM processors by Linux's names."""


def _half_nodes(model: ort_format.OrtModel) -> Iterator[ort_format.OrtNode]:
    for graph in model.graph.walk():
        halves = {name for name, info in graph.node_args.items() if getattr(info, "elem_type", 0) == onnx_types.FLOAT16}
        for node in graph.nodes:
            if node.domain == "" and node.op_type in HALF_KERNELS and not halves.isdisjoint(node.inputs[:1]):
                yield node


def _listed(nodes: Iterable[ort_format.OrtNode]) -> str:
    rows = list(nodes)
    if not rows:
        return ""
    first = f"{rows[0].op_type} '{rows[0].name or next(iter(rows[0].outputs), '')}'"
    return first + (f" and {len(rows) - 1} more" if len(rows) > 1 else "")


PRODUCTS = frozenset({"Conv", "FusedConv", "FusedMatMul", "Gemm", "FusedGemm", "MatMul"})
"""Operators whose float kernels KleidiAI has for processors with SME."""
SME = "sme"
"""A matrix unit of newer ARM processors; SM8850 and SM8845 are the first chips of Android phones with it."""

SME_TRAPS = "sme-traps"
"""Of a processor whose kernel announces SME, and on which its instructions end the process: no name of Linux's."""


def _float_products(model: ort_format.OrtModel, _: ReadWeight | None) -> str:
    return _listed(_products(model, PRODUCTS, onnx_types.FLOAT))


def _products(model: ort_format.OrtModel, operators: frozenset[str], *types: int) -> Iterator[ort_format.OrtNode]:
    for graph in model.graph.walk():
        for node in graph.nodes:
            if node.op_type in operators and _type(graph, _input(node, 0)) in types:
                yield node


INT8_SUMS = (
    "int8 sums may overflow on ARM processors without dot product, such as Cortex-A53 ({mark})",
    "two products are added in 16 bits, and twice -128 by -128 does not fit (onnxruntime issue 31573); 0 of u8 is -128",
    "keep weights within -127 to 127, or quantize them to u8 (u8u8)",
)
"""What, why and remedy of `overflowing`."""

WIDEST_BLOCK = 16
"""Channels of a block of NCHWc with AVX-512; 8 with AVX."""


def _with_sums(model: ort_format.OrtModel, _: ReadWeight | None) -> str:
    """Convolutions that add a fourth input (level all makes them of Conv and Add), whose channels fill no blocks."""
    found = []
    for graph in model.graph.walk():
        for node in graph.nodes:
            weights = graph.initializers.get(_input(node, 1))
            channels = weights.dims[0] if weights and weights.dims else 1
            if node.op_type == "FusedConv" and _input(node, 3) and channels % WIDEST_BLOCK:
                found.append(node)
    return _listed(found)


HALF_NORM_REMEDY = (
    f'set {DISABLE_KEY} = "{FUSION}" in the session config, or open it with level extended, with either of which it '
    "loads, or ship ORT format (style fixed)"
)


def _without_fusion(use: RunOptions) -> bool:
    """Whether a session leaves out the fusion: below level all, or by its name."""
    left_out = re.split(r"[;,]", use.session_config.get(DISABLE_KEY, ""))
    return use.optimization_level is not OptimizationLevel.ALL or FUSION in left_out


def _fuses_half_norms(runtime: Runtime) -> bool:
    return runtime.release in MEASURED


def _computes_half(runtime: Runtime) -> bool:
    """Whether all processors may have kernels of half precision."""
    return set(runtime.abis) == {core_abis.ARM64} and runtime.on_arm64(HALF_PRECISION, there=True)


def _half_norms(model: ort_format.OrtModel, _: ReadWeight | None) -> str:
    """Normalizations that no processor loads."""
    return _listed(half_norms(model, HALF_ON_ARM64))


def _half_norms_in_float(model: ort_format.OrtModel, _: ReadWeight | None) -> str:
    """Normalizations that processors load whose convolutions compute in half precision, and no others."""
    return "" if any(half_norms(model, HALF_ON_ARM64)) else _listed(half_norms(model))


CLASSIFIERS = frozenset({"TreeEnsembleClassifier", "TreeEnsemble", "LinearClassifier", "SVMClassifier"})
DECIDES_AT_ZERO = (Release(1, 26), Release(1, 27))
LOGISTIC_LEFT_OUT = tuple(Release(1, minor) for minor in (17, 20, 23, 24, 25, 26))
"""Where it was measured; 1.26 leaves it out of machines alone."""
TAKES_FOR_LEAVES = frozenset(Release(1, minor) for minor in (21, 22, 23))
"""1.20 has no kernel of TreeEnsemble."""


def _classifiers(
    find: Callable[[Any, ort_format.OrtModel], Iterable[ort_format.OrtNode]],
) -> Callable[[ort_format.OrtModel, ReadWeight | None], str]:
    """What finds nodes by the module of classifiers, which most models need for nothing."""

    def listed(model: ort_format.OrtModel, _: ReadWeight | None) -> str:
        if all(node.op_type not in CLASSIFIERS for graph in model.graph.walk() for node in graph.nodes):
            return ""
        from pipeline.compat import two_classes

        return _listed(find(two_classes, model))

    return listed


def _deciding(
    wrong: Callable[["OneScore"], bool], *, known: bool
) -> Callable[[ort_format.OrtModel, ReadWeight | None], str]:
    return _classifiers(
        lambda classes, model: (
            scores.node for scores in classes.one_scores(model) if scores.known is known and wrong(scores)
        )
    )


DEFECTS: tuple[Defect, ...] = (
    Defect(
        "sum-layout",
        _with_sums,
        lambda c: core_abis.X86_64 in c.abis and c.release < Release(1, 27),
        frozenset(Release(1, minor) for minor in (16, 17, 19, 20, 21, 23, 24, 26)),
        "ONNX Runtime before 1.27 fails to run {mark} of an ONNX file on x86-64",
        "its optimizer pads the channels to whole blocks, and those of what it adds not (measured with AVX-512)",
        "ship level extended or none, or ORT format (style fixed)",
        onnx=True,
    ),
    *(
        Defect(
            name,
            find,
            shows,
            frozenset(MEASURED),
            f"ONNX Runtime 1.23 to 1.27 {fails} to load normalizations in half precision of an ONNX file ({{mark}})",
            "its optimizer fuses them and looks for the Cast of an exponent that several nodes read",
            HALF_NORM_REMEDY,
            onnx=True,
            depends=depends,
            avoided=_without_fusion,
        )
        for name, find, shows, fails, depends in (
            ("half-norm", _half_norms, _fuses_half_norms, "fails", False),
            (
                "half-norm-conv",
                _half_norms_in_float,
                lambda c: _fuses_half_norms(c) and not _computes_half(c),
                "fails",
                False,
            ),
            (
                "half-norm-arm64",
                _half_norms_in_float,
                lambda c: _fuses_half_norms(c) and _computes_half(c),
                "on some processors fails",
                True,
            ),
        )
    ),
    *(
        Defect(
            f"{name}{'' if known else '-unread'}",
            _deciding(wrong, known=known),
            shows,
            measured,
            f"{releases} {{mark}}" if known else f"{releases} {{mark}} if no weight is negative",
            why,
            remedy,
            depends=not known,
            onnx=None,
        )
        for name, wrong, shows, measured, releases, why, remedy in (
            (
                "decided-at-zero",
                lambda scores: scores.decided_at_zero,
                lambda c: c.release in DECIDES_AT_ZERO,
                frozenset(DECIDES_AT_ZERO),
                "ONNX Runtime 1.26 and 1.27 compute wrong labels or scores of",
                "they take the score of two classes, a probability, as positive or negative (onnxruntime issue 28557)",
                "ship 1.28 or later, or export weights for both classes",
            ),
            (
                "left-plain",
                lambda scores: scores.left_plain,
                lambda c: c.release < Release(1, 26),
                frozenset(LOGISTIC_LEFT_OUT[:-1]),
                "ONNX Runtime before 1.26 leaves out LOGISTIC of",
                "no weight is negative, and it takes their sum as a probability (onnxruntime issue 27533)",
                "ship 1.28 or later",
            ),
        )
        for known in (True, False)
    ),
    Defect(
        "machine-left-plain",
        _classifiers(lambda classes, model: classes.plain_machines(model)),
        lambda c: c.release < Release(1, 27),
        frozenset(LOGISTIC_LEFT_OUT),
        "ONNX Runtime before 1.27 leaves out LOGISTIC of {mark}",
        "it has one score for two classes, which is given as 1 - s and s, below 0 and above 1, too",
        "ship 1.27 or later, or export scores for both classes",
        onnx=None,
    ),
    *(
        Defect(
            name,
            find,
            lambda _: True,
            None,
            f"ONNX Runtime leaves out scores of {{mark}}{when}",
            "it computes one number a row and writes no other: the rest is what the memory held before",
            "export scores for both classes, with post_transform NONE",
            depends=depends,
            onnx=None,
        )
        for name, find, when, depends in (
            ("unwritten", _classifiers(lambda classes, model: classes.unwritten(model)), "", False),
            (
                "partly-unwritten",
                _classifiers(lambda classes, model: classes.partly_unwritten(model)),
                " where no leaf votes for the second class",
                True,
            ),
        )
    ),
    Defect(
        "taken-for-leaf",
        _classifiers(lambda classes, model: classes.taken_for_leaves(model)),
        lambda c: c.release in TAKES_FOR_LEAVES,
        TAKES_FOR_LEAVES,
        "ONNX Runtime 1.21 to 1.23 compute wrong values of {mark}",
        "a root's branches to a node and to a leaf have the same number, and they take that root for a leaf",
        "ship 1.24 or later, or number the leaves otherwise",
        onnx=None,
    ),
    Defect(
        "unreplayable",
        lambda model, _: ", ".join(
            unreplayable((record.action, bool(record.produced_ops)) for record in _records(model))
        ),
        lambda c: c.replays,
        None,
        "ONNX Runtime cannot replay the fusions that it recorded ({mark})",
        "it wrote them without the operators that they produce, and fails to load that",
        "ship fixed style, or 1.30 and later without asking for replay",
    ),
    Defect(
        "young",
        lambda model, _: ", ".join(sorted({record.action for record in _records(model)} & YOUNG_ACTIONS.keys())),
        lambda c: c.replays and c.release < max(YOUNG_ACTIONS.values()),
        None,
        "ONNX Runtime before 1.24 does not know the recorded fusion {mark}",
        "a later release wrote it, and the older one refuses the file: Missing action {mark}",
        "convert with the onnxruntime of that release, ship fixed style, or ship 1.24 or later",
    ),
    Defect(
        "uncounted",
        lambda model, _: ", ".join(
            sorted({id_.rpartition(":")[0] for record in _records(model) for id_ in record.produced_ops} & UNCOUNTED)
        ),
        lambda c: c.replays and c.kind is config_tables.BuildKind.EXTENDED,
        frozenset({Release(1, 21)}),
        "an extended build fails to run the fusions to {mark} that it replays",
        "without operator schemas it does not count the inputs of operators with a variable number of them",
        "ship fixed style, or a full build",
    ),
    Defect(
        "identity",
        lambda model, _: next(filter(None, map(_identity_at, model.graph.walk())), ""),
        lambda c: c.kind is config_tables.BuildKind.EXTENDED,
        frozenset({Release(1, 21)}),
        "an extended build fails to load DequantizeLinear and QuantizeLinear that undo each other before output {mark}",
        "it puts an Identity without a version in their place: Failed to find kernel for Identity(-1)",
        "take that pair out of the model, or ship a minimal or a full build",
    ),
    Defect(
        "int8-sums",
        lambda model, read: overflowing(model, read, replayed=False),
        lambda c: c.on_arm64(DOT_PRODUCT, there=False),
        None,
        *INT8_SUMS,
        depends=True,
    ),
    Defect(
        "replayed-int8-sums",
        lambda model, read: overflowing(model, read, replayed=True),
        lambda c: c.on_arm64(DOT_PRODUCT, there=False) and c.replays,
        None,
        *INT8_SUMS,
        depends=True,
    ),
    Defect(
        "int8-rows",
        lambda model, _: left_out(model),
        lambda c: core_abis.ARM32 in c.abis,
        frozenset({Release(1, 17), Release(1, 29)}),
        "armeabi-v7a libraries leave out products of int8 by int8 ({mark})",
        "of an odd number of rows the last one lacks its last K mod 16 products",
        "quantize to u8 values (u8s8, u8u8), or ship arm64-v8a only",
        depends=True,
    ),
    Defect(
        "sme-crash",
        _float_products,
        lambda c: Release(1, 23) <= c.release <= Release(1, 24) and c.on_sme(),
        frozenset({Release(1, 23)}),
        "Android libraries of 1.23.0 to 1.24.3 crash on processors with SME: SM8850, SM8845 ({mark})",
        "KleidiAI's kernels for SME2 are taken where SME is announced: SIGILL (onnxruntime issues 26377, 27282, 27884)",
        "ship 1.24.4 or later, or exclude these chips in Google Play's device catalogue",
        depends=True,
        needs=SME,
        mended="1.24.4",
    ),
    Defect(
        "sme-values",
        _float_products,
        lambda c: c.release == Release(1, 27) and c.on_sme(),
        frozenset({Release(1, 27)}),
        "1.27 computes wrong values on SM8850, without an error ({mark})",
        "reported of a speech encoder that 1.28.0 computes right, with and without KleidiAI (sherpa-onnx issue 3845)",
        "ship 1.28 or later, or exclude the chip in Google Play's device catalogue",
        depends=True,
        needs=SME,
    ),
    Defect(
        "sme-traps",
        lambda model, _: _listed(
            (
                *_products(model, PRODUCTS, onnx_types.FLOAT),
                *_products(model, frozenset({"MatMulInteger"}), *EIGHT_BITS),
            )
        ),
        # of processors that announce SME and trap it: no phone is known to since 1.24.4
        lambda c: c.release > Release(1, 24) and SME_TRAPS in (c.features or ()) and c.on_sme(),
        frozenset({Release(1, 26), Release(1, 28), Release(1, 29)}),
        "ONNX Runtime crashes where the kernel announces SME and its instructions trap ({mark})",
        "KleidiAI's kernels are taken by what the kernel says: SIGILL while weights are packed or at the first run "
        "(docs/facts/arm64_host.md 5.6)",
        'set mlas.disable_kleidiai = "1" in the session config, with which such runs pass, or exclude the chip in '
        "Google Play's device catalogue",
        depends=True,
        needs=SME,
    ),
    Defect(
        "half-precision",
        lambda model, _: _listed(_half_nodes(model)),
        lambda c: c.on_arm64(HALF_PRECISION, there=False) or (bool(c.abis) and core_abis.ARM64 not in c.abis),
        None,
        "nodes in half precision without Casts need a processor that computes it ({mark})",
        "the file was optimized on such a processor; others, such as Cortex-A53 and x86, have no kernel: no session",
        "convert on an x86-64 computer, which puts Casts around them, or compute in f32",
        depends=True,
    ),
    Defect(
        "half-pools",
        lambda model, _: _listed(
            node for node in _half_nodes(model) if node.op_type == "MaxPool" and node.since_version < MAX_POOL_NHWC
        ),
        lambda c: c.on_arm64(HALF_PRECISION, there=True),
        frozenset({Release(1, 29)}),
        f"MaxPool in half precision before opset {MAX_POOL_NHWC} makes no session where the processor computes it "
        "({mark})",
        "loading puts it into the channels-last domain, which has no kernel of that version",
        f"convert the model to opset {MAX_POOL_NHWC} or later, or convert on an x86-64 computer, which puts Casts "
        "around it",
        depends=True,
    ),
)
