"""What every writer of a report gets: plain data, and at the same time the document results.json."""

from typing import Final, Literal

import msgspec

from device_runner.device import DeviceFacts
from device_runner.result import Status, Struct
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
from pipeline.check.library_proof import LibraryProof
from pipeline.check.output import OutputCheck
from pipeline.core.variant import Artifact
from pipeline.report.profile_view import ProfileView
from pipeline.report.profiled import Profiled

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


class ChoiceRow(Struct, frozen=True, kw_only=True):
    """What ships to a target, and why it and not another."""

    target: str
    model: str
    variant: str
    run: str
    file: str
    reason: str


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
    accuracy: tuple[ArtifactAccuracy, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of artifacts in another precision than their model's; unset where there are none."""
    searches: tuple[PrecisionSearch, ...] | msgspec.UnsetType = msgspec.UNSET
    """What decided which layers stay float; unset where no precision is mixed."""
