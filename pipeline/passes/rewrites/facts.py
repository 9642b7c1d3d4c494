"""What fixes know of a model, and how they put other nodes in a node's place."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.core.providers import COREML_NN, NNAPI
from pipeline.model.edit import ONNX_DOMAINS, copied, names_in, set_nodes
from pipeline.partition.answer import Settings
from pipeline.partition.graph import Graph

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto, NodeProto, TensorProto

    Array = np.ndarray[Any, Any]

MOST_NUMBERS = 1 << 22
"""Constants of more entries are not computed with: fixes keep a model's memory bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """A model as ONNX Runtime sees it, and how the provider judged it.

    `claimed` has the first outputs of claimed nodes, which fixes leave alone. `sizes` are wanted sizes of open
    dimensions by their symbolic names or as `input[axis]`.
    """

    graph: Graph
    settings: Settings
    claimed: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """The import of the default domain; 0 when there is none."""
        return self.graph.opset or 0

    @property
    def nnapi(self) -> bool:
        """Whether NNAPI is asked."""
        return self.settings.provider == NNAPI

    @property
    def neural_network(self) -> bool:
        """Whether CoreML's older format is asked."""
        return self.settings.provider == COREML_NN

    def shape(self, name: str) -> tuple[int, ...] | None:
        """All sizes of a value; None when one is open or the rank is unknown."""
        value = self.graph.value(name)
        return tuple(dim for dim in value.shape or () if dim is not None) if value.static else None

    def is_f32(self, name: str) -> bool:
        """Whether a value is a tensor of 32-bit floats."""
        return self.graph.value(name).dtype == "f32"

    def constant(self, name: str) -> "Array | None":
        """The numbers of a constant that nobody can override; None for others and for very large ones."""
        tensor = self.graph.constant(name) if name else None
        return None if tensor is None or tensor.count > MOST_NUMBERS else tensor.read()


NO_ATTRIBUTES: Mapping[str, Any] = {}


class Writer:
    """Collects the nodes and constants that take the place of one node; names are the node's output with a number."""

    def __init__(self, node: "NodeProto", taken: set[str]) -> None:
        self.base = node.output[0]
        self.taken = taken
        self.nodes: list[NodeProto] = []
        self.tensors: list[TensorProto] = []

    def fresh(self) -> str:
        """A name that nothing in the model has."""
        number = 0
        while (name := f"{self.base}__{number}") in self.taken:
            number += 1
        self.taken.add(name)
        return name

    def add(self, op_type: str, *inputs: str, into: str = "", attributes: Mapping[str, Any] = NO_ATTRIBUTES) -> str:
        """Append a node of one output and return that output's name: `into`, or a fresh one."""
        from onnx import helper

        output = into or self.fresh()
        name = f"{output}/{op_type}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=name, **attributes))
        return output

    def constant(self, array: Any, dtype: str = "float32") -> str:
        """Add an initializer and return its name."""
        import numpy as np
        from onnx import numpy_helper

        name = self.fresh()
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(np.asarray(array, dtype=dtype)), name))
        return name

    def integers(self, *numbers: int) -> str:
        """Add a list of 64-bit integers: shapes, axes, starts."""
        return self.constant(numbers, "int64")


Rule = Callable[["NodeProto", GraphFacts, Writer], bool]
"""Writes what takes the place of a node; False when it does not apply, whatever it wrote until then is dropped."""


def rewrite(model: "ModelProto", facts: GraphFacts, rules: Mapping[str, Rule]) -> "ModelProto | None":
    """A copy in which refused nodes of the main graph are replaced by rule of their operator; None when none is.

    Nodes that compute on dequantized values are left alone: providers take them with their QDQ neighbours as one unit.
    """
    changed = copied(model)
    graph = changed.graph
    taken = names_in(graph)
    dequantized = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    kept: list[NodeProto] = []
    replaced = 0
    for node in model.graph.node:
        written = None if dequantized & set(node.input) else _replacement(node, facts, rules, taken)
        replaced += written is not None
        kept.extend(written.nodes if written else (node,))
        graph.initializer.extend(written.tensors if written else ())
    set_nodes(graph, kept)
    return changed if replaced else None


def _replacement(node: "NodeProto", facts: GraphFacts, rules: Mapping[str, Rule], taken: set[str]) -> Writer | None:
    rule = rules.get(node.op_type) if node.domain in ONNX_DOMAINS else None
    outputs = [name for name in node.output if name]
    if rule is None or len(outputs) != 1 or outputs != [node.output[0]] or outputs[0] in facts.claimed:
        return None
    written = Writer(node, taken)
    return written if rule(node, facts, written) else None
