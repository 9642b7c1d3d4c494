"""The arithmetic of the NNAPI driver of the desk, beside ONNX Runtime's CPU: what "differ" on NNAPI may be laid to.

`python -m tests.android_host.arithmetic [--table FILE]` (`nox -s nnapi_arithmetic`): each one-operator model of the
ground truth, and convolutions of every form of quantization with and without a bias, run in Android's library with the
driver and on its CPU, both without optimizations, at API levels 30 and 28, in half precision and in the model's own
layout. The table says by operation and operand type how far outputs were apart: of quantized ones in steps of their
scale, of others relative to the largest value. Exit status 1 where that is over a step and a bit, or 1e-4.
"""

import argparse
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from device_runner.android_host.device import AndroidHost, Phone, operand_type_codes, operation_codes
from device_runner.android_host.inspection import Call, read_calls
from device_runner.spec import NnapiFlag, OptimizationLevel
from tests.android_host.runs import Outputs, outputs, run
from tests.ground_truth import ORACLE
from tests.releases_watch import newest_library

UNCERTAIN = ("random", "bernoulli", "multinomial", "dropout")
"""Families whose outputs are drawn."""
AROUND = frozenset({"QUANTIZE", "DEQUANTIZE", "TRANSPOSE", "RESHAPE", "CAST", "SQUEEZE", "EXPAND_DIMS"})
"""What stands around the operation that a model is about."""
FAR = 1e30
"""Apart without a measure: other sizes, or no number on one side; JSON has no infinity."""
FLOAT_LIMIT, STEP_LIMIT = 1e-4, 1.001
SETTINGS: Mapping[str, tuple[int, tuple[NnapiFlag, ...]]] = {
    "30": (30, ()), "30 fp16": (30, (NnapiFlag.USE_FP16,)), "30 nchw": (30, (NnapiFlag.USE_NCHW,)), "28": (28, ()),
}  # fmt: skip


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """How far one model's outputs are apart, in steps or relative to the largest value.

    `operations` are those that NNAPI was given, each with the types of what it reads.
    """

    model: str
    setting: str
    operations: tuple[str, ...]
    unit: str
    apart: float
    error: str = ""

    @property
    def about(self) -> frozenset[str]:
        """The operations that it is about."""
        main = frozenset(name for name in self.operations if name.partition(" ")[0] not in AROUND)
        return main or frozenset(self.operations)

    @property
    def text(self) -> str:
        """What it is apart, or its failure."""
        far = "other sizes, or no numbers" if self.apart == FAR else f"{self.apart:.2g}"
        return self.error or f"{far}{' steps' * (self.unit == 'steps')}"

    @property
    def bad(self) -> bool:
        """Whether it is more than rounding, or nothing was computed."""
        return bool(self.error) or self.apart > (STEP_LIMIT if self.unit == "steps" else FLOAT_LIMIT)


def window_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """QDQ Conv, depthwise, of groups, and Gemm, by the types of values and weights, with scales of channels or one."""
    for value, weight, channels, bias in product(("u8", "s8"), ("u8", "s8"), (False, True), (False, True)):
        if channels and weight == "u8":
            continue
        for kind, group in (("conv", 1), ("grouped", 2), ("depthwise", 4), ("strided", 1)):
            name = f"window/{kind}_{value}{weight}{'pc' * channels}{'_bias' * bias}"
            yield name, _quantized(value, weight, channels=channels, bias=bias, group=group, strided=kind == "strided")


def _quantized(value: str, weight: str, *, channels: bool, bias: bool, group: int, strided: bool) -> onnx.ModelProto:
    drawn = np.random.default_rng(7)
    features, count = 4, 8
    integer = {"u8": np.uint8, "s8": np.int8}
    scales = (drawn.random(count) * 0.01 + 0.002).astype("f4") if channels else np.array(0.006, "f4")
    low = 0 if weight == "u8" else -127
    constants = {
        "w": drawn.integers(low, low + 255, (count, features // group, 3, 3)).astype(integer[weight]), "ws": scales,
        "wz": np.full(scales.shape, 128 if weight == "u8" else 0, integer[weight]), "xs": np.array(0.02, "f4"),
        "xz": np.array(118 if value == "u8" else -10, integer[value]), "ys": np.array(0.04, "f4"),
        "yz": np.array(128 if value == "u8" else 3, integer[value]),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node(
            "Conv", ["xd", "wd", *["bd"] * bias], ["c"], group=group, pads=[1, 1, 1, 1], strides=[1 + strided] * 2
        ),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "ys", "yz"], ["y"]),
    ]
    if bias:
        constants |= {
            "b": drawn.integers(-3000, 3000, count).astype("i4"), "bs": (scales * np.float32(0.02)).astype("f4"),
            "bz": np.zeros(scales.shape, "i4"),
        }  # fmt: skip
        nodes.insert(3, helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bd"], axis=0))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [1, features, 8, 8])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """All models, with their names."""
    for name, model in window_models():
        path = folder / f"{name.replace('/', '.')}.onnx"
        onnx.save(model, path)
        yield name, path
    with zipfile.ZipFile(ORACLE / "ops.zip") as packed:
        members = sorted(member for member in packed.namelist() if member.endswith(".onnx"))
        packed.extractall(folder, members)
        yield from ((member.removesuffix(".onnx"), folder / member) for member in members)


def steps_of(model: Path) -> dict[str, float]:
    """One quantization step of each output that a DequantizeLinear gives, 1 of 8-bit integers; others are no steps."""
    graph = onnx.load(model).graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    steps = {output.name: 1.0 for output in graph.output if output.type.tensor_type.elem_type in (2, 3)}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[1] in values:
            steps[node.output[0]] = float(np.max(values[node.input[1]]))
    return steps


def apart(left: Outputs, right: Outputs, steps: Mapping[str, float]) -> tuple[float, str]:
    """The largest difference, and its unit: steps, or the largest value of the output."""
    worst = 0.0
    unit = "relative"
    for name, array in left.items():
        a, b = array.astype(np.float64), right[name].astype(np.float64)
        if a.shape != b.shape:
            return FAR, "shape"
        counted = np.isfinite(a)
        if not counted.any():
            continue
        a, b = a[counted], b[counted]
        if name in steps:
            unit = "steps"
        scale = steps.get(name) or max(float(np.abs(a).max()), 1e-9)
        worst = max(worst, float(np.abs(a - b).max()) / scale if np.isfinite(b).all() else FAR)
    return worst, unit


def operations_of(calls: Sequence[Call]) -> tuple[str, ...]:
    """The operations in the order in which they were added, each with the types of its value and its weights."""
    names = {code: name.removeprefix("TENSOR_") for name, code in operand_type_codes().items()}
    operands: dict[int, list[str]] = defaultdict(list)
    operations = []
    for call in calls:
        if call["call"] == "Model_addOperand":
            operands[call["model"]].append(names.get(call["type"], str(call["type"])))
        elif call["call"] == "Model_addOperation":
            kinds = [operands[call["model"]][index] for index in call["inputs"][:2]]
            read = dict.fromkeys([*kinds[:1], *(kind for kind in kinds[1:] if "QUANT8" in kind)])
            operations.append(f"{call['operation']} {', '.join(read)}")
    return tuple(operations)


def compared(setting: str, listed: Mapping[str, Path], folder: Path) -> Iterator[Compared]:
    """What NNAPI takes any of, in a setting."""
    library = newest_library()
    level, flags = SETTINGS[setting]
    record = folder / "calls.jsonl"
    with AndroidHost("android-host", library, Phone(api_level=level, calls=record)) as phone:
        for name, path in listed.items():
            record.unlink(missing_ok=True)
            taken = run(
                phone, path, folder / "nnapi", provider="nnapi", flags=flags, level=OptimizationLevel.NONE
            )  # fmt: skip
            calls = read_calls(record) if record.is_file() else []
            operations = operations_of(calls)
            if not operations:
                continue
            cpu = run(phone, path, folder / "cpu", level=OptimizationLevel.NONE)
            if cpu.failure:
                continue
            failed = f"{taken.failure.code.value}: {taken.failure.what}"[:160] if taken.failure else ""
            far, unit = (0.0, "") if failed else apart(outputs(cpu), outputs(taken), steps_of(path))
            yield Compared(
                model=name, setting=setting, operations=operations, unit=unit, apart=far, error=failed
            )  # fmt: skip


def table(rows: Sequence[Compared]) -> str:
    """By operation and types; a model counts for each operation that it is about. Then what no model asked for."""
    groups: dict[str, list[Compared]] = defaultdict(list)
    for row in rows:
        for operation in row.about:
            groups[operation].append(row)
    head = ("operation", "types", "models", "farthest apart", "over what passes", "refused")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for operation, members in sorted(groups.items()):
        parts = []
        for unit, word in (("relative", "{:.1g}"), ("steps", "{:.2g} steps")):
            of_unit = [row.apart for row in members if row.unit == unit]
            parts += [word.format(max(of_unit))] if of_unit else []
        bad = [row for row in members if row.bad and not row.error]
        refused = len({row.model for row in members if row.error})
        of_bad = f"{len({row.model for row in bad})}, as {bad[0].model}: {bad[0].text}" if bad else ""
        name, _, types = operation.partition(" ")
        count = len({row.model for row in members})
        cells = name, types, str(count), ", ".join(parts), of_bad.replace("|", "/"), str(refused or "")
        lines.append(f"| {' | '.join(cells)} |")
    seen = {operation.partition(" ")[0] for row in rows for operation in row.operations}
    lines += ["", f"Not asked for by any: {', '.join(sorted(operation_codes().keys() - seen)) or 'none'}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Compare, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--only", default="", help="a part of the names of models")
    parser.add_argument("--every", type=int, default=1, help="each so manieth of the models")
    parser.add_argument("--rows", type=Path, help="where each answer goes, as it comes")
    parser.add_argument("--table", type=Path, help="where the table goes")
    chosen = parser.parse_args()
    rows: list[Compared] = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        listed = {name: path for name, path in models(folder) if chosen.only in name and not name.startswith(UNCERTAIN)}
        listed = dict(list(listed.items())[:: chosen.every])
        for setting in chosen.settings:
            for row in compared(setting, listed, folder):
                rows.append(row)
                if row.bad:
                    print(f"{row.model} {row.setting}: {row.apart:.3g} {row.unit} {row.error}", flush=True)
                if chosen.rows:
                    with chosen.rows.open("ab") as kept:
                        kept.write(msgspec.json.encode(row) + b"\n")
    shown = table(rows)
    if chosen.table:
        chosen.table.write_text(shown, "utf-8")
    print(shown)
    return int(any(row.bad and not row.error for row in rows))


if __name__ == "__main__":
    sys.exit(main())
