"""From a stored campaign to its report and its choices. Nothing here measures or converts."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from device_runner.device import DeviceFacts
from device_runner.result import Status
from pipeline.campaign.plan import decision_rule
from pipeline.campaign.record import CampaignRecord, JobRecord, RecordedRun, RunRecord, TunedClass, TuneReport
from pipeline.campaign.store import Store
from pipeline.check.compare import OutputCheck
from pipeline.config import MeasureMode, Target
from pipeline.core.errors import warning
from pipeline.core.features import Place
from pipeline.core.variant import Artifact, Level, Variant
from pipeline.job.predict import profiles_of, unexpected
from pipeline.release.choose import Choice, MeasuredVariant, Rejected, choose, rejections, suits
from pipeline.report.model import ArtifactCheck, CampaignReport, ChoiceRow, Row, SimulatedContext, Withheld
from pipeline.report.modes import mode_rows
from pipeline.report.profiles import profile_views
from pipeline.report.rows import (
    MeasuredRow,
    fresh_comparison,
    make_rows,
    measured_rows,
    medians,
    own_runs,
    run_group,
    worst_checks,
)

ArtifactKey = tuple[str, str]
"""Model and variant name."""

Answers = Callable[[CampaignRecord, Sequence[RunRecord], Sequence[Artifact], Mapping[str, DeviceFacts]], TuneReport]
SEARCHES = Place[Answers]("campaign.searches")
"""What searches came to, from the runs of the campaign that confirmed them."""

NO_ANSWERS = "a search decided what ships of this campaign, and this installation has no `ort-mobile tune`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A campaign as it is known now."""

    report: CampaignReport
    record: JobRecord
    choices: tuple[Choice, ...]
    runs: tuple[RunRecord, ...] = ()
    """All that are stored, failed ones too, in the order in which they came."""
    measured: tuple[MeasuredRow, ...] = ()
    """Timed runs with their raw latencies, in the order of the plan."""
    earlier: CampaignReport | None = None
    """Of the campaign of the same name before it."""


def assemble(store: Store, campaign: CampaignRecord) -> Assembled:
    """Everything that is known of a campaign, from the database alone."""
    record = campaign.job()
    artifacts = {(a.model, a.variant.name): a for a in store.artifacts(campaign.id)}
    devices = {facts.name: facts for facts in store.devices(campaign.id)}
    warnings = list(record.warnings)
    runs = own_runs(record.planned, store.runs(campaign.id, left_out=warnings), warnings)
    sizes = {key: artifact.size_bytes for key, artifact in artifacts.items()}
    sizes |= {(context.model, context.variant.name): context.total_bytes for context in record.contexts}
    measured = measured_rows(record.planned, runs, sizes)
    profiles = tuple(profiles_of(record.planned, runs))
    variants = [*(artifact.variant for artifact in artifacts.values()), *(row.variant for row in record.contexts)]
    ranks = {variant.name: _optimized(variant) for variant in variants}
    rule = decision_rule(record.config.measure)
    rows = make_rows(measured, rule)
    answers = (answer(campaign, runs, list(artifacts.values()), devices) for answer in SEARCHES)
    tuned = next(answers, None) if record.tuned else None
    if record.tuned and not tuned:
        warnings.append(warning(NO_ANSWERS, campaign.name))
    choices, withheld = _choices(record, artifacts, measured, devices, tuned)
    modes = mode_rows(record.planned, runs, sizes, record.config.measure, rule)
    report = CampaignReport(
        name=campaign.name,
        campaign=campaign.id,
        created_at=campaign.created_at,
        margin=rule.margin,
        least=rule.least,
        host=record.host,
        versions=record.versions,
        models=record.models,
        devices=tuple(devices.values()),
        artifacts=tuple(artifacts.values()),
        rows=rows.rows,
        skipped=(*record.skipped, *rows.skipped, *modes.skipped),
        failures=(*record.failures, *rows.failures, *modes.failures),
        modes=modes.rows,
        choices=tuple(_choice_row(choice, compared_runs(record, choice, rows.rows), runs) for choice in choices),
        profiles=tuple(profile.brief for profile in profiles),
        profile_views=profile_views(profiles, medians(rows.rows), ranks),
        warnings=(*warnings, *unexpected(measured, profiles)),
        checks=tuple(
            ArtifactCheck(model=model, variant=variant, checks=record.checks.get(model, {}).get(variant, ()))
            for model, variant in artifacts
        ),
        withheld=withheld,
        accuracy=record.accuracy,
        searches=record.searches,
        tuned=tuned,
        contexts=tuple(
            SimulatedContext(context=row, checks=record.checks.get(row.model, {}).get(row.variant.name, ()))
            for row in record.contexts
        ),
        placements=record.placements,
    )
    return Assembled(report=report, record=record, choices=choices, runs=runs, measured=tuple(measured))


def with_earlier(assembled: Assembled, store: Store) -> Assembled:
    """Beside what the campaign of the same name before it measured, where there is one that this release reads."""
    report = assembled.report
    before = itertools.takewhile(lambda campaign: campaign.id != report.campaign, store.campaigns(report.name))
    known = [campaign for campaign in before if campaign.document and not campaign.document.searching]
    return dataclasses.replace(assembled, earlier=assemble(store, known[-1]).report) if known else assembled


def _optimized(variant: Variant) -> int:
    """How far a variant is from the model as it was given: its level, and any other precision beyond all levels."""
    return list(Level).index(variant.level) + len(Level) * bool(variant.precision)


def _choices(
    record: JobRecord,
    artifacts: Mapping[ArtifactKey, Artifact],
    measured: Sequence[MeasuredRow],
    devices: Mapping[str, DeviceFacts],
    tuned: TuneReport | None,
) -> tuple[tuple[Choice, ...], tuple[Withheld, ...]]:
    """One choice per target and model, of artifacts whose outputs were not found wrong, wherever they ran.

    Beside them the models of which nothing may ship to a target, with the reason. A search gives a choice for each
    configuration that classes of devices share; without an answer for a target nothing counts as measured there.
    """
    refused = _over_budget(record)
    sound = {key: artifact for key, artifact in artifacts.items() if is_sound(record, key) and key not in refused}
    candidates = _candidates(record, sound, measured)
    rule = decision_rule(record.config.measure)
    choices, withheld = [], []
    for target in record.config.targets:
        for model in record.models:
            whole = [artifact for artifact in sound.values() if artifact.model == model.name]
            # Where none of them loads, the gate before the bundle says why.
            allowed = _loadable(record, target, whole) or whole
            if by_search := list(_tuned_choices(tuned, devices, target, model.name, allowed)):
                choices += by_search
                continue
            if reason := NO_ANSWERS if record.tuned and not tuned else _why_none(tuned, devices, target, model.name):
                withheld.append(Withheld(target=target.name, model=model.name, reason=reason))
                continue
            ran = [candidate for candidate in candidates if candidate.artifact in allowed and not record.tuned]
            rejected = _rejected(record, artifacts, allowed, target, model.name)
            choice = choose(target, allowed, ran, devices, rule, rejected)
            if choice:
                choices.append(choice)
            else:
                reason = rejections(rejected) or model.error or "no variant of it could be made"
                withheld.append(Withheld(target=target.name, model=model.name, reason=reason))
    return tuple(choices), tuple(withheld)


def _tuned_choices(
    tuned: TuneReport | None,
    devices: Mapping[str, DeviceFacts],
    target: Target,
    model: str,
    allowed: Sequence[Artifact],
) -> Iterator[Choice]:
    """What a search chose of a model for devices like a target, what serves most classes first; none without one."""
    artifacts = {artifact.variant.name: artifact for artifact in allowed}
    for row in tuned.choices if tuned else ():
        alike = [name for name in row.devices if suits(target, devices[name])]
        if row.model == model and alike and row.variant in artifacts:
            classes = dict.fromkeys(TunedClass.of(devices[name]) for name in alike)
            yield Choice(
                target=target, artifact=artifacts[row.variant], options=row.options,
                reason=f"tuned on {', '.join(alike)}", measured=True, classes=tuple(classes),
            )  # fmt: skip


def _why_none(tuned: TuneReport | None, devices: Mapping[str, DeviceFacts], target: Target, model: str) -> str:
    """Why searches on devices like a target found nothing of a model that may ship there; "" where none was made."""
    reasons = (
        f"{answer.search.outcome.value} on {answer.search.device}: {answer.search.reason}"
        for answer in (tuned.answers if tuned else ())
        if answer.search.model == model and not answer.variant and suits(target, devices[answer.search.device])
    )
    return "; ".join(reasons)


def _rejected(
    record: JobRecord,
    artifacts: Mapping[ArtifactKey, Artifact],
    allowed: Sequence[Artifact],
    target: Target,
    model: str,
) -> list[Rejected]:
    """The variants of a model that may not ship to a target, and those that could not be made."""
    rejected = []
    for artifact in artifacts.values():
        if artifact.model == model and artifact not in allowed:
            variant = artifact.variant
            checks = record.checks.get(model, {}).get(variant.name, ())
            over = _over_budget(record).get((model, variant.name), "")
            why, error = (over, None) if over else _why_not(checks, target)
            rejected.append(Rejected(variant=variant.name, level=variant.level, why=why, error=error))
    failures = {failure.variant: failure for failure in record.failures if failure.model == model and failure.variant}
    rejected += [
        Rejected(variant=name, level=failure.level, why=f"could not be made: {failure.message}")
        for name, failure in failures.items()
    ]
    return rejected


def _over_budget(record: JobRecord) -> dict[ArtifactKey, str]:
    """Why artifacts may not ship for their accuracy."""
    budget = record.config.accuracy.max_drop
    reasons = {(accuracy.model, accuracy.variant): accuracy.refused(budget) for accuracy in record.accuracy}
    return {key: reason for key, reason in reasons.items() if reason}


def _why_not(checks: Sequence[OutputCheck], target: Target) -> tuple[str, float | None]:
    """Why an artifact may not ship, and the largest relative error where that is why."""
    failed = [check for check in checks if check.failed]
    if failed:
        errors = [check.max_rel_error for check in failed if check.max_rel_error is not None]
        return "failed the numeric check", max(errors, default=None)
    if not checks:
        return "could not be compared with the original model", None
    return f"cannot be loaded by the library of {target.name}", None


def _loadable(record: JobRecord, target: Target, artifacts: Sequence[Artifact]) -> list[Artifact]:
    refused = record.unloadable.get(target.name, ())
    return [artifact for artifact in artifacts if f"{artifact.model}/{artifact.variant.name}" not in refused]


def is_sound(record: JobRecord, key: ArtifactKey) -> bool:
    """Whether an artifact's outputs were compared on this computer, and none was shown to be wrong."""
    checks = record.checks.get(key[0], {}).get(key[1], ())
    return bool(checks) and not any(check.failed for check in checks)


def _candidates(
    record: JobRecord, sound: Mapping[ArtifactKey, Artifact], measured: Sequence[MeasuredRow]
) -> list[MeasuredVariant]:
    """Runs that may ship: a sound artifact, no failed round, outputs near enough on the device too."""
    candidates = []
    steady = [planned for planned in record.planned if planned.mode is MeasureMode.STEADY]
    for planned, row in zip(steady, measured, strict=True):
        artifact = sound.get((planned.model, planned.variant))
        fine = row.status is Status.OK and all(run.result.status is Status.OK for run in row.runs)
        if artifact and fine and not any(check.failed for check in worst_checks(run.checks for run in row.runs)):
            candidates.append(
                MeasuredVariant(device=planned.device, artifact=artifact, options=planned.options, group=run_group(row))
            )
    return candidates


def compared_runs(record: JobRecord, choice: Choice, rows: Sequence[Row]) -> tuple[RecordedRun, ...]:
    """The run of a choice and the one it is compared with: the baseline, or the fastest other where it is that itself.

    Nothing where neither was compared with an interval.
    """
    place = choice.device, choice.artifact.model
    timed = {(row.variant, row.run): row for row in rows if (row.device, row.model) == place and row.statistics}
    here = {
        run.id: run
        for run in record.planned
        if (run.device, run.model) == place and run.mode is MeasureMode.STEADY and (run.variant, run.run) in timed
    }
    wanted = choice.artifact.variant.name, choice.options
    chosen = next((here.get(run.same_as, run) for run in here.values() if (run.variant, run.options) == wanted), None)
    others = [run for run in here.values() if run is not chosen and not run.same_as]
    if chosen is None or not others:
        return ()
    known = medians(timed.values())
    other = min(others, key=lambda run: (not timed[run.variant, run.run].baseline, known[*place, run.variant, run.run]))
    row = timed[chosen.variant, chosen.run]
    row = timed[other.variant, other.run] if row.baseline else row
    return (chosen, other) if row.comparison is not None and row.comparison.low is not None else ()


def _choice_row(choice: Choice, compared: Sequence[RecordedRun], runs: Sequence[RunRecord]) -> ChoiceRow:
    """A choice, with what it came to in fresh rounds."""
    fresh = fresh_comparison(runs, *compared) if compared else None
    return ChoiceRow(
        target=choice.target.name,
        model=choice.artifact.model,
        variant=choice.artifact.variant.name,
        run=choice.run,
        file=choice.artifact.file,
        reason=choice.reason,
        fresh=fresh,
        device=choice.device,
        classes=tuple(device_class.text for device_class in choice.classes),
        undecided=choice.undecided,
        slower=dict(choice.slower),
    )
