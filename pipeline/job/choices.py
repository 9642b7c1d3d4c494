"""What ships of a campaign: a choice for each target and model, and the runs that a choice is compared in."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from device_runner import providers as runner_providers
from device_runner.device import DeviceFacts
from device_runner.result import Status
from pipeline import config as configs
from pipeline.campaign import plan as planning
from pipeline.campaign import record as campaign_record
from pipeline.campaign import tuned as campaign_tuned
from pipeline.check import compare as output_compare
from pipeline.core.variant import Artifact, Variant
from pipeline.release import choose
from pipeline.report import model as report_model

ArtifactKey = tuple[str, str]
"""Model and variant name."""

NO_ANSWERS = "a search decided what ships of this campaign, and this installation has no `ort-mobile tune`"


def choices_of(
    record: campaign_record.JobRecord,
    artifacts: Mapping[ArtifactKey, Artifact],
    measured: Sequence[report_model.MeasuredRun],
    devices: Mapping[str, DeviceFacts],
    tuned: campaign_tuned.TuneReport | None,
) -> tuple[tuple[choose.Choice, ...], tuple[report_model.Withheld, ...]]:
    """One choice per target and model, of artifacts whose outputs were not found wrong, wherever they ran.

    Beside them the models of which nothing may ship to a target, with the reason. A search gives a choice for each
    configuration that classes of devices share; without an answer for a target nothing counts as measured there.
    """
    budget = record.config.accuracy.max_drop
    over = {
        (accuracy.model, accuracy.variant): reason
        for accuracy in record.accuracy
        if (reason := accuracy.refused(budget))
    }
    good = {
        key: artifact
        for key, artifact in artifacts.items()
        if key not in over and output_compare.sound(record.checks_of(*key))
    }
    # Runs that may ship: of a good artifact, no failed round, outputs near enough on the device, too.
    candidates = []
    for planned, runs in measured:
        artifact = good.get((planned.model, planned.variant))
        fine = bool(runs) and all(run.result.status is Status.OK for run in runs)
        if (
            artifact
            and fine
            and not any(check.failed for check in report_model.worst_checks(run.checks for run in runs))
        ):
            candidates.append(choose.Contender(planned, artifact, campaign_record.rounds_of(runs, planned.way)))
    rule = planning.decision_rule(record.config.measure)
    choices, withheld = [], []
    for target, model in itertools.product(record.config.targets, record.models):
        refused = record.unloadable.get(target.name, ())
        whole = [artifact for artifact in good.values() if artifact.model == model.name]
        # Where none of them loads, the gate before the bundle says why.
        allowed = [
            artifact for artifact in whole if f"{artifact.model}/{artifact.variant.name}" not in refused
        ] or whole
        # What is advised without a measurement runs on the CPU: of those that [[runs]] name for it, where they name any
        named = [artifact for artifact in allowed if named_for_cpu(artifact.variant, record.config.runs)] or allowed
        if by_search := list(_tuned_choices(tuned, devices, target, model.name, allowed)):
            choices += by_search
            continue
        of_model = [answer for answer in (tuned.answers if tuned else ()) if answer.search.model == model.name]
        # A constraint that nothing keeps where it was tried: what is advised for other devices is not known to keep it
        no_answer = "; ".join(
            answer.why_none
            for answer in of_model
            if not answer.variant
            and (
                choose.suits(target, devices[answer.search.device])
                or answer.search.outcome is campaign_tuned.TuneOutcome.NONE_POSSIBLE
            )
        )
        if reason := NO_ANSWERS if record.tuned and not tuned else no_answer:
            withheld.append(report_model.Withheld(target=target.name, model=model.name, what=reason))
            continue
        ran = [] if record.tuned else [contender for contender in candidates if contender.artifact in allowed]
        others = [
            artifact for artifact in artifacts.values() if artifact.model == model.name and artifact not in allowed
        ]
        rejected = [_rejected(record, artifact, over, target) for artifact in others]
        failures = {
            failure.variant: failure for failure in record.failures if failure.model == model.name and failure.variant
        }
        rejected += [
            choose.Rejected(variant=name, level=failure.level, why=f"could not be made: {failure.what}")
            for name, failure in failures.items()
        ]
        if choice := choose.choose(target, allowed if ran else named, ran, devices, rule, rejected):
            choices.append(choice)
        else:
            reason = choose.rejections(rejected) or model.error or "no variant of it could be made"
            withheld.append(report_model.Withheld(target=target.name, model=model.name, what=reason))
    return tuple(choices), tuple(withheld)


def named_for_cpu(variant: Variant, runs: Iterable[configs.RunConfig]) -> bool:
    """Whether [[runs]] name a variant in a run on the CPU."""
    return any(
        any(map(runner_providers.on_cpu, run.providers)) and any(map(variant.matches, run.variants)) for run in runs
    )


def _tuned_choices(
    tuned: campaign_tuned.TuneReport | None,
    devices: Mapping[str, DeviceFacts],
    target: configs.Target,
    model: str,
    allowed: Sequence[Artifact],
) -> Iterator[choose.Choice]:
    """What a search chose of a model for devices like a target, what serves most classes first; none without one."""
    artifacts = {artifact.variant.name: artifact for artifact in allowed}
    for choice in tuned.choices if tuned else ():
        alike = [name for name in choice.devices if choose.suits(target, devices[name])]
        if choice.model == model and alike and choice.variant in artifacts:
            classes = dict.fromkeys(campaign_tuned.TunedClass.of(devices[name]) for name in alike)
            yield choose.Choice(
                target=target,
                artifact=artifacts[choice.variant],
                options=choice.options,
                reason=f"tuned on {', '.join(alike)}",
                measured=True,
                classes=tuple(classes),
            )


def _rejected(
    record: campaign_record.JobRecord, artifact: Artifact, over: Mapping[ArtifactKey, str], target: configs.Target
) -> choose.Rejected:
    """Why an artifact may not ship to a target, and the largest relative error where that is why."""
    key, error = (artifact.model, artifact.variant.name), None
    checks = record.checks_of(*key)
    if key in over:
        why = over[key]
    elif failed := [check for check in checks if check.failed]:
        why = "failed the numeric check"
        error = max((check.max_rel_error for check in failed if check.max_rel_error is not None), default=None)
    elif not checks:
        why = "could not be compared with the original model"
    else:
        why = f"cannot be loaded by the library of {target.name}"
    return choose.Rejected(variant=key[1], level=artifact.variant.level, why=why, error=error)


def compared_runs(
    record: campaign_record.JobRecord, choice: choose.Choice, rows: Sequence[report_model.Row]
) -> tuple[campaign_record.RecordedRun, ...]:
    """The run of a choice and the one it is compared with: the baseline, or the fastest other where it is that itself.

    Nothing where neither was compared with an interval.
    """
    device_and_model = choice.device, choice.artifact.model
    timed = {
        (row.variant, row.run): row for row in rows if (row.device, row.model) == device_and_model and row.statistics
    }
    runs_there = {
        run.id: run
        for run in record.planned
        if (run.device, run.model) == device_and_model
        and run.mode is configs.MeasureMode.STEADY
        and (run.variant, run.run) in timed
    }
    way = choice.artifact.variant.name, choice.options
    chosen = next(
        (runs_there.get(run.same_as, run) for run in runs_there.values() if (run.variant, run.options) == way), None
    )
    others = [run for run in runs_there.values() if run is not chosen and not run.same_as]
    if chosen is None or not others:
        return ()
    median_ns = report_model.medians(timed.values())
    other = min(
        others,
        key=lambda run: (not timed[run.variant, run.run].baseline, median_ns[*device_and_model, run.variant, run.run]),
    )
    row = timed[chosen.variant, chosen.run]
    row = timed[other.variant, other.run] if row.baseline else row
    return (chosen, other) if row.comparison is not None and row.comparison.low is not None else ()
