"""What is stored with a campaign before its runs, and from a stored campaign to its report and its choices."""

import dataclasses
import itertools
import logging
import os
import platform
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import msgspec

from device_runner.device import DeviceFacts, is_selector, on_network, split_server
from device_runner.device import identity as device_identity
from device_runner.files import decode_json
from device_runner.result import Status, utc_now
from pipeline import __version__
from pipeline.campaign.plan import decision_rule
from pipeline.campaign.record import (
    CampaignRecord,
    FailureRow,
    Host,
    JobRecord,
    ModelFacts,
    RecordedRun,
    RunRecord,
    Skipped,
    TunedClass,
    TuneReport,
)
from pipeline.campaign.store import Store
from pipeline.check.compare import OutputCheck
from pipeline.config import Config, MeasureMode, Target, TuneConfig
from pipeline.core.errors import Finding, PipelineError, warning
from pipeline.core.features import Place
from pipeline.core.variant import Artifact, Level, Variant
from pipeline.job.predict import profiles_of, unexpected
from pipeline.job.prepare import Prepared
from pipeline.release.choose import Choice, MeasuredVariant, Rejected, choose, rejections, suits
from pipeline.report.model import (
    ArtifactCheck,
    CampaignReport,
    ChoiceRow,
    MeasuredRow,
    Row,
    SimulatedContext,
    Withheld,
    ends_of,
    fresh_comparison,
    make_rows,
    measured_rows,
    medians,
    own_runs,
    run_group,
    worst_checks,
)
from pipeline.report.modes import mode_rows
from pipeline.report.profiles import profile_views

log = logging.getLogger(__name__)

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
    sizes = {key: artifact.total_bytes for key, artifact in artifacts.items()}
    sizes |= {(context.model, context.variant.name): context.total_bytes for context in record.contexts}
    measured = measured_rows(record.planned, runs, sizes)
    profiles = tuple(profiles_of(record.planned, runs))
    variants = [*(artifact.variant for artifact in artifacts.values()), *(row.variant for row in record.contexts)]
    ranks = {variant.name: _optimized(variant) for variant in variants}
    rule = decision_rule(record.config.measure)
    rows = make_rows(measured, rule)
    failures, skipped = ends_of(measured)
    answers = (answer(campaign, runs, list(artifacts.values()), devices) for answer in SEARCHES)
    tuned = next(answers, None) if record.tuned else None
    if record.tuned and not tuned:
        warnings.append(warning(NO_ANSWERS, campaign.name))
    choices, withheld = _choices(record, artifacts, measured, devices, tuned)
    modes, mode_failures, mode_skipped = mode_rows(record.planned, runs, sizes, record.config.measure, rule)
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
        rows=rows,
        skipped=(*record.skipped, *skipped, *mode_skipped),
        failures=(*record.failures, *failures, *mode_failures),
        modes=modes,
        choices=tuple(_choice_row(choice, compared_runs(record, choice, rows), runs) for choice in choices),
        profiles=tuple(profile.brief for profile in profiles),
        profile_views=profile_views(profiles, medians(rows), ranks),
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
    earlier = [campaign for campaign in before if campaign.document and not campaign.document.searching]
    return dataclasses.replace(assembled, earlier=assemble(store, earlier[-1]).report) if earlier else assembled


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
    runs_there = {
        run.id: run
        for run in record.planned
        if (run.device, run.model) == place and run.mode is MeasureMode.STEADY and (run.variant, run.run) in timed
    }
    way = choice.artifact.variant.name, choice.options
    chosen = next(
        (runs_there.get(run.same_as, run) for run in runs_there.values() if (run.variant, run.options) == way), None
    )
    others = [run for run in runs_there.values() if run is not chosen and not run.same_as]
    if chosen is None or not others:
        return ()
    median_ns = medians(timed.values())
    other = min(
        others, key=lambda run: (not timed[run.variant, run.run].baseline, median_ns[*place, run.variant, run.run])
    )
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


PROGRAMS = ("onnxruntime", "onnx", "numpy", "flatbuffers")


def new_campaign(name: str, document: JobRecord | None = None) -> CampaignRecord:
    """A campaign that begins now, under an id that no other has."""
    now = utc_now()
    return CampaignRecord(id=f"{now}-{secrets.token_hex(3)}", name=name, created_at=now, document=document)


def conversion_skips(prepared: Sequence[Prepared]) -> list[Skipped]:
    """Variants that the releases do not have."""
    return [
        Skipped(what=f"{failure.why}; {failure.remedy}", model=model.name, variant=failure.variant.name)
        for model in prepared
        for failure in model.converted.failures
        if failure.skipped
    ]


def preparation_failures(prepared: Sequence[Prepared]) -> list[FailureRow]:
    """Models and variants that could not be made, run as reference, or checked."""
    rows = []
    for model in prepared:
        rows += [_failure_row(error, model.name) for error in model.errors]
        for failure in model.converted.failures:
            if not failure.skipped:
                error = PipelineError(failure.what, where=failure.where, why=failure.why, remedy=failure.remedy)
                row = _failure_row(error, model.name)
                variant = failure.variant
                rows.append(msgspec.structs.replace(row, variant=variant.name, level=variant.level))
    return rows


def _failure_row(error: PipelineError, model: str) -> FailureRow:
    return FailureRow(kind="preparation", message=error.what, cause=error.why, remedy=error.remedy, model=model)


def notes(prepared: Sequence[Prepared], hints: Iterable[str]) -> Iterator[Finding]:
    """What a user should see of a job, and of its models."""
    yield from map(warning, hints)
    for model in prepared:
        texts = [f"precision {verdict.text}" for verdict in model.verdicts]
        texts += [f"precision {each.precision}: {each.search.text}" for each in model.searches]
        if (result := model.converted.result) and (dynamic := result.dynamic) and not model.table.lists:
            texts.append(
                f"open dimensions {', '.join(dynamic)}: NNAPI takes nothing whose shape is open; "
                "fix them with `dimensions` in the config, where the model still loads with fixed ones"
            )
        texts += model.reference.notes if model.reference else ()
        if model.table.state:
            steps = model.table.stream_steps
            texts.append(f"a stream of {steps} steps: times are a step's, outputs those of each")
        texts += [note for artifact in model.artifacts for note in artifact.notes]
        texts += [each.text for a in model.accuracy if a.result for each in a.result.findings]
        yield from (warning(text, model.name) for text in dict.fromkeys(texts))


def model_facts(prepared: Prepared) -> ModelFacts:
    """What the report says of a model."""
    source = prepared.model.source
    return ModelFacts(
        name=prepared.name,
        file=source.name,
        size_bytes=prepared.model.size_bytes,
        sha256=prepared.converted.result.content_digest if prepared.converted.result else "",
        inputs=tuple(_signature(t.name, t.dtype, t.shape) for t in prepared.reference.inputs)
        if prepared.reference
        else (),
        outputs=tuple(_signature(t.name, t.dtype, t.shape) for t in prepared.reference.outputs)
        if prepared.reference
        else (),
        error=prepared.errors[0].what if prepared.errors and not prepared.artifacts else "",
        remedy=prepared.errors[0].remedy if prepared.errors and not prepared.artifacts else "",
        dimensions=prepared.model.dimensions,
        guessed=prepared.table.guessed,
    )


def _signature(name: str, dtype: str, shape: Sequence[int]) -> str:
    return f"{name}: {dtype}[{', '.join(map(str, shape))}]"


def host() -> Host:
    """The computer that this runs on."""
    return Host(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=_cpu_name(),
        cores=os.cpu_count() or 0,
        memory_bytes=0 if sys.platform == "win32" else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        python=platform.python_version(),
    )


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def versions() -> dict[str, str]:
    """Every program that has a part in an artifact."""
    installed = {"ort-mobile": __version__}
    for name in PROGRAMS:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


T = TypeVar("T")
Identity = tuple[str, str, str]


def identity(artifact: Artifact) -> Identity:
    """Model, variant and digest: what must be equal for runs to be compared."""
    return artifact.model, artifact.variant.name, artifact.sha256


def stored_config(config: Config) -> Config:
    """The config as it is stored: not with the database: its URL may have a password, and is no part of a plan."""
    output = msgspec.structs.replace(config.output, database=None)
    return msgspec.structs.replace(config, output=output)


def resume(
    store: Store, record: JobRecord, artifacts: Sequence[Artifact], facts: Mapping[str, DeviceFacts]
) -> CampaignRecord | None:
    """The newest campaign of the same config and programs whose artifacts are unchanged, with what is new to it.

    New are planned runs of devices that were not there, and of models that failed then. It may have planned more, for
    a device that is not there now. None where there is no such campaign; why the newest is none is logged.
    """
    plan = as_read(record)
    now = {identity(artifact): artifact for artifact in artifacts}
    same, changed = [], ""
    for campaign in store.campaigns():
        if document := campaign.document:
            others = strangers(store.devices(campaign.id), facts)
            missing = [row for row in map(identity, store.artifacts(campaign.id)) if row not in now]
            if not continues(document, plan):
                changed = "its config, programs or runs are others"
            elif missing:
                changed = f"it has other files of {', '.join(f'{model}/{variant}' for model, variant, _ in missing)}"
            elif others:
                changed = f"{', '.join(others)} is now another device"
            else:
                same.append((campaign.id, document, campaign))
    if not same:
        if changed:
            log.warning("nothing to resume, a new campaign begins: of the last one, %s", changed)
        return None
    name, document, campaign = same[-1]
    if not new_places(document, plan):
        return campaign
    stored = set(map(identity, store.artifacts(name)))
    return store.amend(
        name,
        lambda document: joined(document, plan),
        facts=[facts[device] for device in sorted(new_devices(document, plan))],
        new_artifacts=[artifact for key, artifact in now.items() if key not in stored],
    )


def strangers(stored: Iterable[DeviceFacts], facts: Mapping[str, DeviceFacts]) -> list[str]:
    """Devices of a stored campaign that are others now, under the same name: `local` and emulators of another host."""
    return [
        facts_stored.name
        for facts_stored in stored
        if facts_stored.host
        and facts_stored.name in facts
        and device_identity(facts_stored) != device_identity(facts[facts_stored.name])
    ]


def as_read(value: T) -> T:
    """A value as it is read back from the store: numbers and lists of a config may have become other equal ones."""
    return decode_json(msgspec.json.encode(value), type(value))


def known_on_network(store: Store, config: Config) -> list[str]:
    """Devices on the network that earlier campaigns of a config with selectors met, ready or not.

    An adb server forgets such a device when it loses it, so that no selector would find it again.
    """
    if not any(is_selector(name.partition(":")[2]) for name in config.devices):
        return []
    stored = as_read(stored_config(config))
    same = [
        campaign.document for campaign in store.campaigns() if campaign.document and campaign.document.config == stored
    ]
    names = [run.device for document in same for run in document.planned] + [
        row.device for document in same for row in document.skipped
    ]
    adb = [name for name in dict.fromkeys(names) if name.startswith("adb:")]
    return [name for name in adb if on_network(split_server(name.removeprefix("adb:"))[0])]


def continues(document: JobRecord, plan: JobRecord) -> bool:
    """Whether a stored campaign is the planned one, as far as it knows the devices and their models."""
    earlier = places(document)
    if not earlier and plan.planned:
        return False  # it was only converted
    same = _purpose(document) == _purpose(plan)
    return same and all(run in document.planned for run in plan.planned if device_and_model(run) in earlier)


def _purpose(record: JobRecord) -> tuple[object, ...]:
    """What makes two plans the same: the config, but for how long a search may take, and the programs.

    Campaigns in rounds, of searches, and those that confirm what these found never continue one another; [tune] is of
    no importance to the first.
    """
    kind = record.searching, bool(record.tuned)
    tune = msgspec.structs.replace(record.config.tune, minutes=TuneConfig().minutes) if any(kind) else TuneConfig()
    return msgspec.structs.replace(record.config, tune=tune), record.versions, kind


def device_and_model(run: RecordedRun) -> tuple[str, str]:
    """Where and what a run measures: device and model."""
    return run.device, run.model


def places(document: JobRecord) -> set[tuple[str, str]]:
    """Every device with every model that it measures."""
    return set(map(device_and_model, document.planned))


def new_places(document: JobRecord, plan: JobRecord) -> set[tuple[str, str]]:
    """Devices and models for which the plan has runs and the stored campaign has none."""
    return places(plan) - places(document)


def new_devices(document: JobRecord, plan: JobRecord) -> set[str]:
    """Devices for which the plan has runs and the stored campaign has none."""
    return {run.device for run in plan.planned} - {run.device for run in document.planned}


def joined(document: JobRecord, plan: JobRecord) -> JobRecord:
    """The stored campaign's document with what is planned for new devices and models, and no more why these failed.

    What it says of models is newer where a model that had failed is there now.
    """
    new, devices = new_places(document, plan), new_devices(document, plan)
    models = {model for _, model in new} - {model for _, model in places(document)}
    newer = plan if models else document
    return msgspec.structs.replace(
        newer,
        config=document.config,
        host=document.host,
        versions=document.versions,
        planned=(*document.planned, *(run for run in plan.planned if device_and_model(run) in new)),
        skipped=(
            *(row for row in document.skipped if row.device not in devices and row.model not in models),
            *(row for row in plan.skipped if row.device in devices or row.model in models),
        ),
        tuned=tuple({(search.device, search.model): search for search in (*document.tuned, *plan.tuned)}.values()),
        placements=tuple(
            {
                (placement.model, placement.provider): placement
                for placement in (*plan.placements, *document.placements)
            }.values()
        ),
    )
