"""What a conversion is asked for and what it gave, as values and as JSON."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pipeline.advice.precisions import PrecisionVerdict
from pipeline.check.compare import OutputCheck
from pipeline.convert.batch import Converted
from pipeline.convert.precisions import AutoProvider
from pipeline.convert.request import OptimizerPlatform, VariantFailure
from pipeline.convert.splice.edits import AwareSource
from pipeline.core.errors import ExitCode, Finding, common_exit_code, errors
from pipeline.core.variant import Artifact, Level, Style, Variant
from pipeline.dataset import Dataset
from pipeline.partition.answer import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOrder:
    """What the command line asks of a conversion."""

    levels: tuple[str, ...]
    styles: tuple[str, ...]
    release: str
    platform: OptimizerPlatform
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
