"""Measures model files as they are, without converting, storing or choosing: a quick look, by the same method.

Beside single runs: throughput of several callers of one session or of one each, of models beside each other and of
batches; and a model with state as a stream, step by step, its outputs compared with the original's stream.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner import options as runner_options
from device_runner import providers as runner_providers
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import plan as planning
from pipeline.campaign import record as campaign_record
from pipeline.check import many as check_many
from pipeline.core import errors as core_errors
from pipeline.core.progress import Progress
from pipeline.features.perf import least_memory as memory_search
from pipeline.features.perf.callers import CallersRow, measure_callers, parse_concurrent
from pipeline.features.perf.streams import StreamRow, measure_streams, original_stream
from pipeline.job import bench as job_bench
from pipeline.job import campaigns, file_runs, predicted
from pipeline.job import profiled as job_profiled
from pipeline.model import sources as model_sources
from pipeline.report import model as report_model
from pipeline.report import modes as report_modes
from pipeline.report import profiles as report_profiles

if TYPE_CHECKING:
    from pipeline.report import wording


def failed_notes(
    rows: Sequence[CallersRow | StreamRow | memory_search.LeastMemoryRow], report: "report_model.CampaignReport"
) -> "list[wording.ListingNote]":
    """Why rows have no numbers, but for what the report says of the same run."""
    from pipeline.report import wording

    return [
        wording.ListingNote(title=row.file, text=row.failure, remedy=row.remedy)
        for row in rows
        if row.failure
        and not any(
            (failure.variant, failure.run) == (row.file, row.run) and failure.what in row.failure
            for failure in report.failures
        )
    ]


@dataclass(frozen=True, slots=True)
class MeasuredFiles:
    """What was measured of files; profiles, what is denied from now on and throughput where these were asked for."""

    report: report_model.CampaignReport
    profiles: tuple[report_profiles.Profiled, ...]
    denied: tuple[runner_options.Denied, ...]
    others: list[CallersRow | StreamRow | memory_search.LeastMemoryRow]

    @property
    def callers(self) -> list[CallersRow]:
        """Throughput by number of callers."""
        return [measurement for measurement in self.others if isinstance(measurement, CallersRow)]

    @property
    def streams(self) -> list[StreamRow]:
        """Runs of many steps with state."""
        return [measurement for measurement in self.others if isinstance(measurement, StreamRow)]

    @property
    def least_memory(self) -> list[memory_search.LeastMemoryRow]:
        """The least limits of private memory."""
        return [measurement for measurement in self.others if isinstance(measurement, memory_search.LeastMemoryRow)]

    @property
    def exit_code(self) -> core_errors.ExitCode:
        """1 where a file has no numbers of something that was asked for, 4 where a stream's outputs are wrong."""
        numbers = bool(self.report.rows or self.report.modes) and not self.report.failures
        if not numbers or any(measurement.failure for measurement in (*self.others, *self.profiles)):
            return core_errors.ExitCode.SOME_FAILED
        wrong = any(check.failed for stream in self.streams for check in stream.checks)
        return core_errors.ExitCode.CHECK_FAILED if wrong else core_errors.ExitCode.DONE

    @property
    def document(self) -> dict[str, Any]:
        """The report as JSON has it, with callers and streams where there are some."""
        more = {"callers": self.callers, "streams": self.streams, "least_memory": self.least_memory}
        return {**msgspec.to_builtins(self.report), **{name: rows for name, rows in more.items() if rows}}


def unfit(
    left: Mapping[str, str], failures: Sequence[campaign_record.FailureRow]
) -> Iterator[campaign_record.FailureRow]:
    """Devices that had to be left, by reason, as they did not become fit for a run: no run's own failure."""
    messages = {failure.what for failure in failures}
    for device, reason in left.items():
        if reason not in messages:
            yield campaign_record.FailureRow(
                code="not fit",
                what=reason,
                why="what was asked for did not come",
                remedy="let the device rest and charge, or wait longer (--wait-seconds)",
                device=device,
            )


def measure_files(order: file_runs.PerfOrder, progress: Progress) -> MeasuredFiles:
    """Run every file with every set of options, by the engine of campaigns and with a store of its own.

    Raises ConfigError for a file that is not there, and what opening the device with its library raises.
    """
    for file in order.files:
        model_sources.require_model_file(file)
    opened = job_bench.opened_alone(order.device, order.wait_seconds, order.library)
    with original_stream(order) as original, job_bench.open_bench(opened, None, progress) as bench:
        ((name, device),) = bench.devices.items()
        campaign = campaigns.new_campaign("perf")
        findings_of = file_runs.preflight(order, device)
        possible, skipped = file_runs.planned_files(order, name, bench.facts[name], findings_of)
        runs = planning.in_modes(possible, order.measure)
        on_gpu = {
            run.file
            for run in possible
            if runner_providers.provider_named(run.options.provider).gpu and run.file.endswith(".onnx")
        }
        losses = check_many.gpu_losses_of_files(sorted(map(Path, on_gpu)), order.dimensions, order.data)
        inputs = file_runs.inputs_of_files(order, bench.work)
        guessed = file_runs.guessed_sizes(order, inputs)
        plan = campaign_measure.CampaignPlan(
            campaign=campaign.id,
            planned_runs=planning.distinct(runs),
            measure=order.measure,
            conditions=order.conditions,
            inputs=inputs,
            libraries={name: order.library},
        )
        stored = bench.measure(campaign, plan)
        denied = bench.blame(plan) if order.blame else ()
        others: list[CallersRow | StreamRow | memory_search.LeastMemoryRow] = []
        if original:
            others += measure_streams(original, planning.distinct(possible), plan, bench)
        asked = parse_concurrent(order.concurrent or "1", order.files) if order.concurrent or order.batches else []
        sizes = {name: size for of_file in (*guessed.values(), order.dimensions) for name, size in of_file.items()}
        others += measure_callers(asked, order.batches, planning.distinct(possible), plan, bench, sizes)
        if order.least_memory:
            others += memory_search.measure_least_memory(planning.distinct(possible), plan, bench)
        profiles = []
        if order.profiles:  # each once more with the profiler on: what it costs is not in the times that are compared
            with bench.progress.stage("profile", len(planning.distinct(possible))) as stage:
                for run in planning.distinct(possible):
                    stage.at(run.variant)
                    at, facts = bench.devices[run.device], bench.facts[run.device]
                    profiles.append(job_profiled.profile_run(at, facts, run.variant, plan.spec(run, 0), order.profiles))
                    stage.done()
        profiled = tuple(profiles)
        # The first file is what all others are compared with.
        planned = list(planning.recorded(runs, runs[0].way if runs else None))
        records = [record for rounds in stored.records.values() for record in rounds]
        sizes_bytes = {(run.model, run.variant): run.size_bytes for run in runs}
        rule = planning.decision_rule(order.measure)
        measured = report_model.measured_runs(planned, records)
        rows, (failures, left_out) = report_model.make_rows(measured, sizes_bytes, rule), report_model.ends_of(measured)
        modes = report_modes.mode_rows(planned, records, order.measure, rule)
        failed = (*failures, *modes.failures)
        report = report_model.CampaignReport(
            name=campaign.name,
            campaign=campaign.id,
            created_at=campaign.created_at,
            margin=rule.margin,
            least=rule.least,
            host=campaigns.host(),
            versions=campaigns.versions(),
            devices=tuple(bench.facts.values()),
            rows=rows,
            skipped=(*skipped, *left_out, *modes.skipped),
            failures=(*unfit(stored.left, failed), *failed),
            modes=modes.rows,
            warnings=(
                *file_runs.guess_warnings(guessed),
                *file_runs.warnings(runs, findings_of),
                *losses,
                *predicted.crowded(runs, bench.facts.values(), campaigns.host()),
            ),
            profile_views=report_profiles.profile_views(profiled, report_model.medians(rows), {}),
        )
    return MeasuredFiles(report, profiled, denied, others)
