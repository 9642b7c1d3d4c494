"""Reads the kernels that a WebGPU plugin registers, through a proxy, and says where our table differs.

`python -m tests.webgpu.registry [--write]`: with the packages onnxruntime and onnxruntime-ep-webgpu installed, and a
software Vulkan driver. Exit status 1 where a kernel differs; with --write the lines of a table of this plugin are
printed, to be compared with pipeline/providers/webgpu/kernels.txt (marks of older releases are kept there by hand).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import onnx
from onnx import helper

from device_runner.build import build_library
from pipeline.model.types import CODES, SHORT_BY_ORT, SHORT_NAMES
from pipeline.partition.answer import LOWEST_LAYOUT_OPSET
from pipeline.providers.webgpu.kernels import kernels
from tests.webgpu.plugin import drivers

OPEN = 2**31 - 1
"""The last version of a registration without an end."""

Registered = frozenset[tuple[str, str, int, int | None, str, str, frozenset[str]]]
"""Domain, operator, first and last version, constraint, type, and what stays at the CPU: one entry for each type."""

SESSION = """
import sys
import onnx, onnxruntime
from onnx import helper
value = lambda name: helper.make_tensor_value_info(name, 1, [1])
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value("x")], [value("y")])
model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
onnxruntime.register_execution_provider_library("webgpu", sys.argv[1])
devices = [row for row in onnxruntime.get_ep_devices() if row.ep_name == "WebGpuExecutionProvider"]
options = onnxruntime.SessionOptions()
options.add_provider_for_devices(devices[:1], dict(word.split("=") for word in sys.argv[2:]))
onnxruntime.InferenceSession(model.SerializeToString(), options, enable_fallback=False)
"""


class KernelRow(msgspec.Struct, frozen=True):
    """One kernel as the proxy writes it; types are ONNX's numbers."""

    op: str
    domain: str
    first: int
    last: int
    types: dict[str, list[int]]
    cpu: list[str]


def registered(plugin: str, *options: str) -> Registered:
    """The kernels of a plugin with some options of its own."""
    proxy = build_library(Path(__file__).parent, "libproxy.so")
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "kernels.jsonl"
        names = {"PROXIED_PLUGIN": plugin, "KERNELS_FILE": str(written)}
        command = [sys.executable, "-c", SESSION, str(proxy), *options]
        subprocess.run(command, env=os.environ | drivers() | names, check=True)
        rows = msgspec.json.Decoder(KernelRow).decode_lines(written.read_bytes())
    return frozenset(
        (row.domain, row.op, row.first, None if row.last == OPEN else row.last, name, SHORT_NAMES[kind],
         frozenset(row.cpu) if row.op != "GroupQueryAttention" else frozenset())
        for row in rows
        for name, kinds in (row.types or {"": [1]}).items() for kind in kinds
    )  # fmt: skip


def ours(*, int64: bool) -> Registered:
    """Our table as the newest release has it."""
    return frozenset(
        (domain, op, kernel.first, kernel.last, name, kind,
         kernel.on_cpu if op != "GroupQueryAttention" else frozenset())
        for (domain, op), rows in kernels(int64=int64).items() for kernel in rows
        for name, kinds in kernel.types.items() for kind in kinds
    )  # fmt: skip


def one_node_models(folder: Path) -> Iterator[tuple[str, Path]]:
    """A model of one node for each operator of ai.onnx in the table, version of its schema, and type of a constraint.

    Values have no shapes, as these decide nothing; optional inputs are left out.
    """
    operators = {op for domain, op in kernels() if not domain}
    for schema in onnx.defs.get_all_schemas_with_history():
        opset = max(schema.since_version, LOWEST_LAYOUT_OPSET)
        if schema.domain or schema.name not in operators - {"If"} or opset > NEWEST_OPSET:
            continue
        if onnx.defs.get_schema(schema.name, opset).since_version != schema.since_version:
            continue
        allowed = {row.type_param_str: sorted(filter(None, map(_code, row.allowed_type_strs)))
                   for row in schema.type_constraints}  # fmt: skip
        for varied, types in allowed.items():
            for kind in types:
                bound = {name: codes[0] for name, codes in allowed.items() if codes} | {varied: kind}
                name = f"{schema.name}_{schema.since_version}_{varied}_{SHORT_NAMES[kind]}"
                onnx.save(_one_node(schema, opset, bound), folder / f"{name}.onnx")
                yield name, folder / f"{name}.onnx"


def _code(text: str) -> int:
    """The number of `tensor(float16)`; 0 for what is no tensor."""
    short = SHORT_BY_ORT.get(text.removeprefix("tensor(").removesuffix(")"))
    return CODES[short] if short else 0


def _one_node(schema: onnx.defs.OpSchema, opset: int, bound: Mapping[str, int]) -> onnx.ModelProto:
    def values(side: Iterable[onnx.defs.OpSchema.FormalParameter], prefix: str) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(
                f"{prefix}{number}", bound.get(row.type_str) or _code(row.type_str) or 1, None
            )
            for number, row in enumerate(side)
            if row.option != onnx.defs.OpSchema.FormalParameterOption.Optional
        ]

    inputs, outputs = values(schema.inputs, "x"), values(schema.outputs, "y")
    attributes: dict[str, Any] = {
        name: REQUIRED.get(name, 1) for name, row in schema.attributes.items() if row.required
    }
    if schema.name == "Cast":
        attributes["to"] = bound["T2"]
    node = helper.make_node(schema.name, [row.name for row in inputs], [row.name for row in outputs], **attributes)
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


REQUIRED = {"equation": "i,i->i", "axes": [0], "perm": [0], "kernel_shape": [1, 1], "pads": [0, 0], "mode": "constant"}
"""Values of attributes that operators must have; 1 for the others."""
NEWEST_OPSET = 26
"""The newest that the libraries of 1.28 and 1.29 know."""


def _lines(entries: Iterable[tuple[object, ...]]) -> list[str]:
    return sorted(" ".join(str(part) if part is not None else "open" for part in entry) for entry in entries)


def main() -> int:
    """Compare the installed plugin's kernels with our table; 1 where these differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="print every kernel of the plugin")
    chosen = parser.parse_args()
    from onnxruntime_ep_webgpu import get_library_path  # type: ignore[import-not-found,import-untyped,unused-ignore]

    different = 0
    for int64 in (False, True):
        theirs = registered(get_library_path(), f"enableInt64={int(int64)}")
        table = ours(int64=int64)
        lines = [*(f"only the plugin: {line}" for line in _lines(theirs - table)),
                 *(f"only our table: {line}" for line in _lines(table - theirs))]  # fmt: skip
        different += len(lines)
        version = metadata.version("onnxruntime-ep-webgpu")
        print(f"plugin {version}, enableInt64={int(int64)}: {len(theirs)} kernels by type, {len(lines)} differ")
        print("".join(f"  {line}\n" for line in (_lines(theirs) if chosen.write else lines)), end="")
    return min(different, 1)


if __name__ == "__main__":
    sys.exit(main())
