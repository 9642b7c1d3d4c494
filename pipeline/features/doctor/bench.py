"""What a diagnosis of one model works with: its device, files and planned runs, and whose outputs count."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from device_runner.device import Device, DeviceFacts
from device_runner.result import RunResult
from device_runner.spec import RunOptions
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.plan import Inputs, PlannedRun, planned_id
from pipeline.campaign.statistics import DecisionRule
from pipeline.check.compare import (
    Array,
    OutputCheck,
    OutputPrecision,
    compare_outputs,
    read_tensor,
    usual_tolerance,
)
from pipeline.core.progress import Progress
from pipeline.features.doctor.diagnosis import MeasuredRemedy
from pipeline.features.doctor.files import make_files, shell_of
from pipeline.features.doctor.order import DoctorModel, DoctorOrder
from pipeline.features.doctor.subject import Remedy
from pipeline.job.perf_files import PerfOrder, planned_files, preflight


class OutputsOfStart:
    """Compares outputs with those that the start gave in its first run."""

    def __init__(self, start: PlannedRun, precision: OutputPrecision) -> None:
        self.start = planned_id(start)
        self.precision = precision
        self.lossy: set[str] = set()
        self.expected: dict[str, Array] = {}

    def __call__(self, planned: PlannedRun, result: RunResult) -> tuple[OutputCheck, ...]:
        """The checks of one run; none where the start gave no outputs."""
        actual = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
        if planned_id(planned) == self.start:
            self.expected = self.expected or actual
            return ()
        lossy = planned_id(planned) in self.lossy
        tolerance = usual_tolerance(OutputPrecision.FLOAT16 if lossy else self.precision)
        return tuple(compare_outputs(self.expected, actual, tolerance))


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorBench:
    """What a diagnosis of one model works with."""

    order: DoctorOrder
    model: DoctorModel
    device: Device
    facts: DeviceFacts
    work: Path
    progress: Progress

    @property
    def rule(self) -> DecisionRule:
        """When two runs are different or the same."""
        shares = self.order.measure
        return DecisionRule(margin=shares.margin_percent / 100, least=shares.least_percent / 100)

    def perf_order(self, files: Sequence[Path], options: Sequence[RunOptions] = ()) -> PerfOrder:
        """Files with run options as `ort-mobile perf` measures them."""
        return PerfOrder(
            files=tuple(files), options=tuple(options), device=self.order.device, library=self.order.library,
            dimensions=dict(self.model.dimensions), measure=self.order.measure, data=self.model.data,
            conditions=self.order.conditions,
        )  # fmt: skip

    def plan(self, campaign: str, runs: Sequence[PlannedRun], inputs: Inputs) -> CampaignPlan:
        """Every run gets the same inputs."""
        return CampaignPlan(
            campaign=campaign, planned_runs=runs, measure=self.order.measure, conditions=self.order.conditions,
            artifacts=Path(), inputs={run.source: inputs for run in runs},
            libraries={self.device.name: self.order.library}, judge=None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RemedyTrial:
    """Remedies before they are measured: the planned run of each by its name, and the others with the reason."""

    shells: dict[str, MeasuredRemedy]
    runs: dict[str, PlannedRun] = field(default_factory=dict)


def tried_on(bench: DoctorBench, remedies: Sequence[Remedy]) -> RemedyTrial:
    """Files and planned runs of remedies; what cannot be run has its reason."""
    files, failed = make_files(bench.model, remedies, bench.facts, bench.work)
    judge = preflight(bench.perf_order(list(files.values())), bench.device)
    tried = RemedyTrial(
        {remedy.name: shell_of(remedy, bench.model.start, bench.facts, bench.model.path) for remedy in remedies}
    )
    for remedy in remedies:
        why, run = failed.get(remedy.file_key, ""), None
        if not why:
            perf = bench.perf_order([files[remedy.file_key]], [remedy.options(bench.model.start)])
            planned, skipped = planned_files(perf, bench.device.name, bench.facts, judge)
            run, why = (planned[0], "") if planned else (None, skipped[0].what)
        if run:
            tried.runs[remedy.name] = run
        else:
            tried.shells[remedy.name] = msgspec.structs.replace(tried.shells[remedy.name], why=why)
    return tried
