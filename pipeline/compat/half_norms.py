"""Normalizations in half precision that releases 1.23 to 1.27 do not load: what their optimizer makes of an ONNX file.

A session puts a Cast before every value in half precision that its CPU computes in float: one for each constant, which
all readers of the constant share. Then it puts constants of a single reader in without their Cast, and, where there was
one, runs the optimizations of level all again. SimplifiedLayerNormFusion among them replaces Pow by a node that has its
first input alone, and fails where the exponent comes from a Cast that is still there: from a constant of several
readers. Equal constants of few elements become one before (ConstantSharing), so that two normalizations are enough.
Measured with the wheels of 1.22 to 1.28 and 4,353 models (layer_norm_fusion.cc, fuse_initializers_transformer.cc).
"""

from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterator

from pipeline.model.ort_format import DEFAULT_DOMAIN, OrtGraph, OrtModel, OrtNode, Tensor, TensorType
from pipeline.model.types import CODES, FLOAT16

INT64 = CODES["i64"]

FUSION = "SimplifiedLayerNormFusion"
"""The name by which an app may leave it out."""
DISABLE_KEY = "optimization.disable_specified_optimizers"
CHAIN = ("Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul")
LAYER_NORMALIZATION = 17
"""The opset that brought it."""
WEIGHTED = frozenset({"Add", "Conv", "ConvTranspose", "Div", "Gemm", "MatMul", "Mul", "PRelu", "Pow", "Sub"})
"""Operators with weights that the CPU computes in float."""


def half_norms(model: OrtModel) -> Iterator[OrtNode]:
    """The first nodes (Pow) of the normalizations on which loading fails."""
    whole = model.opset_import.get("", model.opset_import.get(DEFAULT_DOMAIN, 1)) >= LAYER_NORMALIZATION
    for graph in model.graph.walk():
        view = _View(graph, whole=whole)
        if view.has_lone_weight():
            yield from (chain[0] for chain in view.norms if view.is_shared(chain[0].inputs[1]))


class _View:
    """A graph as the optimizer looks at it: its constants, of which small equal ones are one, and who reads them.

    `whole`: where normalizations become LayerNormalization first, which has a kernel in half precision.
    """

    def __init__(self, graph: OrtGraph, *, whole: bool) -> None:
        self.graph = graph
        self.readers: dict[str, list[OrtNode]] = defaultdict(list)
        self.makers = {name: node for node in graph.nodes for name in node.outputs}
        self.constants: dict[str, Tensor | None] = {**graph.initializers}  # None: what constants are computed to
        for node in graph.nodes:
            for name in dict.fromkeys((*node.inputs, *node.implicit_inputs)):
                self.readers[name].append(node)
            if node.op_type == "Constant" and node.outputs:
                value = next((entry.value for entry in node.attributes.values()), None)
                self.constants[node.outputs[0]] = value if isinstance(value, Tensor) else None
            elif node.inputs and all(name in self.constants for name in node.inputs if name):
                self.constants |= dict.fromkeys(node.outputs)
        self.same = self._numbered()
        chains = [chain for node in graph.nodes if (chain := self._chain(node))]
        self.norms = [chain for chain in chains if not (whole and self._is_whole(chain))]
        gone = {node.index for chain in chains if chain not in self.norms for node in chain}
        self.reads: dict[int, set[Hashable]] = defaultdict(set)
        self.computed: set[int] = set()  # constants that a node computes with in float
        for node in graph.nodes:
            inputs = tuple(self.same[name] for name in node.inputs)
            for constant in {self.same[name] for name in node.inputs if name in self.constants}:
                if node.index not in gone:
                    self.reads[constant].add((node.op_type, *inputs))
                    self.computed |= {constant} if node.op_type in WEIGHTED else set()

    def _numbered(self) -> dict[str, int]:
        """By the names of values a number: the same for equal constants, and for what equal nodes compute."""
        numbers: dict[Hashable, int] = defaultdict(lambda: len(numbers))
        same: dict[str, int] = defaultdict(lambda: numbers[len(numbers)])  # values from elsewhere, each its own
        for name, tensor in self.constants.items():
            equal = (tensor.data_type, tensor.dims, tensor.content) if tensor and tensor.content else name
            same[name] = numbers[equal]
        for node in self.graph.nodes:
            values = tuple(sorted((name, str(entry.value)) for name, entry in node.attributes.items()))
            if node.op_type == "Identity":
                same[node.outputs[0]] = same[node.inputs[0]]
                continue
            key = (node.domain, node.op_type, values, tuple(same[name] for name in node.inputs))
            for at, name in enumerate(node.outputs):
                if name not in self.constants:
                    same[name] = numbers[(*key, at)]
        return same

    def type_of(self, name: str) -> TensorType:
        """Type and shape, 0 and None where they are not known."""
        tensor, info = self.constants.get(name), self.graph.node_args.get(name)
        if tensor:
            return TensorType(tensor.data_type, tensor.dims)
        return info if isinstance(info, TensorType) else TensorType(0)

    def is_shared(self, exponent: str) -> bool:
        """Whether it is a constant in half precision that several nodes read."""
        return self.type_of(exponent).elem_type == FLOAT16 and len(self.reads[self.same[exponent]]) > 1

    def has_lone_weight(self) -> bool:
        """Whether a constant in half precision has one reader, which computes in float."""
        return any(
            self.type_of(name).elem_type == FLOAT16
            and self.same[name] in self.computed
            and len(self.reads[self.same[name]]) == 1
            for name in self.constants
        )

    def _chain(self, first: OrtNode) -> list[OrtNode]:
        """What the fusion takes that begins with a node: one axis, the last, and a scale of one dimension."""
        chain = [first] if first.op_type == CHAIN[0] and len(first.inputs) > 1 else []
        while chain and len(chain) < len(CHAIN):
            readers = self.readers[chain[-1].outputs[0]]
            after = [node for node in readers if node.op_type == CHAIN[len(chain)]]
            alone = len(readers) == 1 and chain[-1].outputs[0] not in self.graph.outputs
            chain = [*chain, after[0]] if after and (alone or chain[-1].op_type == "Sqrt") else []
        if not chain or self.same[chain[4].inputs[0]] != self.same[first.inputs[0]]:
            return []
        return chain if self._is_last(chain[1]) and self._has_row(chain[5]) else []

    def _is_whole(self, chain: list[OrtNode]) -> bool:
        """Whether a mean along the same axis is subtracted before, and a bias added behind."""
        before = self.makers.get(chain[4].inputs[0])
        mean = self.makers.get(before.inputs[1]) if before and before.op_type == "Sub" else None
        behind = self.readers[chain[5].outputs[0]]
        if not before or not mean or mean.op_type != "ReduceMean" or mean.inputs[0] != before.inputs[0]:
            return False
        return self._is_last(mean) and len(behind) == 1 and behind[0].op_type == "Add" and self._has_row(behind[0])

    def _has_row(self, node: OrtNode) -> bool:
        shapes = [self.type_of(name).shape for name in node.inputs]
        return any(shape is not None and len(shape) == 1 for shape in shapes)

    def _is_last(self, mean: OrtNode) -> bool:
        """Whether a mean is one along the last axis; where the axis or the rank is not known, it may be."""
        given, tensor = mean.attributes.get("axes"), self.constants.get(_second(mean))
        axes = given.value if given else array("q", tensor.content) if tensor and tensor.data_type == INT64 else None
        if not isinstance(axes, tuple | array):
            return bool(_second(mean))
        shape = self.type_of(mean.inputs[0]).shape or self.type_of(mean.outputs[0]).shape
        last = (-1, len(shape) - 1) if shape else (-1, *(axis for axis in axes if isinstance(axis, int) and axis > 0))
        return len(axes) == 1 and axes[0] in last


def _second(node: OrtNode) -> str:
    return node.inputs[1] if len(node.inputs) > 1 else ""
