"""Where samples lie in a value, and what rules know of the model while they follow them through it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.passes.edit import fresh_name
from pipeline.passes.rewrites.facts import attribute, operand

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

    from pipeline.partition.graph import Value


class Batch(NamedTuple):
    """The axis of a value on which samples lie one after the other, each with `inner` entries."""

    axis: int
    inner: int = 1


@dataclass(slots=True, kw_only=True)
class Walk:
    """What rules know: values before the change, where their batch lies, constants, and the sizes before and after.

    Rules may give a node other constant inputs; what they add is in `tensors`, and in `nodes` what comes before it.
    """

    types: "Mapping[str, Value]"
    constants: Mapping[str, Any]
    opset: int
    before: int
    after: int
    taken: set[str]
    batches: dict[str, Batch] = field(default_factory=dict)
    tensors: "list[TensorProto]" = field(default_factory=list)
    nodes: "list[NodeProto]" = field(default_factory=list)

    def shape(self, name: str) -> tuple[int | None, ...]:
        """Sizes of a value as they were; nothing for an unknown rank, which no rule then accepts."""
        known = self.types.get(name)
        return known.shape or () if known else ()

    def of(self, node: "NodeProto", slot: int) -> Batch | None:
        """Where the batch of an input lies; None where it has none."""
        return self.batches.get(operand(node, slot))

    def integers(self, node: "NodeProto", slot: int) -> list[int] | None:
        """The numbers of a constant input; None for others."""
        found = self.constants.get(operand(node, slot))
        return None if found is None else [int(number) for number in found.reshape(-1)]

    def replace(self, node: "NodeProto", slot: int, numbers: Sequence[int]) -> None:
        """Give a node other integers in a slot."""
        node.input[slot] = self.constant(numbers, f"{node.output[0]}/{slot}")

    def constant(self, numbers: Sequence[int], base: str) -> str:
        """Add a list of 64-bit integers and return its name."""
        import numpy as np
        from onnx import numpy_helper

        name = fresh_name(base, self.taken)
        self.tensors.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def expand(self, node: "NodeProto", slot: int, axis: int) -> bool:
        """Repeat an input that is the same for every sample along an axis of size 1; whether that is possible."""
        from onnx import helper

        shape = self.shape(node.input[slot])
        if self.before != 1 or not axis < len(shape) or shape[axis] != 1:
            return False
        target = [self.after if place == axis else 1 for place in range(len(shape))]
        name = fresh_name(f"{node.input[slot]}/batch", self.taken)
        sizes = self.constant(target, f"{name}/shape")
        self.nodes.append(helper.make_node("Expand", [node.input[slot], sizes], [name], name=name))
        node.input[slot] = name
        return True


Found = Batch | None | tuple[Batch | None, ...]
"""One place for all outputs, or one for each."""

BatchRule = Callable[["NodeProto", Walk], Found]
"""Where the batch of a node's outputs lies; None when samples may mix, or it cannot be seen that they do not."""


def axis_of(node: "NodeProto", rank: int, default: int) -> int:
    """The attribute `axis` of a node on a value of that rank, not below 0."""
    axis = int(attribute(node, "axis", default))
    return axis + rank if axis < 0 else axis


def only(node: "NodeProto", walk: Walk, *slots: int) -> bool:
    """Whether no other inputs than these have a batch."""
    return all(walk.of(node, slot) is None for slot in range(len(node.input)) if slot not in slots)


def without(found: Batch, axes: Sequence[int], *, keep: bool) -> Batch | None:
    """Where a batch lies once axes are gone, or are 1 with `keep`; None when its own is among them."""
    if found.axis in axes:
        return None
    return found if keep else Batch(found.axis - sum(axis < found.axis for axis in axes), found.inner)


def axes_of(node: "NodeProto", walk: Walk, rank: int, slot: int = 1) -> list[int] | None:
    """Axes of a node as an attribute or a constant input, none below 0; None where they are not given."""
    given = attribute(node, "axes")
    given = walk.integers(node, slot) if given is None else given
    return None if not given else [axis + rank if axis < 0 else axis for axis in given]
