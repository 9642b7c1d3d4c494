"""What a file of a bundle must compute: the reference's outputs, or the original's on inputs that are made here."""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner import device as runner_device
from device_runner.device import Device
from device_runner.errors import RunnerError
from device_runner.result import RunResult
from device_runner.spec import OptimizationLevel, RunOptions, RunSpec, TensorFile
from pipeline.check import compare as output_compare
from pipeline.check import reference as check_reference
from pipeline.check.compare import Array, OutputCheck
from pipeline.core import variant as core_variant
from pipeline.core.errors import ModelError
from pipeline.features.prove import plan as prove_plan
from pipeline.model import ort_format
from pipeline.release import manifest as bundle_manifest


def run_once(
    device: Device, file: Path, options: RunOptions, inputs: tuple[TensorFile, ...], timeout_seconds: float, work: Path
) -> tuple[RunResult, dict[str, Array]]:
    """One run without a warm-up, of which no time counts, and its outputs; without `inputs` on those of `SEED`."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        spec = RunSpec(
            id="prove",
            model=str(file),
            options=options,
            inputs=inputs,
            seed=SEED,
            warmup=0,
            min_runs=1,
            min_seconds=0.0,
            timeout_seconds=timeout_seconds,
            outputs_folder=folder,
        )
        result = device.run(spec)
        outputs = () if result.failure else result.outputs
        return result, {tensor.name: output_compare.read_tensor(tensor) for tensor in outputs}


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
    tolerance: output_compare.Tolerance
    origin: str = ""

    def compared(self, actual: Mapping[str, Array], file: Path, cpu: str) -> tuple[OutputCheck, ...]:
        """The checks of what an artifact gave on this computer, or on a CPU ("" for its own) that an emulator played.

        None where nothing is expected. What this computer's own onnxruntime expects may be saturated itself.
        """
        checks = output_compare.compare_outputs(self.outputs or {}, actual, self.tolerance)
        return check_reference.excused(checks, file, "" if self.origin else cpu)


def expected_of(
    bundle: Path,
    manifest: bundle_manifest.Manifest,
    shipped: bundle_manifest.Shipped,
    work: Path,
    timeout_seconds: float,
) -> ExpectedOutputs:
    """What a bundle's artifact must give. `work` is a folder for raw tensors of this computer's own run."""
    name = core_variant.in_precision(shipped.model, shipped.variant.precision)
    kept = next((reference for reference in manifest.references if reference.model == name), None)
    inputs = prove_plan.tensor_files(bundle, kept.inputs) if kept else ()
    if kept and kept.outputs:
        outputs = {
            tensor.name: output_compare.read_tensor(tensor) for tensor in prove_plan.tensor_files(bundle, kept.outputs)
        }
        return ExpectedOutputs(inputs=inputs, outputs=outputs, tolerance=kept.tolerance)
    tolerance = kept.tolerance if kept else output_compare.usual_tolerance(_precision(bundle / shipped.file))
    if not inputs:
        tolerance = msgspec.structs.replace(tolerance, random_inputs=True)
    # Nothing of the original was kept: the installed onnxruntime, without optimizations, stands for it.
    options = RunOptions(
        optimization_level=OptimizationLevel.NONE,
        session_config=shipped.runs[0].session_config,
        custom_ops=prove_plan.loaded(shipped, shipped.runs[0], bundle).custom_ops,
    )
    try:
        with runner_device.open_device("local") as device:
            result, outputs = run_once(device, bundle / shipped.file, options, inputs, timeout_seconds, work)
    except RunnerError as error:
        return ExpectedOutputs(inputs=inputs, outputs=None, tolerance=tolerance, origin=str(error))
    if result.failure:
        why = f"onnxruntime of this computer: {result.failure.what.partition(chr(10))[0][:300]}"
        return ExpectedOutputs(inputs=inputs, outputs=None, tolerance=tolerance, origin=why)
    origin = f"the artifact itself on onnxruntime {result.ort_version} of this computer"
    return ExpectedOutputs(inputs=inputs, outputs=outputs, tolerance=tolerance, origin=origin)


def _precision(file: Path) -> output_compare.OutputPrecision:
    """What an artifact computes in, judged by its operators and initializers."""
    try:
        graphs = list(ort_format.read_artifact(file).graph.walk())
    except ModelError:
        return output_compare.OutputPrecision.FLOAT32
    if any(re.search(check_reference.QUANTIZED, node.op_type) for graph in graphs for node in graph.nodes):
        return output_compare.OutputPrecision.QUANTIZED
    half = any(tensor.data_type in HALVES for graph in graphs for tensor in graph.initializers.values())
    return output_compare.OutputPrecision.FLOAT16 if half else output_compare.OutputPrecision.FLOAT32
