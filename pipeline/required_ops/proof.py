"""The proof that a build with given required operators runs a model: every need is met, or a line is missing.

Also from what ONNX Runtime reports on a device to that line, or to the other cause. Texts: ONNX Runtime 1.12 to 1.31,
`session_state.cc`, `kernel_registry.cc`, `inference_session.cc` and the kernels whose types can be cut.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from device_runner.failures import Topic, text_of_message
from pipeline.core.errors import Finding, Severity
from pipeline.required_ops.needs import Needs, from_needs
from pipeline.required_ops.text import operator_lines, render
from pipeline.required_ops.value import (
    ALWAYS_KEPT,
    DEFAULT_DOMAIN,
    INPUTS,
    OUTPUTS,
    TYPE_AGNOSTIC,
    TYPE_SLOTS,
    Need,
    RequiredOps,
    Slot,
)


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
        opsets = required.opsets(need.domain, need.op)
        return f"it is listed for opset {', '.join(map(str, opsets))} only" if opsets else "it is not listed"
    if required.global_types is not None:
        return _lack_of_global(required.global_types, need)
    types = required.types.get((need.domain, need.op))
    if types is None:
        return None
    if need.nameless:
        return "its types are restricted, and it has one that no config can name"
    lacking = [name for slot, name in need.types if slot in types and not _has(types[slot], need, slot, name)]
    return f"its types are restricted, without {' and '.join(lacking)}" if lacking else None


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


class LogFinding(Finding, frozen=True, kw_only=True):
    """One message of a log (`what`) with its cause, the config line that is missing ("": none is), and what to do.

    `kernel_line` brings the kernel of which the message speaks into an empty config, whether `line` is missing or not.
    """

    severity: Severity = Severity.ERROR
    what: str = msgspec.field(name="message")
    why: str = msgspec.field(name="cause")
    remedy: str = msgspec.field(name="advice")
    line: str = ""
    kernel_line: str = ""


LOG_BYTES = 256 << 20
"""Most that is read of a log; a day of a busy phone has some tens of megabytes."""
_OP = r"(?P<op>[\w.]+?)\((?P<version>\d{1,9})\)"
_NODE = r"(?P<node>[^']*)'"
_KERNEL_TEXTS = (
    re.compile(rf"Could not find an implementation for (?:the node )?{_OP} node with name '{_NODE}"),
    re.compile(rf"Failed to find kernel for {_OP} \(node:'{_NODE}"),
    re.compile(rf"Could not find an implementation for the node (?P<node>[^:\n]*):{_OP}"),
)
_RUN_TEXT = re.compile(r"while running (?P<op>\w+) node\. Name:'(?P<node>[^']*)' Status Message: (?P<text>[^\n]*)")
_TENSOR = re.compile(r"node in the model has the following type \(tensor\((?P<type>\w+)\)\)")

_REDUCED_TEXTS: tuple[tuple[str, str, Slot], ...] = (
    (r"Gather Tind type not supported in this build", "Gather", (INPUTS, 1)),
    (r"Data type for starts and ends inputs' is not supported in this build", "Slice", (INPUTS, 1)),
    (r"Transpose of element size not supported in this build", "Transpose", (INPUTS, 0)),
    (r"Output type not supported in this build", "", (OUTPUTS, 0)),
    (r"not supported in this build", "", (INPUTS, 0)),
)
"""Messages of kernels that ran into a type that was cut; the operator where the message itself tells it."""

_LOG_TYPES = {
    "uint8": "uint8_t", "int8": "int8_t", "uint16": "uint16_t", "int16": "int16_t", "int32": "int32_t",
    "int64": "int64_t", "uint32": "uint32_t", "uint64": "uint64_t", "string": "std::string", "float16": "MLFloat16",
    "bfloat16": "BFloat16", "float": "float", "double": "double", "bool": "bool",
}  # fmt: skip


def read_log(text: str, required: RequiredOps, models: Iterable[Needs] = ()) -> tuple[LogFinding, ...]:
    """What a device's log says of operators, each message once, in order.

    With the needs of the models that were run, a line has the types that the failing node needs.
    """
    needs = {need: nodes for model in models for need, nodes in model.items()}
    found: dict[tuple[str, str], LogFinding] = {}
    for line in text.splitlines():
        for finding in _findings(line, required, needs):
            found.setdefault((finding.why, finding.line), finding)
    return tuple(found.values())


def _findings(line: str, required: RequiredOps, needs: Needs) -> Iterator[LogFinding]:
    for pattern in _KERNEL_TEXTS:
        if match := pattern.search(line):
            yield _kernel(match, line, required, needs)
            return
    if match := _RUN_TEXT.search(line):
        yield from _reduced(match["text"], match["op"], match["node"], required, needs)
        return
    if other := text_of_message(line, Topic.FORMAT, Topic.BUILD, Topic.OPERATOR):
        yield LogFinding(what=line.strip(), why=other.cause, remedy=other.remedy)
        return
    yield from _reduced(line, "", "", required, needs)


def _kernel(match: re.Match[str], line: str, required: RequiredOps, needs: Needs) -> LogFinding:
    domain, _, op = match["op"].rpartition(".")
    key = (domain or DEFAULT_DOMAIN, op)
    version = int(match["version"])
    need = _need_of(needs, *key, match["node"], version)
    if need is None:
        tensor = _TENSOR.search(line)
        name = _LOG_TYPES.get(tensor["type"], "") if tensor else ""
        types = tuple((slot, name) for slot in TYPE_SLOTS.get(key, ())[:1] if name)
        if not types and key in required.types and not covers(required, {Need(*key, version): ("",)}):
            return _unknown_type(match[0], op)
        need = Need(*key, version, types, nameless=key in TYPE_SLOTS and not types)
    return _judged(need, match["node"], match[0], required)


def _unknown_type(message: str, op: str) -> LogFinding:
    cause = f"{op} is in this config, restricted to types of which this one seems to be none"
    return LogFinding(
        what=message, why=cause, remedy="name the artifacts that were run, so that the missing type is known"
    )


def _reduced(text: str, op: str, node: str, required: RequiredOps, needs: Needs) -> Iterator[LogFinding]:
    for pattern, named, slot in _REDUCED_TEXTS:
        if not re.search(pattern, text):
            continue
        name = op or named
        need = _need_of(needs, DEFAULT_DOMAIN, name, node, None) or _need_of(needs, "com.microsoft", name, node, None)
        if need is not None:
            yield _judged(need, node, text.strip(), required)
        elif name:
            yield _unknown_type(text.strip(), f"{name} ({slot[0]} {slot[1]})")
        return


def _need_of(needs: Needs, domain: str, op: str, node: str, version: int | None) -> Need | None:
    """The need of the failing node; of any node with this operator when the log's name fits none."""
    alike = {
        need: nodes
        for need, nodes in needs.items()
        if (need.domain, need.op) == (domain, op) and version in (None, need.since_version)
    }
    named = (need for need, nodes in alike.items() if node and any(name.split("/")[-1] == node for name in nodes))
    return next(named, next(iter(alike), None))


def _judged(need: Need, node: str, message: str, required: RequiredOps) -> LogFinding:
    """A missing line, or that the config has it: then the library was not built with this config."""
    missing = covers(required, {need: (node,)})
    alone = next(operator_lines(from_needs([need], types=bool(need.types))))
    kernel = f"{need.domain}:{need.op} since {need.since_version}"
    if missing:
        return LogFinding(what=message, why=f"{kernel}: {missing[0].why}", line=line_for(required, need),
                       remedy="add the line with `ort-mobile op-config merge` and build again",
                       kernel_line=alone)  # fmt: skip
    return LogFinding(what=message, why=f"{kernel} is in this config", kernel_line=alone,
                   remedy="the device's library was built with another config: build it with this one")  # fmt: skip
