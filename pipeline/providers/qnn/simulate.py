"""What a chip's NPU computes of a model, by the compiler's functional simulator, beside the original on the CPU.

A claim is no promise of right numbers: some operators are taken and computed otherwise, without a word. The simulator
says so at the desk. It is no speedometer, so that nothing here is measured.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from device_runner import providers as runner_providers
from pipeline.check import compare as output_compare
from pipeline.check import reference as check_reference
from pipeline.check import result as check_result
from pipeline.check.compare import OutputCheck
from pipeline.dataset import Dataset
from pipeline.model import edit as onnx_edit
from pipeline.model import onnx_model, signature
from pipeline.model import session as model_session
from pipeline.model import types as onnx_types
from pipeline.model.onnx_model import LeanModel
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import graph as partition_graph
from pipeline.partition import subject as partition_subject
from pipeline.providers.qnn.claims import ask, failure_of
from pipeline.providers.qnn.suspects import COMPUTED_RIGHT

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

MOST_LOST_DB, SMALL_DB, ENOUGH_DB = 3.0, 30.0, 20.0
"""What a form loses on the chip at most where it is computed as on the CPU; from how much on any loss is small; and
what is enough after any: noise is a tenth of the outputs then, as far as a quantized model's may be off."""

LEAST_DB = 6.0
"""With less, noise is over half of a form's outputs: no chip that computes it faithfully makes them right."""

CRASH_REMEDIES: Mapping[str, str] = {
    "AveragePool": "use an odd kernel, or pad with a Pad of its own: the compiler dies of even ones with auto_pad SAME",
}
"""What helps where the simulator ends at a node."""

CRASH_SECONDS = 240.0
"""For finding the node of a crash: each question runs a part of the model again."""


def simulate(
    loaded: onnx_model.LoadedModel,
    model: "ModelProto",
    graph: partition_graph.Graph,
    chip: runner_providers.Chip,
    data: Dataset,
    folder: Path,
    original: check_result.Reference | None = None,
) -> claim_answer.Simulation:
    """Run a model in the chip's simulator, compare it with the CPU, and find the first node that departs.

    `graph` is the view of `model`, whose weights are those of `loaded`. A form of an `original` is right where it is as
    near to it as on the CPU, or near enough, and the CPU's has more signal than noise. ModelError where it cannot run.
    """
    reference = original or check_reference.make_reference(
        SourceModel(path=str(loaded.path)), {}, data, str(folder / "reference"), str(folder)
    )
    inputs = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.inputs}
    expected = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.outputs}
    cpu = None
    if original:  # what a form computes on the CPU
        target = folder / "on-cpu.onnx"
        partition_subject.write_model(loaded, target)
        cpu = _decibels(expected, model_session.outputs_of(target, inputs))
    if cpu is not None and cpu < LEAST_DB:
        why = f"not even on the CPU is this form near the original: {cpu:.1f} dB of signal to noise"
        remedy = "give test data like the app's; else leave operators float (`transform --do mixed-precision`)"
        return claim_answer.Simulation(
            passed=False, reason=why, remedy=remedy, data=reference.data.source, cpu_sqnr_db=cpu
        )
    answered = _simulated(loaded, model, chip, inputs, folder / "simulated.onnx")
    if isinstance(answered, claim_answer.Refusal):
        failed = claim_answer.Simulation(
            passed=False, reason=answered.what, remedy=answered.remedy, data=reference.data.source
        )
        crashed = _first_crashing(loaded, model, graph, chip, inputs, folder) if answered.code == "crash" else None
        return _at(failed, crashed, failed.reason, CRASH_REMEDIES.get(crashed.op_type, "")) if crashed else failed
    # What outputs may differ by: the NPU computes floats in half precision, and a step of 8 bits may differ
    precision = reference.precision
    if precision is output_compare.OutputPrecision.FLOAT32:
        precision = output_compare.OutputPrecision.FLOAT16
    tolerance = reference.tolerance(output_compare.MAX_RELATIVE_ERROR[precision])
    checks = list(output_compare.compare_outputs(expected, answered, tolerance, expected))
    worst = max(checks, key=lambda check: (check.failed, check.unknown, check.max_rel_error or 0.0))
    chips = _decibels(expected, answered)
    passed, noisy = None if worst.unknown else not worst.failed, False
    if original:
        passed, noisy = judged_form(chips, cpu)
    simulation = claim_answer.Simulation(
        passed=passed,
        sqnr_db=chips if original else None,
        cpu_sqnr_db=cpu if original else None,
        output=worst.output,
        error=worst.max_abs_error,
        limit=worst.limit,
        reason=worst.reason,
        data=reference.data.source,
        noisy=noisy,
    )
    # Random inputs may mean nothing to the model, and NaN of them is no fault; where NaN is lost is worth knowing.
    lost = passed is None and any(np.isnan(array).any() for array in expected.values() if array.dtype.kind == "f")
    if simulation.passed is not False and not lost and not noisy:
        return simulation
    most = (
        output_compare.MAX_RELATIVE_ERROR[output_compare.OutputPrecision.QUANTIZED]
        if original
        else tolerance.max_relative_error
    )
    departing = _first_departing(loaded, model, graph, chip, inputs, most, folder)
    if departing is None:
        return simulation
    node, why = departing
    return _at(simulation, node, why, COMPUTED_RIGHT.get(node.op_type, ""))


def judged_form(chip: float | None, cpu: float | None) -> tuple[bool, bool]:
    """Whether a form is right on the chip, and whether that adds noise; both in dB, None for equal outputs."""
    if chip is None or chip >= min(SMALL_DB if cpu is None else cpu - MOST_LOST_DB, SMALL_DB):
        return True, False
    return chip >= ENOUGH_DB, chip >= ENOUGH_DB


def _decibels(expected: Arrays, actual: Arrays) -> float | None:
    """The least signal to noise of the outputs; None where all are equal, or none has any."""
    ratio = output_compare.worst_sqnr(
        OutputCheck(output=name, passed=True, sqnr_db=output_compare.sqnr_db(expected[name], actual[name]))
        for name in expected
    )
    return ratio if isinstance(ratio, float) else None


def _simulated(
    loaded: onnx_model.LoadedModel, model: "ModelProto", chip: runner_providers.Chip, inputs: Arrays, target: Path
) -> Arrays | claim_answer.Refusal:
    """The outputs by name, or why there are none."""
    answered = run_samples(replace(loaded, proto=model), chip, [inputs], target)
    return answered if isinstance(answered, claim_answer.Refusal) else answered[0]


def run_samples(
    model: LeanModel, chip: runner_providers.Chip, feeds: Sequence[Arrays], target: Path
) -> list[Arrays] | claim_answer.Refusal:
    """What the simulator makes of each sample, by names of outputs; or why there is nothing.

    `target` is where the model is written, with files beside it.
    """
    partition_subject.write_model(model, target, named=True)
    given = target.with_suffix(".in.npz")
    names = [value.name for value in signature.own_inputs(model.proto)]
    np.savez(given, *(sample[name] for sample in feeds for name in names))
    answer = ask(target, chip, SECONDS + SAMPLE_SECONDS * (len(feeds) - 1), given)
    if answer.ended_by:
        return claim_answer.Refusal("crash", f"the simulator ended ({answer.ended_by})")
    if answer.error:
        return failure_of(answer.error)
    outputs = [value.name for value in model.proto.graph.output]
    with np.load(target.with_suffix(".npz"), allow_pickle=False) as arrays:
        return [
            {name: arrays[f"arr_{number * len(outputs) + index}"] for index, name in enumerate(outputs)}
            for number in range(len(feeds))
        ]


def _first_departing(
    loaded: onnx_model.LoadedModel,
    model: "ModelProto",
    graph: partition_graph.Graph,
    chip: runner_providers.Chip,
    inputs: Arrays,
    max_error: float,
    folder: Path,
) -> tuple[partition_graph.Node, str] | None:
    """The first node whose own output departs, and how; None where only the whole does."""
    # The values at which models are compared, in their order, with the node that each tells of. What a quantized node
    # gives is seen behind its QuantizeLinear: as an output it would be another node's, in float.
    makers = {name: graph.nodes[index] for index in graph.order for name in graph.nodes[index].outputs if name}
    behind: dict[str, partition_graph.Node] = {}
    for name, node in makers.items():
        rounded = makers.get(node.inputs[0]) if node.op_type == "DequantizeLinear" else None
        if rounded and rounded.op_type == "QuantizeLinear" and rounded.inputs[0] in makers:
            behind[name] = makers[rounded.inputs[0]]
    nodes = behind or makers
    values = [
        name
        for name in nodes
        if name not in graph.output_set and graph.value(name).dtype in ("f32", "f16", "i32", "i64")
    ][:MOST_VALUES]
    open_model = _with_outputs(model, graph, values)
    target = folder / "opened.onnx"
    answered = _simulated(loaded, open_model, chip, inputs, target)
    if isinstance(answered, claim_answer.Refusal):
        return None
    expected = model_session.outputs_of(target, inputs)
    for check in output_compare.compare_outputs(
        expected, answered, output_compare.Tolerance(max_relative_error=max_error)
    ):
        if check.failed and check.output in nodes:
            return nodes[check.output], _why(check, expected[check.output])
    return None


def _why(check: OutputCheck, expected: "np.ndarray[Any, Any]") -> str:
    if np.isnan(expected).any():
        return f"NaN on the CPU for {int(np.isnan(expected).sum())} of {expected.size} elements, numbers on the NPU"
    largest = float(np.abs(expected[np.isfinite(expected)].astype(np.float64)).max(initial=0.0))
    if largest > HALF_MAX:
        return f"its values reach {largest:.0f}, and the NPU's half precision ends at {HALF_MAX:.0f}"
    return check.reason


def _first_crashing(
    loaded: onnx_model.LoadedModel,
    model: "ModelProto",
    graph: partition_graph.Graph,
    chip: runner_providers.Chip,
    inputs: Arrays,
    folder: Path,
) -> partition_graph.Node | None:
    """The node whose part of the model is the first that ends the simulator; None where time is too short."""
    target = folder / "part.onnx"
    deadline = time.monotonic() + CRASH_SECONDS
    right, wrong = 0, len(graph.order)
    while wrong - right > 1:
        count = (right + wrong) // 2
        # The first nodes of the model, with what the others read of them as outputs
        first, rest = ([graph.nodes[index] for index in part] for part in (graph.order[:count], graph.order[count:]))
        read = {name for node in rest for name in (*node.inputs, *node.implicit_inputs)} | set(graph.output_set)
        values = [name for node in first for name in node.outputs if name in read]
        proto = _with_outputs(model, graph, values)
        del proto.graph.output[len(values) :]
        left_out = {name for node in rest for name in node.outputs if name}
        kept = [node for node in proto.graph.node if not left_out & set(node.output)]
        onnx_edit.set_nodes(proto.graph, kept)
        answered = _simulated(loaded, proto, chip, inputs, target)
        if time.monotonic() > deadline:
            return None
        if isinstance(answered, claim_answer.Refusal) and answered.code == "crash":
            wrong = count
        else:
            right = count
    return graph.nodes[graph.order[right]]


def _at(
    simulation: claim_answer.Simulation, node: partition_graph.Node, reason: str, remedy: str = ""
) -> claim_answer.Simulation:
    remedy = remedy or f"keep it on the CPU, or express {node.op_type} by other operators"
    return msgspec.structs.replace(
        simulation, first=node.first_output, op_type=node.op_type, reason=reason, remedy=remedy
    )


def _with_outputs(model: "ModelProto", graph: partition_graph.Graph, values: Sequence[str]) -> "ModelProto":
    """The model that also gives values between its nodes."""
    from onnx import helper

    proto = onnx_edit.copied(model)
    outputs = [
        helper.make_tensor_value_info(name, onnx_types.CODES[graph.value(name).dtype or ""], graph.value(name).shape)
        for name in values
    ]
    last = list(proto.graph.output)
    del proto.graph.output[:]
    proto.graph.output.extend([*outputs, *last])
    return proto
