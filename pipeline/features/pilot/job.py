"""A pilot of a config: the baseline of each device and model a few times against itself, before the campaign.

How much two equal runs differ says how many rounds find a difference of a given size.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median

import msgspec

from device_runner.result import RunResult
from pipeline import config as configs
from pipeline.campaign import denied as campaign_denied
from pipeline.campaign import plan as planning
from pipeline.campaign import record as campaign_record
from pipeline.campaign import run_options
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import compare as run_compare
from pipeline.campaign.statistics import groups as run_groups
from pipeline.config import Config
from pipeline.core import groups as counting
from pipeline.core.progress import Progress
from pipeline.job import bench as job_bench
from pipeline.job import campaigns, models, objections, prepare
from pipeline.job import run as job_run
from pipeline.report import wording

PILOT_ROUNDS = 5
"""Rounds in which the baseline is measured twice: with fewer nothing is known of how rounds differ."""

PERCENTS = (1.0, 2.0, 3.0, 5.0, 10.0)
PAIR_SECONDS = 60.0


class NeededRounds(msgspec.Struct, frozen=True, kw_only=True):
    """What finds a difference in 95 of 100 pilots with their campaigns; None where 10,000 rounds do not.

    `pair_seconds` is the time for two runs a round, `campaign_seconds` for all that the config plans there.
    """

    percent: float
    rounds: int | None
    pair_seconds: float | None
    campaign_seconds: float | None


class PilotAnswer(campaign_record.RunKey, frozen=True, kw_only=True):
    """What the baseline of a device and model shows, measured against itself.

    `noise` is the standard deviation of the logarithm of a round's ratio, `run_seconds` the time from one run to the
    next with everything around it. `minute_percent` is the difference that 60 s for a pair find, None where they are
    too few rounds; `planned_percent` that of the rounds of the config.
    """

    rounds: int
    median_ns: float
    noise: float
    run_seconds: float
    runs_in_round: int
    needed: tuple[NeededRounds, ...]
    minute_rounds: int
    minute_percent: float | None
    planned_rounds: int
    planned_percent: float | None
    planned_seconds: float


def pilot_answer(
    first: Sequence[RunRecord],
    again: Sequence[RunRecord],
    *,
    run: str,
    runs_in_round: int,
    planned_rounds: int,
    lasting_seconds: float = 0.0,
    percents: Sequence[float] = PERCENTS,
    rule: run_compare.DecisionRule = run_compare.DEFAULT_RULE,
) -> PilotAnswer | None:
    """The answer from the two sets of runs of a baseline; None where fewer than four rounds have both.

    `lasting_seconds` is what the campaign takes beside its rounds: sustained runs.
    """
    logs = run_groups.paired_log_ratios(campaign_record.rounds_of(first), campaign_record.rounds_of(again)).logs
    if len(logs) < run_groups.LEAST_ROUNDS:
        return None
    seconds = seconds_a_run([record.result for record in (*first, *again)])
    sd = run_groups.noise(logs)

    def percent_of(rounds: int) -> float | None:
        return (
            100 * run_groups.detectable(sd, rounds, rule.confidence, len(logs))
            if rounds >= run_groups.LEAST_ROUNDS
            else None
        )

    def needed(percent: float) -> NeededRounds:
        count = run_groups.rounds_needed(sd, percent / 100, rule.confidence, len(logs))
        return NeededRounds(
            percent=percent,
            rounds=count,
            pair_seconds=None if count is None else 2 * count * seconds,
            campaign_seconds=None if count is None else runs_in_round * count * seconds + lasting_seconds,
        )

    minute_rounds = int(PAIR_SECONDS // (2 * seconds)) if seconds else 0
    timed = [latency for record in first for latency in record.result.latencies_ns]
    return PilotAnswer(
        device=first[0].result.device,
        model=first[0].model,
        variant=first[0].variant,
        run=run,
        rounds=len(logs),
        median_ns=float(median(timed)),
        noise=sd,
        run_seconds=seconds,
        runs_in_round=runs_in_round,
        needed=tuple(map(needed, percents)),
        minute_rounds=minute_rounds,
        minute_percent=percent_of(minute_rounds),
        planned_rounds=planned_rounds,
        planned_percent=percent_of(planned_rounds),
        planned_seconds=planned_rounds * runs_in_round * seconds + lasting_seconds,
    )


def seconds_a_run(results: Iterable[RunResult]) -> float:
    """The usual time from the start of one run to that of the next; 0 for fewer than two that say when they began."""
    begun = sorted(datetime.fromisoformat(result.started_at) for result in results if result.started_at)
    return median((after - before).total_seconds() for before, after in pairwise(begun)) if len(begun) > 1 else 0.0


def pilot_listing(answer: PilotAnswer) -> wording.Listing:
    """Rounds and time for each difference; the title says what was measured."""
    title = (
        f"{answer.model} on {answer.device}: {answer.variant} {answer.run} against itself in {answer.rounds} rounds: "
        f"median {wording.duration(answer.median_ns)}, noise {answer.noise:.1%}, {answer.run_seconds:.2g} s a run"
    )
    rows = (
        (
            f"{need.percent:g} %",
            "over 10,000" if need.rounds is None else str(need.rounds),
            spell(need.pair_seconds),
            spell(need.campaign_seconds),
        )
        for need in answer.needed
    )
    return wording.Listing(
        title=title, head=("Difference", "Rounds", "Two variants", "Whole campaign"), rows=tuple(rows)
    )


def spell(seconds: float | None) -> str:
    """Seconds as people say them: 45 s, 12 min, 3.5 h; a dash for what is not known."""
    if seconds is None:
        return wording.DASH
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def pilot_notes(answers: Sequence[PilotAnswer], missing: Sequence[str]) -> tuple[wording.Section, ...]:
    """What a minute for a pair and the config's own rounds find, and what gave no answer."""
    notes = []
    for answer in answers:
        runs = "run" if answer.runs_in_round == 1 else "runs"
        text = (
            f"60 s for two variants are {answer.minute_rounds} rounds, which {_smallest(answer.minute_percent)}; "
            f"the config's {answer.planned_rounds} rounds of {answer.runs_in_round} {runs} take "
            f"{spell(answer.planned_seconds)} and {_smallest(answer.planned_percent)}"
        )
        notes.append(wording.ListingNote(title=f"{answer.model} on {answer.device}", text=text))
    failed = (wording.ListingNote(title="", text=text) for text in missing)
    return wording.sections_of({"What this finds": notes, "Without an answer": failed})


def _smallest(percent: float | None) -> str:
    if percent is None:
        return "show no difference: fewer than 4 have no interval"
    return f"find {percent:.2g} % or more" if percent < 100 else "find no difference below 100 %"


AGAIN = " again"
"""Behind the variant of the baseline's second run in a round."""


def pilot(
    config: Config, options: job_run.JobOptions, progress: Progress, percents: Sequence[float] = PERCENTS
) -> tuple[tuple[PilotAnswer, ...], tuple[str, ...]]:
    """Measure the baselines of a config in a few rounds; nothing is kept but what conversion caches.

    Beside the answers: which devices and models gave none, with the reason.
    Raises what `run_job` raises before it measures.
    """
    run_options.check_runs(config.runs)
    steady = msgspec.structs.replace(
        config.measure, rounds=PILOT_ROUNDS, profile=False, mode=configs.MeasureMode.STEADY, perf_test=None
    )
    short = msgspec.structs.replace(config, measure=steady)
    # Devices come first: what they lack would otherwise be told after minutes of conversion.
    with job_bench.open_bench(
        job_bench.opened(options.devices or config.devices, options.wait_seconds), None, progress
    ) as bench:
        job_bench.require_library(bench.devices.values(), options.library)
        prepared = prepare.prepare(short, models.find(config), bench.work, bench.work, progress)
        artifacts = [artifact for model in prepared for artifact in model.artifacts]
        at_targets = objections.check_against_targets(short, artifacts, bench.work)
        job = job_run.CampaignJob(
            short, options, prepared, bench.work, bench.store, at_targets.read, at_targets.unloadable
        )
        measurable = [
            artifact for model in prepared for artifact in model.artifacts if artifact.source in model.references
        ]
        legal, skipped = planning.plan_runs(
            config.runs, measurable, list(bench.facts.values()), campaign_denied.known_denied()
        )
        libraries = job_bench.libraries_by_device(bench.facts, config.targets, options.library)
        possible, refused = job.possible(legal, bench.devices, libraries)
        places = counting.grouped(((run.device, run.model), run) for run in possible)
        pairs = []
        for group in places.values():
            baseline = planning.baseline_of(group, config.measure.baseline)
            pairs.append((baseline, dataclasses.replace(baseline, variant=f"{baseline.variant}{AGAIN}")))
        campaign = campaigns.new_campaign(config.name)
        plan = job.plan(campaign.id, [run for pair in pairs for run in pair], libraries, {})
        measured = bench.measure(campaign, dataclasses.replace(plan, check=None))
    answers, missing = [], []
    for (first, again), group in zip(pairs, places.values(), strict=True):
        twice = measured.records.get(first.id, []), measured.records.get(again.id, [])
        in_round = planning.distinct(planning.in_modes(group, config.measure))
        lasting = sum(run.mode is configs.MeasureMode.SUSTAINED for run in in_round)
        answer = pilot_answer(
            *twice,
            run=run_options.options_name(first.options),
            runs_in_round=len(in_round) - lasting,
            planned_rounds=config.measure.timed_rounds,
            lasting_seconds=lasting * config.measure.sustained_rounds * config.measure.sustained_seconds,
            percents=percents,
            rule=planning.decision_rule(config.measure),
        )
        if answer:
            answers.append(answer)
            continue
        failures = [run.result.failure.what for runs in twice for run in runs if run.result.failure]
        why = failures[-1] if failures else "too few of its rounds gave times"
        missing.append(f"{first.device}: {first.model}: {first.way}: {why}")
    missing += [f"{device}: {reason}" for device, reason in measured.left.items()]
    unusable = (*bench.unusable, *(() if pairs else (*skipped, *refused)))
    missing += [f"{reason.device}: {reason.text}" for reason in unusable]
    return tuple(answers), tuple(missing)
