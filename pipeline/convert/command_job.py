"""The job of `ort-mobile convert`: models found, converted, looked at for the release, and checked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import msgspec

from pipeline import config as configs
from pipeline.check import many as check_many
from pipeline.check.compare import OutputCheck
from pipeline.compat import contexts as npu_contexts
from pipeline.compat import defects as compat_defects
from pipeline.compat import rules as compat_rules
from pipeline.convert.many import convert_models, require_compiler, with_contexts
from pipeline.convert.precisions import (
    AutoProviders,
    Conversion,
    ModelInPrecision,
    cpu_of_abi,
    make_precisions,
)
from pipeline.convert.request import (
    AwareSpec,
    FileNeeds,
    OptimizerPlatform,
    VariantFailure,
)
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core import progress as core_progress
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core.errors import Finding, PipelineError, Severity
from pipeline.core.progress import Progress
from pipeline.core.releases import Release
from pipeline.core.variant import Artifact, Level, Style, Variant
from pipeline.dataset import Dataset
from pipeline.model import sources as model_sources


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionJob:
    """What the command line asks of a conversion, and what it gave, in the order of the models."""

    levels: tuple[str, ...]
    styles: tuple[str, ...]
    release: str
    abi: str
    platform: OptimizerPlatform
    """What the optimizer may assume of the ABI's processor."""
    dimensions: dict[str, int]
    optional_inputs: tuple[str, ...] = ()
    output: Path
    cache: Path | None
    check: bool
    config: bool
    processes: int
    aware: AwareSpec = field(default_factory=AwareSpec)
    build_kind: str = "full"
    precisions: tuple[str, ...] = ("",)
    api_level: int | None = None
    """NNAPI's, at which a search for a precision counts partitions."""
    keep_float: tuple[str, ...] = ()
    data: Dataset = field(default_factory=Dataset)
    """What ranges are taken from, and what models are checked on."""
    chips: tuple[str, ...] = ()
    """Chips whose NPU gets contexts, in addition."""
    share_weights: bool = False
    """Whether all models have their weights once: in the binary of their contexts, and in a file beside ONNX files."""
    converted: tuple[Conversion, ...] = ()
    configs: tuple[Path, ...] = ()
    checks: dict[tuple[str, str], tuple[OutputCheck, ...]] = field(default_factory=dict)
    """By model and variant name, where artifacts were compared with the original."""
    findings: dict[tuple[str, str], tuple[Finding, ...]] = field(default_factory=dict)
    """By model and variant name: what speaks against loading them with the release that will run them."""

    def variants(self, precision: str) -> tuple[Variant, ...]:
        """Every level in every style, or (of fixed style, from basic on) aware of the providers."""
        if self.aware.providers:
            names = tuple(settings.provider for settings in self.aware.providers)
            return tuple(
                Variant(level=Level(level), providers=() if level == Level.NONE else names, precision=precision)
                for level in self.levels
            )
        return tuple(
            Variant(level=Level(level), style=Style(style), precision=precision)
            for style in self.styles
            for level in self.levels
        )

    def auto_providers(self) -> AutoProviders:
        """What `auto` chooses for: the providers of aware files, else the CPU."""
        return {settings.provider: settings for settings in self.aware.providers} or {cpu_of_abi(self.abi): None}

    @property
    def exit_code(self) -> core_errors.ExitCode:
        """4 when outputs differ or the release cannot load an artifact, 1 when a model or variant failed.

        Where all models failed for the same want (a wrong command line, a full disk) the code of that. A variant that a
        release does not have is no failure, a model without any other is.
        """
        differing = any(check.failed for checks in self.checks.values() for check in checks)
        if differing or any(core_errors.errors(findings) for findings in self.findings.values()):
            return core_errors.ExitCode.CHECK_FAILED
        stopped = [conversion.error for conversion in self.converted if conversion.error]
        if stopped and len(stopped) == len(self.converted):
            return core_errors.common_exit_code(stopped)
        failed = any(c.error or c.nothing_made or any(not f.skipped for f in c.failures) for c in self.converted)
        return core_errors.ExitCode.SOME_FAILED if failed else core_errors.ExitCode.DONE

    def document(self) -> dict[str, Any]:
        """The answer as JSON: one entry an artifact, or an error where there is none."""
        rows = [row for conversion in self.converted for row in _rows(conversion)]
        for row in rows if self.checks else ():
            row["checks"] = msgspec.to_builtins(self.checks.get((row["model"], row["variant"]), ()))
        for row in rows:
            row["findings"] = msgspec.to_builtins(self.findings.get((row["model"], row["variant"]), ()))
        verdicts = {
            conversion.model.source.name: msgspec.to_builtins(conversion.verdicts)
            for conversion in self.converted
            if conversion.verdicts
        }
        return {"artifacts": rows} | ({"precisions": verdicts} if verdicts else {})


def _rows(conversion: Conversion) -> list[dict[str, Any]]:
    files: dict[Variant, Artifact | npu_contexts.NpuContext] = {
        artifact.variant: artifact for artifact in conversion.artifacts
    }
    files |= {context.variant: context for context in conversion.contexts}
    failed = {failure.variant: failure for failure in conversion.failures}
    by_chip = [variant for variant in (*files, *failed) if variant.chip]
    variants = dict.fromkeys((*conversion.variants, *by_chip))
    return [_row(conversion, variant, files.get(variant), failed.get(variant)) for variant in variants]


def _row(
    conversion: Conversion,
    variant: Variant,
    artifact: Artifact | npu_contexts.NpuContext | None,
    failure: VariantFailure | None,
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model": conversion.model.source.name,
        "variant": variant.name,
        "style": variant.style.value,
        "level": variant.level.value,
        "providers": list(variant.providers),
    }
    row |= {key: value for key, value in (("precision", variant.precision), ("chip", variant.chip)) if value}
    if artifact:
        return row | {k: v for k, v in msgspec.to_builtins(artifact).items() if k not in row} | {"error": None}
    cause = failure or conversion.error
    parts = {part: getattr(cause, part) for part in ("what", "where", "why", "remedy")} if cause else {}
    return row | {"error": parts or {"what": "not converted"}, "skipped": bool(failure and failure.skipped)}


def convert_paths(paths: Sequence[str], job: ConversionJob, progress: Progress | None = None) -> ConversionJob:
    """The job with everything under the paths converted, and checked where that is asked for.

    Raises ConfigError when there is nothing to convert.
    """
    progress = progress or core_progress.NoProgress()
    sources = model_sources.find_models(paths)
    models = [
        replace(model, optional_inputs=job.optional_inputs)
        for model in model_sources.name_models(sources, [None] * len(sources), [job.dimensions] * len(sources))
    ]
    conversions = [
        Conversion(
            model=model,
            base=ModelInPrecision(model=model),
            precisions=job.precisions,
            data=job.data,
            api_level=job.api_level,
            keep_float=job.keep_float,
        )
        for model in models
    ]
    cache = job.cache / "passes" if job.cache else None
    require_compiler(job.chips)
    with storage.scratch(job.output) as work:
        converted = convert_models(
            make_precisions(conversions, job.auto_providers(), work, cache, progress),
            job.variants,
            output=job.output,
            cache=job.cache,
            release=job.release,
            platform=job.platform,
            aware=job.aware,
            preflight=True,
            processes=job.processes,
        )
        sizes = {model.name: "" for model in models}
        share = job.share_weights
        converted = with_contexts(converted, job.chips, job.output, progress, sizes=sizes, share=share)
        if share:
            from pipeline.convert.shared_weights import with_shared_weights

            same = dict.fromkeys(sizes, next(iter(sizes)))
            converted = with_shared_weights(converted, same, job.output, job.release, progress)
        artifacts = [artifact for conversion in converted for artifact in conversion.artifacts]
        needs_of = {
            name: needs
            for conversion in converted
            if conversion.result
            for name, needs in conversion.result.needs.items()
        }
        written: tuple[Path, ...] = ()
        if job.config and artifacts:
            from pipeline.convert.op_configs import write_configs

            written = write_configs(job.output, artifacts, needs_of, [job.abi], job.release)
        done = replace(job, converted=converted, configs=written, findings=_preflight(job, artifacts, needs_of))
        return _checked(done, work, progress) if job.check else done


def _preflight(
    job: ConversionJob, artifacts: Sequence[Artifact], needs: Mapping[str, FileNeeds]
) -> dict[tuple[str, str], tuple[Finding, ...]]:
    """What speaks against the artifacts in the release and kind of build that the job names."""
    release = ort_releases.line_of(job.release or installed_version("onnxruntime"))
    runtime = compat_defects.Runtime(release=release, kind=configs.BuildKind(job.build_kind), abis=(job.abi,))
    read = {
        **compat_rules.read_artifacts({a.file: job.output / a.file for a in artifacts if a.file not in needs}),
        **{name: msgspec.structs.replace(of_file.facts, name=name) for name, of_file in needs.items()},
    }
    for artifact in artifacts if job.aware.providers else ():
        from pipeline.convert.claimed_facts import with_claims  # files that leave what a provider claims are rare

        if isinstance(facts := read.get(artifact.file), compat_rules.ArtifactFacts) and artifact.variant.providers:
            read[artifact.file] = with_claims(facts, job.output / artifact.file, job.aware.providers)
    findings_of = {
        (artifact.model, artifact.variant.name): compat_rules.findings_for(
            read, artifact.file, runtime, compat_rules.use_of(compat_rules.DEFAULT_USE, artifact.session_options)
        )
        for artifact in artifacts
    }
    for artifact in artifacts if provider_rules.on_gpu(job.auto_providers()) else ():
        if artifact.variant.level is Level.NONE:
            plain = Finding(
                severity=Severity.WARNING,
                what="a plain file, not one for WebGPU",
                where=artifact.file,
                why="level none writes no copies between GPU and CPU",
                remedy="use level basic or a later one",
            )
            key = artifact.model, artifact.variant.name
            findings_of[key] = (*findings_of[key], plain)
    for artifact in artifacts:
        key = artifact.model, artifact.variant.name
        findings_of[key] = (*findings_of[key], *_for_gpu(job.output / artifact.file, artifact, release))
    return {key: findings for key, findings in findings_of.items() if findings}


def _for_gpu(file: Path, artifact: Artifact, release: Release) -> Iterator[Finding]:
    """Why a WebGPU session does not run an artifact that is made for one, or in one layout alone."""
    if not provider_rules.on_gpu(artifact.variant.providers) or release < ort_releases.OLDEST_RULES:
        return
    from pipeline.compat import gpu  # the rules of a provider

    in_layouts = [gpu.first_on_gpu(file, release, {"preferredLayout": layout}) for layout in ("NHWC", "NCHW")]
    found = next(filter(None, reversed(in_layouts)), None)  # what NCHW does not cure, where there is such a thing
    if found and in_layouts[0]:
        remedy = found.remedy if in_layouts[1] else "open it with preferredLayout=NCHW, in which it runs"
        why = "so a run with it is refused" if in_layouts[1] else "that is the layout of a session that names none"
        yield msgspec.structs.replace(found, severity=Severity.WARNING, where=artifact.file, why=why, remedy=remedy)


def _checked(job: ConversionJob, work: Path, progress: Progress) -> ConversionJob:
    """The same job with every artifact compared with its original (in its precision) on its data.

    What cannot be run on this computer fails its check, with the reason. ConfigError where no model has inputs that it
    can be run on.
    """
    artifacts = {(a.model, a.variant.name): a for conversion in job.converted for a in conversion.artifacts}
    origins = {
        (conversion.model.source.name, variant.name): form.name
        for conversion in job.converted
        for form in conversion.models
        for variant in job.variants(form.precision)
    }
    contexts = [context for conversion in job.converted for context in conversion.contexts]
    used = {*(origins[key] for key in artifacts), *(context.source for context in contexts)}
    subjects = [
        check_many.CheckedModel(
            model=replace(form.model, name=form.name), original=conversion.original_of(form), data=job.data
        )
        for conversion in job.converted
        for form in conversion.models
        if form.name in used
    ]
    references = check_many.make_references(subjects, work / "tensors", work, progress)
    originals = check_many.require_references(references)
    pairs, checks = [], {}
    for key, artifact in artifacts.items():
        outcome = references[origins[key]]
        if outcome.value:
            pairs.append((artifact, outcome.value))
        elif outcome.error:
            checks[key] = _not_run(outcome.error)
    for key, result in check_many.check_all(pairs, job.output, configs.CheckConfig(), progress).items():
        checks[key] = _not_run(result) if isinstance(result, PipelineError) else result
    if contexts:
        from pipeline.convert.contexts import check_contexts

        names = {conversion.model.name: conversion.model.source.name for conversion in job.converted}
        simulated = check_contexts(contexts, job.output, originals, configs.CheckConfig(), progress, work / "tensors")
        for context, compared, _ in simulated:
            checks[names[context.model], context.variant.name] = compared
    losses = check_many.gpu_losses(pairs, job.output, progress)
    findings = {key: (*job.findings.get(key, ()), loss) for key, loss in losses.items()}
    return replace(job, checks=checks, findings={**job.findings, **findings})


def _not_run(error: PipelineError) -> tuple[OutputCheck, ...]:
    return (OutputCheck(output="", passed=False, reason=f"{error.what}: {error.why}", remedy=error.remedy),)
