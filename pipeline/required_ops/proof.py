"""The proof that a build with given required operators runs a model: every need is met, or a line is missing."""

from collections.abc import Iterable

import msgspec

from pipeline.required_ops.needs import Needs, from_needs
from pipeline.required_ops.text import operator_lines, render
from pipeline.required_ops.value import ALWAYS_KEPT, INPUTS, TYPE_AGNOSTIC, TYPE_SLOTS, Need, RequiredOps, Slot


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that a build would lack: for which node (the first of `nodes`), why, and the line that brings it."""

    node: str
    nodes: int
    domain: str
    op: str
    since_version: int
    types: tuple[str, ...]
    why: str
    line: str


def covers(required: RequiredOps, needs: Needs) -> tuple[Missing, ...]:
    """All needs that a build lacks, in the order of the graph; empty is the proof that it lacks none.

    A kernel is there when its operator is listed at the node's since-version, or at a later opset for which the
    operator's schema is still the same one; the build keeps a kernel if start <= opset <= end.
    """
    return tuple(
        _missing(required, need, nodes, why)
        for need, nodes in needs.items()
        if (why := _lack(required, need)) is not None
    )


def _missing(required: RequiredOps, need: Need, nodes: tuple[str, ...], why: str) -> Missing:
    return Missing(
        node=nodes[0],
        nodes=len(nodes),
        domain=need.domain,
        op=need.op,
        since_version=need.since_version,
        types=tuple(
            f"{kind} {index}: {name}" if kind == INPUTS else f"{kind}: {name}" for (kind, index), name in need.types
        ),
        why=why,
        line=line_for(required, need),
    )


def line_for(required: RequiredOps, need: Need) -> str:
    """The config line that meets a need in addition to what `required` has; the directive, when types are global."""
    if required.global_types is not None and _is_listed(required, need):
        lacking = {part for _, name in _restrictable(need) for part in name.split(",")}
        return render(RequiredOps(global_types=required.global_types | lacking)).splitlines()[-1]
    wanted = from_needs([need], types=bool(required.types))
    key = (need.domain, need.op)
    if key in required.types and key in wanted.types:
        slots = required.types[key].keys() & wanted.types[key].keys()
        merged = {slot: required.types[key][slot] | wanted.types[key][slot] for slot in slots}
        wanted = RequiredOps(operators=wanted.operators, types={key: merged})
    return next(operator_lines(wanted))


def _lack(required: RequiredOps, need: Need) -> str | None:
    if not _is_listed(required, need):
        return _unlisted(required, need)
    if required.global_types is not None:
        return _lack_of_global(required.global_types, need)
    types = required.types.get((need.domain, need.op))
    if types is None:
        return None
    if need.nameless:
        return "its types are restricted, and it has one that no config can name"
    lacking = [name for slot, name in need.types if slot in types and not _has(types[slot], need, slot, name)]
    return f"its types are restricted, without {' and '.join(lacking)}" if lacking else None


def _unlisted(required: RequiredOps, need: Need) -> str:
    opsets = required.opsets(need.domain, need.op)
    return f"it is listed for opset {', '.join(map(str, opsets))} only" if opsets else "it is not listed"


def _is_listed(required: RequiredOps, need: Need) -> bool:
    if required.everything or need.op in required.operators.get((need.domain, need.since_version), ()):
        return True
    later = (opset for opset in required.opsets(need.domain, need.op) if opset > need.since_version)
    return any(_since_version(need.domain, need.op, opset) == need.since_version for opset in later)


def _since_version(domain: str, op: str, opset: int) -> int:
    """The since-version of the schema that an opset has for an operator, 0 when ONNX knows none.

    Microsoft's operators have one version each. Of ONNX's, what is released does not change.
    """
    if domain.startswith("com.microsoft"):
        return 1
    from onnx import defs

    try:
        version: int = defs.get_schema(op, opset, "" if domain == "ai.onnx" else domain).since_version
    except defs.SchemaError:
        return 0
    return version if opset <= defs.onnx_opset_version() or domain != "ai.onnx" else 0


def _has(names: frozenset[str], need: Need, slot: Slot, name: str) -> bool:
    return name in names or (slot == (INPUTS, 0) and name in ALWAYS_KEPT.get((need.domain, need.op), ()))


def _lack_of_global(allowed: frozenset[str], need: Need) -> str | None:
    if need.nameless or ((need.domain, need.op) not in TYPE_SLOTS and need.main_type is None):
        return "types are restricted globally, and it has one that no config can name"
    lacking = [
        name
        for slot, name in _restrictable(need)
        if not all(_has(allowed, need, slot, part) for part in name.split(","))
    ]
    return f"types are restricted globally, without {' and '.join(lacking)}" if lacking else None


def _restrictable(need: Need) -> Iterable[tuple[Slot, str]]:
    """The types that globally allowed types are checked against."""
    key = (need.domain, need.op)
    if key in TYPE_SLOTS or key in TYPE_AGNOSTIC or not need.main_type:
        return need.types
    return (((INPUTS, 0), need.main_type),)
