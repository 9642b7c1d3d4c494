"""What is stored with a campaign before anything is measured: enough to write its report and bundle again later."""

import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from device_runner.spec import RunOptions
from pipeline import __version__
from pipeline.campaign.options import options_name
from pipeline.campaign.plan import PlannedRun, SkippedRun, lane_id
from pipeline.campaign.store import CampaignRecord
from pipeline.check.output import OutputCheck
from pipeline.check.reference import Reference
from pipeline.config import Config, ModelConfig
from pipeline.core.errors import PipelineError
from pipeline.job.prepare import Prepared
from pipeline.report.model import FailureRow, Host, ModelFacts, Skipped

PROGRAMS = ("onnxruntime", "onnx", "numpy", "flatbuffers")


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A lane as planned; `id` is what its specs' ids begin with, `baseline` marks what others are compared with.

    `same_as` is the id of the lane whose runs count for this one: the same bytes with the same session options.
    """

    id: str
    device: str
    model: str
    variant: str
    options: RunOptions
    run: str
    baseline: bool = False
    same_as: str = ""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a campaign. `checks` are those of the artifacts on this computer, by model and variant name.

    `references` are by the name of a model in a precision (`Artifact.source`); their files lie in reference/NAME.
    `unloadable` names artifacts as MODEL/VARIANT that a target's library cannot load, by the name of the target.
    `tables` are those of the config in which models were found, by model.
    """

    config: Config
    host: Host
    versions: dict[str, str]
    models: tuple[ModelFacts, ...]
    lanes: tuple[RecordedRun, ...]
    skipped: tuple[Skipped, ...]
    failures: tuple[FailureRow, ...]
    warnings: tuple[str, ...]
    checks: dict[str, dict[str, tuple[OutputCheck, ...]]]
    references: dict[str, Reference] = {}
    unloadable: dict[str, tuple[str, ...]] = {}
    tables: dict[str, ModelConfig] = {}


def encode_record(record: JobRecord) -> dict[str, Any]:
    """The record as the document of a stored campaign: JSON's own types, so that it equals what is read back."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(record))
    return document


def decode_record(campaign: CampaignRecord) -> JobRecord:
    """The record of a stored campaign; raises PipelineError for one that another release wrote differently."""
    try:
        return msgspec.convert(campaign.document, JobRecord)
    except msgspec.ValidationError as error:
        raise PipelineError(
            "this campaign was stored by another release",
            where=campaign.id,
            why=str(error),
            remedy="use the release that measured it, or measure again",
        ) from error


def planned_lane(lane: PlannedRun, *, baseline: bool, same_as: str = "") -> RecordedRun:
    """A lane with what its artifact is called."""
    return RecordedRun(
        id=lane_id(lane),
        device=lane.device,
        model=lane.artifact.model,
        variant=lane.artifact.variant.name,
        options=lane.options,
        run=options_name(lane.options),
        baseline=baseline,
        same_as=same_as,
    )


def skipped_row(skip: SkippedRun) -> Skipped:
    """A skipped lane as the report shows it."""
    lane = skip.lane
    return Skipped(
        reason=skip.reason,
        device=lane.device,
        model=lane.artifact.model,
        variant=lane.artifact.variant.name,
        run=options_name(lane.options),
    )


def conversion_skips(prepared: Sequence[Prepared]) -> list[Skipped]:
    """Variants that the releases do not have."""
    return [
        Skipped(reason=f"{failure.why}; {failure.remedy}", model=one.model.name, variant=failure.variant.name)
        for one in prepared
        for failure in one.converted.failures
        if failure.skipped
    ]


def preparation_failures(prepared: Sequence[Prepared]) -> list[FailureRow]:
    """Models and variants that could not be made, run as reference, or checked."""
    rows = []
    for one in prepared:
        rows += [_failure_row(error, one.model.name) for error in one.errors]
        for failure in one.converted.failures:
            if not failure.skipped:
                error = PipelineError(failure.what, where=failure.where, why=failure.why, remedy=failure.remedy)
                rows.append(_failure_row(error, one.model.name, failure.variant.name))
    return rows


def _failure_row(error: PipelineError, model: str, variant: str = "") -> FailureRow:
    return FailureRow(
        kind="preparation", message=error.what, cause=error.why, remedy=error.remedy, model=model, variant=variant
    )


def notes(prepared: Sequence[Prepared]) -> list[str]:
    """Findings on models that a user should see."""
    found = [f"{one.model.name}: precision {verdict.text}" for one in prepared for verdict in one.verdicts]
    for one in prepared:
        dynamic = one.converted.result.dynamic if one.converted.result else ()
        if dynamic:
            found.append(
                f"{one.model.name}: open dimensions {', '.join(dynamic)}: NNAPI takes nothing whose shape is open; "
                "fix them with `dimensions` in the config"
            )
        found += [f"{one.model.name}: {note}" for note in (one.reference.notes if one.reference else ())]
        found += [f"{one.model.name}: {note}" for note in dict.fromkeys(n for a in one.artifacts for n in a.notes)]
    return found


def model_facts(one: Prepared) -> ModelFacts:
    """What the report says of a model."""
    source = one.model.source
    return ModelFacts(
        name=one.model.name,
        file=source.name,
        size_bytes=one.model.size_bytes,
        sha256=one.converted.result.content_digest if one.converted.result else "",
        inputs=tuple(_signature(t.name, t.dtype, t.shape) for t in one.reference.inputs) if one.reference else (),
        outputs=tuple(_signature(t.name, t.dtype, t.shape) for t in one.reference.outputs) if one.reference else (),
        error=one.errors[0].what if one.errors and not one.artifacts else "",
        remedy=one.errors[0].remedy if one.errors and not one.artifacts else "",
    )


def _signature(name: str, dtype: str, shape: Sequence[int]) -> str:
    return f"{name}: {dtype}[{', '.join(map(str, shape))}]"


def host() -> Host:
    """The computer that this runs on."""
    return Host(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=_cpu_name(),
        cores=os.cpu_count() or 0,
        memory_bytes=_memory_bytes(),
        python=platform.python_version(),
    )


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _memory_bytes() -> int:
    if sys.platform == "win32":
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def versions() -> dict[str, str]:
    """Every program that has a part in an artifact."""
    found = {"ort-mobile": __version__}
    for name in PROGRAMS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
