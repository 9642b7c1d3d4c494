"""The library that an app loads artifacts with on a target.

What the library is comes from itself where it is available, else from the config: a target with a [build] table of its
own gets that build, every other one the release's own full package.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner import library as ort_library
from device_runner import options as runner_options
from device_runner.device import DeviceFacts
from device_runner.errors import RunnerError
from device_runner.spec import RunOptions
from pipeline import config as configs
from pipeline import required_ops
from pipeline.campaign import plan as planning
from pipeline.compat import defects as compat_defects
from pipeline.compat import rules as compat_rules
from pipeline.config import Config
from pipeline.convert import op_configs
from pipeline.core import abis as core_abis
from pipeline.core import errors as core_errors
from pipeline.core import releases as ort_releases
from pipeline.core.errors import Finding, Severity
from pipeline.core.releases import Release
from pipeline.library import fetch
from pipeline.ort_build import request as build_request
from pipeline.ort_build import run as build_run
from pipeline.release.choose import Choice
from pipeline.release.custom_ops import WIDE_ABIS, custom_libraries

log = logging.getLogger(__name__)
ELF_PLATFORMS = frozenset({configs.Platform.ANDROID, configs.Platform.LINUX})


NO_RELEASE = Release(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedLibrary:
    """What an app loads artifacts with on a target; sizes by ABI where they are known, findings on the library.

    `operators` are those of a build that this computer made, None where they are not known.
    """

    runtime: compat_defects.Runtime
    sizes: Mapping[str, int]
    findings: tuple[Finding, ...] = ()
    operators: required_ops.RequiredOps | None = None


def shipped_library(target: configs.Target, config: Config, installed: str) -> ShippedLibrary:
    """The library of a target, from itself where the config names one; one that is not available is a warning."""
    planned = planned_runtime(target, config, installed)
    if target.library and target.platform in ELF_PLATFORMS:
        return _from_file(target, planned)
    build = build_run.newest_build(target.name, planned.release, build_request.campaign_digest(config, target))
    if build is None:
        findings = (
            [
                Finding(
                    severity=Severity.WARNING,
                    code=core_errors.BUDGET,
                    what=f"no library of target {target.name} is known",
                    where="[build] max_library_bytes",
                    why="the target names none, and none was built for it here",
                    remedy="write `library` in the target, or build it with `ort-mobile build run`",
                )
            ]
            if config.build.max_library_bytes
            else []
        )
        findings += _unpublished(target, planned.release, config)
        return ShippedLibrary(runtime=planned, sizes={}, findings=tuple(findings))
    log.warning("target %s is checked against build %s of this computer", target.name, build.digest[:12])
    return ShippedLibrary(
        runtime=planned, sizes=build_run.sizes_of_record(build), operators=build_run.operators_of(build)
    )


def _unpublished(target: configs.Target, release: Release, config: Config) -> tuple[Finding, ...]:
    """A release of which no package is known, where apps take the published one."""
    if not configs.takes_package(target, config):
        return ()
    apple = config.release.apple
    if (
        target.platform in configs.APPLE
        and release not in ort_releases.SWIFT_PACKAGES
        and not (apple and apple.onnxruntime)
    ):
        package, newest = "Swift package", max(ort_releases.SWIFT_PACKAGES)
        why = f"there are packages of {', '.join(map(str, ort_releases.SWIFT_PACKAGES))}"
        other = f'; a package that was published since is named in [release.apple], as in onnxruntime = "{release}.0"'
    elif target.platform is configs.Platform.ANDROID and release > (newest := newest_android()):
        package, why = "Android package (AAR)", f"the newest that ort-mobile knows or this computer has is {newest}"
        other = (
            f", or see whether `ort-mobile library get android:{release}.0` finds it, and write "
            f'library = "android:{release}.0"'
        )
    else:
        return ()
    finding = Finding(
        severity=Severity.WARNING,
        what=f"no {package} of ONNX Runtime {release} is known",
        where=f"target {target.name}: ort_release",
        why=why,
        remedy=f'write ort_release = "{newest}" in the target{other}',
    )
    return (finding,)


def newest_android() -> Release:
    """The newest release line of which an AAR is known or in a cache of this computer."""
    names = [
        name
        for library in fetch.known_libraries()
        if (name := ort_library.name_of(library.name)) and name.scheme == "android"
    ]
    return max(ort_releases.line_of(name.release) for name in names)


def planned_runtime(target: configs.Target, config: Config, installed: str) -> compat_defects.Runtime:
    """What the config alone says of a target's library; without a [build] table it is the release's full package."""
    release = ort_releases.line_of(target.ort_release or installed)
    abis = core_abis.abis_of_target(target.platform, target.abis)
    if config.build == configs.BuildConfig(max_library_bytes=config.build.max_library_bytes):
        return compat_defects.Runtime(release=release, abis=abis, system=target.platform)
    kind, providers = planned_build(target, config)
    return compat_defects.Runtime(
        release=release, kind=kind, providers=frozenset(providers) | {"cpu"}, abis=abis, system=target.platform
    )


def planned_build(target: configs.Target, config: Config) -> tuple[configs.BuildKind, tuple[str, ...]]:
    """The kind and the providers of the library that `ort-mobile build` makes for a target."""
    runs = tuple(provider for run in config.runs for provider in run.providers)
    providers = build_request.providers_of(config.build, target.platform, runs)
    return build_request.kind_of(config.build, providers, config.variants.styles), providers


def release_for(target: configs.Target) -> str:
    """The release that a bundle names for a target: the config's, its library's, or the installed one."""
    return target.ort_release or library_release(target) or str(ort_releases.installed_release())


def library_release(target: configs.Target) -> str:
    """The release line of the library that a target names, "" where there is none or it does not tell."""
    if not target.library or target.platform not in ELF_PLATFORMS:
        return ""
    library = _from_file(target, compat_defects.Runtime(release=NO_RELEASE))
    return "" if library.runtime.release == NO_RELEASE else str(library.runtime.release)


def _from_file(target: configs.Target, planned: compat_defects.Runtime) -> ShippedLibrary:
    where = f"target {target.name}: library"
    try:
        archive = ort_library.find_archive(target.library or "")
    except RunnerError as error:
        return ShippedLibrary(
            runtime=planned, sizes={}, findings=(core_errors.finding_of(error, where, Severity.WARNING),)
        )
    try:
        facts_of = {library.abi: library.facts for library in ort_library.resolve_all(target.library or "")}
    except RunnerError as error:
        return ShippedLibrary(runtime=planned, sizes={}, findings=(core_errors.finding_of(error, where),))
    target_abis = [core_abis.abi_of(abi) for abi in target.abis] or list(facts_of)
    missing = [abi for abi in target_abis if abi not in facts_of]
    shipping = [facts_of[abi] for abi in target_abis if abi in facts_of]
    findings = []
    if missing:
        findings.append(
            Finding(
                severity=Severity.ERROR,
                what=f"the library that ships has nothing for {', '.join(missing)}",
                where=where,
                why=f"{target.library} has: {', '.join(facts_of)}",
                remedy="build those ABIs too, or take them out of the target's abis",
            )
        )
    # Beside that its release, its system, and pages that keep an app from 64-bit phones
    for facts in shipping:
        release = target.ort_release
        if release and facts.release and facts.release.split(".")[: release.count(".") + 1] != release.split("."):
            findings.append(
                Finding(
                    severity=Severity.ERROR,
                    where=where,
                    what=f"the library that ships is ONNX Runtime {facts.release}, not {release}",
                    why=f"the target's ort_release is {release}",
                    remedy=f'write ort_release = "{facts.release}", or name the library of {release}',
                )
            )
        if target.platform is configs.Platform.ANDROID and facts.system != "android":
            findings.append(
                Finding(
                    severity=Severity.ERROR,
                    what=f"the library that ships was built for {facts.system}",
                    where=where,
                    why="it does not need Android's libc.so",
                    remedy="name an AAR, or libonnxruntime.so from one",
                )
            )
    if target.platform is configs.Platform.ANDROID:
        narrow = any(facts.abi in WIDE_ABIS and 0 < facts.page_bytes < ort_library.PAGE_BYTES for facts in shipping)
        small = [archive.name] if narrow and all(facts.system == "android" for facts in shipping) else []
        if ort_library.is_archive(archive):  # in which the Java library counts as well
            abis = {facts.abi for facts in shipping}
            small = [name for name in ort_library.small_pages(archive) if name.split("/")[1] in abis]
        if small:
            findings.append(
                Finding(
                    severity=Severity.WARNING,
                    what=f"{', '.join(small)} cannot be loaded on phones with 16 KB pages",
                    where=where,
                    why=f"segments are aligned to less than {ort_library.PAGE_BYTES} bytes",
                    remedy="take ONNX Runtime 1.23 or later (its C library alone: 1.20), or build it with "
                    "`ort-mobile build`, which sets the linker's flag",
                )
            )
    runtime = compat_rules.runtime_of(shipping[0], *shipping[1:]) if shipping else None
    build = build_run.build_of({facts.sha256 for facts in shipping})
    return ShippedLibrary(
        runtime=runtime or planned,
        sizes={facts.abi: facts.size_bytes for facts in shipping},
        findings=tuple(findings),
        operators=build_run.operators_of(build) if build else None,
    )


def budget_findings(libraries: Iterable[ShippedLibrary], config: Config) -> tuple[Finding, ...]:
    """What is over the budget of [build] max_library_bytes, or was held to none; of an ABI the largest counts."""
    sizes: dict[str, int] = {}
    for library in libraries:
        for abi, size in library.sizes.items():
            sizes[abi] = max(size, sizes.get(abi, 0))
    return build_run.check_budget(sizes, config.build.max_library_bytes)


def operator_configs(config: Config, artifacts: Sequence[Path]) -> dict[str, str]:
    """Both operator configs that the builds of all targets need to run some artifacts in every way of the config."""
    builds = [planned_build(target, config) for target in config.targets]
    return op_configs.config_texts(
        artifacts,
        providers=sorted({name for _, providers in builds for name in providers} - {"cpu"}),
        extended=any(kind is not configs.BuildKind.MINIMAL for kind, _ in builds),
        abis=[abi for target in config.targets for abi in core_abis.abis_of_target(target.platform, target.abis)],
    )


LIBRARY_LICENSE = "MIT"
"""ONNX Runtime's own."""


def library_licenses(targets: Sequence[configs.Target]) -> dict[str, str]:
    """The licence of each target's library: as the config has it; of ONNX Runtime's own packages and builds MIT."""
    published = {
        target.name: LIBRARY_LICENSE
        for target in targets
        if not target.library or ort_library.release_of(target.library)
    }
    return published | {target.name: target.library_license for target in targets if target.library_license}


SPEED_KEYS = frozenset(
    {
        *runner_options.SPINNING_KEYS,
        runner_options.PREPACKING_KEY,
        runner_options.AFFINITY_KEY,
        runner_options.BLOCK_KEY,
    }
)
"""Session config entries that change times and nothing that is computed."""


def library_name(target: configs.Target) -> str:
    """How the bundle calls the library that a target names: a release as it is, a file without its folder."""
    given = target.library or ""
    return given if ort_library.name_of(given) else Path(given).name


def libraries_of(targets: Iterable[configs.Target], given: str | None) -> dict[str, tuple[str, ...]]:
    """The libraries for Android and Linux to prove, each with the targets that ship it.

    A library of the command line may be any computer's: it counts where it is an AAR or a release, of the platform that
    the release is for.
    """
    name = ort_library.name_of(given or "")
    spare = {
        configs.Platform.ANDROID: given
        if given and (given.endswith(".aar") or ort_library.release_of(given))
        else None,
        configs.Platform.LINUX: given if name and name.scheme in ("jvm", "wheel") else None,
    }
    libraries: dict[str, tuple[str, ...]] = {}
    for target in dict.fromkeys(targets):
        library = target.library or spare.get(target.platform)
        if target.platform in spare and library:
            libraries[library] = (*libraries.get(library, ()), target.name)
    return libraries


def runs_of(config: Config, choice: Choice) -> tuple[RunOptions, ...]:
    """The chosen way to run an artifact, then every other that the config has for it and that is legal there.

    Ways that differ in speed alone count once. Whatever depends on the phone's API level is left in: the proof says
    where it has no effect.
    """
    target, artifact = choice.target, choice.artifact
    facts = DeviceFacts(name=target.name, platform=target.platform.value, abis=target.abis)
    planned_runs, _ = planning.plan_runs(config.runs, [artifact], [facts], advised=False)
    ways: dict[bytes, RunOptions] = {}
    names = tuple(dict.fromkeys(library.path.name for library in custom_libraries(config, target)))
    for options in (choice.options, *(planned.options for planned in planned_runs)):
        session_config = artifact.session_options | options.session_config
        whole = msgspec.structs.replace(options, session_config=session_config, custom_ops=names)
        computed = {key: value for key, value in session_config.items() if key not in SPEED_KEYS}
        parts = (whole.provider, whole.provider_options, whole.flags, computed)
        ways.setdefault(msgspec.json.encode(parts, order="sorted"), whole)
    return tuple(ways.values())
