"""Before anything is measured: models found, converted, their references computed, every artifact checked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from device_runner.files import cache_folder
from pipeline.check.many import CheckedArtifact, CheckedModel, Checks, check_all, check_all_inputs, make_references
from pipeline.check.output import OutputCheck
from pipeline.check.reference import Reference, ReferenceRequest
from pipeline.config import Config, MeasureConfig, ModelConfig, Platform, wanted_variants
from pipeline.convert.many import Converted, convert_models
from pipeline.convert.references import choose_reference
from pipeline.convert.request import OptimizerPlatform
from pipeline.convert.splice.edits import AwareSource as WhoseSession
from pipeline.core.errors import ConfigError, ExitCode, PipelineError, common_exit_code
from pipeline.core.progress import Progress
from pipeline.core.providers import PROVIDER_RULES
from pipeline.core.releases import line_of
from pipeline.core.variant import Artifact, Level, Style
from pipeline.core.workers import TaskOutcome
from pipeline.dataset import dataset_of
from pipeline.model.sources import NamedModel, find_models, name_models
from pipeline.partition.answer import Settings
from pipeline.partition.options import make_settings
from pipeline.release.shipped import library_release

LEVELS = (Level.BASIC, Level.ALL)
"""What providers want and what the CPU wants (ONNX Runtime's documentation of the ORT format)."""

STYLES = (Style.FIXED,)
ROUNDS = 3
MIN_SECONDS = 0.05
MIN_RUNS = 5


def quick(config: Config) -> Config:
    """The config with less to measure; what it names alone, as a level that LEVELS lacks, stays."""
    variants = config.variants
    fewer = msgspec.structs.replace(
        variants,
        levels=tuple(level for level in variants.levels if level in LEVELS) or variants.levels,
        styles=tuple(style for style in variants.styles if style in STYLES) or variants.styles,
    )
    return msgspec.structs.replace(config, variants=fewer, measure=_shorter(config.measure))


def _shorter(measure: MeasureConfig) -> MeasureConfig:
    return msgspec.structs.replace(
        measure,
        rounds=min(measure.rounds, ROUNDS),
        min_seconds=min(measure.min_seconds, MIN_SECONDS),
        min_runs=min(measure.min_runs, MIN_RUNS),
        warmup=min(measure.warmup, 1),
    )


def left_out(config: Config) -> str:
    """What the quick job does not do of a config, in one sentence for the terminal and the reports."""
    less = quick(config)
    names = (*config.variants.levels, *config.variants.styles)
    kept = (*less.variants.levels, *less.variants.styles)
    missing = ", ".join(name.value for name in names if name not in kept)
    seconds = f"{less.measure.min_seconds:g} s instead of {config.measure.min_seconds:g} s each"
    variants = f"; not converted or measured: {missing}" if missing else ""
    return (
        f"quick: {less.measure.rounds} of {config.measure.rounds} rounds, {seconds}{variants}. "
        "Run it without --quick before a release."
    )


ARTIFACTS = "artifacts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One model with what was made of it. Artifacts carry the model's short name; `checks` are by variant name."""

    model: NamedModel
    table: ModelConfig
    converted: Converted
    artifacts: tuple[Artifact, ...] = ()
    reference: Reference | None = None
    checks: dict[str, tuple[OutputCheck, ...]] = field(default_factory=dict)
    errors: tuple[PipelineError, ...] = ()

    def sound(self, artifact: Artifact) -> bool:
        """Whether its outputs were compared, and none was shown to be wrong."""
        checks = self.checks.get(artifact.variant.name, ())
        return bool(checks) and not any(check.failed for check in checks)


def find(config: Config) -> list[tuple[NamedModel, ModelConfig]]:
    """Every model of the config with its table; raises ConfigError for a path with no models."""
    pairs = [(source, table) for table in config.models for source in find_models([table.path])]
    models = name_models(
        [source for source, _ in pairs], [table.name for _, table in pairs], [table.dimensions for _, table in pairs]
    )
    return [(model, table) for model, (_, table) in zip(models, pairs, strict=True)]


def oldest_release(config: Config) -> str:
    """The oldest release among the targets: artifacts must run on all of them; "" for the installed one.

    A target that names none has that of its library, where this can be read.
    """
    named = [target.ort_release or library_release(target) for target in config.targets]
    return min((release for release in named if release), key=line_of, default="")


def optimizer_platform(config: Config) -> OptimizerPlatform:
    """ARM where any target is a phone: int8 weights then stay int8 (facts of the stock converter's option)."""
    phones = {Platform.ANDROID, Platform.IOS}
    on_arm = any(target.platform in phones for target in config.targets)
    return OptimizerPlatform.ARM if on_arm else OptimizerPlatform.UNSPECIFIED


COREML_VERSIONS = {15: 5, 16: 6, 17: 7, 18: 8}
"""iOS release to CoreML's version (ep_rules E.1); later ones have the last of these."""


def aware_settings(config: Config) -> tuple[Settings, ...]:
    """What provider-aware variants may count on: the lowest API level, OS version and release among the targets.

    Nothing where the config wants none: rules of claims begin with a later release than conversion.
    """
    if not config.variants.aware:
        return ()
    release = oldest_release(config)
    levels = [t.min_api_level for t in config.targets if t.platform is Platform.ANDROID and t.min_api_level]
    systems = [t.min_os_version for t in config.targets if t.platform is Platform.IOS and t.min_os_version]
    oldest = min((int(text.partition(".")[0]) for text in systems), default=None)
    return tuple(
        make_settings(
            provider,
            release=release,
            api_level=min(max(27, min(levels)), 31) if levels else None,
            coreml_version=COREML_VERSIONS.get(oldest, 8 if oldest > 18 else 5) if oldest else None,
        )
        for provider in PROVIDER_RULES
    )


def _reference(config: Config) -> WhoseSession | None:
    """Whose session saves aware variants: that of an Android target's own library before others of its release."""
    ships = [t.library for t in config.targets if t.platform is Platform.ANDROID and t.library]
    return choose_reference(config.variants.reference.value, oldest_release(config), ships)


def prepare(
    config: Config, found: Sequence[tuple[NamedModel, ModelConfig]], folder: Path, work: Path, progress: Progress
) -> list[Prepared]:
    """Convert, compute references and check; what fails for one model or artifact is in its `errors`.

    Raises the first error where every model failed and all for want of the same: a wrong command line, a full disk.
    """
    models = [model for model, _ in found]
    subjects = {
        model.name: CheckedModel(model=model, data=dataset_of(table), labels=table.labels or "")
        for model, table in found
    }
    check_all_inputs(list(subjects.values()), work)
    variants = tuple(wanted_variants(config.variants))
    with progress.stage("convert", len(models)) as stage:
        converted = convert_models(
            models,
            lambda _: variants,
            output=folder / ARTIFACTS,
            cache=cache_folder() / "artifacts",
            release=oldest_release(config),
            platform=optimizer_platform(config),
            aware=aware_settings(config),
            reference=_reference(config) if any(variant.providers for variant in variants) else None,
            done=lambda _: stage.done(),
        )
    _stop_if_hopeless(converted)
    # what could not be converted is not tried a second time: it may have taken its whole time
    usable = [subjects[one.model.name] for one in converted if one.artifacts]
    references = make_references(usable, folder / "reference", work, progress)
    _stop_at_config_errors(references.values())
    prepared = [
        _joined(model, table, one, references.get(model.name))
        for (model, table), one in zip(found, converted, strict=True)
    ]
    exhibits = [
        CheckedArtifact(artifact=artifact, file=folder / ARTIFACTS / artifact.file, reference=one.reference)
        for one in prepared
        if one.reference
        for artifact in one.artifacts
    ]
    checks = check_all(exhibits, config.check, progress)
    return [_with_checks(one, checks) for one in prepared]


def _stop_if_hopeless(converted: Sequence[Converted]) -> None:
    errors = [one.error for one in converted if one.error]
    if errors and len(errors) == len(converted) and common_exit_code(errors) is not ExitCode.SOME_FAILED:
        raise errors[0]


def _stop_at_config_errors(references: Iterable[TaskOutcome[ReferenceRequest, Reference]]) -> None:
    """Raise what is wrong with the config where it costs every model: no size is known for an open dimension."""
    errors = [one.error for one in references]
    if errors and all(isinstance(error, ConfigError) for error in errors):
        raise next(error for error in errors if error)


def _joined(
    model: NamedModel,
    table: ModelConfig,
    converted: Converted,
    reference: TaskOutcome[ReferenceRequest, Reference] | None,
) -> Prepared:
    errors = [error for error in (converted.error, reference.error if reference else None) if error]
    return Prepared(
        model=model,
        table=table,
        converted=converted,
        artifacts=tuple(msgspec.structs.replace(a, model=model.name) for a in converted.artifacts),
        reference=reference.value if reference else None,
        errors=tuple(errors),
    )


def _with_checks(one: Prepared, checks: Checks) -> Prepared:
    own = {variant: found for (model, variant), found in checks.passed_or_not.items() if model == one.model.name}
    errors = tuple(error for (model, _), error in checks.errors.items() if model == one.model.name)
    return replace(one, checks=own, errors=(*one.errors, *errors))
