"""Write pipeline/compat/releases.json: what each release of ONNX Runtime can open, asked of its wheel.

As a program: `python docs/make_releases.py [--check] [--keep FOLDER]`, in an environment with uv, which installs each
wheel into an environment of its own: the newest of each release, and all patches before it, of which those that
differ from it get rows. `--check` compares instead of writing (exit status 1 where they differ);
`--keep` is where these environments stay (1.5 GB), for who asks again. pipeline/compat/release_table.py says what the
file holds.
"""

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from device_runner.errors import UnavailableError, pip_install
from pipeline.compat.release_table import FILE, FORMAT
from pipeline.core.errors import PipelineError
from pipeline.core.releases import NEWEST_KNOWN, Release

HERE = Path(__file__).resolve().parent
OLDEST = 16
"""The first minor release whose ORT format is today's, and whose wheels the oldest Python that we support can have."""
UNBOUND = 2**31 - 1
HIGHEST_IR, HIGHEST_OPSET = 24, 40
"""What is tried: far above what any release takes."""
DOMAINS = (
    "", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft",
    "com.microsoft.experimental", "com.microsoft.nchwc", "com.ms.internal.nhwc",
)  # fmt: skip

VALUES = {
    "MatMulNBits": {"bits": (2, 4, 8), "block_size": (16, 32, 64, 128, 256, 512)},
    "GatherBlockQuantized": {"bits": (4, 8), "block_size": (16, 32, 64, 128, 256)},
    "ExpandDims": {},
}
"""Attributes of com.microsoft's operators with values that kernels have or have not, beside what schemas say.

ExpandDims has none: in some releases it ends the process.
"""

NO_SOLUTION = 1
"""uv's exit code where no version that is asked for exists; 2 where it could not find that out."""

LACKS_UV = "import importlib.util, sys; sys.exit(importlib.util.find_spec('uv') is None)"
"""Without it `python -m uv` ends with 1, too."""

Said: TypeAlias = dict[str, Any]
"""What docs/read_release.py printed for one wheel."""


def write_trials(folder: Path) -> None:
    """One-operator models of each IR version, and of each version of each domain, to see which a wheel refuses."""

    def save(name: str, ir: int, imports: dict[str, int]) -> None:
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
        opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=ir), folder / f"{name}.onnx")

    for operator, names in VALUES.items():
        for values in itertools.product(*names.values()):
            trial = value_model(operator, dict(zip(names, values, strict=True)))
            onnx.save(trial, folder / f"{' '.join(map(str, (operator, *values)))}.onnx")
    for ir in range(3, HIGHEST_IR + 1):
        save(f"ir {ir}", ir, {"": 9})
    for domain in DOMAINS:
        for version in range(1, HIGHEST_OPSET + 1):
            save(f"opset {domain} {version}", 8, {"": 9, domain: version})


def value_model(operator: str, attributes: Mapping[str, int]) -> onnx.ModelProto:
    """An operator with weights of few bits in blocks, or an axis, whose results are 1."""
    if not attributes:
        return one_node(operator, ["x", "axis"], [], {"axis": np.int32(0)}, TensorProto.FLOAT, [1])
    bits, block = attributes["bits"], attributes["block_size"]
    wide = 2 * max(block, 32)
    weights: Any = np.full((8, wide * bits // 8), 255, np.uint8)  # the highest of each, 2**(bits - 1) - 1 above zero
    added = wide if operator == "MatMulNBits" else 1
    scales: Any = np.full((8, wide // block), 1 / added / (2 ** (bits - 1) - 1), np.float32)
    if operator == "MatMulNBits":
        weights, scales = weights.reshape(8, wide // block, -1), scales.reshape(-1)
        inputs, shape = ["x", "w", "s"], [1, wide]
        others = {"K": wide, "N": 8}
    else:
        inputs, shape = ["w", "x", "s"], [1]
        others = {"gather_axis": 0, "quantize_axis": 1}
    kind = TensorProto.FLOAT if operator == "MatMulNBits" else TensorProto.INT64
    return one_node(operator, inputs, [*others.items(), *attributes.items()], {"w": weights, "s": scales}, kind, shape)


def one_node(
    operator: str,
    inputs: Sequence[str],
    attributes: Sequence[tuple[str, int]],
    constants: Mapping[str, Any],
    kind: int,
    shape: Sequence[int],
) -> onnx.ModelProto:
    """A model of an operator of com.microsoft, which reads the input `x` and gives floats."""
    node = helper.make_node(operator, inputs, ["y"], domain="com.microsoft")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes)
    x, y = helper.make_tensor_value_info("x", kind, shape), helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph([node], "g", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def values_of(said: Sequence[Said]) -> dict[str, list[Any]]:
    """By operators the attributes that were tried together, and by their values the releases that compute with them."""
    return {
        f"com.microsoft:{operator}": [
            " ".join(names),
            {
                key: sum(
                    1 << at for at, wheel in enumerate(said) if f"{operator} {key}".strip() not in wheel["refused"]
                )
                for key in (" ".join(map(str, values)) for values in itertools.product(*names.values()))
            },
        ]
        for operator, names in VALUES.items()
    }


def environment(minor: int, folder: Path, patch: int | None = None) -> Path:
    """The Python of an environment with a wheel of a release, the newest or a patch.

    UnavailableError where no such wheel is to be had, PipelineError where that is not known: no network, no room.
    """
    release = f"1.{minor}" if patch is None else f"1.{minor}.{patch}"
    place = folder / release
    python = place / "bin" / "python"
    if python.exists():
        return python
    if subprocess.run([sys.executable, "-c", LACKS_UV], check=False).returncode:
        raise PipelineError("uv, which makes the environments of wheels, is not installed", remedy=pip_install("uv"))
    numpy = "numpy<2" if minor < 19 else "numpy"  # wheels before 1.19 were built with the first
    uv = [sys.executable, "-m", "uv"]
    steps: tuple[list[str], ...] = (
        [*uv, "venv", "--quiet", "--python", sys.executable, str(place)],
        [
            *uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            str(python),
            "--no-deps",
            f"onnxruntime=={release}" + ".*" * (patch is None),
            numpy,
        ],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(place, ignore_errors=True)  # without the wheel it is no environment of the release
            if done.returncode != NO_SOLUTION:
                raise PipelineError(
                    f"no environment could be made for onnxruntime {release}",
                    where=str(place),
                    why=" ".join(done.stderr.split())[:300],
                    remedy="see to that, and run it again",
                )
            here = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
            raise UnavailableError(
                f"no wheel of onnxruntime {release} can be installed for {here}",
                why=" ".join(done.stderr.split())[:300],
                remedy=f"name a release from 1.{OLDEST} to {NEWEST_KNOWN}; for Python 3.13 and later there are none "
                "before 1.20: run the session with an older one (nox --force-python 3.11)",
            )
    return python


def ask(python: Path, trials: Path) -> Said:
    """What a wheel says; PipelineError where it does not answer."""
    done = subprocess.run([python, HERE / "read_release.py", trials], check=False, capture_output=True, text=True)
    if done.returncode:
        raise PipelineError(
            "a wheel says nothing of itself",
            where=str(python),
            why=done.stderr.strip()[-300:],
            remedy="remove its environment, and run it again",
        )
    said: Said = json.loads(done.stdout)
    return said


def patches(minor: int, environments: Path, trials: Path) -> list[Said]:
    """What the wheels of a minor release say: those that differ from the newest, marked as `earlier`, then that.

    UnavailableError where there is none at all.
    """
    newest = ask(environment(minor, environments), trials)
    said = []
    for patch in range(int(newest["version"].split(".")[2])):
        try:
            said.append(ask(environment(minor, environments, patch), trials))
        except UnavailableError:
            continue  # numbers are left out: there is no 1.17.2
    return [*differing(said, newest), newest]


def differing(said: Sequence[Said], newest: Said) -> list[Said]:
    """Those that say something else than the newest, marked as `earlier`."""

    def content(wheel: Said) -> set[str]:
        rows = (*wheel["schemas"], *wheel["kernels"], *wheel["refused"])
        return {json.dumps(row, sort_keys=True) for row in rows}

    return [{**wheel, "earlier": True} for wheel in said if content(wheel) != content(newest)]


def release_row(said: Said) -> dict[str, Any]:
    """A release with its limits; a domain whose every version is taken is none that it knows."""
    refused = set(said["refused"])
    highest = {
        domain: max(version for version in range(1, HIGHEST_OPSET + 1) if f"opset {domain} {version}" not in refused)
        for domain in DOMAINS
    }
    earlier = said.get("earlier", False)
    return {
        "release": said["version"] if earlier else ".".join(said["version"].split(".")[:2]),
        "wheel": said["version"],
        "ir": max(ir for ir in range(3, HIGHEST_IR + 1) if f"ir {ir}" not in refused),
        "opsets": {domain: version for domain, version in highest.items() if version < HIGHEST_OPSET},
    } | ({"earlier": True} if earlier else {})


def functions() -> set[tuple[str, str, int]]:
    """Operators that ONNX defines by others: a release without a kernel puts those in their place."""
    schemas = onnx.defs.get_all_schemas_with_history()
    return {
        (row.domain, row.name, row.since_version)
        for row in schemas
        if getattr(row, "has_function", False) or getattr(row, "has_context_dependent_function", False)
    }


def default_of(encoded: str) -> Any:
    """The default of an attribute as JSON has it; None for one without."""
    if not encoded:
        return None
    value = helper.get_attribute_value(onnx.AttributeProto.FromString(bytes.fromhex(encoded)))
    return value.decode() if isinstance(value, bytes) else list(value) if isinstance(value, Sequence) else value


def places_of(schema: Said, names: Iterable[str]) -> dict[str, list[int]]:
    """By names of kernels' type constraints, the inputs (0, 1, …) and outputs (-1, -2, …) of that type."""
    sides = ((schema["inputs"], 0), (schema["outputs"], 1))
    places = {
        name: [
            -1 - at if is_output else at
            for values, is_output in sides
            for at, (own, kind) in enumerate(values)
            if name in (own, kind)
        ]
        for name in sorted(names)
    }
    return {name: found for name, found in places.items() if found}


def schema_rows(schemas: Mapping[int, Said], names: set[str], *, function: bool) -> dict[str, Any]:
    """One version of an operator over the releases that have it (bit 0 is the oldest)."""
    having = sum(1 << at for at in schemas)
    arities: dict[tuple[int, ...], int] = defaultdict(int)
    attributes: dict[str, int] = defaultdict(int)
    for at, schema in schemas.items():
        arities[tuple(-1 if bound == UNBOUND else bound for bound in schema["arity"])] |= 1 << at
        for name in schema["attributes"]:
            attributes[name] |= 1 << at
    newest = schemas[max(schemas)]
    young = {
        name: [mask, default_of(next(s["attributes"][name] for at, s in sorted(schemas.items(), reverse=True)
                                     if name in s["attributes"]))]
        for name, mask in sorted(attributes.items())
        if mask != having
    }  # fmt: skip
    row = {
        "in": having,
        "arity": [[*arity, mask] for arity, mask in arities.items()],
        "attributes": " ".join(sorted(name for name, mask in attributes.items() if mask == having)),
        "young": young,
        "places": places_of(newest, names),
        "function": function,
    }
    return {key: value for key, value in row.items() if value}


def kernel_rows(kernels: Iterable[tuple[int, list[Any]]]) -> Iterator[list[Any]]:
    """Kernels of an operator: first and last version (0: only the first), types by constraint, releases."""
    singles: dict[tuple[int, int, str, str], int] = defaultdict(int)
    others: dict[tuple[int, int, tuple[tuple[str, str], ...]], int] = defaultdict(int)
    for at, (_, _, first, last, constraints) in kernels:
        end = 0 if last == UNBOUND else last
        types = tuple((name, " ".join(sorted(map(short, kinds)))) for name, kinds in sorted(constraints.items()))
        if len(types) == 1:
            ((name, kinds),) = types
            for kind in kinds.split():
                singles[first, end, name, kind] |= 1 << at
        else:
            others[first, end, types] |= 1 << at
    merged: dict[tuple[int, int, str, int], list[str]] = defaultdict(list)
    for (first, end, name, kind), mask in singles.items():
        merged[first, end, name, mask].append(kind)
    for (first, end, name, mask), alike in sorted(merged.items()):
        yield [first, end, {name: " ".join(sorted(alike))}, mask]
    for (first, end, types), mask in sorted(others.items()):
        yield [first, end, dict(types), mask]


def short(kind: str) -> str:
    """A type without what all of tensors have: `float` for tensor(float); others as they are, without blanks."""
    inside = kind.removeprefix("tensor(").removesuffix(")") if kind.startswith("tensor(") else kind
    return inside.replace(" ", "")


def table_of(said: Sequence[Said]) -> dict[str, Any]:
    """The table from what wheels said, the oldest first."""
    defined = functions()
    schemas: dict[tuple[str, str], dict[int, dict[int, Said]]] = defaultdict(lambda: defaultdict(dict))
    kernels: dict[tuple[str, str], list[tuple[int, list[Any]]]] = defaultdict(list)
    for at, wheel in enumerate(said):
        for schema in wheel["schemas"]:
            schemas[schema["domain"], schema["operator"]][schema["since"]][at] = schema
        for kernel in wheel["kernels"]:
            kernels[kernel[0], kernel[1]].append((at, kernel))
    operators = {}
    for domain, operator in sorted(schemas):
        names = {name for _, kernel in kernels[domain, operator] for name in kernel[4]}
        operators[f"{domain}:{operator}"] = {
            "schemas": {
                str(since): schema_rows(rows, names, function=(domain, operator, since) in defined)
                for since, rows in sorted(schemas[domain, operator].items())
            },
            "kernels": list(kernel_rows(kernels[domain, operator])),
        }
    return {
        "format": FORMAT,
        "releases": [release_row(wheel) for wheel in said],
        "types": types_of(said),
        "values": values_of(said),
        "operators": operators,
    }


def types_of(said: Sequence[Said]) -> dict[str, int]:
    """Types of tensors with which a kernel computes, and the releases that have one."""
    types: dict[str, int] = defaultdict(int)
    for at, wheel in enumerate(said):
        for kind in {kind for kernel in wheel["kernels"] for kinds in kernel[4].values() for kind in kinds}:
            for name in re.findall(r"tensor\((\w+)\)", kind):
                types[name] |= 1 << at
    return dict(sorted(types.items()))


def text_of(table: Mapping[str, Any]) -> str:
    """The file: an operator a line, so that a new release changes what it changed."""
    packed = {key: json.dumps(value, separators=(",", ":")) for key, value in table.items() if key != "operators"}
    lines = ",\n".join(
        f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}" for name, row in table["operators"].items()
    )
    head = ",\n".join(f'"{key}":{value}' for key, value in packed.items())
    return f'{{{head},\n"operators":{{\n{lines}\n}}}}\n'


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The operators, and the other parts, that two tables have otherwise."""

    def parts(table: Mapping[str, Any]) -> dict[str, Any]:
        return {**{key: value for key, value in table.items() if key != "operators"}, **table.get("operators", {})}

    old, new = parts(before), parts(after)
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))


def newer(text: str) -> str:
    """What to do where a later release than NEWEST_KNOWN has a wheel; "" where none has."""
    known = [Release(*map(int, row["release"].split(".")[:2])) for row in json.loads(text)["releases"]]
    return f"NEWEST_KNOWN (pipeline/core/releases.py): wheels go to {max(known)}" * (max(known) > NEWEST_KNOWN)


def main() -> int:
    """Write or compare the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--keep", type=Path, help="folder of the environments")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        trials, environments = Path(work, "trials"), chosen.keep or Path(work, "environments")
        trials.mkdir()
        write_trials(trials)
        said = []
        for minor in range(OLDEST, NEWEST_KNOWN.minor + 2):  # the next one, too: it may have come
            try:
                said += patches(minor, environments, trials)
            except (UnavailableError, PipelineError) as error:
                if minor <= NEWEST_KNOWN.minor or isinstance(error, PipelineError):
                    print(f"error: {error.text}", file=sys.stderr)
                    return 3
            else:
                last = said[-1]
                print(f"{last['version']}: {len(last['schemas'])} schemas, {len(last['kernels'])} kernels", flush=True)
    text = text_of(table_of(said))
    before = FILE.read_text("utf-8") if FILE.is_file() else "{}"
    differs = before != text
    for name in differences(json.loads(before), json.loads(text)):
        print(f"differs: {name}")
    if not chosen.check:
        FILE.write_text(text, "utf-8")
    print("as it was" if not differs else "differs" if chosen.check else f"{FILE.name}: {len(text)} bytes")
    print(newer(text), end="\n" if newer(text) else "")
    return int(chosen.check and differs)


if __name__ == "__main__":
    sys.exit(main())
