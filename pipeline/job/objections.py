"""What speaks against artifacts and choices at the targets, in the libraries that ship there.

`check_against_targets` keeps artifacts out of choices that they could not serve; `check_shipping` is the gate: it reads
the very files.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner import providers as runner_providers
from pipeline import config as configs
from pipeline import required_ops
from pipeline.compat import rules as compat_rules
from pipeline.config import Config
from pipeline.convert import claimed_facts, onnx_needs
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core.errors import Finding, Severity
from pipeline.core.variant import Artifact
from pipeline.job.models import sizes_of
from pipeline.job.sizes import needless_sizes
from pipeline.job.targets import CommonTarget, common_target, release_of
from pipeline.release import chip_contexts
from pipeline.release import custom_ops as release_custom_ops
from pipeline.release import shipped as release_shipped

if TYPE_CHECKING:
    from pipeline.job.assemble import Assembled


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCheck:
    """What was read of artifacts; by target those that its library refuses, as MODEL/VARIANT; notes for the report."""

    read: compat_rules.ReadArtifacts
    unloadable: dict[str, tuple[str, ...]]
    findings: tuple[Finding, ...]


def check_against_targets(config: Config, artifacts: Sequence[Artifact], folder: Path) -> TargetCheck:
    """Every artifact against the library of every target, with the session options that it needs.

    Plain ones run on the CPU, provider-aware ones with their providers where the platform has them.
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
    return TargetCheck(read=read, unloadable=unloadable, findings=tuple(dict.fromkeys(notes)))


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
        artifact.file: claimed_facts.with_claims(facts, folder / storage.ARTIFACTS / artifact.file, providers),
    }


def _at_target(target: configs.Target, artifact: Artifact, findings: Iterable[Finding]) -> Iterator[Finding]:
    where = f"target {target.name}: {artifact.model} {artifact.variant.name}"
    return (msgspec.structs.replace(finding, where=where) for finding in findings)


def check_shipping(assembled: "Assembled", folder: Path) -> tuple[Finding, ...]:
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
        kind, release = libraries[target.name].runtime.kind, release_of(target, installed)
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
