"""What an artifact must compute: the original model's outputs that the bundle keeps, else this computer's own."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner.device import open_device
from device_runner.errors import RunnerError
from device_runner.result import RunResult
from device_runner.spec import OptimizationLevel, RunOptions, RunSpec, TensorFile
from pipeline.check.compare import FLOORS, Array, Precision, Tolerance, read_tensor, usual_tolerance
from pipeline.check.reference import QUANTIZED
from pipeline.core.errors import ModelError
from pipeline.model.ort_format import read_ort
from pipeline.release.manifest import KeptReference, KeptTensor, Manifest, Shipped

SEED = 0
"""Of the inputs that the probe makes where a bundle keeps none: the same on every device."""
HALVES = frozenset({10, 16})
"""float16 and bfloat16 by their numbers in ONNX's TensorProto."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedOutputs:
    """Inputs (none: those of `SEED`) and the outputs that must come of them, None where they cannot be known.

    `origin` says what they were computed with where that is not the original model, or why there are none.
    """

    inputs: tuple[TensorFile, ...] = ()
    outputs: Mapping[str, Array] | None
    tolerance: Tolerance
    origin: str = ""


def expected_of(
    bundle: Path, manifest: Manifest, shipped: Shipped, work: Path, timeout_seconds: float
) -> ExpectedOutputs:
    """What a bundle's artifact must give. `work` is a folder for raw tensors of this computer's own run."""
    kept = next((one for one in manifest.references if one.model == shipped.model), None)
    inputs = _files(bundle, kept.inputs) if kept else ()
    if kept and kept.outputs:
        outputs = {tensor.name: read_tensor(tensor) for tensor in _files(bundle, kept.outputs)}
        return ExpectedOutputs(inputs=inputs, outputs=outputs, tolerance=_tolerance(kept))
    tolerance = _tolerance(kept) if kept else usual_tolerance(_precision(bundle / shipped.file))
    if not inputs:
        tolerance = msgspec.structs.replace(tolerance, random_inputs=True)
    result = _run_here(bundle / shipped.file, shipped, inputs, work, timeout_seconds)
    if isinstance(result, str) or result.failure:
        why = result if isinstance(result, str) else f"onnxruntime of this computer: {_said(result)}"
        return ExpectedOutputs(inputs=inputs, outputs=None, tolerance=tolerance, origin=why)
    outputs = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
    origin = f"the artifact itself on onnxruntime {result.ort_version} of this computer"
    return ExpectedOutputs(inputs=inputs, outputs=outputs, tolerance=tolerance, origin=origin)


def _files(bundle: Path, tensors: tuple[KeptTensor, ...]) -> tuple[TensorFile, ...]:
    return tuple(
        TensorFile(name=kept.name, dtype=kept.dtype, shape=kept.shape, file=str(bundle / kept.path)) for kept in tensors
    )


def _tolerance(kept: KeptReference) -> Tolerance:
    """As the check had it that let the artifact ship; an older bundle kept the relative error alone."""
    return kept.tolerance or Tolerance(max_relative_error=kept.max_relative_error, floor=FLOORS[Precision.FLOAT32])


def _run_here(
    file: Path, shipped: Shipped, inputs: tuple[TensorFile, ...], work: Path, timeout_seconds: float
) -> RunResult | str:
    """One run with the installed onnxruntime, unoptimized; why it cannot be, in words."""
    spec = RunSpec(
        id="expected",
        model=str(file),
        options=RunOptions(optimization_level=OptimizationLevel.NONE, session_config=shipped.session_config),
        inputs=inputs,
        seed=SEED,
        warmup=0,
        min_runs=1,
        min_seconds=0.0,
        timeout_seconds=timeout_seconds,
        outputs_folder=str(work),
    )
    try:
        with open_device("local") as device:
            return device.run(spec)
    except RunnerError as error:
        return str(error)


def _said(result: RunResult) -> str:
    return result.failure.message.partition("\n")[0][:300] if result.failure else ""


def _precision(file: Path) -> Precision:
    """What an artifact computes in, judged by its operators and initializers."""
    try:
        graphs = list(read_ort(file).graph.walk())
    except ModelError:
        return Precision.FLOAT32
    if any(re.search(QUANTIZED, node.op_type) for graph in graphs for node in graph.nodes):
        return Precision.QUANTIZED
    half = any(tensor.data_type in HALVES for graph in graphs for tensor in graph.initializers.values())
    return Precision.FLOAT16 if half else Precision.FLOAT32
