"""What an artifact must compute in the library that ships, and what NNAPI flags did there."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner.android_host.calls import CallSummary
from device_runner.android_host.device import Phone, default_profile
from device_runner.device import DriverType, open_device
from device_runner.errors import RunnerError
from device_runner.providers import NNAPI_API_LEVEL, NNAPI_DEVICES_API_LEVEL, NNAPI_RELAXED_API_LEVEL
from device_runner.result import RunResult
from device_runner.spec import NnapiFlag, OptimizationLevel, RunOptions, RunSpec, TensorFile
from pipeline.check.compare import (
    Array,
    OutputCheck,
    OutputPrecision,
    Tolerance,
    compare_outputs,
    read_tensor,
    usual_tolerance,
)
from pipeline.check.library_proof import FindingKind, ProofFinding
from pipeline.check.reference import QUANTIZED
from pipeline.check.saturation import excused
from pipeline.core.errors import ModelError, Severity
from pipeline.core.variant import in_precision
from pipeline.model.ort_format import read_ort
from pipeline.release.manifest import KeptTensor, Manifest, Shipped

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

    def compared(self, actual: Mapping[str, Array], file: Path, cpu: str) -> tuple[OutputCheck, ...]:
        """The checks of what an artifact gave on this computer, or on a CPU ("" for its own) that an emulator played.

        None where nothing is expected. What this computer's own onnxruntime expects may be saturated itself.
        """
        checks = compare_outputs(self.outputs or {}, actual, self.tolerance)
        return excused(checks, file, "" if self.origin else cpu)


def expected_of(
    bundle: Path, manifest: Manifest, shipped: Shipped, work: Path, timeout_seconds: float
) -> ExpectedOutputs:
    """What a bundle's artifact must give. `work` is a folder for raw tensors of this computer's own run."""
    name = in_precision(shipped.model, shipped.variant.precision)
    kept = next((row for row in manifest.references if row.model == name), None)
    inputs = _files(bundle, kept.inputs) if kept else ()
    if kept and kept.outputs:
        outputs = {tensor.name: read_tensor(tensor) for tensor in _files(bundle, kept.outputs)}
        return ExpectedOutputs(inputs=inputs, outputs=outputs, tolerance=kept.tolerance)
    tolerance = kept.tolerance if kept else usual_tolerance(_precision(bundle / shipped.file))
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


def _run_here(
    file: Path, shipped: Shipped, inputs: tuple[TensorFile, ...], work: Path, timeout_seconds: float
) -> RunResult | str:
    """One run with the installed onnxruntime, unoptimized; why it cannot be, in words."""
    spec = RunSpec(
        id="expected",
        model=str(file),
        options=RunOptions(optimization_level=OptimizationLevel.NONE, session_config=shipped.runs[0].session_config),
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


def _precision(file: Path) -> OutputPrecision:
    """What an artifact computes in, judged by its operators and initializers."""
    try:
        graphs = list(read_ort(file).graph.walk())
    except ModelError:
        return OutputPrecision.FLOAT32
    if any(re.search(QUANTIZED, node.op_type) for graph in graphs for node in graph.nodes):
        return OutputPrecision.QUANTIZED
    half = any(tensor.data_type in HALVES for graph in graphs for tensor in graph.initializers.values())
    return OutputPrecision.FLOAT16 if half else OutputPrecision.FLOAT32


NEEDS: dict[NnapiFlag, tuple[int, str]] = {
    NnapiFlag.USE_FP16: (NNAPI_RELAXED_API_LEVEL, "NNAPI can be allowed half precision from API level 28 on"),
    NnapiFlag.USE_NCHW: (NNAPI_DEVICES_API_LEVEL, "NNAPI takes NCHW from API level 29 on"),
    NnapiFlag.CPU_DISABLED: (NNAPI_DEVICES_API_LEVEL, "NNAPI names its devices from API level 29 on"),
    NnapiFlag.CPU_ONLY: (NNAPI_DEVICES_API_LEVEL, "NNAPI names its devices from API level 29 on"),
}
"""The API level from which a flag can do anything, and why (recorded from 1.28.0 and 1.29.0: nnapi-calls.md)."""

NOT_KNOWN = "the library asked NNAPI for the same with and without it; the cause is not known"


def claims_nothing(summary: CallSummary | None, api_level: int) -> ProofFinding | None:
    """A finding when NNAPI was asked to take nothing at all."""
    if summary and summary.partitions:
        return None
    if api_level < NNAPI_API_LEVEL:
        why = f"NNAPI begins at API level {NNAPI_API_LEVEL}; below it everything runs on the CPU"
        remedy = "nothing to fix: phones of this level take no notice of the provider"
    else:
        why = "no node of this artifact is one that NNAPI takes; everything ran on the CPU"
        remedy = (
            "`ort-mobile partition FILE --ep nnapi` says why; ship level basic or a variant aware of nnapi, fix open "
            "dimensions, or leave nnapi out"
        )
    what = f"NNAPI takes nothing at API level {api_level}"
    return ProofFinding(severity=Severity.WARNING, kind=FindingKind.NOTHING_CLAIMED, what=what, why=why, remedy=remedy)


def effect(flag: NnapiFlag, phone: Phone, with_it: CallSummary, without_it: CallSummary) -> Iterator[ProofFinding]:
    """Findings on one flag: it changed nothing, or NNAPI takes less with it."""
    api_level = phone.api_level
    since, why = NEEDS[flag]
    remedy = f"leave {flag.value} out below API level {since}" if api_level < since else f"leave {flag.value} out"
    if _asked(with_it) == _asked(without_it):
        yield ProofFinding(
            severity=Severity.WARNING,
            kind=FindingKind.FLAG_WITHOUT_EFFECT,
            what=f"{flag.value} has no effect at API level {api_level}",
            why=why if api_level < since else _without_effect(flag, with_it, phone),
            remedy=remedy,
        )
    elif (less := work(with_it)) < (more := work(without_it)):
        yield ProofFinding(
            severity=Severity.WARNING,
            kind=FindingKind.FLAG_COSTS_NODES,
            what=f"with {flag.value} NNAPI takes {less} operations at API level {api_level}, {more} without it",
            why=f"{why}; {_refused(with_it, without_it)}" if api_level < since else _refused(with_it, without_it),
            remedy=remedy,
        )


def _without_effect(flag: NnapiFlag, calls: CallSummary, phone: Phone) -> str:
    """Why a flag did nothing at a level at which it could, as far as calls and the phone's devices show it."""
    devices = (phone.driver or default_profile(phone.api_level)).devices
    cpus = sum(device.type is DriverType.CPU for device in devices)
    shown = {
        NnapiFlag.USE_NCHW: calls.nchw is None and "NNAPI takes no convolution and no pool, whose layout it decides",
        NnapiFlag.CPU_DISABLED: (cpus == 0 and "NNAPI has no CPU device here that it could leave out")
        or (cpus == len(devices) and "no other device than a CPU is left to choose, so the system chooses"),
        NnapiFlag.CPU_ONLY: (cpus == 0 and "NNAPI has no CPU device here, so the system chooses")
        or (cpus == len(devices) and "NNAPI has CPU devices only here"),
    }
    return shown.get(flag) or NOT_KNOWN


def _refused(with_it: CallSummary, without_it: CallSummary) -> str:
    """The operations that the CPU has with a flag and NNAPI without it."""
    less, more = (Counter(name for names in answer.partitions for name in names) for answer in (with_it, without_it))
    gone = [f"{name} ({count})" for name, count in sorted((more - less).items()) if name != "TRANSPOSE"]
    return f"left to the CPU with it: {', '.join(gone)}"


def _asked(summary: CallSummary) -> tuple[object, ...]:
    return summary.partitions, summary.relaxed, summary.nchw, summary.compiled_for


def work(summary: CallSummary) -> int:
    """Operations that compute something: transposes come and go with the layout."""
    return sum(name != "TRANSPOSE" for names in summary.partitions for name in names)
