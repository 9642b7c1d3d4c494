"""Claimed nodes that a fusion for the CPU took into a node of its own, found in the file that a session saved.

ONNX Runtime asks who runs the node that a fusion begins with; some never ask about its neighbours (1.23 to 1.32, see
`FUSIONS`). A phone partitions a file of level basic before it fuses anything, and keeps them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from pipeline.convert.request import SessionSettings
from pipeline.convert.steps import OrtParts
from pipeline.core.errors import ModelError
from pipeline.core.variant import Level
from pipeline.model import edit as onnx_edit
from pipeline.model import ort_format
from pipeline.partition import library_claims

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

FUSIONS = ("ConvAddActivationFusion", "QDQSelectorActionTransformer")
"""Optimizers that take claimed neighbours into a node of the CPU's: the Add and the activation behind a Conv; the
DequantizeLinear and QuantizeLinear nodes around another."""
REWRITES = ("ReluQuantRewrite", "ClipQuantRewrite", "NhwcTransformer")
"""Those that remove claimed nodes: an activation before a QuantizeLinear that does the same, whoever runs them;
Transposes that meet those of another layout."""


MOST_TRIES = 8
"""Files of one level until one keeps all claims: what is held back may make room for another fusion."""
MOST_NAMED = 5

Key: TypeAlias = tuple[str, str]
"""Operator and first output, without the numbers that differ from session to session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swallowed:
    """Claimed nodes that a file lost, as operator and first output; `by` are the CPU's nodes that were fused with them.

    The latter by the key of the claims provider (`node_key`).
    """

    lost: tuple[str, ...] = ()
    by: frozenset[str] = frozenset()


def hold_back(
    save: Callable[[Collection[str], SessionSettings], OrtParts],
    shown: "GraphProto",
    claims: frozenset[str],
    settings: SessionSettings,
    *,
    fuses: bool,
) -> tuple[OrtParts, tuple[str, ...]]:
    """The file that `save` makes with claims; of level basic and with a warning where fusions swallow any at this one.

    The CPU's nodes that such fusions begin with are held back, as if they were claimed too: on the phone they stand
    alone, since their neighbours are the provider's when it fuses. ModelError when the claims are refused.
    """
    held, left_out, loss = frozenset[str](), tuple[str, ...](), Swallowed()
    for _ in range(MOST_TRIES):
        try:
            parts = save(claims | held, replace(settings, left_out=left_out))
        except ModelError:
            if not held:
                raise
            break  # a node of the CPU may need Casts, which none that is claimed gets
        if settings.level is Level.BASIC:  # nothing is fused once the provider was asked
            return parts, ()
        loss = swallowed(shown, claims, parts.read().graph, fuses=fuses)
        if not loss.lost:
            return parts, ()
        if not loss.by <= held:
            held |= loss.by
        elif not left_out:
            left_out = REWRITES
        else:
            break
    return save(claims, replace(settings, level=Level.BASIC)), (_only_basic(loss.lost, settings.level),)


def switch_off(
    save: Callable[[SessionSettings], OrtParts],
    shown: "GraphProto",
    claims: frozenset[str],
    settings: SessionSettings,
) -> tuple[OrtParts, tuple[str, ...]]:
    """The same of a session that asks its own provider: optimizers are off, one more at a time, until none is lost.

    What its level basic does not have either has another name there: a warning says so. Nodes that our rules claim and
    that were fused with each other are none that it claims.
    """

    def lost_by(parts: OrtParts) -> set[str]:
        return {*swallowed(shown, claims, parts.read().graph, fuses=True).lost}

    best = save(settings)
    lost, beyond = lost_by(best), set[str]()
    if lost and settings.level is not Level.BASIC:
        basic = save(replace(settings, level=Level.BASIC))
        beyond = lost & lost_by(basic)
        left_out: tuple[str, ...] = ()
        for optimizer in (*FUSIONS, *REWRITES):
            if lost <= beyond:
                break
            parts = save(replace(settings, left_out=(*left_out, optimizer)))
            if len(less := lost_by(parts)) < len(lost):
                best, lost, left_out = parts, less, (*left_out, optimizer)
        if not lost <= beyond:
            return basic, (_only_basic(sorted(lost - beyond), settings.level),)
    if not lost:
        return best, ()
    nodes = _listed(sorted(lost))
    return best, (f"{len(lost)} nodes that our rules claim are not in the library's file: {nodes}",)


def _only_basic(lost: Sequence[str], level: Level) -> str:
    return (
        f"it is of level basic: level {level.value} would take {len(lost)} claimed nodes from the provider "
        f"({_listed(lost)})"
    )


def _listed(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:MOST_NAMED]) + " …" * (len(nodes) > MOST_NAMED)


def swallowed(shown: "GraphProto", claims: Collection[str], saved: ort_format.OrtGraph, *, fuses: bool) -> Swallowed:
    """What of `claims` (node keys of `shown` and its bodies) is gone from a file.

    A provider that `fuses` has fusions of its own: what they make of claimed nodes alone is no loss.
    """
    nodes = {
        _key(node.op_type, onnx_edit.first_output(node)): node
        for graph in onnx_edit.subgraphs(shown)
        for node in graph.node
    }
    after = {
        _key(node.op_type, next((name for name in node.outputs if name), "")): node
        for part in saved.walk()
        for node in part.nodes
    }
    gone = {key: node for key, node in nodes.items() if key not in after}
    claimed = {key for key in gone if node_name(gone[key]) in claims}
    if not claimed:
        return Swallowed()

    # Each new node stands for those that are gone between its outputs and its inputs.
    maker = {name: key for key, node in nodes.items() for name in node.output if name}
    lost = set(claimed)
    by: set[str] = set()
    for node in (node for key, node in after.items() if key not in nodes):
        region = _behind(node, gone, maker)
        taken = region & claimed
        if not taken or taken == region:
            lost -= region if fuses else set()
            continue
        kinds = {gone[key].op_type for key in region - taken}
        # An Add may be fused with the Conv before either of its inputs: the other waits for its turn.
        beside = {maker[read] for key in taken for read in gone[key].input if read in maker}
        by |= {node_name(gone[key]) for key in region - taken}
        by |= {node_name(nodes[key]) for key in beside if nodes[key].op_type in kinds} - {*claims}
    return Swallowed(
        lost=tuple(sorted(f"{gone[key].op_type} '{onnx_edit.first_output(gone[key])}'" for key in lost)),
        by=frozenset(by),
    )


def _behind(node: ort_format.OrtNode, gone: "Mapping[Key, NodeProto]", maker: "Mapping[str, Key]") -> set[Key]:
    """The nodes that are gone and that a new node computes."""
    region: set[Key] = set()
    waiting = [name for name in node.outputs if name]
    while waiting:
        name = waiting.pop()
        if name in maker and (key := maker[name]) in gone and key not in region:
            region.add(key)
            waiting += [read for read in gone[key].input if read not in node.inputs]
    return region


def node_name(node: "NodeProto") -> str:
    """What the claims provider knows a node by."""
    return f"{node.op_type} {onnx_edit.first_output(node)}"


def _key(op_type: str, output: str) -> Key:
    return op_type, library_claims.plain_name(output)
