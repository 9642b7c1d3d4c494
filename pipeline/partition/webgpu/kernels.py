"""The table of WebGPU's kernels, `kernels.txt`, and which of them fits a node; why none does.

ONNX Runtime looks at the operator, the version of its schema and the types of its values, and at nothing else: shapes,
attributes and constants never decide (docs/facts/webgpu.md, W.2.1).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.graph import Graph, Node

Release = tuple[int, int]
NEWEST: Release = (1, 30)
"""Whose kernels the whole table is."""


class MarkedType(NamedTuple):
    """An element type of a constraint: registered with enableInt64 only, or from a release on."""

    name: str
    int64: bool
    since: Release


class Opsets(NamedTuple):
    """The versions of a schema that a registration holds for, from a release on; `last` None matches `first` alone."""

    first: int
    last: int | None
    since: Release

    def holds(self, version: int) -> bool:
        """Whether the registration holds for this version of the schema."""
        return version == self.first or (self.last is not None and self.first <= version <= self.last)

    def __str__(self) -> str:
        return str(self.first) if self.last in (None, self.first) else f"{self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """Registrations of one kernel. `on_cpu` are the inputs and outputs that stay in the CPU's memory: `in1`, `out0`."""

    opsets: tuple[Opsets, ...]
    types: Mapping[str, tuple[MarkedType, ...]]
    on_cpu: frozenset[str]

    def versions(self, settings: Settings) -> list[Opsets]:
        """The versions that the release of the settings registers it for."""
        return [row for row in self.opsets if row.since <= _release(settings)]

    def taken(self, constraint: str, settings: Settings) -> list[str]:
        """The types of a constraint that release and options allow."""
        marked = self.types[constraint]
        int64 = settings.webgpu.int64
        return [row.name for row in marked if row.since <= _release(settings) and (int64 or not row.int64)]


def _release(settings: Settings) -> Release:
    """The release of the kernels; the plugin brings its own, whatever ONNX Runtime loads it."""
    return NEWEST if settings.webgpu.plugin else settings.ort_release


MARK = re.compile(r"(?P<word>[^!@]+)(?P<int64>!)?(@(?P<major>\d+)\.(?P<minor>\d+))?")


def _marked(word: str) -> MarkedType:
    match = MARK.fullmatch(word)
    if match is None:
        raise ValueError(word)
    return MarkedType(match["word"], bool(match["int64"]), (int(match["major"] or 0), int(match["minor"] or 0)))


def _opsets(word: str) -> Opsets:
    span, _, since = _marked(word)
    first, dash, last = span.rstrip("+").partition("-")
    return Opsets(int(first), None if span.endswith("+") else int(last if dash else first), since)


@cache
def kernels() -> Mapping[tuple[str, str], tuple[Kernel, ...]]:
    """The table, by domain ("" for ai.onnx) and operator."""
    table: dict[tuple[str, str], list[Kernel]] = {}
    for line in Path(__file__).with_name("kernels.txt").read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, opsets, *constraints = line.split()
        pairs = dict(word.split("=") for word in constraints)
        on_cpu = frozenset(filter(None, pairs.pop("cpu", "").split(",")))
        types = {key: tuple(map(_marked, names.split(","))) for key, names in pairs.items()}
        kernel = Kernel(tuple(map(_opsets, opsets.split(","))), types, on_cpu)
        domain, _, op_type = name.rpartition(":")
        table.setdefault((domain, op_type), []).append(kernel)
    return {key: tuple(rows) for key, rows in table.items()}


@lru_cache(maxsize=4096)
def formals(op_type: str, domain: str, version: int) -> list[list[tuple[str, str]]]:
    """The formal inputs and the formal outputs of an operator as (name, type constraint); the last stands for all more.

    Nothing for one that neither ONNX nor the installed ONNX Runtime knows.
    """
    import onnx.defs

    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
        return [[(formal.name, formal.type_str) for formal in side] for side in (schema.inputs, schema.outputs)]
    except onnx.defs.SchemaError:
        registered = _runtime_schemas().get((op_type, domain, version))
        sides = (registered.inputs, registered.outputs) if registered else ()
        return [[(formal.name, formal.typeStr) for formal in side] for side in sides]


@cache
def _runtime_schemas() -> Mapping[tuple[str, str, int], Any]:
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    return {(row.name, row.domain, row.since_version): row for row in runtime.get_all_operator_schema()}


def bound_types(graph: Graph, node: Node) -> dict[str, str]:
    """The type of each constraint and formal of a node, by the first of its values that has one."""
    types: dict[str, str] = {}
    sides = formals(node.op_type, node.domain, node.since_version)
    for values, side in zip((node.inputs, node.outputs), sides, strict=False):
        for position, name in enumerate(values):
            if not (name and side):
                continue
            dtype = graph.value(name).dtype
            if dtype is not None:
                formal, constraint = side[min(position, len(side) - 1)]
                types.setdefault(constraint, dtype)
                types.setdefault(formal, dtype)
    return types


def kernel_of(graph: Graph, node: Node, settings: Settings) -> Kernel | None:
    """The kernel for a node; None where the provider has none."""
    if (node.domain, node.op_type) not in kernels():
        return None
    types = tuple(bound_types(graph, node).items())
    return _kernel(node.domain, node.op_type, node.since_version, types, settings)


@lru_cache(maxsize=8192)
def _kernel(
    domain: str, op_type: str, version: int, types: tuple[tuple[str, str], ...], settings: Settings
) -> Kernel | None:
    rows = kernels()[domain, op_type]
    return next((row for row in rows if _fits(row, version, dict(types), settings)), None)


@lru_cache(maxsize=4096)
def cpu_slots(op_type: str, domain: str, version: int) -> frozenset[str]:
    """The inputs and outputs of an operator that stay in the CPU's memory, whatever the types are: `in1`, `out0`."""
    rows = kernels().get((domain, op_type), ())
    fitting = (row for row in rows if any(opsets.holds(version) for opsets in row.opsets))
    return next((row.on_cpu for row in fitting), frozenset())


def _fits(kernel: Kernel, version: int, types: Mapping[str, str], settings: Settings) -> bool:
    return any(row.holds(version) for row in kernel.versions(settings)) and all(
        types[name] in kernel.taken(name, settings) for name in kernel.types if name in types
    )


QUANTIZED = re.compile(r"Q(Linear|uantizeLinear|Gemm|Attention)\w*|(MatMul|Conv)Integer\w*|Dynamic(Quantize\w+)")
"""Operators of quantized activations: WebGPU has a kernel for none of them."""

FROM_QUANTIZED = "ship the float model, or weights of 4 or 8 bits (precisions gpu4, gpu8)"
SIZES = "give the dimensions of the inputs sizes (--dimension): then level basic computes it"
REWRITES = {
    "Dropout": "drop it: for inference it does nothing",
    "ConstantOfShape": SIZES,
    "Size": SIZES,
    "NonMaxSuppression": "leave it at the model's end, where it costs one copy for each input",
    "FusedMatMul": "ship a file that was not optimized for the CPU: level basic",
    "FusedGemm": "ship a file that was not optimized for the CPU: level basic",
}
"""What helps with operators without any kernel."""


def no_kernel(graph: Graph, node: Node, settings: Settings) -> Refusal:
    """Why a node has no kernel, by the nearest that exists, and what gives it one."""
    rows = kernels().get((node.domain, node.op_type), ())
    registered = [row for row in rows if row.versions(settings)]
    if not registered:
        return _no_operator(node, rows)
    version, types = node.since_version, bound_types(graph, node)
    fitting = [row for row in registered if any(opsets.holds(version) for opsets in row.versions(settings))]
    if not fitting:
        spans = ", ".join(dict.fromkeys(str(opsets) for row in registered for opsets in row.versions(settings)))
        return Refusal(
            "opset", f"no kernel for {node.op_type} of opset {version}, there are some for {spans}",
            "convert the model to such an opset",
        )  # fmt: skip
    constraint, _ = next(
        (
            (name, row)
            for row in fitting
            for name in row.types
            if types.get(name, "") not in ("", *row.taken(name, settings))
        ),
        ("", fitting[0]),
    )
    dtype = types.get(constraint, "")
    return _no_type(node, dtype, constraint, fitting, settings)


def _no_operator(node: Node, rows: Iterable[Kernel]) -> Refusal:
    since = min((opsets.since for row in rows for opsets in row.opsets), default=None)
    name = node.op_type if node.domain in ("", "com.microsoft") else f"{node.domain}.{node.op_type}"
    if since:
        release = ".".join(map(str, since))
        text = f"no kernel for {name} before ONNX Runtime {release}"
        return Refusal("release", text, f"ship {release} or later")
    quantized = QUANTIZED.fullmatch(node.op_type)
    remedy = (
        FROM_QUANTIZED
        if quantized
        else REWRITES.get(node.op_type, "write it with other operators, or leave it to the CPU")
    )
    return Refusal("quantized" if quantized else "op", f"no kernel for {name}", remedy)


def _no_type(node: Node, dtype: str, constraint: str, rows: list[Kernel], settings: Settings) -> Refusal:
    """A kernel for other types: what of the settings adds this one, or which there are."""
    text = f"no kernel for {node.op_type} of {dtype} at opset {node.since_version}"
    marked = [entry for row in rows for entry in row.types.get(constraint, ()) if entry.name == dtype]
    later = min((entry.since for entry in marked if entry.since > _release(settings)), default=None)
    release = ".".join(map(str, later or ()))
    if any(entry.int64 for entry in marked):
        text += "; enableInt64 adds it" + (f" from ONNX Runtime {release} on" if later else "")
        remedy = f"set enableInt64=1, or {SIZES}"
        return Refusal("int64", text, f"ship {release} or later, and {remedy}" if later else remedy)
    if later:
        return Refusal("release", f"{text} before ONNX Runtime {release}", f"ship {release} or later")
    names = list(dict.fromkeys(name for row in rows for name in row.taken(constraint, settings)))
    if dtype == "i64":
        return Refusal("type", f"{text}, there are some for {', '.join(names)}", SIZES)
    return Refusal(
        "type", f"{text}, there are some for {', '.join(names)}", f"compute this part in {' or '.join(_likely(names))}"
    )


def _likely(names: list[str]) -> Iterator[str]:
    """The types that a user would change to."""
    floats = [name for name in names if name in ("f32", "f16")]
    yield from floats or names[:2]
