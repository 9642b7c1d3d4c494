"""Resize in the modes that providers take, where they are provably the same."""

from typing import TYPE_CHECKING, Any

from pipeline.passes.rewrites.facts import GraphFacts, Writer, attribute, operand

if TYPE_CHECKING:
    from onnx import NodeProto

MODERN = 11
"""Opset from which Resize has coordinate modes."""

OPTIONAL_SINCE = 13
"""Opset from which the region and the scales may be left out; before, both are there, empty where they do not count."""

CENTRED = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
ROUNDED = ("round_prefer_floor", "round_prefer_ceil")


def equal_resize(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """Resize with another name for the same positions, and without inputs that are empty and may be left out.

    Nearest, enlarged by whole numbers s: output q*s+r reads (q*s+r+0.5)/s-0.5, which lies within 0.5 of q and never
    at the border, so each rounding gives q; asymmetric with floor gives floor(q+r/s) = q. Linear: half_pixel and
    pytorch_half_pixel differ only where an output has size 1.
    """
    if known.opset < MODERN:
        return False
    before = _modes(node)
    after = _equal_modes(node, known, before)
    needed = 1 if known.opset >= OPTIONAL_SINCE else 3
    inputs = [name if slot < needed or not _is_empty(known, name) else "" for slot, name in enumerate(node.input)]
    while inputs and not inputs[-1]:
        inputs.pop()
    if after == before and inputs == list(node.input):
        return False
    kept = {a.name: attribute(node, a.name) for a in node.attribute if a.name not in after}
    write.add("Resize", *inputs, into=node.output[0], **kept, **after)
    return True


def _modes(node: "NodeProto") -> dict[str, Any]:
    """How positions are chosen, with the defaults of the operator."""
    found = {"coordinate_transformation_mode": attribute(node, "coordinate_transformation_mode", "half_pixel")}
    if attribute(node, "mode", "nearest") == "nearest":
        found["nearest_mode"] = attribute(node, "nearest_mode", "round_prefer_floor")
    return found


def _equal_modes(node: "NodeProto", known: GraphFacts, modes: dict[str, Any]) -> dict[str, Any]:
    coordinates = modes["coordinate_transformation_mode"]
    plain = not attribute(node, "antialias", 0) and not attribute(node, "exclude_outside", 0)
    factors = _factors(node, known)
    if not plain or coordinates not in CENTRED or factors is None or any(attribute(node, "axes", [])):
        return modes
    whole = all(factor >= 1 and factor.is_integer() for factor in factors)
    if "nearest_mode" in modes:
        same = whole and modes["nearest_mode"] in ROUNDED
        return {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} if same else modes
    output = known.shape(node.output[0]) or (1,)
    same = coordinates == "pytorch_half_pixel" and all(
        size > 1 or f == 1 for size, f in zip(output, factors, strict=False)
    )
    return {"coordinate_transformation_mode": "half_pixel"} if same else modes


def _factors(node: "NodeProto", known: GraphFacts) -> list[float] | None:
    """By how much each axis grows, from constant scales or static sizes; None when not known."""
    scales = known.constant(operand(node, 2))
    if scales is not None and scales.size:
        return [float(scale) for scale in scales.reshape(-1)]
    before, after = known.shape(node.input[0]), known.shape(node.output[0])
    if not operand(node, 3) or before is None or after is None or 0 in before:
        return None
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    return [b / a for a, b in zip(before, after, strict=True)] if policy == "stretch" else None


def _is_empty(known: GraphFacts, name: str) -> bool:
    found = known.graph.constant(name) if name else None
    return found is not None and found.count == 0
