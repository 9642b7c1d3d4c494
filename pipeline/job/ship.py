"""From a campaign's choices to its bundle: artifacts against the libraries of targets, the gate, the end of a job.

`check_against_targets` keeps artifacts out of choices that they could not serve; `check_shipping` is the gate: it reads
the very files.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from device_runner.device import Device
from device_runner.options import Denied
from pipeline.campaign.plan import MAKERS, PlannedRun
from pipeline.campaign.record import CampaignRecord, Skipped
from pipeline.campaign.store import Store
from pipeline.compat.rules import DEFAULT_USE, ReadArtifacts, first_error, judged, read_artifacts, runtime_on, use_of
from pipeline.config import BuildKind, Config, ModelConfig, Target
from pipeline.core.errors import ExitCode, Finding, PipelineError, Severity, errors
from pipeline.core.features import Place
from pipeline.core.files import ARTIFACTS, BUNDLE, REFERENCES, TYPED_CONFIG_FILE, sha256_of, write_text
from pipeline.core.progress import NoProgress, Progress, StageLog
from pipeline.core.variant import Artifact
from pipeline.job.assemble import Assembled, assemble, with_earlier
from pipeline.job.prepare import sizes_of
from pipeline.job.stored import with_stages, write_reports
from pipeline.ort_build.run import added_by_operator
from pipeline.release.bundle import make_bundle
from pipeline.release.choose import Choice
from pipeline.release.manifest import (
    CUSTOM_OPS,
    MEASURED_FILE,
    Content,
    KeptReference,
    ModelSignature,
    Shipped,
    ShippedContext,
    read_manifest,
)
from pipeline.release.shipped import (
    budget_findings,
    chosen_contexts,
    context_findings,
    custom_findings,
    custom_libraries,
    keep_reference,
    libraries_of,
    library_licenses,
    library_name,
    library_release,
    operator_configs,
    requirements,
    runs_of,
    shipped_context,
    shipped_library,
    signature_of,
    takes_contexts,
)
from pipeline.report.formats import measured_text
from pipeline.report.modes import required_operators
from pipeline.required_ops import RequiredOps, covers, needs_of_artifacts, read_config


def _read_all(artifacts: Iterable[Artifact], folder: Path) -> ReadArtifacts:
    """The artifacts of a job by their file names."""
    return read_artifacts({artifact.file: folder / ARTIFACTS / artifact.file for artifact in artifacts})


def check_against_targets(
    config: Config, artifacts: Sequence[Artifact], folder: Path
) -> tuple[ReadArtifacts, dict[str, tuple[str, ...]], tuple[Finding, ...]]:
    """Every artifact against the library of every target, run on the CPU with the session options that it needs.

    What was read of the artifacts; by target those that its library refuses, as MODEL/VARIANT; notes for the report.
    """
    read = _read_all(artifacts, folder)
    installed = version("onnxruntime")
    unloadable: dict[str, tuple[str, ...]] = {}
    notes: list[Finding] = []
    for target in config.targets:
        library = shipped_library(target, config, installed)
        notes += (*library.findings, *custom_findings(config, target))
        for artifact in artifacts:
            name = f"{artifact.model}/{artifact.variant.name}"
            findings = judged(read, artifact.file, library.runtime, use_of(DEFAULT_USE, artifact.session_options))
            if errors(findings):
                unloadable[target.name] = (*unloadable.get(target.name, ()), name)
            notes += _placed(target, artifact, findings)
    return read, unloadable, tuple(dict.fromkeys(notes))


def possible_runs(
    planned_runs: Sequence[PlannedRun],
    read: ReadArtifacts,
    devices: Mapping[str, Device],
    libraries: Mapping[str, str | None],
    plugins: Collection[str] = (),
) -> tuple[list[PlannedRun], list[Skipped]]:
    """Runs that the library of their device can load, and the others with the reason; unknown ones are left in."""
    possible: list[PlannedRun] = []
    impossible: list[Skipped] = []
    runtimes = {
        name: runtime_on(devices[name], libraries.get(name), plugins)
        for name in {planned.device for planned in planned_runs}
    }
    for planned in planned_runs:
        runtime = runtimes[planned.device]
        use = use_of(planned.options, planned.session_options)
        reason = first_error(judged(read, planned.file, runtime, use)) if runtime else ""
        if reason:
            impossible.append(planned.skipped(reason))
        else:
            possible.append(planned)
    return possible, impossible


def check_shipping(assembled: Assembled, folder: Path) -> tuple[Finding, ...]:
    """Everything that speaks against the choices of a campaign; with an error among it no bundle may be made."""
    config = assembled.record.config
    installed = assembled.report.versions["onnxruntime"]
    libraries = {target.name: shipped_library(target, config, installed) for target in config.targets}
    read = _read_all([choice.artifact for choice in assembled.choices], folder)
    findings = [finding for library in libraries.values() for finding in library.findings]
    findings += budget_findings(libraries.values(), config)
    for choice in assembled.choices:
        library = libraries[choice.target.name]
        use = use_of(choice.options, choice.artifact.session_options)
        findings += _placed(choice.target, choice.artifact, judged(read, choice.artifact.file, library.runtime, use))
        if library.operators is not None:
            extended = library.runtime.kind is not BuildKind.MINIMAL
            missing = _missing_kernels(choice, library.operators, folder, extended=extended)
            findings += _placed(choice.target, choice.artifact, missing)
    contexts = chosen_contexts(assembled.record.contexts, assembled.record.checks)
    for target in config.targets:
        kind, release = libraries[target.name].runtime.kind, _release_of(target, installed)
        findings += context_findings(contexts, target, kind, release)
    findings += _without_choice(config.targets, assembled)
    return tuple(dict.fromkeys(findings))


def _placed(target: Target, artifact: Artifact, findings: Iterable[Finding]) -> Iterator[Finding]:
    where = f"target {target.name}: {artifact.model} {artifact.variant.name}"
    return (msgspec.structs.replace(finding, where=where) for finding in findings)


def _missing_kernels(choice: Choice, operators: RequiredOps, folder: Path, *, extended: bool) -> Iterator[Finding]:
    """What a reduced build of this computer lacks for a choice, by the proof of its operator config."""
    file, providers = folder / ARTIFACTS / choice.artifact.file, {choice.options.provider} - {"cpu"}
    needs, failed = needs_of_artifacts([file], providers=sorted(providers), extended=extended)
    if failed:
        return  # what cannot be read is a finding already
    for missing in covers(operators, next(iter(needs.values()))):
        yield Finding(
            severity=Severity.ERROR,
            what=f"the library that ships was built without {missing.domain}:{missing.op}",
            why=f"{missing.why}; node {missing.node} needs it since {missing.since_version}",
            remedy=f"build it anew with the bundle's operator config, or add the line {missing.line}",
        )


def _without_choice(targets: Iterable[Target], assembled: Assembled) -> Iterator[Finding]:
    """A target that gets fewer models than another gets nothing for them: said, so that nobody finds out late."""
    chosen = {(choice.target.name, choice.artifact.model) for choice in assembled.choices}
    for target in targets:
        for model in dict.fromkeys(model for _, model in chosen):
            if (target.name, model) not in chosen:
                yield Finding(
                    severity=Severity.WARNING, what="nothing ships to this target for this model",
                    where=f"target {target.name}: {model}", why="no artifact of it may ship there",
                    remedy="see the report for what failed",
                )  # fmt: skip


MODELS = "models/"
"""The bundle's folder of artifacts."""


def signatures(assembled: Assembled, folder: Path) -> tuple[ModelSignature, ...]:
    """The inputs and outputs of each model that ships, as its file declares them, with what the config says of them."""
    files = {choice.artifact.model: folder / ARTIFACTS / choice.artifact.file for choice in assembled.choices}
    tables = assembled.record.tables
    sizes = sizes_of(tables)
    return tuple(
        signature_of(model, file, tables.get(model) or ModelConfig(path=""), size_of=sizes.get(model, ""))
        for model, file in files.items()
    )


PROOFS = Place[Callable[[Mapping[str, tuple[str, ...]], Progress, Path], dict[str, Any]]]("ship.proofs")
"""The evidence on a finished bundle of libraries that ship, each given with the targets that ship it."""


def ship(
    assembled: Assembled, folder: Path, *, library: str | None = None, progress: Progress | None = None
) -> Content | None:
    """Make OUTPUT/bundle from the choices; None where nothing may ship. Raises PipelineError for changed artifacts.

    Android targets are proven in the library that their config names, or in `library`; what came of it, or why it could
    not be done here, is in the evidence.
    """
    choices = assembled.choices
    if not choices:
        return None
    for choice in choices:
        _check_unchanged(folder / ARTIFACTS / choice.artifact.file, choice.artifact.sha256)
    weights = {choice.artifact.weights: choice.artifact.weights_sha256 for choice in choices if choice.artifact.weights}
    for name, digest in weights.items():
        _check_unchanged(folder / ARTIFACTS / name, digest)
    contexts, context_files = _contexts(assembled, folder)
    ships = tuple(_shipped(assembled, choice) for choice in choices)
    files = {shipped.file: folder / ARTIFACTS / shipped.file.removeprefix(MODELS) for shipped in ships}
    operators = operator_configs(assembled.record.config, list(files.values()))
    sources: dict[str, Path | bytes] = {**files, **context_files}
    sources |= {MODELS + name: folder / ARTIFACTS / name for name in weights}
    sources |= {f"operators/{name}": text.encode() for name, text in operators.items()}
    custom = (row for choice in choices for row in custom_libraries(assembled.record.config, choice.target))
    sources |= {f"{CUSTOM_OPS}{row.system}/{row.abi}/{row.path.name}": row.path for row in custom}
    report = assembled.report
    references, tensors = kept_references(assembled, folder)
    models = signatures(assembled, folder)
    libraries = libraries_of((choice.target for choice in choices), library)

    def attested(bundle: Path) -> dict[str, Any]:
        proofs = [prove(libraries, progress or NoProgress(), bundle) for prove in PROOFS]
        return {key: value for proof in proofs for key, value in proof.items()}

    manifest = make_bundle(
        folder / BUNDLE,
        name=report.name,
        sources=sources,
        ships=ships,
        made_with={name: report.versions[name] for name in MAKERS if name in report.versions},
        evidence=_evidence(assembled, choices),
        models=models,
        contexts=contexts,
        requires=tuple(
            requirements(ships, models, files, operators, library_licenses(assembled.record.config.targets))
        ),
        classes=[choice.classes for choice in choices],
        reports={MEASURED_FILE: measured_text(report, choices, assembled.record.checks).encode()},
        references=references,
        tensors=tensors,
        attest=attested,
    )
    return manifest.content


def ship_or_refuse(
    assembled: Assembled, folder: Path, *, library: str | None, progress: Progress
) -> tuple[Assembled, Content | None, tuple[Finding, ...]]:
    """The bundle of a campaign that ended, None where something speaks against it, with all that does.

    The campaign comes back with the bundle's proofs, or with the refusals, for its report.
    """
    findings = check_shipping(assembled, folder)
    if errors(findings):
        refusals = tuple(f"{finding.where}: {finding.text}" for finding in errors(findings))
        against = (msgspec.structs.replace(finding, what=f"no bundle: {finding.what}") for finding in errors(findings))
        warnings = (*assembled.report.warnings, *against)
        report = msgspec.structs.replace(assembled.report, warnings=warnings, refusals=refusals)
        return replace(assembled, report=report), None, findings
    content = ship(assembled, folder, library=library, progress=progress)
    return proven(assembled, folder), content, findings


def proven(assembled: Assembled, folder: Path) -> Assembled:
    """The same with what came of the libraries that ship, and the operators of a reduced build, of its own bundle."""
    try:
        manifest = read_manifest(folder / BUNDLE)
        proofs = manifest.proofs
    except (PipelineError, msgspec.ValidationError):
        return assembled
    if manifest.evidence.get("campaign") != assembled.report.campaign:
        return assembled
    report = msgspec.structs.replace(assembled.report, proofs=proofs)
    with contextlib.suppress(PipelineError, OSError):  # builds may be removed at this moment
        config = read_config(folder / BUNDLE / "operators" / TYPED_CONFIG_FILE)
        report = msgspec.structs.replace(report, required=required_operators(config, added_by_operator()))
    return dataclasses.replace(assembled, report=report)


def write_operator_configs(config: Config, folder: Path, artifacts: Sequence[Path]) -> None:
    """Both operator configs of everything that was converted."""
    for name, text in operator_configs(config, artifacts).items() if artifacts else ():
        write_text(folder / name, text)


def kept_references(assembled: Assembled, folder: Path) -> tuple[tuple[KeptReference, ...], dict[str, Path]]:
    """What the bundle keeps of the originals of its models, and the raw tensors by their paths in the bundle.

    A model is left out whose tensors are no longer there.
    """
    kept: list[KeptReference] = []
    files: dict[str, Path] = {}
    contexts = chosen_contexts(assembled.record.contexts, assembled.record.checks)
    sources = [choice.artifact.source for choice in assembled.choices] + [context.source for context in contexts]
    for model in dict.fromkeys(sources):
        reference = assembled.record.references.get(model)
        if reference:
            references = folder / REFERENCES / model
            reference_kept = keep_reference(model, reference, references, assembled.record.config.check)
            kept.append(reference_kept)
            files |= {
                tensor.path: references / Path(tensor.path).name
                for tensor in (*reference_kept.inputs, *reference_kept.outputs)
            }
    return tuple(kept), files


def _contexts(assembled: Assembled, folder: Path) -> tuple[tuple[ShippedContext, ...], dict[str, Path]]:
    """The contexts that ship beside the choices, and their files by their paths in the bundle."""
    ships, files = [], dict[str, Path]()
    digests = {model.name: model.sha256 for model in assembled.report.models}
    installed = assembled.report.versions["onnxruntime"]
    targets = {(choice.target.name, choice.artifact.model): choice.target for choice in assembled.choices}
    for context in chosen_contexts(assembled.record.contexts, assembled.record.checks):
        for target in (target for (_, model), target in targets.items() if model == context.model):
            if takes_contexts(target):
                release = _release_of(target, installed)
                ships.append(shipped_context(context, target, digests[context.model], MODELS, release))
                for name, sha256 in ((context.file, context.sha256), (context.binary, context.binary_sha256)):
                    files[MODELS + name] = folder / ARTIFACTS / name
                    _check_unchanged(files[MODELS + name], sha256)
    return tuple(ships), files


def _release_of(target: Target, installed: str) -> str:
    """The release of ONNX Runtime that a target ships."""
    return target.ort_release or library_release(target) or ".".join(installed.split(".")[:2])


def _check_unchanged(path: Path, sha256: str) -> None:
    if not path.is_file() or sha256_of(path) != sha256:
        raise PipelineError(
            "an artifact is not what was measured",
            where=str(path),
            why="it is missing or was changed after the campaign",
            remedy="run the campaign again: unchanged models are not converted anew",
        )


def bundled_name(choice: Choice, choices: Iterable[Choice]) -> str:
    """The name of an artifact's file in the bundle: levels that give the same bytes share that of the first choice."""
    alike = (each.artifact for each in choices if each.artifact.sha256 == choice.artifact.sha256)
    return next(each.file for each in alike if each.model == choice.artifact.model)


def _shipped(assembled: Assembled, choice: Choice) -> Shipped:
    digests = {model.name: model.sha256 for model in assembled.report.models}
    installed = assembled.report.versions["onnxruntime"]
    artifact, target = choice.artifact, choice.target
    return Shipped(
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
        runs=runs_of(assembled.record.config, choice),
        ort_release=_release_of(target, installed),
        min_api_level=target.min_api_level,
        min_os_version=target.min_os_version,
        abis=target.abis,
        library=library_name(target),
        library_kind=shipped_library(target, assembled.record.config, installed).runtime.kind.value,
        loading=_loading(assembled, choice),
        basis="measured" if choice.measured else "advised",
    )


def _loading(assembled: Assembled, choice: Choice) -> Literal["mapped", "path"] | None:
    """How a choice was loaded where it was measured."""
    if not choice.measured:
        return None
    key = (choice.artifact.model, choice.artifact.variant.name, choice.options)
    mapped = {run.mapped for run in assembled.record.planned if (run.model, run.variant, run.options) == key}
    by_probe = assembled.record.config.measure.perf_test is None
    return "mapped" if by_probe and True in mapped else "path"


def _evidence(assembled: Assembled, choices: Sequence[Choice]) -> dict[str, object]:
    """What was measured of the artifacts that ship, on what, and why they were chosen."""
    report = assembled.report
    shipped = {(choice.artifact.model, choice.artifact.variant.name) for choice in choices}
    rows = [row for row in report.rows if (row.model, row.variant) in shipped]
    accuracy = msgspec.to_builtins([row for row in report.accuracy if (row.model, row.variant) in shipped])
    return {
        "campaign": report.campaign,
        "created_at": report.created_at,
        "host": msgspec.to_builtins(report.host),
        "versions": report.versions,
        "devices": msgspec.to_builtins(report.devices),
        "choices": msgspec.to_builtins(report.choices),
        "checks": {
            f"{model}/{variant}": msgspec.to_builtins(assembled.record.checks.get(model, {}).get(variant, ()))
            for model, variant in sorted(shipped)
        },
        "measured": msgspec.to_builtins(rows),
        "datasets": [
            {"model": model, "use": use, "name": Path(data).name}
            for model, table in sorted(assembled.record.tables.items())
            for use, data in _data_of(table)
        ],
        "contexts": msgspec.to_builtins(chosen_contexts(assembled.record.contexts, assembled.record.checks)),
    } | ({"accuracy": accuracy} if accuracy else {})


def _data_of(table: ModelConfig) -> Iterator[tuple[str, str]]:
    """What the config names as data of a model, by use."""
    for use, data in (
        ("test", table.test_data),
        ("labels", table.labels),
        ("calibration", table.calibration and table.calibration.test_data),
        ("evaluation", table.evaluation and table.evaluation.test_data),
    ):
        if data:
            yield use, data


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a job left: the report, its folder, the bundle's content (None: nothing may ship), how it ended."""

    assembled: Assembled
    folder: Path
    content: Content | None
    left: Mapping[str, str] = field(default_factory=dict)
    """Why devices could not finish."""
    denied: tuple[Denied, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What speaks against shipping; an error among it, and there is no bundle."""

    @property
    def exit_code(self) -> ExitCode:
        """4 when an output check, a budget that leaves a model without an artifact, a constraint of a search or the
        library that ships says no, 0 when all is done.

        1 when anything else failed, or a search has no answer.
        """
        record, report = self.assembled.record, self.assembled.report
        checks = [c for variants in record.checks.values() for results in variants.values() for c in results]
        checks += [check for row in report.rows for check in row.checks]
        refused = any(proof.failed for proof in report.proofs) or bool(errors(self.findings))
        if report.tuned and (report.tuned.impossible or report.tuned.unanswered):
            return ExitCode.CHECK_FAILED if report.tuned.impossible else ExitCode.SOME_FAILED
        refused |= any(row.result and row.result.not_finite for row in record.accuracy)
        over = {row.model for row in record.accuracy if row.refused(record.config.accuracy.max_drop)}
        refused |= any(row.model in over for row in report.withheld)
        if refused or any(check.failed for check in checks):
            return ExitCode.CHECK_FAILED
        return ExitCode.SOME_FAILED if report.failures or self.left or not self.content else ExitCode.DONE


EndedCampaign: TypeAlias = tuple[CampaignRecord, Mapping[str, str], tuple[Denied, ...]]
"""A campaign after its runs, why devices could not finish, and options newly denied."""


def close_job(
    store: Store,
    folder: Path,
    ended: EndedCampaign,
    library: str | None,
    progress: StageLog,
    *,
    only_reads: bool = False,
) -> JobResult:
    """Choose, bundle and report what a campaign measured; the times of the job's stages are stored, too."""
    campaign, left, denied = ended
    assembled = with_earlier(assemble(store, campaign), store)
    assembled, content, findings = ship_or_refuse(assembled, folder, library=library, progress=progress)
    assembled = with_stages(assembled, None if only_reads else store, progress.stages)
    write_reports(assembled, folder)
    return JobResult(assembled=assembled, folder=folder, content=content, left=left, denied=denied, findings=findings)
