"""What may be measured and shipped: artifacts against the target's library, outputs against the reference.

The first keeps artifacts out of choices that they could not serve, the second is the gate: it reads the very files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import msgspec

from device_runner.device import Device
from pipeline.campaign.plan import PlannedRun
from pipeline.campaign.record import Skipped
from pipeline.compat.rules import ReadArtifacts, Use, first_error, judged, read_artifacts, runtime_on, use_of
from pipeline.config import BuildKind, Config, Target
from pipeline.core.errors import Finding, Severity, errors
from pipeline.core.output import ARTIFACTS
from pipeline.core.variant import Artifact
from pipeline.job.assemble import Assembled
from pipeline.job.targets import oldest_release
from pipeline.release.choose import Choice
from pipeline.release.shipped import budget_findings, shipped_library
from pipeline.required_ops import RequiredOps, covers, needs_of_artifacts


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCheck:
    """What targets can do with artifacts: `unloadable` names those that a target's library refuses, as MODEL/VARIANT.

    `release` is the oldest among the targets, "" for the installed one: its rules say what is expected of runs. `notes`
    are for the report; `read` is what was read of the artifacts.
    """

    release: str
    read: ReadArtifacts
    unloadable: dict[str, tuple[str, ...]]
    notes: tuple[Finding, ...]


def _read_all(artifacts: Iterable[Artifact], folder: Path) -> ReadArtifacts:
    """The artifacts of a job by their file names."""
    return read_artifacts({artifact.file: folder / ARTIFACTS / artifact.file for artifact in artifacts})


def check_against_targets(config: Config, artifacts: Sequence[Artifact], folder: Path) -> TargetCheck:
    """Every artifact against the library of every target, run on the CPU with the session options that it needs."""
    read = _read_all(artifacts, folder)
    installed = version("onnxruntime")
    unloadable: dict[str, tuple[str, ...]] = {}
    notes: list[Finding] = []
    for target in config.targets:
        library = shipped_library(target, config, installed)
        notes += library.findings
        for artifact in artifacts:
            name = f"{artifact.model}/{artifact.variant.name}"
            found = judged(read, artifact.file, library.runtime, Use(session_config=artifact.session_options))
            if errors(found):
                unloadable[target.name] = (*unloadable.get(target.name, ()), name)
            notes += _placed(target, artifact, found)
    return TargetCheck(
        release=oldest_release(config),
        read=read,
        unloadable=unloadable,
        notes=tuple(dict.fromkeys(notes)),
    )


def possible_runs(
    planned_runs: Sequence[PlannedRun],
    read: ReadArtifacts,
    devices: Mapping[str, Device],
    libraries: Mapping[str, str | None],
) -> tuple[list[PlannedRun], list[Skipped]]:
    """Runs that the library of their device can load, and the others with the reason; unknown ones are left in."""
    possible: list[PlannedRun] = []
    impossible: list[Skipped] = []
    runtimes = {
        name: runtime_on(devices[name], libraries.get(name)) for name in {planned.device for planned in planned_runs}
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
    found = [finding for library in libraries.values() for finding in library.findings]
    found += budget_findings(libraries.values(), config)
    for choice in assembled.choices:
        library = libraries[choice.target.name]
        use = use_of(choice.options, choice.artifact.session_options)
        found += _placed(choice.target, choice.artifact, judged(read, choice.artifact.file, library.runtime, use))
        if library.operators is not None:
            extended = library.runtime.kind is not BuildKind.MINIMAL
            missing = _missing_kernels(choice, library.operators, folder, extended=extended)
            found += _placed(choice.target, choice.artifact, missing)
    found += _without_choice(config.targets, assembled)
    return tuple(dict.fromkeys(found))


def unshipped(assembled: Assembled, findings: Iterable[Finding]) -> Assembled:
    """The same with what kept the bundle from being made among the report's refusals and warnings."""
    told = tuple(f"{finding.where}: {finding.text}" for finding in errors(findings))
    against = (msgspec.structs.replace(one, what=f"no bundle: {one.what}") for one in errors(findings))
    warnings = (*assembled.report.warnings, *against)
    report = msgspec.structs.replace(assembled.report, warnings=warnings, refusals=told)
    return replace(assembled, report=report)


def _placed(target: Target, artifact: Artifact, findings: Iterable[Finding]) -> Iterator[Finding]:
    where = f"target {target.name}: {artifact.model} {artifact.variant.name}"
    return (msgspec.structs.replace(finding, where=where) for finding in findings)


def _missing_kernels(choice: Choice, operators: RequiredOps, folder: Path, *, extended: bool) -> Iterator[Finding]:
    """What a reduced build of this computer lacks for a choice, by the proof of its operator config."""
    file, providers = folder / ARTIFACTS / choice.artifact.file, {choice.options.provider} - {"cpu"}
    found, failed = needs_of_artifacts([file], providers=sorted(providers), extended=extended)
    if failed:
        return  # what cannot be read is a finding already
    for missing in covers(operators, found[0].needs):
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
