"""Conversion of many models: artifacts, what failed and why, and the operator configs of all that will ship."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import msgspec

from pipeline.advice.precisions import PrecisionVerdict
from pipeline.check.compare import OutputCheck
from pipeline.check.many import CheckedArtifact, CheckedModel, check_all, make_references
from pipeline.compat.preflight import judged, read_artifacts
from pipeline.compat.rules import Runtime, Use
from pipeline.config import BuildKind, CheckConfig
from pipeline.convert.batch import Converted, convert_models
from pipeline.convert.precisions import (
    AutoProvider,
    PrecisionOrder,
    PrecisionSet,
    make_precisions,
)
from pipeline.convert.request import OptimizerPlatform, VariantFailure
from pipeline.convert.splice.edits import AwareSource
from pipeline.core.errors import ConfigError, ExitCode, Finding, PipelineError, common_exit_code, errors
from pipeline.core.files import scratch, write_text
from pipeline.core.progress import Progress
from pipeline.core.releases import line_of
from pipeline.core.variant import Artifact, Level, Style, Variant
from pipeline.dataset import Dataset
from pipeline.model.sources import find_models, name_models
from pipeline.partition.answer import Settings

log = logging.getLogger(__name__)

CONFIG_FILE = "required_operators.config"
TYPED_CONFIG_FILE = "required_operators_and_types.config"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOrder:
    """What the command line asks of a conversion."""

    levels: tuple[str, ...]
    styles: tuple[str, ...]
    release: str
    platform: str
    dimensions: dict[str, int]
    output: Path
    cache: Path | None
    check: bool
    config: bool
    processes: int
    aware: tuple[Settings, ...] = ()
    safe: bool = False
    reference: AwareSource | None = None
    build_kind: str = "full"
    precisions: tuple[str, ...] = ("",)
    api_level: int | None = None
    """NNAPI's, at which a search for a precision counts partitions."""
    data: Dataset = field(default_factory=Dataset)
    """What ranges are taken from, and what models are checked on."""

    def variants(self, precision: str) -> tuple[Variant, ...]:
        """Every level in every style, or (of fixed style, from basic on) aware of the providers."""
        if self.aware:
            names = tuple(settings.provider for settings in self.aware)
            return tuple(
                Variant(level=Level(level), providers=() if level == Level.NONE else names, precision=precision)
                for level in self.levels
            )
        return tuple(
            Variant(level=Level(level), style=Style(style), precision=precision)
            for style in self.styles
            for level in self.levels
        )

    def auto_providers(self) -> tuple[AutoProvider, ...]:
        """What `auto` chooses for: the providers of aware files, else the CPU."""
        cpu = AutoProvider(name="cpu-x86_64" if self.platform == OptimizerPlatform.AMD64 else "cpu-arm64")
        return tuple(AutoProvider(name=one.provider, settings=one) for one in self.aware) or (cpu,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionReport:
    """What a conversion gave, in the order of the models."""

    order: ConversionOrder
    converted: tuple[Converted, ...]
    configs: tuple[Path, ...] = ()
    checks: dict[tuple[str, str], tuple[OutputCheck, ...]] = field(default_factory=dict)
    """By model and variant name, where artifacts were compared with the original."""
    findings: dict[tuple[str, str], tuple[Finding, ...]] = field(default_factory=dict)
    """By model and variant name: what speaks against loading them with the release that will run them."""
    verdicts: dict[str, tuple[PrecisionVerdict, ...]] = field(default_factory=dict)
    """By model, what `auto` kept and dropped."""

    @property
    def exit_code(self) -> ExitCode:
        """4 when outputs differ or the release cannot load an artifact, 1 when a model or variant failed.

        Where all models failed for the same want (a wrong command line, a full disk) the code of that. What a release
        does not have is no failure.
        """
        differing = any(check.failed for checks in self.checks.values() for check in checks)
        if differing or any(errors(found) for found in self.findings.values()):
            return ExitCode.CHECK_FAILED
        stopped = [one.error for one in self.converted if one.error]
        if stopped and len(stopped) == len(self.converted):
            return common_exit_code(stopped)
        failed = any(c.error or any(not f.skipped for f in c.failures) for c in self.converted)
        return ExitCode.SOME_FAILED if failed else ExitCode.DONE

    def document(self) -> dict[str, Any]:
        """The answer as JSON: one entry an artifact, or an error where there is none."""
        rows = [row for one in self.converted for row in _rows(one)]
        for row in rows if self.checks else ():
            row["checks"] = msgspec.to_builtins(self.checks.get((row["model"], row["variant"]), ()))
        for row in rows:
            row["findings"] = msgspec.to_builtins(self.findings.get((row["model"], row["variant"]), ()))
        verdicts = {model: msgspec.to_builtins(found) for model, found in self.verdicts.items() if found}
        return {"artifacts": rows} | ({"precisions": verdicts} if verdicts else {})


def _rows(one: Converted) -> list[dict[str, Any]]:
    made = {artifact.variant: artifact for artifact in one.artifacts}
    failed = {failure.variant: failure for failure in one.failures}
    return [_row(one, variant, made.get(variant), failed.get(variant)) for variant in one.variants]


def _row(one: Converted, variant: Variant, artifact: Artifact | None, failure: VariantFailure | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model": one.model.source.name,
        "variant": variant.name,
        "style": variant.style.value,
        "level": variant.level.value,
        "providers": list(variant.providers),
    }
    row |= {"precision": variant.precision} if variant.precision else {}
    if artifact:
        return row | {k: v for k, v in msgspec.to_builtins(artifact).items() if k not in row} | {"error": None}
    told = failure or one.error
    parts = {part: getattr(told, part) for part in ("what", "where", "why", "remedy")} if told else {}
    return row | {"error": parts or {"what": "not converted"}, "skipped": bool(failure and failure.skipped)}


def convert_paths(paths: Sequence[str], order: ConversionOrder, progress: Progress) -> ConversionReport:
    """Convert everything under the paths, and check it where that is asked for.

    Raises ConfigError when there is nothing to convert.
    """
    sources = find_models(paths)
    models = name_models(sources, [None] * len(sources), [order.dimensions] * len(sources))
    orders = [
        PrecisionOrder(model=model, precisions=order.precisions, data=order.data, api_level=order.api_level)
        for model in models
    ]
    cache = order.cache / "passes" if order.cache else None
    with scratch(order.output) as work:
        sets = make_precisions(orders, order.auto_providers(), work, cache, progress)
        converted = convert_models(
            sets,
            order.variants,
            output=order.output,
            cache=order.cache,
            release=order.release,
            platform=OptimizerPlatform(order.platform),
            aware=order.aware,
            safe=order.safe,
            reference=order.reference,
            processes=order.processes,
        )
        artifacts = [artifact for one in converted for artifact in one.artifacts]
        configs = write_configs(order.output, artifacts) if order.config and artifacts else ()
        report = ConversionReport(
            order=order,
            converted=converted,
            configs=configs,
            findings=_preflight(order, artifacts),
            verdicts={one.model.source.name: one.verdicts for one in sets},
        )
        return _checked(report, sets, work, progress) if order.check else report


def _preflight(order: ConversionOrder, artifacts: Sequence[Artifact]) -> dict[tuple[str, str], tuple[Finding, ...]]:
    """What speaks against the artifacts in the release and kind of build that the order names."""
    release = line_of(order.release or installed_version("onnxruntime"))
    abis = OptimizerPlatform(order.platform).abis
    runtime = Runtime(release=release, kind=BuildKind(order.build_kind), abis=abis)
    read = read_artifacts({artifact.file: order.output / artifact.file for artifact in artifacts})
    found = {
        (artifact.model, artifact.variant.name): judged(
            read, artifact.file, runtime, Use(session_config=artifact.session_options)
        )
        for artifact in artifacts
    }
    return {key: findings for key, findings in found.items() if findings}


def write_configs(output: Path, artifacts: Sequence[Artifact]) -> tuple[Path, ...]:
    """Write the operator configs, with and without types, that a build needs to run all artifacts of the folder.

    Those of earlier conversions into it count, too: the app that takes the folder takes them all.
    """
    made = [output / Path(artifact.file).name for artifact in artifacts]
    earlier = [file for file in sorted(output.rglob("*.ort")) if file not in set(made)]
    texts = config_texts(made, earlier=earlier)
    for name, text in texts.items():
        write_text(output / name, text)
    return tuple(output / name for name in texts)


def config_texts(
    files: Sequence[Path], providers: Sequence[str] = (), *, extended: bool = False, earlier: Sequence[Path] = ()
) -> dict[str, str]:
    """Both operator configs of some artifacts by their file names: the union of what each needs.

    `extended`: the build is no plain minimal one, whatever the artifacts ask for. `earlier`: more artifacts, which are
    left out with a warning where they cannot be read; one of `files` that cannot is an error.
    """
    from pipeline.required_ops import from_needs, needs_of_artifacts, render

    distinct = {
        (file.stat().st_dev, file.stat().st_ino): file for file in (*earlier, *files)
    }  # equal ones are one file
    found, failed = needs_of_artifacts(distinct.values(), providers=providers, extended=extended)
    ours = {str(file) for file in files}
    for error in failed:
        if error.where in ours:
            raise error
        log.warning("%s is not in the operator config: %s: %s", error.where, error.what, error.why)
    needs = {need for artifact in found for need in artifact.needs}
    kinds = {CONFIG_FILE: False, TYPED_CONFIG_FILE: True}
    return {name: render(from_needs(needs, types=types)) for name, types in kinds.items()}


def _checked(
    report: ConversionReport, sets: Sequence[PrecisionSet], work: Path, progress: Progress
) -> ConversionReport:
    """The same report with every artifact compared with its original (in its precision) on the order's data.

    What cannot be run on this computer fails its check, with the reason. ConfigError where no model has inputs that it
    can be run on.
    """
    artifacts = {(a.model, a.variant.name): a for one in report.converted for a in one.artifacts}
    origins = {
        (group.model.source.name, variant.name): one.name
        for group in sets
        for one in group.models
        for variant in report.order.variants(one.precision)
    }
    used = {origins[key] for key in artifacts}
    subjects = [
        CheckedModel(model=replace(one.model, name=one.name), data=report.order.data)
        for group in sets
        for one in group.models
        if one.name in used
    ]
    references = make_references(subjects, work / "tensors", work, progress)
    refused = [outcome.error for outcome in references.values()]
    if refused and all(isinstance(error, ConfigError) for error in refused):
        raise next(error for error in refused if error)
    exhibits, without = [], {}
    for key, artifact in artifacts.items():
        outcome = references[origins[key]]
        if outcome.value:
            file = report.order.output / artifact.file
            exhibits.append(CheckedArtifact(artifact=artifact, file=file, reference=outcome.value))
        elif outcome.error:
            without[key] = _not_run(outcome.error)
    checks = check_all(exhibits, CheckConfig(), progress)
    failed = {key: _not_run(error) for key, error in checks.errors.items()}
    return replace(report, checks=without | checks.passed_or_not | failed)


def _not_run(error: PipelineError) -> tuple[OutputCheck, ...]:
    return (OutputCheck(output="", passed=False, reason=f"{error.what}: {error.why}"),)
