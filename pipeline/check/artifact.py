"""Runs an artifact on this computer's CPU and compares its outputs with the original model's."""

from collections.abc import Mapping

import msgspec

from pipeline.check.compare import Array, Tolerance, compare_outputs, read_tensor
from pipeline.check.output import OutputCheck
from pipeline.check.reference import Reference
from pipeline.config import CheckConfig
from pipeline.core.errors import ModelError
from pipeline.core.variant import Artifact

LEAN = {
    "session.use_memory_mapped_ort_model": "1",
    "session.use_ort_model_bytes_for_initializers": "1",
    "session.disable_prepacking": "1",
    "session.load_model_format": "ORT",
}
"""Weights are used where the file is mapped, not copied; releases before 1.26 read the file instead."""


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact, its file, and the reference that its outputs must match."""

    artifact: Artifact
    file: str
    reference: Reference
    tolerance: Tolerance


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """A check for each output."""

    checks: tuple[OutputCheck, ...]


def tolerance_for(reference: Reference, config: CheckConfig) -> Tolerance:
    """What may differ: as configured, or what the model's precision brings with it; and what the reference is worth."""
    tolerance = reference.tolerance(config.max_relative_error)
    return msgspec.structs.replace(tolerance, min_top1_agreement=config.min_top1_agreement)


def check_artifact(request: CheckRequest) -> CheckResult:
    """Run the artifact once on the reference's inputs; ModelError when it does not load or run."""
    feeds = {tensor.name: read_tensor(tensor) for tensor in request.reference.inputs}
    expected = {tensor.name: read_tensor(tensor) for tensor in request.reference.outputs}
    outputs = run_artifact(request.file, request.artifact.session_options, feeds)
    return CheckResult(checks=tuple(compare_outputs(expected, outputs, request.tolerance)))


def run_artifact(file: str, session_options: Mapping[str, str], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of an ORT format file on the CPU; ModelError when it does not load or run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for key, value in (LEAN | dict(session_options)).items():
        options.add_session_config_entry(key, value)
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        values = session.run(None, dict(feeds))
    except Exception as error:
        raise ModelError(
            "the artifact does not run on this computer's CPU",
            where=file,
            why=str(error).strip().partition("\n")[0][:500],
            remedy="leave this variant out, or report it: conversion and loading disagree",
        ) from error
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, values, strict=True))
