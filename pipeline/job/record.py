"""What is stored with a campaign before anything is measured: enough to write its report and bundle again later."""

import os
import platform
import secrets
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from device_runner.result import utc_now
from pipeline import __version__
from pipeline.campaign.record import CampaignRecord, FailureRow, Host, JobRecord, ModelFacts, Skipped
from pipeline.core.errors import PipelineError
from pipeline.job.prepare import Prepared

PROGRAMS = ("onnxruntime", "onnx", "numpy", "flatbuffers")


def new_campaign(name: str, document: JobRecord | None = None) -> CampaignRecord:
    """A campaign that begins now, under an id that no other has."""
    now = utc_now()
    return CampaignRecord(id=f"{now}-{secrets.token_hex(3)}", name=name, created_at=now, document=document)


def conversion_skips(prepared: Sequence[Prepared]) -> list[Skipped]:
    """Variants that the releases do not have."""
    return [
        Skipped(what=f"{failure.why}; {failure.remedy}", model=one.model.name, variant=failure.variant.name)
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
                row = _failure_row(error, one.model.name)
                variant = failure.variant
                rows.append(msgspec.structs.replace(row, variant=variant.name, level=variant.level))
    return rows


def _failure_row(error: PipelineError, model: str) -> FailureRow:
    return FailureRow(kind="preparation", message=error.what, cause=error.why, remedy=error.remedy, model=model)


def notes(prepared: Sequence[Prepared]) -> list[str]:
    """Findings on models that a user should see."""
    found = [f"{one.model.name}: precision {verdict.text}" for one in prepared for verdict in one.verdicts]
    found += [
        f"{one.model.name}: precision {each.precision}: {each.search.text}" for one in prepared for each in one.searches
    ]
    for one in prepared:
        dynamic = one.converted.result.dynamic if one.converted.result else ()
        if dynamic:
            found.append(
                f"{one.model.name}: open dimensions {', '.join(dynamic)}: NNAPI takes nothing whose shape is open; "
                "fix them with `dimensions` in the config"
            )
        found += [f"{one.model.name}: {note}" for note in (one.reference.notes if one.reference else ())]
        found += [f"{one.model.name}: {note}" for note in dict.fromkeys(n for a in one.artifacts for n in a.notes)]
        shared = [each.text for a in one.accuracy if a.result for each in a.result.findings]
        found += [f"{one.model.name}: {text}" for text in dict.fromkeys(shared)]
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
