"""What a chip's NPU computes of a model, by the compiler's functional simulator, beside the original on the CPU.

A claim is no promise of right numbers: some operators are taken and computed otherwise, without a word. The simulator
says so at the desk. It is no speedometer, so that nothing here is measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from device_runner.chips import Chip
from pipeline.check.compare import (
    MAX_RELATIVE_ERROR,
    OutputCheck,
    OutputPrecision,
    Tolerance,
    compare_outputs,
    read_tensor,
    sqnr_db,
    worst_sqnr,
)
from pipeline.check.reference import ReferenceRequest, make_reference
from pipeline.check.result import Reference
from pipeline.core.errors import ModelError
from pipeline.core.ort_session import HostSession, make_session
from pipeline.dataset import Dataset
from pipeline.model.edit import copied
from pipeline.model.onnx_model import LeanModel, LoadedModel
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel
from pipeline.model.types import CODES
from pipeline.partition.answer import Refusal, Simulation
from pipeline.partition.graph import Graph, Node
from pipeline.partition.input import write_model
from pipeline.partition.qnn.claims import ask, failure_of

if TYPE_CHECKING:
    from onnx import ModelProto

Arrays = dict[str, "np.ndarray[Any, Any]"]

SECONDS = 600.0
"""For one session with an inference: the simulator takes some 200 times a CPU's time."""

SAMPLE_SECONDS = 120.0
"""For each further inference of a session."""

HALF_MAX = 65504.0
"""The largest number of half precision, in which an NPU computes floats."""

MOST_VALUES = 2000
"""Values between nodes that are compared to find the node at fault: more are more than a session stands."""

MOST_LOST_DB, ENOUGH_DB = 3.0, 30.0
"""What a form may lose on the chip against the CPU's own computing of it; from so much on any loss is small."""

REMEDIES: Mapping[str, str] = {
    "Clip": "convert to opset 11 or later: the bounds of older ones are ignored (`transform --do opset:version=13`)",
    "Conv": "put padding as large as the kernel in a Pad of its own (`transform --do wide-padding`)",
    "AveragePool": "count padding explicitly (`transform --do explicit-pads --do counted-pads`)",
    "Resize": "name its mode by an equal one, or write it as Gather (`transform --do gathered-resize`)",
    "Cast": "cut off with Floor: Casts to integers and back are dropped (`transform --do floored-casts`)",
    "Gather": "give its indices in one row (`transform --do flat-indices`)",
    "ReduceL2": "scale the values before they are squared (`transform --do scaled-norm`)",
    "ReduceSumSquare": "scale the values before they are squared",
}
"""What helps where a node computes something else, by its operator (docs/npu.md)."""


def simulate(
    loaded: LoadedModel, model: "ModelProto", graph: Graph, chip: Chip, data: Dataset, folder: Path,
    original: Reference | None = None,
) -> Simulation:  # fmt: skip
    """Run a model in the chip's simulator, compare it with the CPU, and find the first node that departs.

    `graph` is the view of `model`, whose weights are those of `loaded`. A form of an `original` is right where it is as
    near to it as on the CPU: where weights amplify rounding, no form is near. ModelError where it cannot be run here.
    """
    reference = original or _reference(loaded, data, folder)
    inputs = {tensor.name: read_tensor(tensor) for tensor in reference.inputs}
    expected = {tensor.name: read_tensor(tensor) for tensor in reference.outputs}
    on_cpu = _on_cpu(loaded, inputs, folder) if original else expected
    answered = _simulated(loaded, model, chip, inputs, folder / "simulated.onnx")
    if isinstance(answered, Refusal):
        return Simulation(passed=False, reason=answered.text, remedy=answered.remedy, data=reference.data.source)
    tolerance = _tolerance(reference)
    checks = list(compare_outputs(expected, answered, tolerance, expected))
    worst = max(checks, key=lambda check: (check.failed, check.unknown, check.max_rel_error or 0.0))
    cpu, chips = (_decibels(expected, given) for given in (on_cpu, answered))
    passed = None if worst.unknown else not worst.failed
    if original:
        passed = chips is None or chips >= min(ENOUGH_DB if cpu is None else cpu - MOST_LOST_DB, ENOUGH_DB)
    simulation = Simulation(
        passed=passed,
        sqnr_db=chips if original else None,
        cpu_sqnr_db=cpu if original else None,
        output=worst.output,
        error=worst.max_abs_error,
        limit=worst.limit,
        reason=worst.reason,
        data=reference.data.source,
    )
    if simulation.passed is not False:
        return simulation
    node = _first_departing(loaded, model, graph, chip, inputs, tolerance.max_relative_error, folder)
    return simulation if node is None else _at(simulation, *node)


def _decibels(expected: Arrays, actual: Arrays) -> float | None:
    """The least signal to noise of the outputs; None where all are equal, or none has any."""
    ratio = worst_sqnr(
        OutputCheck(output=name, passed=True, sqnr_db=sqnr_db(expected[name], actual[name])) for name in expected
    )
    return ratio if isinstance(ratio, float) else None


def _on_cpu(loaded: LoadedModel, inputs: Arrays, folder: Path) -> Arrays:
    """What a form computes on the CPU."""
    target = folder / "on-cpu.onnx"
    write_model(loaded, target)
    session = make_session(target, HostSession())
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def _reference(loaded: LoadedModel, data: Dataset, folder: Path) -> Reference:
    request = ReferenceRequest(
        source=SourceModel(path=str(loaded.path)), data=data, folder=str(folder / "reference"), work_folder=str(folder)
    )
    return make_reference(request)


def _tolerance(reference: Reference) -> Tolerance:
    """What outputs may differ by: the NPU computes floats in half precision, and a step of 8 bits may differ."""
    precision = reference.precision
    if precision is OutputPrecision.FLOAT32:
        precision = OutputPrecision.FLOAT16
    return reference.tolerance(MAX_RELATIVE_ERROR[precision])


def _simulated(loaded: LoadedModel, model: "ModelProto", chip: Chip, inputs: Arrays, target: Path) -> Arrays | Refusal:
    """The outputs by name, or why there are none."""
    answered = run_samples(replace(loaded, proto=model), chip, [inputs], target)
    return answered if isinstance(answered, Refusal) else answered[0]


def run_samples(model: LeanModel, chip: Chip, feeds: Sequence[Arrays], target: Path) -> list[Arrays] | Refusal:
    """What the simulator makes of each sample, by names of outputs; or why there is nothing.

    `target` is where the model is written, with files beside it.
    """
    write_model(model, target, named=True)
    given = target.with_suffix(".in.npz")
    names = [value.name for value in own_inputs(model.proto)]
    np.savez(given, *(sample[name] for sample in feeds for name in names))
    answer = ask(target, chip, SECONDS + SAMPLE_SECONDS * (len(feeds) - 1), given)
    if answer.ended_by:
        return Refusal("crash", f"the simulator ended ({answer.ended_by})")
    if answer.error:
        return failure_of(answer.error)
    outputs = [value.name for value in model.proto.graph.output]
    with np.load(target.with_suffix(".npz"), allow_pickle=False) as arrays:
        return [
            {name: arrays[f"arr_{number * len(outputs) + place}"] for place, name in enumerate(outputs)}
            for number in range(len(feeds))
        ]


def _first_departing(
    loaded: LoadedModel, model: "ModelProto", graph: Graph, chip: Chip, inputs: Arrays, max_error: float, folder: Path
) -> tuple[Node, str] | None:
    """The first node whose own output departs, and how; None where only the whole does."""
    values = [
        name
        for index in graph.order
        for name in graph.nodes[index].outputs
        if name and name not in graph.output_set and graph.value(name).dtype in ("f32", "f16", "i32", "i64")
    ][:MOST_VALUES]
    open_model = _with_outputs(model, graph, values)
    target = folder / "opened.onnx"
    answered = _simulated(loaded, open_model, chip, inputs, target)
    if isinstance(answered, Refusal):
        return None
    wanted = [*values, *(value.name for value in model.graph.output)]
    session = make_session(target, HostSession())
    expected = dict(zip(wanted, session.run(wanted, inputs), strict=True))
    tolerance = Tolerance(max_relative_error=max_error)
    for index in graph.order:
        outputs = {name: expected[name] for name in graph.nodes[index].outputs if name in expected}
        for check in compare_outputs(outputs, answered, tolerance):
            if check.failed:
                return graph.nodes[index], _why(check, expected[check.output])
    return None


def _why(check: OutputCheck, expected: "np.ndarray[Any, Any]") -> str:
    largest = float(np.abs(expected[np.isfinite(expected)].astype(np.float64)).max(initial=0.0))
    if largest > HALF_MAX:
        return f"its values reach {largest:.0f}, and the NPU's half precision ends at {HALF_MAX:.0f}"
    return check.reason


def _at(simulation: Simulation, node: Node, reason: str) -> Simulation:
    remedy = REMEDIES.get(node.op_type, f"keep it on the CPU, or express {node.op_type} by other operators")
    return msgspec.structs.replace(
        simulation, first=node.first_output, op_type=node.op_type, reason=reason, remedy=remedy
    )


def _with_outputs(model: "ModelProto", graph: Graph, values: Sequence[str]) -> "ModelProto":
    """The model that also gives values between its nodes."""
    from onnx import helper

    proto = copied(model)
    outputs = [
        helper.make_tensor_value_info(name, CODES[graph.value(name).dtype or ""], graph.value(name).shape)
        for name in values
    ]
    last = list(proto.graph.output)
    del proto.graph.output[:]
    proto.graph.output.extend([*outputs, *last])
    return proto


def unrunnable(error: ModelError) -> Simulation:
    """Nothing could be compared, because the original does not run on the CPU."""
    return Simulation(passed=False, reason=f"nothing to compare with: {error.reason}", remedy=error.remedy)
