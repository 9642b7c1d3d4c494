"""What differs between two libraries of ONNX Runtime: what an app gets with the next one, before it moves.

Strings and symbols tell of providers, session config keys and functions. Which operators a library registers only the
library itself tells: their names stand in every one, for the schemas, and symbols of kernels are stripped. So it is
asked, with a session of one node for each. Schemas, and the types that kernels take, are those of the installed
onnxruntime; an operator that is newer than it cannot be asked for.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner import files as runner_files
from device_runner import library as ort_library
from device_runner.android_host import inspection
from device_runner.errors import UnavailableError
from device_runner.probe import elf as elf_file
from pipeline.compat import release_table
from pipeline.compat import rules as compat_rules
from pipeline.core import abis as core_abis
from pipeline.core import releases as ort_releases

if TYPE_CHECKING:
    import onnx

ASKED_DOMAINS = {"": "ai.onnx", "ai.onnx.ml": "ai.onnx.ml", "com.microsoft": "com.microsoft"}
NOT_IMPLEMENTED = 9
"""ONNX Runtime's code for a node without a kernel."""
PREFERRED = ("float", "int64", "bool", "string", "uint8", "int32", "int8")
"""Element types that most kernels take, in the order in which they are tried."""
SESSION = inspection.Session(provider="cpu")
CONFIG_KEY = re.compile(rb"(?<=\0)(?:session|ep|optimization|mlas|memory)\.[a-z0-9_.]{3,80}(?=\0)")
"""Of session config entries as they stand in a library's strings."""
EXECUTABLE = 1
WORDS = {True: "kernel", False: "no kernel", None: "node refused"}
"""Whether a library has a kernel for a node, in words."""


class LibraryChange(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that differs: its part, its name ("" where the part is one value), what it was and is ("" for none)."""

    part: str
    name: str = ""
    old: str = ""
    new: str = ""


class LibraryDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Two libraries for one ABI, and what differs; `operators_asked` is 0 where they do not run here, and says why."""

    old: ort_library.LibraryFacts
    new: ort_library.LibraryFacts
    changes: tuple[LibraryChange, ...]
    operators_asked: int = 0
    why_not_asked: str = ""
    version: int = 1


def compare_libraries(
    old: ort_library.Library, new: ort_library.Library, runs: tuple[ort_library.Library, ort_library.Library] | None
) -> LibraryDiff:
    """What differs between two libraries; `runs` are those of the same packages for this computer's processor.

    Raises UnavailableError for a file that is no whole library of ONNX Runtime.
    """
    facts = old.facts, new.facts
    (values, sets), (new_values, new_sets) = map(_read, facts)
    changes = [
        LibraryChange(part=part, old=before, new=new_values[part])
        for part, before in values.items()
        if before != new_values[part]
    ]
    changes += [
        LibraryChange(part=part, name=name, **{"old" if name in before else "new": "yes"})
        for part, before in sets.items()
        for name in sorted(before ^ new_sets[part])
    ]
    operators: tuple[dict[str, bool | None], ...] = ()
    why = f"that takes a library for Android on {core_abis.X86_64} in both packages"
    if runs and all(run.facts.system == "android" for run in runs):
        try:
            operators = tuple(registered_operators(run.facts) for run in runs)
        except UnavailableError as error:
            why = "; ".join(filter(None, (error.what, error.why)))
    if operators:
        was, now = operators
        changes += [
            LibraryChange(part="operators", name=name, old=WORDS[was[name]], new=WORDS[now[name]])
            for name in sorted(was.keys() & now.keys())
            if was[name] != now[name] and (was[name] or now[name])  # a node that both refuse says nothing
        ]
    return LibraryDiff(
        old=facts[0],
        new=facts[1],
        changes=tuple(changes),
        operators_asked=len(operators[0]) if operators else 0,
        why_not_asked="" if operators else why,
    )


def _read(facts: ort_library.LibraryFacts) -> tuple[dict[str, str], dict[str, frozenset[str]]]:
    """Values of which a library has one each, and sets of names."""
    content = Path(facts.path).read_bytes()
    elf = elf_file.parse_elf(content)
    code = sum(part.file_size for part in elf.segments if part.type == elf_file.PT_LOAD and part.flags & EXECUTABLE)
    release = ort_releases.line_of(facts.release) if facts.release else None
    formats = (
        ort_releases.at_release(
            compat_rules.FULL_FORMATS if facts.kind == "full" else compat_rules.MINIMAL_FORMATS, release
        )
        if release
        else frozenset()
    )
    row = release_table.release_table().row(release) if release else None
    values = {
        "release": facts.release,
        "API version": str(release.minor) if release else "",
        "kind": facts.kind,
        "size": f"{facts.size_bytes:,} bytes",
        "code": f"{code:,} bytes",
        "page size": f"{facts.page_bytes:,} bytes",
        "telemetry": "yes" if facts.telemetry else "no",
        "highest opset": str(row.opsets[""]) if row else "",
        "highest opset of ai.onnx.ml": str(row.opsets["ai.onnx.ml"]) if row else "",
        "newest IR version of ONNX files": str(row.ir) if row else "",
        "ORT format versions": ", ".join(map(str, sorted(formats))),
    }
    exported = {name for name, section in elf.symbols if section and not name.startswith("VERS_")}
    return values, {
        "providers": frozenset(facts.providers),
        "session config keys": frozenset(key.decode("ascii") for key in CONFIG_KEY.findall(content)),
        "exported functions": frozenset(exported),
        "imported functions": frozenset(facts.imports),
        "libraries needed": frozenset(facts.needed),
    }


def registered_operators(library: ort_library.LibraryFacts) -> dict[str, bool | None]:
    """By `domain:operator version` whether the library has a kernel for it; None where it refuses the node otherwise.

    There is one for each version in the installed onnxruntime's schemas, in their order. Raises UnavailableError for a
    library that does not run here.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    types: dict[tuple[str, str], list[tuple[tuple[int, int], dict[str, list[str]]]]] = {}
    for kernel in state.get_all_opkernel_def():
        key = (kernel.domain, kernel.op_name)
        types.setdefault(key, []).append((kernel.version_range, dict(kernel.type_constraints)))
    schemas = sorted(
        state.get_all_operator_schema(), key=lambda schema: (schema.domain, schema.name, schema.since_version)
    )
    with runner_files.scratch_folder() as folder:
        names: list[str] = []
        questions: list[inspection.ModelQuestion] = []
        for schema in schemas:
            if schema.domain not in ASKED_DOMAINS or schema.deprecated:
                continue
            taken = [
                constraints
                for (first, last), constraints in types.get((schema.domain, schema.name), ())
                if first <= schema.since_version <= last
            ]
            proto = _model(schema, taken)
            if proto is None:
                continue
            path = Path(folder, f"{len(names)}.onnx")
            path.write_bytes(proto.SerializeToString())
            questions.append((str(len(names)), path, None))
            names.append(f"{ASKED_DOMAINS[schema.domain]}:{schema.name} {schema.since_version}")
        kernels: dict[str, bool | None] = {}
        for answer in inspection.ask(library, questions, SESSION):
            # A kernel that crashes as it is made is there; which one is chance, as these nodes lack optional inputs
            there = True if answer.signal or not answer.failed else None
            kernels[names[int(answer.id)]] = False if answer.code == NOT_IMPLEMENTED else there
        return kernels


def _model(schema: Any, kernels: Sequence[dict[str, list[str]]]) -> "onnx.ModelProto | None":
    """One node with an input for each that the schema requires; None where a type or an attribute cannot be made up."""
    from onnx import TensorProto, helper

    constraints = {
        type_constraint.type_param_str: list(type_constraint.allowed_type_strs)
        for type_constraint in schema.type_constraints
    }
    chosen: dict[str, str] = {}
    for name, allowed in constraints.items():
        types = next((rows[name] for rows in kernels if name in rows), allowed)
        usual = [f"tensor({kind})" for kind in PREFERRED if f"tensor({kind})" in types]
        chosen[name] = (usual or types or allowed)[0]
    attributes = {}
    for name, attribute in schema.attributes.items():
        if attribute.required:
            value = ATTRIBUTES.get(str(attribute.type).rpartition(".")[2])
            if value is None:
                return None
            attributes[name] = value
    inputs = []
    for number, parameter in enumerate(schema.inputs[: schema.min_input]):
        kind = chosen.get(parameter.typeStr, parameter.typeStr)
        if not kind.startswith("tensor("):
            return None
        code = TensorProto.DataType.Value(kind[len("tensor(") : -1].upper())
        inputs.append(helper.make_tensor_value_info(f"x{number}", code, None))
    outputs = [f"y{number}" for number in range(max(schema.min_output, 1))]
    node = helper.make_node(
        schema.name, [parameter.name for parameter in inputs], outputs, domain=schema.domain, **attributes
    )
    values = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "one", inputs, values)
    imports = [helper.make_opsetid(schema.domain, schema.since_version)]
    if schema.domain:
        imports.append(helper.make_opsetid("", 17))
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


ATTRIBUTES: dict[str, Any] = {"INT": 1, "INTS": [1], "FLOAT": 1.0, "FLOATS": [1.0], "STRING": "a", "STRINGS": ["a"]}
"""What stands for an attribute that must be there, by its type."""
