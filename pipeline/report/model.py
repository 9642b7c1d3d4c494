"""What every writer of a report gets: plain data, at the same time the document results.json with its schema."""

import inspect
from typing import Any, Final, Literal

import msgspec

from device_runner.device import DeviceFacts
from device_runner.reading import decode_json
from device_runner.result import Status, Struct
from pipeline.campaign.modes import ColdNumbers, MlperfNumbers, SustainedNumbers
from pipeline.campaign.record import (
    ArtifactAccuracy,
    FailureRow,
    Host,
    ModelFacts,
    PrecisionSearch,
    Prediction,
    Skipped,
)
from pipeline.campaign.statistics import Caution, Comparison, Statistics
from pipeline.campaign.tuned import TuneReport
from pipeline.check.compare import OutputCheck
from pipeline.check.library_proof import LibraryProof
from pipeline.config import null_last
from pipeline.core.errors import PipelineError
from pipeline.core.variant import Artifact
from pipeline.partition.placement import Placement
from pipeline.report.profile_view import Profiled, ProfileView

DOCUMENT_VERSION: Final = 2


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
    measured_with: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """What identifies the measurement, as texts: the file's sha256, the release of ONNX Runtime, session options,
    inputs, settings; unset in documents of earlier releases."""


class ModeRow(Struct, frozen=True, kw_only=True):
    """One artifact with one set of run options on one device, measured otherwise than in the steady state, or by
    another rule: one of `cold`, `sustained` and `mlperf` is set.
    """

    device: str
    model: str
    variant: str
    run: str
    baseline: bool = False
    cold: ColdNumbers | msgspec.UnsetType = msgspec.UNSET
    sustained: SustainedNumbers | msgspec.UnsetType = msgspec.UNSET
    mlperf: MlperfNumbers | msgspec.UnsetType = msgspec.UNSET


class ChoiceRow(Struct, frozen=True, kw_only=True):
    """What ships to a target, and why it and not another.

    `fresh` compares it with `fresh.baseline` (VARIANT/RUN) in rounds that did not choose it. `device` is where it was
    measured, "" where nothing was; `classes` are the devices that a search found it best for; `undecided` names what
    was shown neither slower than the fastest nor the same.
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
    models have nothing to ship. `warnings` are sentences about the campaign as a whole.
    """

    version: Literal[1, 2] = DOCUMENT_VERSION
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
    profile_views: tuple[ProfileView, ...] | msgspec.UnsetType = msgspec.UNSET
    """Profiles beside the least optimized one of their device and model; unset where there are not two."""
    proofs: tuple[LibraryProof, ...] = ()
    warnings: tuple[str, ...] = ()
    checks: tuple[ArtifactCheck, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    refusals: tuple[str, ...] = ()
    least: float = 0.0
    modes: tuple[ModeRow, ...] | msgspec.UnsetType = msgspec.UNSET
    """Cold starts, sustained runs and MLPerf's p90; unset where the config asks for none."""
    accuracy: tuple[ArtifactAccuracy, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of artifacts in another precision than their model's; unset where there are none."""
    required: tuple[RequiredOperator, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of the operator config in the bundle; unset where there is no bundle."""
    searches: tuple[PrecisionSearch, ...] | msgspec.UnsetType = msgspec.UNSET
    """What decided which layers stay float; unset where no precision is mixed."""
    tuned: TuneReport | msgspec.UnsetType = msgspec.UNSET
    """What searches for the best configuration found; unset where there was none."""
    placements: tuple[Placement, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of each model and provider with rules, the graph that it claims most of; unset where no run has such a provider
    and in documents of earlier releases."""


FILE_NAME = "results.json"
READ_VERSIONS = (1, DOCUMENT_VERSION)
"""Version 1 has bootstrap intervals, and calls 'cannot tell' what is 'no difference shown' now."""


def encode(report: CampaignReport) -> bytes:
    """The bytes of results.json: keys in the order of the schema, names and counts sorted, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(report, order="deterministic"), indent=2) + b"\n"


def decode(content: bytes, where: str = FILE_NAME) -> CampaignReport:
    """A report from the bytes of results.json; raises PipelineError for what is none, or another version's."""
    try:
        _check_version(content, where)
        return decode_json(content, CampaignReport)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PipelineError(
            "this is no results.json of ort-mobile", where=where, why=str(error),
            remedy="name another file, or write it again: ort-mobile report FOLDER",
        ) from error  # fmt: skip


class _Versioned(msgspec.Struct):
    version: int


def _check_version(content: bytes, where: str) -> None:
    found = decode_json(content, _Versioned).version
    if found not in READ_VERSIONS:
        raise PipelineError(
            f"this results.json has version {found}",
            where=where,
            why=f"this release reads versions {' and '.join(map(str, READ_VERSIONS))}",
            remedy="write it again from the database, with the release that measured or this one",
        )


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of the document, from the types and their docstrings."""
    made = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(CampaignReport)))
    # Python 3.13 takes the indentation out of docstrings; the schema must be the same with every version.
    for definition in made["$defs"].values():
        definition["description"] = inspect.cleandoc(definition.get("description", ""))
    made = null_last(made)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "results.json of ort-mobile",
        "description": "A campaign: what was converted, measured, checked and chosen. Times are nanoseconds.",
    }
    return {**head, **made}
