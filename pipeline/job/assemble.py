"""From a stored campaign to its report, its choices and the bundle of them, and the end of a job."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from device_runner import options as runner_options
from device_runner.device import DeviceFacts
from pipeline import config as configs
from pipeline import required_ops
from pipeline.campaign import changed_facts
from pipeline.campaign import plan as planning
from pipeline.campaign import record as campaign_record
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.record import CampaignRecord, RunRecord
from pipeline.campaign.statistics import compare as run_compare
from pipeline.campaign.store import Store
from pipeline.check import library_proof
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core import groups as counting
from pipeline.core import progress as core_progress
from pipeline.core.errors import CheckFailed, Finding, PipelineError
from pipeline.core.features import Place
from pipeline.core.progress import Progress
from pipeline.core.variant import Artifact, Level
from pipeline.job import tokens as job_tokens
from pipeline.job import vectors as job_vectors
from pipeline.job.choices import NO_ANSWERS, choices_of, compared_runs
from pipeline.job.models import sizes_of
from pipeline.job.objections import check_shipping
from pipeline.job.predicted import crowded, unexpected
from pipeline.job.profiled import profiled
from pipeline.job.stored import list_campaigns, stored
from pipeline.job.targets import release_of
from pipeline.ort_build import run as build_run
from pipeline.release import app_fit, chip_contexts, choose, reference_files
from pipeline.release import bundle as release_bundle
from pipeline.release import custom_ops as release_custom_ops
from pipeline.release import kept as kept_files
from pipeline.release import manifest as bundle_manifest
from pipeline.release import shipped as release_shipped
from pipeline.report import measured, operators
from pipeline.report import model as report_model
from pipeline.report import modes as report_modes
from pipeline.report import profiles as report_profiles

Answers = Callable[
    [CampaignRecord, Sequence[RunRecord], Sequence[Artifact], Mapping[str, DeviceFacts]], campaign_tuned.TuneReport
]
SEARCHES = Place[Answers]("campaign.searches")
"""What searches came to, from the runs of the campaign that confirmed them."""


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
    read = report_model.own_runs(record.planned, store.read_runs(campaign.id))
    runs, warnings = read.runs, [*record.warnings, *read.left_out]
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
    choices, withheld = choices_of(record, artifacts, measured, devices, tuned)
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
            _choice_row(choice, report_model.fresh_comparison(runs, *compared) if compared else None)
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


def _choice_row(choice: choose.Choice, fresh: run_compare.Comparison | None) -> report_model.ChoiceRow:
    return report_model.ChoiceRow(
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
        provider=choice.options.provider,
    )


def with_earlier(assembled: Assembled, store: Store) -> Assembled:
    """Beside what the campaign of the same name before it measured, where there is one that this release reads."""
    report = assembled.report
    before = itertools.takewhile(lambda campaign: campaign.id != report.campaign, store.campaigns(report.name))
    earlier = [campaign for campaign in before if campaign.document and not campaign.document.searching]
    return replace(assembled, earlier=assemble(store, earlier[-1]).report) if earlier else assembled


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
"""The evidence on a finished bundle of libraries that ship, each given with the targets that ship it: `features.prove`
runs the files in them.
"""


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
    models = _signatures(assembled, folder / storage.ARTIFACTS)
    files = {shipped.file: folder / storage.ARTIFACTS / shipped.file.removeprefix(MODELS) for shipped in ships}
    operators = release_shipped.operator_configs(assembled.record.config, list(files.values()))
    sources: dict[str, Path | bytes] = {**files, **context_files}
    sources |= {MODELS + name: folder / storage.ARTIFACTS / name for name in weights}
    texts = [model.text for model in models if model.text]
    sources |= {text.file: folder / storage.ARTIFACTS / text.file.removeprefix(job_tokens.FOLDER) for text in texts}
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
    vectors = job_vectors.vectors_of(
        assembled.record, folder, [(files[shipped.file], shipped) for shipped in ships], models, libraries
    )

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
        vectors=tuple(made.kept for made in vectors),
        tensors={**tensors, **{path: file for made in vectors for path, file in made.files.items()}},
        attest=attested,
    )
    return manifest.content


def _signatures(assembled: Assembled, artifacts: Path) -> tuple[bundle_manifest.ModelSignature, ...]:
    """Inputs and outputs as each model's file declares them, with what the config says of them."""
    tables = assembled.record.tables
    sizes = sizes_of(tables)
    return tuple(
        reference_files.signature_of(
            model,
            artifacts / artifact.file,
            tables.get(model) or configs.ModelConfig(path=""),
            size_of=sizes.get(model, ""),
            constant_inputs=artifact.constant_inputs,
            text=job_tokens.kept(artifact, tables.get(model), artifacts),
        )
        for model, artifact in {choice.artifact.model: choice.artifact for choice in assembled.choices}.items()
    )


def with_bundle_facts(assembled: Assembled, folder: Path) -> Assembled:
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


def kept_references(assembled: Assembled, folder: Path) -> tuple[tuple[kept_files.KeptReference, ...], dict[str, Path]]:
    """What the bundle keeps of the originals of its models, and the raw tensors by their paths in the bundle.

    `folder` has one of tensors for each model. Raises CheckFailed for those that are not what the campaign recorded.
    """
    kept: list[kept_files.KeptReference] = []
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
                release = release_of(target, installed)
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
        ort_release=release_of(target, installed),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCampaign:
    """A campaign after its runs: `left` says why devices could not finish, `denied` which options are newly denied."""

    campaign: CampaignRecord
    left: Mapping[str, str] = field(default_factory=dict)
    denied: tuple[runner_options.Denied, ...] = ()


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
    assembled, content = with_earlier(assemble(store, ended.campaign), store), None
    findings = check_shipping(assembled, folder)
    if against := core_errors.errors(findings):
        refusals = tuple(f"{finding.where}: {finding.text}" for finding in against)
        no_bundle = (msgspec.structs.replace(finding, what=f"no bundle: {finding.what}") for finding in against)
        warnings = (*assembled.report.warnings, *no_bundle)
        report = msgspec.structs.replace(assembled.report, warnings=warnings, refusals=refusals)
        assembled = replace(assembled, report=report)
    else:
        content = ship(assembled, folder, library=library, progress=progress, prove=prove)
        assembled = with_bundle_facts(assembled, folder)

    def with_stages(record: campaign_record.JobRecord) -> campaign_record.JobRecord:
        return msgspec.structs.replace(record, stages=(*record.stages, *progress.stages))

    if not only_reads:
        store.amend(ended.campaign.id, with_stages)
    assembled = replace(
        assembled,
        record=with_stages(assembled.record),
        folder=folder,
        content=content,
        left=ended.left,
        denied=ended.denied,
        findings=findings,
    )
    from pipeline.job.reports import write_reports  # the pages, which who only reads a campaign need not load

    write_reports(assembled, folder)
    return assembled
