"""Measures model files as they are, without converting, storing or choosing: a quick look, by the same method."""

from collections.abc import Sequence
from pathlib import Path

from device_runner.options import Denied
from device_runner.providers import provider_named
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.plan import PlannedRun, decision_rule, distinct, in_modes, recorded
from pipeline.campaign.record import FailureRow
from pipeline.check.many import gpu_losses_of_files
from pipeline.core.errors import ExitCode
from pipeline.core.progress import Progress
from pipeline.features.perf.callers import CallersRow, measure_callers, parse_concurrent
from pipeline.features.perf.stream import StreamRow, measure_streams, original_stream
from pipeline.job.bench import (
    Bench,
    PerfOrder,
    host,
    inputs_of_files,
    new_campaign,
    open_bench,
    opened_alone,
    planned_files,
    preflight,
    versions,
    warnings,
)
from pipeline.job.prepare import profile_run
from pipeline.model.sources import require_model_file
from pipeline.report.model import CampaignReport, ends_of, make_rows, measured_rows, medians
from pipeline.report.modes import mode_rows
from pipeline.report.profiles import Profiled, profile_views


def measure_files(
    order: PerfOrder, progress: Progress
) -> tuple[CampaignReport, tuple[Profiled, ...], tuple[Denied, ...], list[CallersRow | StreamRow]]:
    """Run every file with every set of options, by the engine of campaigns and with a store of its own.

    Beside the report: profiles, what is denied from now on and throughput, where these were asked for.
    Raises ConfigError for a file that is not there, and what opening the device with its library raises.
    """
    for file in order.files:
        require_model_file(file)
    opened = opened_alone(order.device, order.wait_seconds, order.library)
    with original_stream(order) as original, open_bench(opened, None, progress) as bench:
        ((name, device),) = bench.devices.items()
        campaign = new_campaign("perf")
        judge = preflight(order, device)
        possible, skipped = planned_files(order, name, bench.facts[name], judge)
        runs = in_modes(possible, order.measure)
        on_gpu = {
            run.file for run in possible if provider_named(run.options.provider).gpu and run.file.endswith(".onnx")
        }
        losses = gpu_losses_of_files(sorted(map(Path, on_gpu)), order.dimensions, order.data)
        plan = CampaignPlan(
            campaign=campaign.id,
            planned_runs=distinct(runs),
            measure=order.measure,
            conditions=order.conditions,
            inputs=inputs_of_files(order, bench.work),
            libraries={name: order.library},
        )
        stored, left = bench.measure(campaign, plan)
        denied = bench.blame(plan) if order.blame else ()
        others: list[CallersRow | StreamRow] = []
        if original:
            others += measure_streams(original, distinct(possible), plan, bench)
        asked = parse_concurrent(order.concurrent or "1", order.files) if order.concurrent or order.batches else []
        others += measure_callers(asked, order.batches, distinct(possible), plan, bench, order.dimensions)
        profiled = _profiles(order, plan, distinct(possible), bench) if order.profiles else ()
        # The first file is what all others are compared with.
        planned = list(recorded(runs, runs[0].run_name if runs else None))
        records = [record for rounds in stored.values() for record in rounds]
        sizes = {(run.model, run.variant): run.size_bytes for run in runs}
        rule = decision_rule(order.measure)
        measured = measured_rows(planned, records, sizes)
        rows, (failures, left_out) = make_rows(measured, rule), ends_of(measured)
        modes, mode_failures, mode_skipped = mode_rows(planned, records, sizes, order.measure, rule)
        # A device that did not become fit for a run: no run's own failure.
        messages = {failure.message for failure in (*failures, *mode_failures)}
        unfit = [
            FailureRow(
                kind="not fit", message=reason, cause="what was asked for did not come",
                remedy="let the device rest and charge, or wait longer (--wait-seconds)", device=device,
            )
            for device, reason in left.items()
            if reason not in messages
        ]  # fmt: skip
        report = CampaignReport(
            name=campaign.name,
            campaign=campaign.id,
            created_at=campaign.created_at,
            margin=rule.margin,
            least=rule.least,
            host=host(),
            versions=versions(),
            devices=tuple(bench.facts.values()),
            rows=rows,
            skipped=(*skipped, *left_out, *mode_skipped),
            failures=(*unfit, *failures, *mode_failures),
            modes=modes,
            warnings=(*warnings(runs, judge), *losses),
            profile_views=profile_views(profiled, medians(rows), {}),
        )
    return report, profiled, denied, others


def _profiles(order: PerfOrder, plan: CampaignPlan, runs: Sequence[PlannedRun], bench: Bench) -> tuple[Profiled, ...]:
    """Each once more with the profiler on: what it costs is not in the times that are compared."""
    profiles = []
    with bench.progress.stage("profile", len(runs)) as stage:
        for run in runs:
            stage.at(run.variant)
            spec, folder = plan.spec(run, 0), Path(str(order.profiles))
            profiles.append(profile_run(bench.devices[run.device], bench.facts[run.device], run.variant, spec, folder))
            stage.done()
    return tuple(profiles)


def exit_code(report: CampaignReport) -> ExitCode:
    """1 when a run failed or nothing could run."""
    return ExitCode.SOME_FAILED if report.failures or not (report.rows or report.modes) else ExitCode.DONE
