"""From a stored campaign to its report, its choices and the bundle of them, and the end of a job.

`check_against_targets` keeps artifacts out of choices that they could not serve; `check_shipping` is the gate: it reads
the very files.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from device_runner import options as runner_options
from device_runner import providers as runner_providers
from device_runner.device import DeviceFacts
from device_runner.result import Status
from pipeline import config as configs
from pipeline import required_ops
from pipeline.campaign import changed_facts
from pipeline.campaign import plan as planning
from pipeline.campaign import record as campaign_record
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.record import CampaignRecord, RunRecord
from pipeline.campaign.store import Store
from pipeline.check import compare as output_compare
from pipeline.check import library_proof
from pipeline.compat import rules as compat_rules
from pipeline.config import Config
from pipeline.convert import many as convert_many
from pipeline.convert import onnx_needs
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core import groups as counting
from pipeline.core import progress as core_progress
from pipeline.core.errors import CheckFailed, Finding, PipelineError, Severity
from pipeline.core.features import Place
from pipeline.core.progress import Progress
from pipeline.core.variant import Artifact, Level, Variant
from pipeline.job.models import sizes_of
from pipeline.job.predicted import crowded, unexpected
from pipeline.job.profiled import profiled
from pipeline.job.sizes import needless_sizes
from pipeline.job.stored import list_campaigns, stored, write_reports
from pipeline.job.targets import CommonTarget, common_target
from pipeline.ort_build import run as build_run
from pipeline.release import app_fit, chip_contexts, choose, reference_files
from pipeline.release import bundle as release_bundle
from pipeline.release import custom_ops as release_custom_ops
from pipeline.release import manifest as bundle_manifest
from pipeline.release import shipped as release_shipped
from pipeline.report import measured, operators
from pipeline.report import model as report_model
from pipeline.report import modes as report_modes
from pipeline.report import profiles as report_profiles

ArtifactKey = tuple[str, str]
"""Model and variant name."""

Answers = Callable[
    [CampaignRecord, Sequence[RunRecord], Sequence[Artifact], Mapping[str, DeviceFacts]], campaign_tuned.TuneReport
]
SEARCHES = Place[Answers]("campaign.searches")
"""What searches came to, from the runs of the campaign that confirmed them."""

NO_ANSWERS = "a search decided what ships of this campaign, and this installation has no `ort-mobile tune`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A campaign as it is known now, and, after a job, what that left: the bundle in its folder, and how it ended."""

    report: report_model.CampaignReport
    record: campaign_record.JobRecord
    choices: tuple[choose.Choice, ...]
    runs: tuple[RunRecord, ...] = ()
    """All that are stored, failed ones too, in the order in which they came."""
    measured: tuple[report_model.MeasuredRun, ...] = ()
    """Timed runs with their raw latencies, in the order of the plan."""
    earlier: report_model.CampaignReport | None = None
    """Of the campaign of the same name before it."""
    folder: Path = Path()
    content: bundle_manifest.Content | None = None
    """The bundle's; None where nothing may ship."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Why devices could not finish."""
    denied: tuple[runner_options.Denied, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What speaks against shipping; an error among it, and there is no bundle."""

    @property
    def exit_code(self) -> core_errors.ExitCode:
        """Of a job: 4 when an output check, a budget that leaves a model without an artifact, a constraint of a search
        or the library that ships says no, 0 when all is done.

        1 when anything else failed, or a search has no answer.
        """
        record, report = self.record, self.report
        checks = [c for variants in record.checks.values() for results in variants.values() for c in results]
        checks += [check for row in report.rows for check in row.checks]
        refused = any(proof.failed for proof in report.proofs) or bool(core_errors.errors(self.findings))
        if report.tuned and report.tuned.unanswered:
            return core_errors.ExitCode.CHECK_FAILED if report.tuned.impossible else core_errors.ExitCode.SOME_FAILED
        refused |= any(accuracy.result and accuracy.result.not_finite for accuracy in record.accuracy)
        over = {accuracy.model for accuracy in record.accuracy if accuracy.refused(record.config.accuracy.max_drop)}
        refused |= any(withheld.model in over for withheld in report.withheld)
        if refused or any(check.failed for check in checks):
            return core_errors.ExitCode.CHECK_FAILED
        return (
            core_errors.ExitCode.SOME_FAILED
            if report.failures or self.left or not self.content
            else core_errors.ExitCode.DONE
        )


def assemble(store: Store, campaign: CampaignRecord) -> Assembled:
    """Everything that is known of a campaign, from the database alone."""
    record = campaign.job()
    artifacts = {(a.model, a.variant.name): a for a in store.artifacts(campaign.id)}
    devices = {facts.name: facts for facts in store.devices(campaign.id)}
    warnings = list(record.warnings)
    runs = report_model.own_runs(record.planned, store.runs(campaign.id, left_out=warnings), warnings)
    sizes = {key: artifact.total_bytes for key, artifact in artifacts.items()}
    sizes |= {(context.model, context.variant.name): context.total_bytes for context in record.contexts}
    measured = report_model.measured_runs(record.planned, runs)
    with_profiler = counting.grouped((run.planned, run) for run in runs if run.spec.profile)
    profiles = [
        profiled(planned.model, planned.variant, planned.options, run.result, run.prediction)
        for planned in record.planned
        for run in with_profiler.get(planned.id, ())
    ]
    variants = [
        *(artifact.variant for artifact in artifacts.values()),
        *(context.variant for context in record.contexts),
    ]
    # How far a variant is from the model as it was given: its level, and any other precision beyond all levels.
    ranks = {
        variant.name: list(Level).index(variant.level) + len(Level) * bool(variant.precision) for variant in variants
    }
    rule = planning.decision_rule(record.config.measure)
    rows = report_model.make_rows(measured, sizes, rule, {model.name: model.size_bytes for model in record.models})
    failures, skipped = report_model.ends_of(measured)
    answers = (answer(campaign, runs, list(artifacts.values()), devices) for answer in SEARCHES)
    tuned = next(answers, None) if record.tuned else None
    if record.tuned and not tuned:
        warnings.append(core_errors.warning(NO_ANSWERS, campaign.name))
    choices, withheld = _choices(record, artifacts, measured, devices, tuned)
    fresh = [(choice, compared_runs(record, choice, rows)) for choice in choices]
    modes = report_modes.mode_rows(record.planned, runs, record.config.measure, rule)
    report = report_model.CampaignReport(
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
        skipped=(*record.skipped, *skipped, *modes.skipped),
        failures=(*record.failures, *failures, *modes.failures),
        modes=modes.rows,
        choices=tuple(
            report_model.ChoiceRow(
                target=choice.target.name,
                model=choice.artifact.model,
                variant=choice.artifact.variant.name,
                run=choice.run,
                file=choice.artifact.file,
                reason=choice.reason,
                fresh=report_model.fresh_comparison(runs, *compared) if compared else None,
                device=choice.device,
                classes=tuple(device_class.text for device_class in choice.classes),
                undecided=choice.undecided,
                slower=dict(choice.slower),
                provider=choice.options.provider,
            )
            for choice, compared in fresh
        ),
        profiles=tuple(profile.brief for profile in profiles),
        profile_views=report_profiles.profile_views(profiles, report_model.medians(rows), ranks),
        warnings=(*warnings, *unexpected(measured, profiles), *crowded(record.planned, devices.values(), record.host)),
        checks=tuple(
            report_model.ArtifactCheck(model=model, variant=variant, checks=record.checks_of(model, variant))
            for model, variant in artifacts
        ),
        withheld=withheld,
        accuracy=record.accuracy,
        searches=record.searches,
        tuned=tuned,
        contexts=tuple(
            report_model.SimulatedContext(context=context, checks=record.checks_of(context.model, context.variant.name))
            for context in record.contexts
        ),
        placements=record.placements,
    )
    return Assembled(report=report, record=record, choices=choices, runs=runs, measured=tuple(measured))


def with_earlier(assembled: Assembled, store: Store) -> Assembled:
    """Beside what the campaign of the same name before it measured, where there is one that this release reads."""
    report = assembled.report
    before = itertools.takewhile(lambda campaign: campaign.id != report.campaign, store.campaigns(report.name))
    earlier = [campaign for campaign in before if campaign.document and not campaign.document.searching]
    return replace(assembled, earlier=assemble(store, earlier[-1]).report) if earlier else assembled


def _choices(
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


def check_against_targets(
    config: Config, artifacts: Sequence[Artifact], folder: Path
) -> tuple[compat_rules.ReadArtifacts, dict[str, tuple[str, ...]], tuple[Finding, ...]]:
    """Every artifact against the library of every target, with the session options that it needs.

    Plain ones run on the CPU, provider-aware ones with their providers where the platform has them. What was read of
    the artifacts; by target those that its library refuses, as MODEL/VARIANT; notes for the report.
    """
    read = compat_rules.read_artifacts(
        {artifact.file: folder / storage.ARTIFACTS / artifact.file for artifact in artifacts}
    )
    installed, common = version("onnxruntime"), common_target(config)
    unloadable: dict[str, tuple[str, ...]] = {}
    notes: list[Finding] = []
    for target in config.targets:
        library = release_shipped.shipped_library(target, config, installed)
        notes += (*library.findings, *release_custom_ops.custom_findings(config, target))
        for artifact in artifacts:
            name = f"{artifact.model}/{artifact.variant.name}"
            findings = compat_rules.findings_for(
                _told_claims(read, artifact, folder, common, target),
                artifact.file,
                library.runtime,
                compat_rules.use_of(compat_rules.DEFAULT_USE, artifact.session_options),
            )
            if core_errors.errors(findings):
                unloadable[target.name] = (*unloadable.get(target.name, ()), name)
            notes += _at_target(target, artifact, findings)
    return read, unloadable, tuple(dict.fromkeys(notes))


def _told_claims(
    read: compat_rules.ReadArtifacts, artifact: Artifact, folder: Path, common: CommonTarget, target: configs.Target
) -> compat_rules.ReadArtifacts:
    """The same, with what a target's providers take of a file that is aware of them: no kernel of the CPU is needed."""
    facts = read.get(artifact.file)
    providers = [
        settings
        for settings in (common.settings() if artifact.variant.providers else ())
        if settings.provider in artifact.variant.providers and not settings.rules.run.never_on(target.platform)
    ]
    if not providers or not isinstance(facts, compat_rules.ArtifactFacts):
        return read
    return {
        **read,
        artifact.file: convert_many.with_claims(facts, folder / storage.ARTIFACTS / artifact.file, providers),
    }


def _at_target(target: configs.Target, artifact: Artifact, findings: Iterable[Finding]) -> Iterator[Finding]:
    where = f"target {target.name}: {artifact.model} {artifact.variant.name}"
    return (msgspec.structs.replace(finding, where=where) for finding in findings)


def check_shipping(assembled: Assembled, folder: Path) -> tuple[Finding, ...]:
    """Everything that speaks against the choices of a campaign; with an error among it no bundle may be made."""
    config, choices = assembled.record.config, assembled.choices
    installed, common = assembled.report.versions["onnxruntime"], common_target(config)
    libraries = {target.name: release_shipped.shipped_library(target, config, installed) for target in config.targets}
    read = compat_rules.read_artifacts(
        {choice.artifact.file: folder / storage.ARTIFACTS / choice.artifact.file for choice in choices}
    )
    findings = [finding for library in libraries.values() for finding in library.findings]
    findings += release_shipped.budget_findings(libraries.values(), config)
    for choice in choices:
        artifact, library = choice.artifact, libraries[choice.target.name]
        use = compat_rules.use_of(choice.options, artifact.session_options)
        told = read if use.on_cpu else _told_claims(read, artifact, folder, common, choice.target)
        findings += _at_target(
            choice.target, artifact, compat_rules.findings_for(told, artifact.file, library.runtime, use)
        )
        file = folder / storage.ARTIFACTS / artifact.file
        findings += _at_target(choice.target, artifact, left_out_of(library, file, choice.options.provider))
    findings += needless_sizes(choices, sizes_of(assembled.record.tables))
    contexts = chip_contexts.chosen_contexts(assembled.record.contexts, assembled.record.checks)
    for target in config.targets:
        kind, release = libraries[target.name].runtime.kind, _release_of(target, installed)
        findings += chip_contexts.context_findings(contexts, target, kind, release)
    # A target that gets fewer models than another gets nothing for them: said, so that nobody finds out late.
    chosen = {(choice.target.name, choice.artifact.model): None for choice in choices}
    for target, model in itertools.product(config.targets, dict.fromkeys(model for _, model in chosen)):
        if (target.name, model) not in chosen:
            findings.append(
                Finding(
                    severity=Severity.WARNING,
                    what="nothing ships to this target for this model",
                    where=f"target {target.name}: {model}",
                    why="no artifact of it may ship there",
                    remedy="see the report for what failed",
                )
            )
    return tuple(dict.fromkeys(findings))


def left_out_of(library: release_shipped.ShippedLibrary, file: Path, provider: str) -> Iterator[Finding]:
    """What a reduced build of this computer lacks of a file's operators, by the proof of its operator config."""
    if library.operators is None:
        return
    needs, unknown = onnx_needs.needs_of_one(
        file,
        abis=library.runtime.abis,
        providers=sorted({provider} - {runner_providers.CPU}),
        extended=library.runtime.kind is not configs.BuildKind.MINIMAL,
    )
    if unknown:
        yield Finding(severity=Severity.WARNING, what=unknown.what, why=unknown.why, remedy=unknown.remedy)
    for lack in required_ops.covers(library.operators, needs or {}):
        yield Finding(
            severity=Severity.ERROR,
            what=f"the library that ships was built without {lack.domain}:{lack.op}",
            why=f"{lack.why}; node {lack.node} needs it since {lack.since_version}",
            remedy=f"build it anew with the bundle's operator config, or add the line {lack.line}",
        )


def _release_of(target: configs.Target, installed: str) -> str:
    """The release of ONNX Runtime that a target ships."""
    return target.ort_release or release_shipped.library_release(target) or ".".join(installed.split(".")[:2])


def _check_unchanged(path: Path, sha256: str) -> None:
    if not path.is_file() or storage.sha256_of(path) != sha256:
        raise PipelineError(
            "an artifact is not what was measured",
            where=str(path),
            why="it is missing or was changed after the campaign",
            remedy="run the campaign again: unchanged models are not converted anew",
        )


MODELS = "models/"
"""The bundle's folder of artifacts."""

OBJECTIONS = Place[Callable[[bundle_manifest.Manifest], Iterator[Finding]]]("ship.objections")
"""What packages for apps would refuse, or leave out, of what ships: warnings of the rule APP_CODE."""
PROOFS = Place[Callable[[Mapping[str, tuple[str, ...]], Progress, Path], dict[str, Any]]]("ship.proofs")
"""The evidence on a finished bundle of libraries that ship, each given with the targets that ship it."""


def _left_out(libraries: Mapping[str, tuple[str, ...]], bundle: Path) -> dict[str, Any]:
    """The evidence where the proofs of libraries that ship were not wanted."""
    remedy = f"before a release run `ort-mobile prove {bundle} --library LIBRARY`, or the job without --no-proof"
    proofs = [
        library_proof.LibraryProof(
            bundle="",
            library=library_proof.ProvenLibrary(file=Path(library).name),
            not_run="the proof was left out by --no-proof",
            remedy=remedy,
            targets=targets,
        )
        for library, targets in libraries.items()
    ]
    return {library_proof.PROOFS: msgspec.to_builtins(proofs)} if proofs else {}


def ship(
    assembled: Assembled,
    folder: Path,
    *,
    library: str | None = None,
    progress: Progress | None = None,
    prove: bool = True,
) -> bundle_manifest.Content | None:
    """Make OUTPUT/bundle from the choices; None where nothing may ship. Raises PipelineError for changed artifacts.

    Android targets are proven in the library that their config names, or in `library`; what came of it, or why it could
    not be done here, is in the evidence. With `prove` off that says so.
    """
    choices = assembled.choices
    if not choices:
        return None
    for choice in choices:
        _check_unchanged(folder / storage.ARTIFACTS / choice.artifact.file, choice.artifact.sha256)
    weights = {choice.artifact.weights: choice.artifact.weights_sha256 for choice in choices if choice.artifact.weights}
    for name, digest in weights.items():
        _check_unchanged(folder / storage.ARTIFACTS / name, digest)
    contexts, context_files = _contexts(assembled, folder)
    ships = tuple(_shipped(assembled, choice) for choice in choices)
    tables = assembled.record.tables
    sizes = sizes_of(tables)
    # Inputs and outputs as each model's file declares them, with what the config says of them.
    models = tuple(
        reference_files.signature_of(
            model,
            folder / storage.ARTIFACTS / artifact.file,
            tables.get(model) or configs.ModelConfig(path=""),
            size_of=sizes.get(model, ""),
            constant_inputs=artifact.constant_inputs,
        )
        for model, artifact in {choice.artifact.model: choice.artifact for choice in choices}.items()
    )
    files = {shipped.file: folder / storage.ARTIFACTS / shipped.file.removeprefix(MODELS) for shipped in ships}
    operators = release_shipped.operator_configs(assembled.record.config, list(files.values()))
    sources: dict[str, Path | bytes] = {**files, **context_files}
    sources |= {MODELS + name: folder / storage.ARTIFACTS / name for name in weights}
    sources |= {f"operators/{name}": text.encode() for name, text in operators.items()}
    custom = (
        library
        for choice in choices
        for library in release_custom_ops.custom_libraries(assembled.record.config, choice.target)
    )
    sources |= {
        f"{bundle_manifest.CUSTOM_OPS}{library.system}/{library.abi}/{library.path.name}": library.path
        for library in custom
    }
    report = assembled.report
    references, tensors = kept_references(assembled, folder / storage.REFERENCES)
    libraries = release_shipped.libraries_of((choice.target for choice in choices), library)

    def attested(bundle: Path) -> dict[str, Any]:
        if not prove:
            return _left_out(libraries, folder / storage.BUNDLE)
        proofs = [proof(libraries, progress or core_progress.NoProgress(), bundle) for proof in PROOFS]
        return {key: value for evidence in proofs for key, value in evidence.items()}

    manifest = release_bundle.make_bundle(
        folder / storage.BUNDLE,
        name=report.name,
        sources=sources,
        ships=ships,
        made_with={name: report.versions[name] for name in changed_facts.MAKERS if name in report.versions},
        evidence=_evidence(assembled),
        models=models,
        contexts=contexts,
        requires=tuple(
            app_fit.requirements(
                ships, models, files, operators, release_shipped.library_licenses(assembled.record.config.targets)
            )
        ),
        classes=[choice.classes for choice in choices],
        reports={
            bundle_manifest.MEASURED_FILE: measured.measured_text(report, choices, assembled.record.checks).encode()
        },
        references=references,
        tensors=tensors,
        attest=attested,
    )
    return manifest.content


def proven(assembled: Assembled, folder: Path) -> Assembled:
    """The same with what its own bundle says: proofs in the libraries that ship, what packages for apps would refuse,
    and the operators of a reduced build.
    """
    try:
        manifest = bundle_manifest.read_manifest(folder / storage.BUNDLE)
        proofs = manifest.proofs
    except (PipelineError, msgspec.ValidationError):
        return assembled
    if manifest.evidence.get("campaign") != assembled.report.campaign:
        return assembled
    objections = (finding for of_feature in OBJECTIONS for finding in of_feature(manifest))
    warnings = (*assembled.report.warnings, *objections)
    report = msgspec.structs.replace(assembled.report, proofs=proofs, warnings=warnings)
    with contextlib.suppress(PipelineError, OSError):  # builds may be removed at this moment
        config = required_ops.read_config(folder / storage.BUNDLE / "operators" / storage.TYPED_CONFIG_FILE)
        report = msgspec.structs.replace(
            report, required=operators.required_operators(config, build_run.added_by_operator())
        )
    return replace(assembled, report=report)


def kept_references(
    assembled: Assembled, folder: Path
) -> tuple[tuple[bundle_manifest.KeptReference, ...], dict[str, Path]]:
    """What the bundle keeps of the originals of its models, and the raw tensors by their paths in the bundle.

    `folder` has one of tensors for each model. Raises CheckFailed for those that are not what the campaign recorded.
    """
    kept: list[bundle_manifest.KeptReference] = []
    files: dict[str, Path] = {}
    contexts = chip_contexts.chosen_contexts(assembled.record.contexts, assembled.record.checks)
    sources = [choice.artifact.source for choice in assembled.choices] + [context.source for context in contexts]
    for model in dict.fromkeys(sources):
        reference = assembled.record.references.get(model)
        if reference:
            references = folder / model
            reference_kept = reference_files.keep_reference(model, reference, references, assembled.record.config.check)
            kept.append(reference_kept)
            files |= {
                tensor.path: references / Path(tensor.path).name
                for tensor in (*reference_kept.inputs, *reference_kept.outputs)
            }
    return tuple(kept), files


def refuse_unrecorded(bundle: Path, manifest: bundle_manifest.Manifest) -> None:
    """Raise CheckFailed where a verified bundle has other models or references than its campaign recorded.

    That is known where the bundle lies in its job's folder, with the database of the results.
    """
    folder, campaign = bundle.resolve().parent, manifest.evidence.get("campaign")
    if campaign not in list_campaigns(folder, None):
        return
    assembled = stored(folder, None, str(campaign))
    record, artifacts = assembled.record, assembled.report.artifacts
    made = {digest for artifact in artifacts for digest in (artifact.sha256, artifact.weights_sha256)}
    made |= {digest for context in record.contexts for digest in (context.sha256, context.binary_sha256)}
    models = [file for file in manifest.content.files if file.path.startswith(MODELS)]
    other = [f"changed or added: {file.path}" for file in models if file.sha256 not in made]
    if not other:
        kept, _ = kept_references(assembled, bundle / reference_files.KEPT_FOLDER)
        here, recorded = ({row.model: row for row in rows} for rows in (manifest.references, kept))
        for model in sorted({*here, *recorded}):
            if here.get(model) != recorded.get(model):
                how = "removed" if model not in here else "added" if model not in recorded else "changed"
                other.append(f"{how}: the reference of {model}")
    if other:
        raise CheckFailed(
            "this bundle is not what its campaign made",
            where=str(bundle),
            why="; ".join(other[: bundle_manifest.MOST_FINDINGS]),
            remedy="make it again: `ort-mobile bundle rebuild FOLDER`",
        )


def _contexts(assembled: Assembled, folder: Path) -> tuple[tuple[bundle_manifest.ShippedContext, ...], dict[str, Path]]:
    """The contexts that ship beside the choices, and their files by their paths in the bundle."""
    ships, files = [], dict[str, Path]()
    digests = {model.name: model.sha256 for model in assembled.report.models}
    installed = assembled.report.versions["onnxruntime"]
    targets = {(choice.target.name, choice.artifact.model): choice.target for choice in assembled.choices}
    for context in chip_contexts.chosen_contexts(assembled.record.contexts, assembled.record.checks):
        for target in (target for (_, model), target in targets.items() if model == context.model):
            if chip_contexts.takes_contexts(target):
                release = _release_of(target, installed)
                ships.append(chip_contexts.shipped_context(context, target, digests[context.model], MODELS, release))
                for name, sha256 in ((context.file, context.sha256), (context.binary, context.binary_sha256)):
                    files[MODELS + name] = folder / storage.ARTIFACTS / name
                    _check_unchanged(files[MODELS + name], sha256)
    return tuple(ships), files


def bundled_name(choice: choose.Choice, choices: Iterable[choose.Choice]) -> str:
    """The name of an artifact's file in the bundle: levels that give the same bytes share that of the first choice."""
    alike = (
        shipped_choice.artifact
        for shipped_choice in choices
        if shipped_choice.artifact.sha256 == choice.artifact.sha256
    )
    return next(artifact.file for artifact in alike if artifact.model == choice.artifact.model)


def _shipped(assembled: Assembled, choice: choose.Choice) -> bundle_manifest.Shipped:
    record, installed = assembled.record, assembled.report.versions["onnxruntime"]
    digests = {model.name: model.sha256 for model in assembled.report.models}
    artifact, target = choice.artifact, choice.target
    key = (artifact.model, artifact.variant.name, choice.options)
    mapped = any(run.mapped for run in record.planned if (run.model, run.variant, run.options) == key)
    return bundle_manifest.Shipped(
        target=target.name,
        platform=target.platform.value,
        model=artifact.model,
        model_sha256=digests[artifact.model],
        variant=artifact.variant,
        file=MODELS + bundled_name(choice, assembled.choices),
        weights=artifact.weights and MODELS + artifact.weights,
        semantic_digest=artifact.semantic_digest,
        aware_by=artifact.aware_by,
        steps=artifact.steps,
        runs=release_shipped.runs_of(record.config, choice),
        ort_release=_release_of(target, installed),
        min_api_level=target.min_api_level,
        min_os_version=target.min_os_version,
        abis=target.abis,
        library=release_shipped.library_name(target),
        library_kind=release_shipped.shipped_library(target, record.config, installed).runtime.kind.value,
        loading=("mapped" if mapped and record.config.measure.perf_test is None else "path")
        if choice.measured or artifact.unmappable
        else None,
        basis="measured" if choice.measured else "advised",
    )


def _evidence(assembled: Assembled) -> dict[str, object]:
    """What was measured of the artifacts that ship, on what, and why they were chosen."""
    report, record = assembled.report, assembled.record
    chosen = {(choice.artifact.model, choice.artifact.variant.name) for choice in assembled.choices}
    accuracy = msgspec.to_builtins(
        [accuracy for accuracy in report.accuracy if (accuracy.model, accuracy.variant) in chosen]
    )
    data = [
        (model, use, path)
        for model, table in sorted(record.tables.items())
        for use, path in (
            ("test", table.test_data),
            ("labels", table.labels),
            ("calibration", table.calibration and table.calibration.test_data),
            ("evaluation", table.evaluation and table.evaluation.test_data),
        )
    ]
    return {
        "campaign": report.campaign,
        "created_at": report.created_at,
        "host": msgspec.to_builtins(report.host),
        "versions": report.versions,
        "devices": msgspec.to_builtins(report.devices),
        "choices": msgspec.to_builtins(report.choices),
        "checks": {f"{key[0]}/{key[1]}": msgspec.to_builtins(record.checks_of(*key)) for key in sorted(chosen)},
        "measured": msgspec.to_builtins([row for row in report.rows if (row.model, row.variant) in chosen]),
        "datasets": [{"model": model, "use": use, "name": Path(path).name} for model, use, path in data if path],
        "contexts": msgspec.to_builtins(chip_contexts.chosen_contexts(record.contexts, record.checks)),
    } | ({"accuracy": accuracy} if accuracy else {})


EndedCampaign: TypeAlias = tuple[CampaignRecord, Mapping[str, str], tuple[runner_options.Denied, ...]]
"""A campaign after its runs, why devices could not finish, and options newly denied."""


def close_job(
    store: Store,
    folder: Path,
    ended: EndedCampaign,
    library: str | None,
    progress: core_progress.StageLog,
    *,
    only_reads: bool = False,
    prove: bool = True,
) -> Assembled:
    """Choose, bundle and report what a campaign measured; the times of the job's stages are stored, too.

    `prove` is as for `ship`.
    """
    campaign, left, denied = ended
    assembled, content = with_earlier(assemble(store, campaign), store), None
    findings = check_shipping(assembled, folder)
    if against := core_errors.errors(findings):
        refusals = tuple(f"{finding.where}: {finding.text}" for finding in against)
        no_bundle = (msgspec.structs.replace(finding, what=f"no bundle: {finding.what}") for finding in against)
        warnings = (*assembled.report.warnings, *no_bundle)
        report = msgspec.structs.replace(assembled.report, warnings=warnings, refusals=refusals)
        assembled = replace(assembled, report=report)
    else:
        content = ship(assembled, folder, library=library, progress=progress, prove=prove)
        assembled = proven(assembled, folder)

    def with_stages(record: campaign_record.JobRecord) -> campaign_record.JobRecord:
        return msgspec.structs.replace(record, stages=(*record.stages, *progress.stages))

    if not only_reads:
        store.amend(campaign.id, with_stages)
    assembled = replace(
        assembled,
        record=with_stages(assembled.record),
        folder=folder,
        content=content,
        left=left,
        denied=denied,
        findings=findings,
    )
    write_reports(assembled, folder)
    return assembled
