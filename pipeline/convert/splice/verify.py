"""Whether the file that was made holds the claimed nodes as the providers were shown them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pipeline.convert.splice.claims import WholeGraph
from pipeline.convert.splice.edits import key
from pipeline.core.errors import ModelError
from pipeline.model.ort_format import OrtGraph, OrtNode, Tensor
from pipeline.partition.basic import CAST_PREFIX
from pipeline.partition.onnx_view import NEVER

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, NodeProto

MOST_NAMED = 5


def changed_claims(whole: WholeGraph, spliced: "ModelProto", saved: OrtGraph) -> tuple[str, ...]:
    """Warnings about claimed nodes that saving changed; none when all are in the file as they were.

    Saving looks up a kernel of this computer's CPU for every node: half precision nodes without one are put between
    Casts, and functions without one are inlined (ep_rules H.4.13), so the phone may claim less. ModelError when a
    claimed node is gone or changed for any other reason, which would be a defect.
    """
    before = {key(node): node for node in whole.nodes if key(node) in whole.kept}
    kept = [node for node in spliced.graph.node if _is_same(before.get(key(node)), node)]
    found = {next((name for name in node.outputs if name), ""): node for node in saved.nodes}
    changed = [node for node in kept if not _is_saved(node, found.get(key(node)))]
    unexplained = [node for node in changed if not _explained(whole, node, found.get(key(node)))]
    if unexplained:
        raise ModelError(
            "a claimed node came out changed",
            why=_names(unexplained),
            remedy="report it with the model; level basic keeps every node as it is",
        )
    return tuple(_warnings(changed))


def _warnings(changed: "list[NodeProto]") -> Iterator[str]:
    if changed:
        yield (
            f"{len(changed)} claimed nodes have no kernel on this computer's CPU and are stored otherwise "
            f"({_names(changed)}): the phone's provider may claim less"
        )


def _names(nodes: "list[NodeProto]") -> str:
    shown = [f"{node.op_type} '{node.name or key(node)}'" for node in nodes[:MOST_NAMED]]
    return ", ".join(shown) + (" …" if len(nodes) > MOST_NAMED else "")


def _is_same(before: "NodeProto | None", node: "NodeProto") -> bool:
    """Whether a spliced node is a claimed one; those that were fused or cancelled on purpose are not."""
    return before is not None and (before.op_type, before.domain) == (node.op_type, node.domain)


def _is_saved(node: "NodeProto", saved: OrtNode | None) -> bool:
    if saved is None or (_domain(node.domain), node.op_type) != (_domain(saved.domain), saved.op_type):
        return False
    if _trimmed(node.input) != _trimmed(saved.inputs) or _trimmed(node.output) != _trimmed(saved.outputs):
        return False
    return all(_same_value(a, saved.attributes[a.name].value) for a in node.attribute if a.name in saved.attributes)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _trimmed(names: Any) -> list[str]:
    """Names of slots without the empty ones at the end."""
    found = list(names)
    while found and not found[-1]:
        found.pop()
    return found


def _same_value(attribute: "AttributeProto", saved: Any) -> bool:
    """Whether a plain attribute is the saved one; tensors and bodies are compared by nothing but being there."""
    from onnx import helper

    if isinstance(saved, (Tensor, OrtGraph)):
        return True
    value = helper.get_attribute_value(attribute)
    if isinstance(value, (list, tuple)) and isinstance(saved, tuple):
        return [_plain(part) for part in value] == [_plain(part) for part in saved]
    return bool(_plain(value) == _plain(saved))


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _explained(whole: WholeGraph, node: "NodeProto", saved: OrtNode | None) -> bool:
    """Whether the CPU's lack of a kernel explains a change."""
    names = [*node.input, *node.output, *(saved.inputs if saved else ()), *(saved.outputs if saved else ())]
    half = any(whole.graph.value(name).dtype in ("f16", "bf16") for name in names if name)
    return half or node.op_type in NEVER or any(name.startswith(CAST_PREFIX) for name in names)
