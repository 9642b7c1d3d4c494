"""What each release of ONNX Runtime opens, as its own wheel says: IR versions, opsets, operators, attributes, kernels.

`releases.json` is made by docs/make_releases.py (`nox -s release_tables`) from the newest wheel of every minor release
and those of its patches that differ. In it bit n of a mask is the n-th of these; `types` are of tensors, `values` of
attributes that kernels were tried with. Of an operator there are versions of its schema (`in`:
releases that have it; `arity`: least and most inputs and outputs; `young`: attributes that some of these releases lack,
with their default; `places`: inputs from 0, outputs from -1 down, of a type that kernels name; `function`: ONNX defines
it by others) and kernels of the CPU: first and last version (0: the first alone), types, releases. Wheels are for
x86-64: builds for ARM have kernels of half precision besides.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pipeline.core.releases import Release
from pipeline.model import onnx_view, ort_format
from pipeline.model import types as onnx_types

FILE = Path(__file__).with_name("releases.json")
FORMAT = 1
HALF, FLOAT = "float16", "float"
IN_SESSIONS = frozenset({"Constant"})
"""Operators that need no kernel: every session puts a value in their place."""


class Schema(msgspec.Struct, frozen=True):
    """One version of an operator; the fields are those of the file."""

    having: int = msgspec.field(name="in")
    arity: tuple[tuple[int, int, int, int, int], ...]
    attributes: str = ""
    young: dict[str, tuple[int, Any]] = {}
    places: dict[str, tuple[int, ...]] = {}
    function: bool = False

    def taking(self, inputs: int, outputs: int) -> int:
        """The releases that take a node with so many of them."""
        return sum(
            mask
            for least_in, most_in, least_out, most_out, mask in self.arity
            if least_in <= inputs
            and (inputs <= most_in or most_in < 0)
            and least_out <= outputs
            and (outputs <= most_out or most_out < 0)
        )


class Operator(msgspec.Struct, frozen=True):
    """An operator's versions, and its kernels: first and last version, types by constraint, releases."""

    schemas: dict[str, Schema]
    kernels: tuple[tuple[int, int, dict[str, str], int], ...]

    def schema(self, version: int) -> Schema | None:
        """The newest that an opset of this version has."""
        since = max((int(text) for text in self.schemas if int(text) <= version), default=0)
        return self.schemas.get(str(since))


class ReleaseRow(msgspec.Struct, frozen=True, dict=True):
    """A release: the wheel that was asked, the newest IR version of ONNX files, the newest opset by domain.

    `earlier`: it is no newest patch of a line, but one before it that has other operators, attributes or kernels.
    """

    release: str
    wheel: str
    ir: int
    opsets: dict[str, int]
    earlier: bool = False

    @cached_property
    def line(self) -> Release:
        """The release line."""
        return Release(*map(int, self.release.split(".")[:2]))


class DemandKind(StrEnum):
    """What is asked for. Minimal builds look at operators and kernels alone, a provider needs no kernel of the CPU."""

    VERSION = "version"
    OPSET = "opset"
    TYPE = "type"
    OPERATOR = "operator"
    ATTRIBUTE = "attribute"
    KERNEL = "kernel"


PARSED = frozenset({DemandKind.VERSION, DemandKind.OPSET, DemandKind.ATTRIBUTE})
"""What only full builds look at, which compare a file with their schemas."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a file asks of a release and some release does not have: `having` has the bits of those that do.

    `what` completes "ONNX Runtime 1.29 …". `taken_by` is the provider that takes every node that asks for a kernel.
    """

    kind: DemandKind
    what: str
    having: int
    why: str = ""
    remedy: str = ""
    taken_by: str = ""


class FileDemands(NamedTuple):
    """What a file asks that some release does not have, and what could not be asked (`ReleaseTable._unjudged`)."""

    demands: tuple[Demand, ...]
    unjudged: tuple[Demand, ...]


class _Document(msgspec.Struct, frozen=True):
    format: int
    releases: tuple[ReleaseRow, ...]
    types: dict[str, int]
    values: dict[str, tuple[str, dict[str, int]]]
    operators: dict[str, msgspec.Raw]


class ReleaseTable:
    """All releases, the oldest first; operators are decoded when they are asked for."""

    def __init__(self, content: bytes) -> None:
        document = msgspec.json.decode(content, type=_Document)
        self.releases, self.types, self.values = document.releases, document.types, document.values
        self._raw = document.operators
        self._operators: dict[str, Operator | None] = {}

    @cached_property
    def everywhere(self) -> int:
        """The bits of all releases."""
        return (1 << len(self.releases)) - 1

    def row(self, release: tuple[int, int]) -> ReleaseRow | None:
        """The row that judges a release: the newest for later ones, None for those from before the table."""
        return next((row for row in reversed(self.releases) if row.line <= release and not row.earlier), None)

    def earlier(self, release: tuple[int, int]) -> dict[str, int]:
        """The patches of a release that differ from its newest, each with its bit."""
        rows = enumerate(self.releases)
        return {row.release: 1 << at for at, row in rows if row.earlier and row.line == release}

    def bit(self, release: tuple[int, int]) -> int:
        """The bit of that row; 0 without one."""
        row = self.row(release)
        return 1 << self.releases.index(row) if row else 0

    def operator(self, domain: str, name: str) -> Operator | None:
        """An operator, "" as the domain of ONNX's own; None for one that no release has."""
        key = f"{domain}:{name}"
        if key not in self._operators:
            raw = self._raw.get(key)
            self._operators[key] = msgspec.json.decode(raw, type=Operator) if raw else None
        return self._operators[key]

    def highest_opset(self, release: tuple[int, int], domain: str = "") -> int:
        """The newest opset of a domain that a release takes; 0 where the table has none."""
        row = self.row(release)
        return row.opsets.get(domain, 0) if row else 0

    def first(self, having: int) -> str:
        """The first of the releases with these bits from which on all have it, in words of a remedy."""
        since, before = "", None
        for at, row in enumerate(self.releases):
            within = before is not None and before.earlier and before.line == row.line
            since = (since or (row.wheel if within else str(row.line))) if having >> at & 1 else ""
            before = row
        return f"ONNX Runtime {since} or later" if since else f"a release newer than {self.releases[-1].release}"

    def demands(
        self, model: ort_format.OrtModel, claimed: Collection[str] = (), provider: str = ""
    ) -> tuple[Demand, ...]:
        """What a file asks that some release does not have, each once.

        `claimed` are the first outputs of nodes that the provider takes, which need no kernel of the CPU.
        """
        nodes = _typed_nodes(model)
        demands = self._demands(model, nodes, _distinct(nodes))
        if not claimed or all(demand.kind is not DemandKind.KERNEL for demand in demands):
            return demands
        taken = set(claimed)
        rest = [(node, types) for node, types in nodes if first_output(node) not in taken]
        left = {demand.what for demand in self._demands(model, rest, _distinct(rest))}
        return tuple(
            msgspec.structs.replace(demand, taken_by=provider)
            if demand.kind is DemandKind.KERNEL and demand.what not in left
            else demand
            for demand in demands
        )

    def file_demands(self, model: ort_format.OrtModel) -> FileDemands:
        """The demands of a file, and what of it cannot be asked."""
        nodes = _typed_nodes(model)
        distinct = list(_distinct(nodes))
        return FileDemands(self._demands(model, nodes, distinct), self._unjudged(model, nodes, distinct))

    def _demands(
        self, model: ort_format.OrtModel, nodes: "TypedNodes", distinct: "Iterable[TypedNode]"
    ) -> tuple[Demand, ...]:
        onnx = model.format_version == onnx_view.ONNX_FORMAT
        used = {node.domain for node, _ in nodes} | (model.opset_import.keys() if onnx else set())
        demands = [*self._of_file(model)] if onnx else []
        for domain in sorted(used):
            demands += self._of_opset(domain, _opset(model, domain))
        demands += self._of_types(model)
        for node, types in distinct:
            demands += self._of_node(node, types, onnx=_opset(model, "") if onnx else 0)
        if onnx:
            demands += self._of_fusions(nodes)
        return tuple({demand.what: demand for demand in reversed(demands)}.values())[::-1]

    def _unjudged(self, model: ort_format.OrtModel, nodes: "TypedNodes", distinct: "TypedNodes") -> tuple[Demand, ...]:
        """Nodes of an ONNX file whose types are not known and for some of which a release has no kernel.

        And functions that are not in their place: `having` has the releases for which that makes no difference.
        """
        if model.format_version != onnx_view.ONNX_FORMAT:
            return ()
        opset = _opset(model, "")
        open_nodes: dict[tuple[str, str, int], Demand] = {}
        for node, types in distinct:
            operator = self.operator(node.domain, node.op_type)
            schema = operator.schema(node.since_version) if operator else None
            if operator and schema and node.op_type not in IN_SESSIONS:
                least = self._kernels_of_any(operator, schema, node, types, onnx=opset)
                if least != self._kernels(operator, schema, node, types, onnx=opset):
                    what = f"the types of {node.op_type} '{node.name or first_output(node)}'"
                    open_nodes.setdefault(
                        (node.domain, node.op_type, least),
                        Demand(kind=DemandKind.KERNEL, what=what, having=least | self.everywhere & ~schema.having),
                    )
        called = {f"{node.domain}:{node.op_type}" for node, _ in nodes} if model.functions else set()
        functions = (f"what the function {name} consists of" for name in model.functions if name in called)
        return (
            *open_nodes.values(),
            *(Demand(kind=DemandKind.KERNEL, what=what, having=0) for what in functions),
        )

    def _kernels_of_any(
        self, operator: Operator, schema: Schema, node: ort_format.OrtNode, types: "Types", *, onnx: int
    ) -> int:
        """Releases with a kernel whatever the values are whose types are not known."""
        rows = [kernel[2] for kernel in operator.kernels]
        names = {name for row in rows for name in row if _unknown(node, schema.places.get(name, ()), types)}
        if not names:
            return self._kernels(operator, schema, node, types, onnx=onnx)
        having = self.everywhere
        for name in names:
            for kind in {kind for row in rows for kind in row.get(name, "").split()}:
                places = {value for value in _values(node, schema.places.get(name, ())) if not types(value)}
                guessed = partial(_guess, types, places, kind)
                having &= self._kernels(operator, schema, node, guessed, onnx=onnx) or self.everywhere
        return having & self._kernels(operator, schema, node, types, onnx=onnx)

    def unknown_attributes(
        self, domain: str, name: str, version: int, values: Mapping[str, Any], release: tuple[int, int]
    ) -> frozenset[str]:
        """Attributes at their default that a patch of a release does not know: without them a node computes the same.

        `version` is that of the opset or the schema, `values` are the node's attributes.
        """
        operator = self.operator(domain, name)
        schema = operator.schema(version) if operator else None
        young = schema.young if schema else {}
        if young.keys().isdisjoint(values):
            return frozenset()
        bits = self.bit(release) | sum(self.earlier(release).values())
        return frozenset(
            key for key in young.keys() & values.keys() if bits & ~young[key][0] and _same(values[key], young[key][1])
        )

    def lower_opsets(
        self,
        imports: Mapping[str, int],
        operators: Collection[tuple[str, str]],
        release: tuple[int, int],
        kinds: Callable[[], Collection[str]] | None = None,
    ) -> dict[str, int]:
        """Domains whose opset a release does not take, with the newest that it does, where that changes no operator.

        `operators` are domains and names of all nodes: each must have the same version in both opsets. With `kinds`,
        which gives the types of the model's tensors, versions will do that differ in other types alone.
        """
        lower = {}
        for domain, version in imports.items():
            highest = self.highest_opset(release, domain)
            names = {name for used, name in operators if used == domain}
            if 0 < highest < version and all(self._same(domain, name, highest, version, kinds) for name in names):
                lower[domain] = highest
        return lower

    def _same(
        self, domain: str, name: str, older: int, newer: int, kinds: Callable[[], Collection[str]] | None
    ) -> bool:
        operator = self.operator(domain, name)
        if not operator or operator.schema(older) is operator.schema(newer):
            return bool(operator)
        if kinds is None or domain:
            return False
        from pipeline.compat.schemas import same_but_types

        return same_but_types(name, older, newer, kinds())

    def _of_file(self, model: ort_format.OrtModel) -> Iterator[Demand]:
        having = sum(1 << at for at, row in enumerate(self.releases) if row.ir >= model.ir_version)
        if having != self.everywhere:
            yield Demand(
                kind=DemandKind.VERSION,
                having=having,
                what=f"does not read ONNX files of IR version {model.ir_version}",
                why="the onnx package that wrote the file is newer than the release",
                remedy="convert it with --ort-release, which lowers the version",
            )

    def _of_opset(self, domain: str, version: int) -> Iterator[Demand]:
        takes = [row.opsets.get(domain) for row in self.releases]
        having = sum(1 << at for at, highest in enumerate(takes) if highest is None or highest >= version)
        if having != self.everywhere and takes[-1] is not None:  # else one of custom operators
            name = f" of {domain}" if domain else ""
            yield Demand(
                kind=DemandKind.OPSET,
                what=f"does not take opset {version}{name}",
                having=having,
                why="a full build checks the opset even where all operators are older",
                remedy=f"export the model with an older opset{name}",
            )

    def _of_types(self, model: ort_format.OrtModel) -> Iterator[Demand]:
        codes = {
            value.elem_type
            for _, graph in _graphs(model.graph)
            for value in graph.node_args.values()
            if isinstance(value, ort_format.TensorType)
        }
        codes |= {tensor.data_type for _, graph in _graphs(model.graph) for tensor in graph.initializers.values()}
        for kind in sorted(onnx_types.ORT_NAMES.get(code, "") for code in codes):
            having = self.types.get(kind, self.everywhere)
            if having != self.everywhere:
                yield Demand(
                    kind=DemandKind.TYPE,
                    what=f"has no tensors of {kind}",
                    having=having,
                    why="no operator there computes with them",
                    remedy="quantize to 8 bits",
                )

    def _of_node(self, node: ort_format.OrtNode, types: "Types", *, onnx: int) -> Iterator[Demand]:
        operator = self.operator(node.domain, node.op_type)
        schema = operator.schema(node.since_version) if operator else None
        if not operator or not schema:
            return
        title = f"{node.domain}:{node.op_type}" if node.domain else f"{node.op_type} of opset {node.since_version}"
        why = f"node '{node.name or next(filter(None, node.outputs), '')}'"
        if schema.having != self.everywhere:
            remedy = "" if node.domain else "export the model with an older opset"
            yield Demand(kind=DemandKind.OPERATOR, what=f"has no {title}", having=schema.having, why=why, remedy=remedy)
        before = self.everywhere & ~schema.having  # what lacks the operator was said of it
        for name in sorted(node.attributes.keys() & schema.young.keys()):
            having, default = schema.young[name]
            same = _same(node.attributes[name].value, default)
            yield Demand(
                kind=DemandKind.ATTRIBUTE,
                what=f"has no attribute {name} of {title}",
                having=having | before,
                why=why,
                remedy="convert it with --ort-release, which leaves defaults out" if same else f"do without {name}",
            )
        names, tried = self.values.get(f"{node.domain}:{node.op_type}", ("", {}))
        values = {name: attribute.value for name, attribute in node.attributes.items()}
        asked = " ".join(str(values.get(name, "")) for name in names.split())
        having = tried.get(asked, self.everywhere) | before
        if having not in (self.everywhere, before):
            yield Demand(
                kind=DemandKind.KERNEL,
                having=having,
                why=why,
                what=f"has no kernel on the CPU for {title}" + f" with {names} = {asked}" * bool(names),
                remedy="quantize with other values" if names else "",
            )
        having = before | schema.taking(len(node.inputs), len(node.outputs))
        if having != self.everywhere and having != before:
            yield Demand(
                kind=DemandKind.ATTRIBUTE,
                having=having,
                why=why,
                what=f"takes no {title} of {len(node.inputs)} inputs and {len(node.outputs)} outputs",
                remedy="export it without the last ones",
            )
        if node.op_type not in IN_SESSIONS:
            yield from self._of_kernels(operator, schema, node, types, title, why, onnx=onnx)

    def _of_kernels(
        self,
        operator: Operator,
        schema: Schema,
        node: ort_format.OrtNode,
        types: "Types",
        title: str,
        why: str,
        *,
        onnx: int,
    ) -> Iterator[Demand]:
        before = self.everywhere & ~schema.having
        having = self._kernels(operator, schema, node, types, onnx=onnx)
        if not having or having | before == self.everywhere:
            return
        of_other_types = self._kernels(operator, schema, node, lambda _: "", onnx=onnx)
        kinds = dict.fromkeys(kind for name in (*node.inputs, *node.outputs) if (kind := types(name)))
        yield Demand(
            kind=DemandKind.KERNEL,
            having=having | before,
            why=why,
            what=f"has no kernel on the CPU for {title} with {', '.join(kinds) or 'these types'}",
            remedy="compute in another type (Cast before and behind)" if of_other_types != having else "",
        )

    def _of_fusions(self, nodes: "TypedNodes") -> Iterator[Demand]:
        """Kernels of what a session makes of products in double, whatever it has: transposed and scaled ones."""
        made_by = {output: node.op_type for node, _ in nodes for output in node.outputs}
        having = sum(mask for _, _, types, mask in self._fused.kernels if types == {"T": "double"})
        for node, types in nodes:
            around = {made_by.get(name) for name in node.inputs}
            if node.op_type == "MatMul" and types(node.inputs[0]) == "double" and around & {"Transpose", "Mul", "Div"}:
                yield Demand(
                    kind=DemandKind.KERNEL,
                    having=having,
                    why=f"its optimizer makes it of MatMul '{node.outputs[0]}'",
                    what="has no kernel on the CPU for com.microsoft:FusedMatMul with double",
                    remedy="write ORT format (style fixed), or compute in float",
                )

    @cached_property
    def _fused(self) -> Operator:
        return self.operator("com.microsoft", "FusedMatMul") or Operator({}, ())

    def has_kernel(self, node: ort_format.OrtNode, types: "Types", release: tuple[int, int]) -> bool:
        """Whether the CPU of a release has a kernel for a node with these very types, no Cast around it."""
        operator = self.operator(node.domain, node.op_type)
        schema = operator.schema(node.since_version) if operator else None
        having = self._kernels(operator, schema, node, types, onnx=0) if operator and schema else 0
        return bool(having & self.bit(release))

    def _kernels(
        self, operator: Operator, schema: Schema, node: ort_format.OrtNode, types: "Types", *, onnx: int
    ) -> int:
        """Releases with a kernel: ONNX Runtime's own rules of versions and types (KernelRegistry::VerifyKernelDef).

        `onnx` is the opset of an ONNX file: in one, a release without a kernel puts in what defines the operator.
        """
        having = 0
        for first, last, constraints, mask in operator.kernels:
            if first != node.since_version and not (last and first <= node.since_version <= last):
                continue
            if all(
                _fits(node, schema.places.get(name, ()), types, kinds.split(), onnx=onnx)
                for name, kinds in constraints.items()
            ):
                having |= mask
        if onnx and schema.function and having & schema.having != schema.having:
            having |= schema.having & self._by_function(node, types, onnx)
        return having

    def _by_function(self, node: ort_format.OrtNode, types: "Types", opset: int) -> int:
        from pipeline.compat.functions import expanded

        inner = expanded(node, types, opset)
        having = self.everywhere
        for demand in self.demands(inner) if inner else ():
            having &= demand.having if demand.kind is DemandKind.KERNEL else having
        return having


Types = Callable[[str], str]
"""The type of a value by its name, as the table writes it; "" where nobody knows."""
TypedNode = tuple[ort_format.OrtNode, Types]
TypedNodes = Sequence[TypedNode]


def _values(node: ort_format.OrtNode, places: tuple[int, ...]) -> list[str]:
    """The values at the places that are there."""
    at = [(node.inputs, place) if place >= 0 else (node.outputs, -1 - place) for place in places]
    return [names[index] for names, index in at if index < len(names) and names[index]]


def _unknown(node: ort_format.OrtNode, places: tuple[int, ...], types: Types) -> bool:
    return any(not types(name) for name in _values(node, places)[:1])


def _guess(types: Types, places: Collection[str], kind: str, name: str) -> str:
    return kind if name in places else types(name)


def _fits(node: ort_format.OrtNode, places: tuple[int, ...], types: Types, kinds: list[str], *, onnx: int) -> bool:
    """Whether the first value that is there at the places has one of the types.

    A session puts Casts around nodes of half precision of an ONNX file, never of an ORT format file.
    """
    for name in _values(node, places)[:1]:
        kind = types(name)
        return not kind or kind in kinds or (bool(onnx) and kind == HALF and FLOAT in kinds)
    return True


def first_output(node: ort_format.OrtNode) -> str:
    """What providers' claims call a node."""
    return next(filter(None, node.outputs), "")


def _same(value: Any, default: Any) -> bool:
    """Whether an attribute has its default; without one it never has."""
    return default is not None and (list(value) if isinstance(value, tuple) else value) == default


def _opset(model: ort_format.OrtModel, domain: str) -> int:
    imports = model.opset_import
    return imports.get(domain, imports.get(ort_format.DEFAULT_DOMAIN, 1) if not domain else 1)


def _typed_nodes(model: ort_format.OrtModel) -> TypedNodes:
    return [(node, types) for types, graph in _graphs(model.graph) for node in graph.nodes]


def _distinct(nodes: TypedNodes) -> Iterator[TypedNode]:
    """The first of all nodes that are alike: in operator, attributes and types of values, by which releases differ.

    Values of types that nobody knows are told apart by their names: one may stand in several places.
    """
    asked: set[Hashable] = set()
    for node, types in nodes:
        kinds = tuple([types(name) or name for name in (*node.inputs, "", *node.outputs)])
        values = tuple([(name, _comparable(attribute.value)) for name, attribute in node.attributes.items()])
        alike = (node.domain, node.op_type, node.since_version, kinds, values)
        if alike not in asked:
            asked.add(alike)
            yield node, types


def _comparable(value: Any) -> Hashable:
    """An attribute's value; of graphs and tensors, each is its own."""
    numbers = value if isinstance(value, tuple) else (value,)
    return value if all(isinstance(number, int | float | str) for number in numbers) else id(value)


def _graphs(
    graph: ort_format.OrtGraph, outer: Mapping[str, ort_format.TypeInfo] | None = None
) -> Iterator[tuple["Types", ort_format.OrtGraph]]:
    """The graph and all bodies in it, each with the types of the values that it sees."""
    types = {**(outer or {}), **graph.node_args}
    types |= {name: ort_format.TensorType(tensor.data_type) for name, tensor in graph.initializers.items()}
    words: dict[str, str] = {}  # each is asked about by all who read it

    def written(name: str) -> str:
        word = words.get(name)
        if word is None:
            word = words[name] = _written(types.get(name))
        return word

    yield written, graph
    for body in graph.bodies:
        yield from _graphs(body, types)


def _written(info: ort_format.TypeInfo) -> str:
    """As the table has types: `float`, `seq(tensor(float))`."""
    match info:
        case ort_format.TensorType(code):
            return onnx_types.ORT_NAMES.get(code, "")
        case ort_format.SequenceType(element):
            inner = _written(element)
            return f"seq({inner if '(' in inner else f'tensor({inner})'})" if inner else ""
        case ort_format.MapType(key, value):
            inner = _written(value)
            return (
                f"map({onnx_types.ORT_NAMES.get(key, '')},{inner if '(' in inner else f'tensor({inner})'})"
                if inner
                else ""
            )
    return ""


@cache
def release_table() -> ReleaseTable:
    """The table, read once."""
    return ReleaseTable(FILE.read_bytes())
