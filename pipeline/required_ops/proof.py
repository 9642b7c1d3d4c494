"""The proof that a build with given required operators runs a model, and configs read as a reviewer does.

Every need is met, or a line is missing; also from what ONNX Runtime reports on a device to that line, or to the other
cause. Texts: ONNX Runtime 1.12 to 1.31, `session_state.cc`, `kernel_registry.cc`, `inference_session.cc` and the
kernels whose types can be cut. A review says what one config adds to another, which model needs it, and what none does.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from device_runner import failures
from pipeline.core import groups as counting
from pipeline.core.errors import Finding, Severity
from pipeline.model import types as onnx_types
from pipeline.required_ops.text import HEADER, operator_lines, parse_merged, render
from pipeline.required_ops.value import (
    ALWAYS_KEPT,
    CUSTOM,
    DEFAULT_DOMAIN,
    INPUTS,
    OUTPUTS,
    TYPE_AGNOSTIC,
    TYPE_SLOTS,
    Need,
    Needs,
    OperatorKey,
    OpTypes,
    RequiredOps,
    Slot,
    from_needs,
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
        Missing(
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
        for need, nodes in needs.items()
        if (why := _lack(required, need)) is not None
    )


def line_for(required: RequiredOps, need: Need) -> str:
    """The config line that meets a need in addition to what `required` has; the directive, when types are global."""
    if required.global_types is not None and _is_listed(required, need):
        lacking = {part for _, name in _restrictable(need) for part in name.split(",")}
        return render(RequiredOps(global_types=required.global_types | lacking)).splitlines()[-1]
    needed = from_needs([need], types=bool(required.types))
    key = (need.domain, need.op)
    if key in required.types and key in needed.types:
        slots = required.types[key].keys() & needed.types[key].keys()
        merged = {slot: required.types[key][slot] | needed.types[key][slot] for slot in slots}
        needed = RequiredOps(operators=needed.operators, types={key: merged})
    return next(operator_lines(needed))


def _lack(required: RequiredOps, need: Need) -> str | None:
    if not _is_listed(required, need):
        opsets = required.opsets(need.domain, need.op)
        return f"it is listed for opset {', '.join(map(str, opsets))} only" if opsets else "it is not listed"
    if required.global_types is not None:
        if need.nameless or ((need.domain, need.op) not in TYPE_SLOTS and need.main_type is None):
            return "types are restricted globally, and it has one that no config can name"
        lacking = [
            name
            for slot, name in _restrictable(need)
            if not all(_has(required.global_types, need, slot, part) for part in name.split(","))
        ]
        return f"types are restricted globally, without {' and '.join(lacking)}" if lacking else None
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


def _restrictable(need: Need) -> Iterable[tuple[Slot, str]]:
    """The types that globally allowed types are checked against."""
    key = (need.domain, need.op)
    if key in TYPE_SLOTS or key in TYPE_AGNOSTIC or not need.main_type:
        return need.types
    return (((INPUTS, 0), need.main_type),)


class LogFinding(Finding, frozen=True, kw_only=True):
    """One message of a log (`what`) with its cause, the config line that is missing ("": none is), and what to do.

    `kernel` is what the message speaks of, and `kernel_line` brings it into an empty config, whether `line` is missing
    or not.
    """

    severity: Severity = Severity.ERROR
    what: str = msgspec.field(name="message")
    why: str = msgspec.field(name="cause")
    remedy: str = msgspec.field(name="advice")
    line: str = ""
    kernel: str = ""
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


def read_log(text: str, required: RequiredOps, models: Iterable[Needs] = ()) -> tuple[LogFinding, ...]:
    """What a device's log says of operators, each message once, in order.

    With the needs of the models that were run, a line has the types that the failing node needs.
    """
    needs = {need: nodes for model in models for need, nodes in model.items()}
    messages: dict[tuple[str, str], LogFinding] = {}
    for line in text.splitlines():
        for finding in _findings(line, required, needs):
            messages.setdefault((finding.why, finding.line), finding)
    return tuple(messages.values())


def _findings(line: str, required: RequiredOps, needs: Needs) -> Iterator[LogFinding]:
    for pattern in _KERNEL_TEXTS:
        if match := pattern.search(line):
            domain, _, op = match["op"].rpartition(".")
            key, version = (domain or DEFAULT_DOMAIN, op), int(match["version"])
            need = _need_of(needs, *key, match["node"], version)
            if need is None:
                tensor = _TENSOR.search(line)
                name = onnx_types.CPP_BY_ORT.get(tensor["type"], "") if tensor else ""
                types = tuple((slot, name) for slot in TYPE_SLOTS.get(key, ())[:1] if name)
                if not types and key in required.types and not covers(required, {Need(*key, version): ("",)}):
                    yield _unknown_type(match[0], op)
                    return
                need = Need(*key, version, types, nameless=key in TYPE_SLOTS and not types)
            yield _judged(need, match["node"], match[0], required)
            return
    if match := _RUN_TEXT.search(line):
        yield from _reduced(match["text"], match["op"], match["node"], required, needs)
        return
    if other := failures.text_of_message(line, failures.Topic.FORMAT, failures.Topic.BUILD, failures.Topic.OPERATOR):
        yield LogFinding(what=line.strip(), why=other.why, remedy=other.remedy)
        return
    yield from _reduced(line, "", "", required, needs)


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
        return LogFinding(
            what=message,
            why=f"{kernel}: {missing[0].why}",
            line=line_for(required, need),
            remedy="add the line with `ort-mobile op-config merge` and build again",
            kernel=kernel,
            kernel_line=alone,
        )
    return LogFinding(
        what=message,
        why=f"{kernel} is in this config",
        kernel=kernel,
        kernel_line=alone,
        remedy="the device's library was built with another config: build it with this one",
    )


MAX_NAMES = 3


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between two configs: an operator at an opset (0: at all of them), or types of it.

    `needed_by`: the artifacts that the older config does not suffice for because of this.
    """

    kind: str
    domain: str
    op: str
    what: str
    opset: int = 0
    types: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()


class OperatorUse(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel with its types, and the nodes of each artifact that need it."""

    domain: str
    op: str
    since_version: int
    types: tuple[str, ...]
    artifacts: dict[str, tuple[str, ...]]


ADDS, REMOVES = "adds", "removes"


def changes(old: RequiredOps, new: RequiredOps, artifacts: Mapping[str, Needs] = {}) -> tuple[Change, ...]:
    """What `new` adds to `old` and removes from it; with artifacts, which of them each addition is for.

    What concerns no single operator comes first, then all changes of each operator together.
    """
    lacking = [(name, kernel) for name, needs in artifacts.items() for kernel in covers(old, needs)]
    operators = [*_listed(ADDS, old, new), *_listed(REMOVES, new, old)]
    for key in sorted(old.operator_keys() & new.operator_keys()):
        operators += _retyped(key, old.types.get(key), new.types.get(key))
    operators.sort(key=lambda change: (change.domain, change.op))
    # Differences that concern no single operator
    whole = []
    if old.everything != new.everything:
        what = "the rule that all operators are required"
        whole.append(Change(kind=ADDS if new.everything else REMOVES, domain="", op="", what=what))
    before, after = old.global_types, new.global_types
    if before is not None and after is not None:
        for kind, surplus in ((ADDS, after - before), (REMOVES, before - after)):
            texts = [f"the globally allowed type {name}" for name in sorted(surplus)]
            whole += [Change(kind=kind, domain="", op="", what=text) for text in texts]
    elif before != after:
        what = f"the restriction of all types to {', '.join(sorted((after if before is None else before) or ()))}"
        whole.append(Change(kind=REMOVES if after is None else ADDS, domain="", op="", what=what))
    differences = []
    for change in (*whole, *operators):
        names: dict[str, None] = {}
        for name, kernel in lacking if change.kind == ADDS else ():
            # Whether the addition brings what the artifact lacks
            needed = {part for text in kernel.types for part in text.partition(": ")[2].split(",")}
            brings = not change.types or not needed.isdisjoint(change.types)
            if change.opset:
                brings = change.opset == kernel.since_version
            if brings and (change.domain, change.op) == (kernel.domain, kernel.op):
                names[name] = None
        differences.append(msgspec.structs.replace(change, needed_by=tuple(names)))
    return tuple(differences)


def _listed(kind: str, less: RequiredOps, more: RequiredOps) -> Iterator[Change]:
    """Operators at opsets that only `more` has."""
    for (domain, opset), ops in sorted(more.operators.items()):
        for op in sorted(ops - less.operators.get((domain, opset), frozenset())):
            types = more.types.get((domain, op))
            described = f" for {_described(types)}" if types and (domain, op) not in less.operator_keys() else ""
            yield Change(kind=kind, domain=domain, op=op, what=f"opset {opset}{described}", opset=opset)


def _described(types: OpTypes) -> str:
    return "; ".join(f"{_slot(slot)} {', '.join(sorted(names)) or 'nothing'}" for slot, names in sorted(types.items()))


def _slot(slot: Slot) -> str:
    kind, index = slot
    return "types" if kind == CUSTOM else f"{kind[:-1]} {index}"


def _retyped(key: OperatorKey, old: OpTypes | None, new: OpTypes | None) -> Iterator[Change]:
    domain, op = key
    if old is not None and new is None:
        yield Change(kind=ADDS, domain=domain, op=op, what=f"all types (was restricted to {_described(old)})")
    elif old is None and new is not None:
        yield Change(kind=REMOVES, domain=domain, op=op, what=f"all types but {_described(new)}")
    elif old is not None and new is not None:
        for kind, less, more in ((ADDS, old, new), (REMOVES, new, old)):
            for slot, names in sorted(more.items()):
                surplus = sorted(names - less.get(slot, names))
                if surplus:
                    yield Change(
                        kind=kind,
                        domain=domain,
                        op=op,
                        what=f"{', '.join(surplus)} at {_slot(slot)}",
                        types=tuple(surplus),
                    )
            for slot in sorted(less.keys() - more.keys()):
                yield Change(kind=kind, domain=domain, op=op, what=f"all types at {_slot(slot)}")


def sentence(change: Change) -> str:
    """`adds ai.onnx:Conv int8_t at input 0, only needed by b.ort`."""
    named = f"{change.domain}:{change.op} " if change.op else ""
    return f"{change.kind} {named}{change.what}{needed_by(change.needed_by)}"


def counted(changes: Sequence[Change]) -> str:
    """`14 additions and 1 removal`."""
    added = sum(change.kind == ADDS for change in changes)
    counts = ((added, "addition"), (len(changes) - added, "removal"))
    return " and ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count)


def needed_by(names: Sequence[str]) -> str:
    """The end of a sentence that says who needs something; empty when nobody is known."""
    if not names:
        return ""
    if len(names) > MAX_NAMES:
        return f", needed by {len(names)} models"
    return f", {'only ' if len(names) == 1 else ''}needed by {', '.join(names)}"


def uses(artifacts: Mapping[str, Needs]) -> tuple[OperatorUse, ...]:
    """Which artifact needs which kernel with which types, by name of the operator."""
    kernels: dict[tuple[str, str, int, tuple[str, ...]], dict[str, tuple[str, ...]]] = {}
    for artifact, needs in artifacts.items():
        for need, nodes in needs.items():
            types = [f"{_slot(slot)} {name}" for slot, name in need.types] + ["a type without a name"] * need.nameless
            by_artifact = kernels.setdefault((need.domain, need.op, need.since_version, tuple(types)), {})
            by_artifact[artifact] = (*by_artifact.get(artifact, ()), *nodes)
    return tuple(
        OperatorUse(domain=domain, op=op, since_version=version, types=types, artifacts=by_artifact)
        for (domain, op, version, types), by_artifact in sorted(kernels.items(), key=lambda pair: pair[0])
    )


def lacks(missing: Mapping[str, Sequence[Missing]]) -> list[tuple[Missing, dict[str, tuple[str, int]]]]:
    """What artifacts lack, one entry a kernel with all its types, sorted by operator.

    Beside it stand, by artifact, the first node that needs it and how many do.
    """
    groups = counting.grouped(
        (
            ((item.domain, item.op, item.since_version), (name, item))
            for name, items in missing.items()
            for item in items
        )
    )
    kernels = []
    for _, items in sorted(groups.items()):
        nodes: dict[str, tuple[str, int]] = {}
        for name, item in items:
            first, count = nodes.get(name, (item.node, 0))
            nodes[name] = (first, count + item.nodes)
        kernel = msgspec.structs.replace(
            items[0][1],
            types=tuple(dict.fromkeys(text for _, item in items for text in item.types)),
            why="; ".join(dict.fromkeys(item.why for _, item in items)),
        )
        kernels.append((kernel, nodes))
    return kernels


def lines_to_add(missing: Iterable[Missing]) -> tuple[str, ...]:
    """The config lines that bring all of it, one for each domain and opset, without contradictions between them."""
    text = "\n".join(dict.fromkeys(kernel.line for kernel in missing))
    return tuple(render(parse_merged(text, "the missing lines")).removeprefix(HEADER).splitlines())


def superfluous(required: RequiredOps, artifacts: Mapping[str, Needs]) -> RequiredOps:
    """What a config has that none of the artifacts needs; types count only where the config restricts them."""
    needed = from_needs([need for needs in artifacts.values() for need in needs], types=bool(required.types))
    if required.global_types is not None:
        return RequiredOps(operators=required.operators).difference(needed.without_types())
    return required.difference(needed)
