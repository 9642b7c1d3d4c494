"""Measures model files as they are, without converting, storing or choosing: a quick look, by the same method."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner.device import Device, DeviceFacts
from device_runner.minimize import Denied
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.plan import PlannedRun, decision_rule, distinct, in_modes, recorded
from pipeline.campaign.store import open_store
from pipeline.core.errors import ConfigError, ExitCode
from pipeline.core.progress import Progress
from pipeline.job.devices import blame_crashes, measure_all, open_patiently, unfinished
from pipeline.job.perf_files import PerfOrder, inputs_of_files, planned_files, preflight, warnings
from pipeline.job.profiles import profile_run
from pipeline.job.record import host, new_campaign, versions
from pipeline.report.model import CampaignReport
from pipeline.report.modes import mode_rows
from pipeline.report.profile_view import Profiled, profile_views
from pipeline.report.rows import make_rows, measured_rows, medians


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfResult:
    """The comparison of the files, and their profiles where these were asked for."""

    report: CampaignReport
    profiled: tuple[Profiled, ...] = ()
    denied: tuple[Denied, ...] = ()


def measure_files(order: PerfOrder, progress: Progress) -> PerfResult:
    """Run every file with every set of options, by the engine of campaigns and with a store of its own.

    Raises ConfigError for a file that is not there, and what opening the device raises.
    """
    for file in order.files:
        if not file.is_file():
            raise ConfigError("no such model file", where=str(file), remedy="check the path")
    with open_patiently(order.device, order.wait_seconds) as device, tempfile.TemporaryDirectory() as work:
        facts, devices, campaign = device.facts(), {device.name: device}, new_campaign("perf")
        judge = preflight(order, device)
        possible, skipped = planned_files(order, device.name, facts, judge)
        runs = in_modes(possible, order.measure)
        plan = CampaignPlan(
            campaign=campaign.id,
            planned_runs=distinct(runs),
            measure=order.measure,
            conditions=order.conditions,
            artifacts=Path(),
            inputs=inputs_of_files(order, Path(work)),
            libraries={device.name: order.library},
            judge=None,
        )
        with open_store(f"sqlite:///{work}/results.sqlite") as store:
            store.start(campaign)
            left = measure_all(plan, devices, store, Path(work), progress)
            denied = blame_crashes(plan, devices, {device.name: facts}, store, progress) if order.blame else ()
            records = store.runs(campaign.id)
        profiled = _profiles(order, plan, distinct(possible), device, facts, progress) if order.profiles else ()
        planned = list(recorded(runs, runs[0].run_name if runs else None))
        sizes = {(run.model, run.variant): run.size_bytes for run in runs}
        rule = decision_rule(order.measure)
        rows = make_rows(measured_rows(planned, records, sizes), rule)
        modes = mode_rows(planned, records, sizes, order.measure, rule)
        report = CampaignReport(
            name=campaign.name,
            campaign=campaign.id,
            created_at=campaign.created_at,
            margin=rule.margin,
            least=rule.least,
            host=host(),
            versions=versions(),
            devices=(facts,),
            rows=rows.rows,
            skipped=(*skipped, *rows.skipped, *modes.skipped),
            failures=(*unfinished(left, (*rows.failures, *modes.failures)), *rows.failures, *modes.failures),
            modes=modes.rows or msgspec.UNSET,
            warnings=tuple(warnings(runs, judge)),
            profile_views=profile_views(profiled, medians(rows.rows), {}) or msgspec.UNSET,
        )
    return PerfResult(report=report, profiled=profiled, denied=denied)


def _profiles(
    order: PerfOrder,
    plan: CampaignPlan,
    runs: Sequence[PlannedRun],
    device: Device,
    facts: DeviceFacts,
    progress: Progress,
) -> tuple[Profiled, ...]:
    """Each once more with the profiler on: what it costs is not in the times that are compared."""
    found = []
    with progress.stage("profile", len(runs)) as stage:
        for run in runs:
            stage.at(run.variant)
            found.append(profile_run(device, facts, run.variant, plan.spec(run, 0), Path(str(order.profiles))))
            stage.done()
    return tuple(found)


def exit_code(report: CampaignReport) -> ExitCode:
    """1 when a run failed or nothing could run."""
    return ExitCode.SOME_FAILED if report.failures or not (report.rows or report.modes) else ExitCode.DONE
