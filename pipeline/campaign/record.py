"""A campaign and its runs as plain data, as the store keeps them."""

from collections.abc import Callable, Iterable
from typing import TypedDict

import msgspec

from device_runner.result import RunResult, Status
from device_runner.spec import RunOptions, RunSpec
from pipeline import config as configs
from pipeline.accuracy import result as accuracy_result
from pipeline.campaign.statistics import groups as run_groups
from pipeline.campaign.tuned import TunedModel
from pipeline.check import result as check_result
from pipeline.check.compare import OutputCheck
from pipeline.compat import contexts as npu_contexts
from pipeline.config import Config
from pipeline.core import progress as core_progress
from pipeline.core.errors import ConfigError, Finding, PipelineError, Severity
from pipeline.core.variant import Level
from pipeline.partition import placement as node_placement
from pipeline.passes import base as passes_base


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The computer that converted and measured (or drove the devices)."""

    system: str = ""
    machine: str = ""
    cpu: str = ""
    cores: int = 0
    memory_bytes: int = 0
    python: str = ""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it was given; `error` is why nothing could be made of it, "" where it could.

    `dimensions` are those that the config fixed, `guessed` those of them whose size nobody has confirmed. `constants`
    are inputs that had one number in every sample by a guess. `attached` says whether it takes an app's data or gives
    an app's answers, `oracle` who confirmed that, and how far.
    """

    name: str
    file: str
    size_bytes: int = 0
    sha256: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    error: str = ""
    remedy: str = ""
    dimensions: dict[str, int] = {}
    guessed: tuple[str, ...] = ()
    constants: dict[str, float] = {}
    attached: bool = False
    oracle: str = ""


def place(*parts: str) -> str:
    """Device, model, variant and run in one line, without those that are empty."""
    return " / ".join(part for part in parts if part)


class KeyParts(TypedDict):
    """The fields of a RunKey, for what has them, too."""

    device: str
    model: str
    variant: str
    run: str


class RunKey(msgspec.Struct, frozen=True, kw_only=True):
    """What was run where, by names: a variant of a model with run options on a device; "" is any or none of them."""

    device: str
    model: str
    variant: str
    run: str

    @property
    def names(self) -> tuple[str, str, str, str]:
        """By which rows, failures and profiles of the same are found."""
        return self.device, self.model, self.variant, self.run

    @property
    def parts(self) -> "KeyParts":
        """The four names by which whatever is of the same run is made."""
        return KeyParts(device=self.device, model=self.model, variant=self.variant, run=self.run)

    @property
    def place(self) -> str:
        """As texts have it."""
        return place(*self.names)

    @property
    def way(self) -> str:
        """VARIANT/RUN: what tells runs of one model on one device apart."""
        return f"{self.variant}/{self.run}"


class RunFinding(Finding, frozen=True, kw_only=True):
    """What speaks against a run, or several; "" for what it does not depend on."""

    severity: Severity = Severity.ERROR
    device: str = ""
    model: str = ""
    variant: str = ""
    run: str = ""

    @property
    def key(self) -> RunKey:
        """What it is about."""
        return RunKey(device=self.device, model=self.model, variant=self.variant, run=self.run)


class Skipped(RunFinding, frozen=True, kw_only=True):
    """What was not tried, and why it could not have worked."""

    what: str = msgspec.field(name="reason")


class FailureRow(RunFinding, frozen=True, kw_only=True):
    """What was tried and failed; equal failures are counted. `level` is that of a variant that could not be made."""

    code: str = msgspec.field(name="kind")
    what: str = msgspec.field(name="message")
    why: str = msgspec.field(default="", name="cause")
    times: int = 1
    level: Level | None = None


class RefusedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one operator that a provider's rules refuse for the same reason, by name; "" for those without one."""

    operator: str
    reason: str
    nodes: tuple[str, ...]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules of a provider say of a run before it is measured: nodes that it claims, in how many partitions.

    `estimate`: the partitions are estimated. `rules` is the release whose rules decided, "" where the library's own
    release has rules. `error` is why the session is not created; without an answer of the rules nothing else is set.
    `refused` is stored with profile runs only.
    """

    nodes: int | None = None
    claimed: int | None = None
    partitions: int | None = None
    estimate: bool = False
    rules: str = ""
    error: str | None = None
    refused: tuple[RefusedNodes, ...] = ()

    @property
    def brief(self) -> "Prediction":
        """Without the refused nodes."""
        return msgspec.structs.replace(self, refused=())


class PrecisionSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found of a model: which types and layers stay float in a precision, and what each costs alone."""

    model: str
    precision: str
    search: passes_base.MixedSearch


FRESH_FROM, FRESH_ROUNDS = 1_000_000, 5
"""Rounds from this number on choose nothing: they say how good a choice is; and how many there are."""


class RecordedRun(RunKey, frozen=True, kw_only=True):
    """A planned run; `baseline` marks what others are compared with. Nobody reads anything out of its `id`.

    `same_as` is the id of the planned run whose runs count for this one: the same bytes with the same session options.
    `mapped` runs loaded the file from mapped memory.
    """

    id: str
    options: RunOptions
    baseline: bool = False
    same_as: str = ""
    mode: configs.MeasureMode = configs.MeasureMode.STEADY
    mapped: bool = False


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a campaign. `checks` are those of the artifacts on this computer, by model and variant name.

    `references` are by the name of a model in a precision (`Artifact.source`); their files lie in reference/NAME.
    `unloadable` names artifacts as MODEL/VARIANT that a target's library cannot load, by the name of the target.
    `tables` are those of the config in which models were found, by model. `searching` marks the campaign of a search,
    whose runs are no rounds; `tuned` is what searches found, in the campaign that confirms it. `stages` are those of
    every job that worked on the campaign and came to its end.
    """

    config: Config
    host: Host
    versions: dict[str, str]
    models: tuple[ModelFacts, ...]
    planned: tuple[RecordedRun, ...]
    skipped: tuple[Skipped, ...]
    failures: tuple[FailureRow, ...]
    warnings: tuple[Finding, ...]
    checks: dict[str, dict[str, tuple[OutputCheck, ...]]]
    references: dict[str, check_result.Reference] = {}
    unloadable: dict[str, tuple[str, ...]] = {}
    tables: dict[str, configs.ModelConfig] = {}
    contexts: tuple[npu_contexts.NpuContext, ...] = ()
    """What chips' NPUs run of the models; their checks are beside the artifacts'."""
    accuracy: tuple[accuracy_result.ArtifactAccuracy, ...] = ()
    searches: tuple[PrecisionSearch, ...] = ()
    searching: bool = False
    tuned: tuple[TunedModel, ...] = ()
    placements: tuple[node_placement.Placement, ...] = ()
    """Of each model and provider with rules, the graph that the provider is predicted to claim most of."""
    stages: tuple[core_progress.StageTime, ...] = ()

    def checks_of(self, model: str, variant: str) -> tuple[OutputCheck, ...]:
        """The checks of an artifact or a context; nothing where it was not compared."""
        return self.checks.get(model, {}).get(variant, ())


class CampaignRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign as stored. Its document is None where it has none, or where `unreadable` says why it is not read."""

    id: str
    name: str
    created_at: str
    document: JobRecord | None = None
    unreadable: str = ""

    def job(self) -> JobRecord:
        """The document; raises PipelineError for another release's, ConfigError for a campaign without one."""
        if self.document is None and not self.unreadable:
            raise ConfigError(
                "these are runs of `gate` or `doctor`, no campaign with a plan",
                where=self.id,
                why="they are judged when they are measured, and stored so that a next time goes on with them",
                remedy="the same command writes its verdicts with --json FILE; name the output of `ort-mobile run`, "
                "`tune` or `perf --json`",
            )
        if self.document is None:
            raise PipelineError(
                "this campaign was stored by another release",
                where=self.id,
                why=self.unreadable,
                remedy="use the release that measured it, or measure again",
            )
        return self.document


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run as stored: `planned` is the id of its planned run; what was asked, what came, and how outputs differ.

    `variant` is the variant's name; `prediction` what was expected of the run before it was measured. `stretch` tells
    those apart that were measured before and after runs of another campaign on the device.
    """

    campaign: str
    planned: str
    round: int
    model: str
    variant: str
    spec: RunSpec
    result: RunResult
    checks: tuple[OutputCheck, ...] = ()
    prediction: Prediction | None = None
    stretch: int = 0


class ReadRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that were read of a campaign, and which were left out, as they cannot be what was measured, and why."""

    runs: tuple[RunRecord, ...]
    left_out: tuple[Finding, ...] = ()


def rounds_of(
    records: Iterable[RunRecord],
    key: str = "",
    latencies_ns: Callable[[RunResult], tuple[int, ...]] = lambda result: result.latencies_ns,
) -> run_groups.RunGroup:
    """The rounds of one planned run that gave times; each with its latencies, or what else of it is compared."""
    passed = [record for record in records if record.result.status is Status.OK]
    return run_groups.RunGroup(
        key=key,
        latencies_ns={record.round: latencies_ns(record.result) for record in passed},
        stretches={record.round: record.stretch for record in passed},
        marks=tuple(mark for record in passed for mark in dict.fromkeys(record.result.marks)),
    )
