"""What every writer of a report gets: plain data, at the same time the document results.json with its schema."""

from typing import Any, Final, Literal

import msgspec

from device_runner.device import DeviceFacts
from device_runner.result import Status, Struct
from pipeline.accuracy.result import ArtifactAccuracy
from pipeline.campaign.modes import ColdNumbers, MlperfNumbers, SustainedNumbers
from pipeline.campaign.record import FailureRow, Host, ModelFacts, PrecisionSearch, Prediction, Skipped, TuneReport
from pipeline.campaign.statistics import Caution, Comparison, Statistics
from pipeline.check.compare import OutputCheck
from pipeline.check.library_proof import LibraryProof
from pipeline.compat.contexts import NpuContext
from pipeline.core.documents import decode_document, document_schema
from pipeline.core.errors import Finding, PipelineError
from pipeline.core.files import RESULTS
from pipeline.core.variant import Artifact
from pipeline.partition.placement import Placement
from pipeline.report.profiles import Profiled, ProfileView

DOCUMENT_VERSION: Final = 1


class Shape(Struct, frozen=True, kw_only=True):
    """For drawing only: latencies at 20 even shares (2.5 %, 7.5 % … 97.5 %), whatever the number of samples."""

    latencies_ns: tuple[int, ...] = ()


class Row(Struct, frozen=True, kw_only=True):
    """One artifact with one set of run options on one device, over all rounds.

    `run` names provider and options as configs do. `status` is that of the best round: ok where any round gave times,
    and then `failed_rounds` counts those that gave none. `load_ns` and `first_run_ns` are medians over rounds,
    `memory_peak_bytes` is the largest. Statistics are None where nothing was timed. `same_as` is VARIANT/RUN of the row
    whose numbers these are: the same file with the same session options was measured once.
    """

    device: str
    model: str
    variant: str
    run: str
    status: Status
    baseline: bool = False
    rounds: int = 0
    failed_rounds: int = 0
    size_bytes: int = 0
    load_ns: int = 0
    first_run_ns: int = 0
    memory_peak_bytes: int = 0
    statistics: Statistics | None = None
    comparison: Comparison | None = None
    checks: tuple[OutputCheck, ...] = ()
    cautions: tuple[Caution, ...] = ()
    shape: Shape = Shape()
    prediction: Prediction | None = None
    same_as: str = ""
    measured_with: dict[str, str] = {}
    """What identifies the measurement, as texts: the file's sha256, the release of ONNX Runtime, session options,
    inputs, settings; {} where nothing was timed."""


class ModeRow(Struct, frozen=True, kw_only=True):
    """One artifact with one set of run options on one device, measured otherwise than in the steady state, or by
    another rule: one of `cold`, `sustained` and `mlperf` is set.
    """

    device: str
    model: str
    variant: str
    run: str
    baseline: bool = False
    cold: ColdNumbers | None = None
    sustained: SustainedNumbers | None = None
    mlperf: MlperfNumbers | None = None


class ChoiceRow(Struct, frozen=True, kw_only=True):
    """What ships to a target, and why it and not another.

    `fresh` compares it with `fresh.baseline` (VARIANT/RUN) in rounds that did not choose it. `device` is where it was
    measured, of several devices the one on which it loses most, "" where nothing was; `classes` are the devices that a
    search found it best for; `undecided` names what was shown neither slower than the best nor the same; `slower` has,
    by device, how much longer it takes than what is fastest there.
    """

    target: str
    model: str
    variant: str
    run: str
    file: str
    reason: str
    fresh: Comparison | None = None
    device: str = ""
    classes: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    slower: dict[str, Comparison] = {}


class SimulatedContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a chip's NPU has of a model, and the numeric check of it in a simulator; no times of one mean anything."""

    context: NpuContext
    checks: tuple[OutputCheck, ...] = ()


class ArtifactCheck(Struct, frozen=True, kw_only=True):
    """The numeric check of one artifact on the CPU of the computer that made it; without checks none could be done."""

    model: str
    variant: str
    checks: tuple[OutputCheck, ...] = ()


class Withheld(Struct, frozen=True, kw_only=True):
    """A model of which nothing ships to a target, and why."""

    target: str
    model: str
    reason: str


class RequiredOperator(Struct, frozen=True, kw_only=True):
    """An operator that a build for the bundle must contain, as `domain:op`, with the opsets of its nodes.

    `types` are those that its kernels must have, for each argument whose types a build can restrict; () where all stay.
    `adds_bytes` is what it added to a library, by ABI, where two builds of this computer differ in it alone.
    """

    name: str
    opsets: tuple[int, ...]
    types: tuple[str, ...] = ()
    adds_bytes: dict[str, int] = {}


class CampaignReport(Struct, frozen=True, kw_only=True):
    """A whole campaign.

    `created_at` is UTC in ISO 8601; `margin` the share within which two are called the same, `least` the
    difference that matters at least; `versions` names every
    program that had a part (ort-mobile, onnxruntime, onnx, …). `proofs` say whether the bundle runs in the libraries
    that ship. `checks` are those before anything is measured; `refusals` say why no bundle was made, `withheld` which
    models have nothing to ship. `warnings` say where they hold, "" for the whole campaign.
    """

    version: Literal[1] = DOCUMENT_VERSION
    name: str
    campaign: str
    created_at: str
    margin: float
    host: Host
    versions: dict[str, str]
    models: tuple[ModelFacts, ...] = ()
    devices: tuple[DeviceFacts, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    rows: tuple[Row, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    failures: tuple[FailureRow, ...] = ()
    choices: tuple[ChoiceRow, ...] = ()
    profiles: tuple[Profiled, ...] = ()
    profile_views: tuple[ProfileView, ...] = ()
    """Profiles beside the least optimized one of their device and model, where there are two."""
    proofs: tuple[LibraryProof, ...] = ()
    warnings: tuple[Finding, ...] = ()
    checks: tuple[ArtifactCheck, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    refusals: tuple[str, ...] = ()
    least: float = 0.0
    modes: tuple[ModeRow, ...] = ()
    """Cold starts, sustained runs and MLPerf's p90."""
    accuracy: tuple[ArtifactAccuracy, ...] = ()
    """Of artifacts in another precision than their model's."""
    required: tuple[RequiredOperator, ...] = ()
    """Of the operator config in the bundle."""
    searches: tuple[PrecisionSearch, ...] = ()
    """What decided which layers stay float."""
    tuned: TuneReport | None = None
    """What searches for the best configuration found."""
    contexts: tuple[SimulatedContext, ...] = ()
    """Models compiled ahead for the NPUs of chips."""
    placements: tuple[Placement, ...] = ()
    """Of each model and provider with rules, the graph that it claims most of."""


def encode(report: CampaignReport) -> bytes:
    """The bytes of results.json: keys in the order of the schema, names and counts sorted, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(report, order="deterministic"), indent=2) + b"\n"


def decode(content: bytes, where: str = RESULTS) -> CampaignReport:
    """A report from the bytes of results.json; raises PipelineError for what is none, or a later version's."""
    try:
        report = decode_document(content, CampaignReport, where)
        _refuse_negative(report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PipelineError(
            "this is no results.json of ort-mobile", where=where, why=str(error),
            remedy="name another file, or write it again: ort-mobile report FOLDER",
        ) from error  # fmt: skip
    return report


def _refuse_negative(report: CampaignReport) -> None:
    """Raise DecodeError for times below zero, on which verdicts would rest."""
    for row in report.rows:
        numbers = row.statistics
        of_all = (numbers.min_ns, numbers.median_ns, numbers.mean_ns, *numbers.round_medians_ns) if numbers else ()
        if min(row.load_ns, row.first_run_ns, *of_all, *row.shape.latencies_ns) < 0:
            raise msgspec.DecodeError(f"{row.variant} {row.run} on {row.device} has a negative time")


def schema() -> dict[str, Any]:
    """The JSON schema of the document."""
    return document_schema(
        CampaignReport,
        "results.json of ort-mobile",
        "A campaign: what was converted, measured, checked and chosen. Times are nanoseconds.",
    )
