"""Normalizations in half precision that releases 1.23 to 1.27 do not load: what their optimizer makes of an ONNX file.

A session puts a Cast before every value in half precision that its CPU computes in float: one for each constant, which
all readers of the constant share. Then it puts constants of a single reader in without their Cast, and, where there was
one, runs the optimizations of level all again. SimplifiedLayerNormFusion among them replaces Pow by a node that has its
first input alone, and fails where the exponent comes from a Cast that is still there: from a constant of several
readers. Equal constants of few elements become one before (ConstantSharing), so that two normalizations are enough.
In float is computed what has no kernel in half precision, and what has one among such nodes (IsIsolatedFp16NodeOnCpu).
Measured with the wheels of 1.22 to 1.28 and 4,353 models (layer_norm_fusion.cc, fuse_initializers_transformer.cc,
insert_cast_transformer.cc), and with those of 1.23 to 1.27 for arm64 (release_tables.md).
"""

from array import array
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator

from pipeline.compat.release_table import FLOAT, HALF, Types, release_table
from pipeline.core.releases import Release
from pipeline.model import ort_format
from pipeline.model import types as onnx_types

INT64 = onnx_types.CODES["i64"]

FUSION = "SimplifiedLayerNormFusion"
"""The name by which an app may leave it out."""
DISABLE_KEY = "optimization.disable_specified_optimizers"
CHAIN = ("Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul")
LAYER_NORMALIZATION = 17
"""The opset that brought it."""
MEASURED = tuple(Release(1, minor) for minor in range(23, 28))
"""Their kernels in half precision are the same."""
HALF_ON_ARM64 = frozenset({"AveragePool", "Conv", "GlobalAveragePool", "MaxPool"})
"""Operators for which these have such kernels on arm64 processors that compute in half precision alone."""


def half_norms(model: ort_format.OrtModel, half: Collection[str] = ()) -> Iterator[ort_format.OrtNode]:
    """The first nodes (Pow) of the normalizations on which loading fails; `half` as HALF_ON_ARM64."""
    whole = model.opset_import.get("", model.opset_import.get(ort_format.DEFAULT_DOMAIN, 1)) >= LAYER_NORMALIZATION
    for graph in model.graph.walk():
        if any(node.op_type == CHAIN[0] for node in graph.nodes) and _has_half(graph):
            view = _View(graph, half, whole=whole)
            if view.has_lone_weight():
                yield from (chain[0] for chain in view.norms if view.is_shared(chain[0].inputs[1]))


def _has_half(graph: ort_format.OrtGraph) -> bool:
    """Whether any value of a graph is in half precision."""
    constants = (node.attributes.values() for node in graph.nodes if node.op_type == "Constant")
    values = (*graph.initializers.values(), *(entry.value for entries in constants for entry in entries))
    return any(
        isinstance(value, ort_format.Tensor) and value.data_type == onnx_types.FLOAT16 for value in values
    ) or any(
        isinstance(info, ort_format.TensorType) and info.elem_type == onnx_types.FLOAT16
        for info in graph.node_args.values()
    )


class _View:
    """A graph as the optimizer looks at it: its constants, of which small equal ones are one, and who reads them.

    `whole`: where normalizations become LayerNormalization first, which has a kernel in half precision.
    """

    def __init__(self, graph: ort_format.OrtGraph, half: Collection[str], *, whole: bool) -> None:
        self.graph, self.half = graph, half
        self.readers: dict[str, list[ort_format.OrtNode]] = defaultdict(list)
        self.makers = {name: node for node in graph.nodes for name in node.outputs}
        self.constants: dict[str, ort_format.Tensor | None] = {
            **graph.initializers
        }  # None: what constants are computed to
        for node in graph.nodes:
            for name in dict.fromkeys((*node.inputs, *node.implicit_inputs)):
                self.readers[name].append(node)
            if node.op_type == "Constant" and node.outputs:
                value = next((attribute.value for attribute in node.attributes.values()), None)
                self.constants[node.outputs[0]] = value if isinstance(value, ort_format.Tensor) else None
            elif node.inputs and all(name in self.constants for name in node.inputs if name):
                self.constants |= dict.fromkeys(node.outputs)
        self.same = self._numbered()
        chains = [chain for node in graph.nodes if (chain := self._chain(node))]
        around = [self._around(chain) if whole else [] for chain in chains]
        self.norms = [chain for chain, others in zip(chains, around, strict=True) if not others]
        self.gone = {
            node.index for chain, others in zip(chains, around, strict=True) for node in (*chain, *others) if others
        }
        self.reads: dict[int, set[Hashable]] = defaultdict(set)  # who reads the Cast of a constant
        for node in graph.nodes:
            inputs = tuple(self.same[name] for name in node.inputs)
            given = {self.same[name] for name in node.inputs if name in self.constants}
            for constant in given if node.index not in self.gone and self._in_float(node) else ():
                self.reads[constant].add((node.op_type, *inputs))

    def _numbered(self) -> dict[str, int]:
        """By the names of values a number: the same for equal constants, and for what equal nodes compute."""
        numbers: dict[Hashable, int] = defaultdict(lambda: len(numbers))
        same: dict[str, int] = defaultdict(lambda: numbers[len(numbers)])  # values from elsewhere, each its own
        for name, tensor in self.constants.items():
            equal = (tensor.data_type, tensor.dims, tensor.content) if tensor and tensor.content else name
            same[name] = numbers[equal]
        for node in self.graph.nodes:
            values = tuple(sorted((name, str(attribute.value)) for name, attribute in node.attributes.items()))
            if node.op_type == "Identity":
                same[node.outputs[0]] = same[node.inputs[0]]
                continue
            key = (node.domain, node.op_type, values, tuple(same[name] for name in node.inputs))
            for at, name in enumerate(node.outputs):
                if self.constants.get(name) is None:
                    same[name] = numbers[(*key, at)]
        return same

    def type_of(self, name: str) -> ort_format.TensorType:
        """Type and shape, 0 and None where they are not known."""
        tensor, info = self.constants.get(name), self.graph.node_args.get(name)
        if tensor:
            return ort_format.TensorType(tensor.data_type, tensor.dims)
        return info if isinstance(info, ort_format.TensorType) else ort_format.TensorType(0)

    def _in_float(self, node: ort_format.OrtNode) -> bool:
        """Whether a session puts Casts around a node: it lacks a kernel, or all around do and it has one in float."""
        if self._lacks_half(node):
            return True
        makers = [self.makers[name] for name in node.inputs if name in self.makers and name not in self.constants]
        around = [maker for maker in makers if any(self._is_half(name) for name in maker.outputs)]
        around += [reader for name in node.outputs if self._is_half(name) for reader in self.readers[name]]
        inside = not any(name in self.graph.outputs for name in node.outputs) and not any(node.subgraphs())
        alone = inside and bool(makers) and all(map(self._lacks_half, around))
        return alone and any(map(self._is_half, node.outputs)) and _has_kernel(node, self._in_single)

    def _lacks_half(self, node: ort_format.OrtNode) -> bool:
        return node.op_type not in self.half and node.index not in self.gone and not _has_kernel(node, self._in_half)

    def _is_half(self, name: str) -> bool:
        return self.type_of(name).elem_type == onnx_types.FLOAT16

    def _in_half(self, name: str) -> str:
        """The type of a value; one that is not known is in half precision as the others."""
        return onnx_types.ORT_NAMES.get(self.type_of(name).elem_type, HALF)

    def _in_single(self, name: str) -> str:
        kind = self._in_half(name)
        return FLOAT if kind == HALF else kind

    def is_shared(self, exponent: str) -> bool:
        """Whether it is a constant in half precision that several nodes read in float."""
        return self._is_half(exponent) and len(self.reads[self.same[exponent]]) > 1

    def has_lone_weight(self) -> bool:
        """Whether a constant in half precision has one reader that computes in float."""
        return any(self._is_half(name) and len(self.reads[self.same[name]]) == 1 for name in self.constants)

    def _chain(self, first: ort_format.OrtNode) -> list[ort_format.OrtNode]:
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

    def _around(self, chain: list[ort_format.OrtNode]) -> list[ort_format.OrtNode]:
        """The mean along the same axis that is subtracted before and the bias that is added behind; empty without."""
        before = self.makers.get(chain[4].inputs[0])
        mean = self.makers.get(before.inputs[1]) if before and before.op_type == "Sub" else None
        behind = self.readers[chain[5].outputs[0]]
        if not before or not mean or mean.op_type != "ReduceMean" or mean.inputs[0] != before.inputs[0]:
            return []
        whole = self._is_last(mean) and len(behind) == 1 and behind[0].op_type == "Add" and self._has_row(behind[0])
        return [mean, before, *behind] if whole else []

    def _has_row(self, node: ort_format.OrtNode) -> bool:
        shapes = [self.type_of(name).shape for name in node.inputs]
        return any(shape is not None and len(shape) == 1 for shape in shapes)

    def _is_last(self, mean: ort_format.OrtNode) -> bool:
        """Whether a mean is one along the last axis; where the axis or the rank is not known, it may be."""
        given, tensor = mean.attributes.get("axes"), self.constants.get(_second(mean))
        axes = given.value if given else array("q", tensor.content) if tensor and tensor.data_type == INT64 else None
        if not isinstance(axes, tuple | array):
            return bool(_second(mean))
        shape = self.type_of(mean.inputs[0]).shape or self.type_of(mean.outputs[0]).shape
        last = (-1, len(shape) - 1) if shape else (-1, *(axis for axis in axes if isinstance(axis, int) and axis > 0))
        return len(axes) == 1 and axes[0] in last


def _has_kernel(node: ort_format.OrtNode, types: Types) -> bool:
    return release_table().has_kernel(node, types, MEASURED[-1])


def _second(node: ort_format.OrtNode) -> str:
    return node.inputs[1] if len(node.inputs) > 1 else ""
