"""From what ONNX Runtime said on a device to the line that the operator config lacks, or to the other cause.

Texts: ONNX Runtime 1.12 to 1.31, `session_state.cc`, `kernel_registry.cc`, `inference_session.cc` and the kernels
whose types can be cut.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from pipeline.required_ops.needs import Needs, from_needs
from pipeline.required_ops.proof import covers, line_for
from pipeline.required_ops.text import operator_lines
from pipeline.required_ops.value import DEFAULT_DOMAIN, INPUTS, OUTPUTS, TYPE_SLOTS, Need, RequiredOps, Slot


class LogFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a log: what it means, the config line that is missing (empty: none is), and what to do.

    `kernel_line` brings the kernel of which the message speaks into an empty config, whether `line` is missing or not.
    """

    message: str
    cause: str
    line: str
    advice: str
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

_OTHER_TEXTS: tuple[tuple[str, str, str], ...] = (
    (r"No matching hash for|Failed to find kernel def hash",
     "the file or the library is of the time of format version 4 (release 1.12 and older)",
     "convert the model again with the release that the app ships, and build that release"),
    (r"The ORT format model version \[[^\]]*\] is not supported|doesn't support ORT format models older than",
     "the file's format version is not one that this library reads",
     "convert the model again for the release that the app ships"),
    (r"ORT model verification failed", "the bytes are no whole ORT format model",
     "compare the file's digest with the bundle's manifest; keep it uncompressed in the app (noCompress)"),
    (r"ONNX format model is not supported in this build", "a minimal build was given an ONNX model",
     "load the converted .ort file"),
    (r"execution provider is not supported in this build", "the provider is not compiled into this library",
     "build with it, or take another package"),
    (r"(?:SparseTensor|Map type|Custom operator libraries|Compiling capabilities) (?:is|are) not supported in this",
     "the build left out more than operators",
     "build without --disable_types and --disable_ml_ops, or with minimal_build extended"),
    (r"No Op registered for", "this release does not know the operator at all",
     "convert for the release that the app ships"),
)  # fmt: skip

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
            found.setdefault((finding.cause, finding.line), finding)
    return tuple(found.values())


def _findings(line: str, required: RequiredOps, needs: Needs) -> Iterator[LogFinding]:
    for pattern in _KERNEL_TEXTS:
        if match := pattern.search(line):
            yield _kernel(match, line, required, needs)
            return
    if match := _RUN_TEXT.search(line):
        yield from _reduced(match["text"], match["op"], match["node"], required, needs)
        return
    other = next((entry for entry in _OTHER_TEXTS if re.search(entry[0], line)), None)
    if other:
        yield LogFinding(message=line.strip(), cause=other[1], line="", advice=other[2])
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
    return LogFinding(message=message, cause=cause, line="",
                   advice="name the artifacts that were run, so that the missing type is known")  # fmt: skip


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
        return LogFinding(message=message, cause=f"{kernel}: {missing[0].why}", line=line_for(required, need),
                       advice="add the line with `ort-mobile op-config merge` and build again",
                       kernel_line=alone)  # fmt: skip
    return LogFinding(message=message, cause=f"{kernel} is in this config", line="", kernel_line=alone,
                   advice="the device's library was built with another config: build it with this one")  # fmt: skip
