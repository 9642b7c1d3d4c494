"""The library that an app loads artifacts with on a target.

What the library is comes from itself where it is available, else from the config: a target with a [build] table of its
own gets that build, every other one the release's own full package.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner.device import DeviceFacts
from device_runner.errors import RunnerError
from device_runner.library import (
    PAGE_BYTES,
    find_archive,
    is_archive,
    name_of,
    release_of,
    resolve_all,
    small_pages,
)
from device_runner.options import AFFINITY_KEY, BLOCK_KEY, PREPACKING_KEY, SPINNING_KEYS
from device_runner.spec import RunOptions
from pipeline.campaign.plan import plan_runs
from pipeline.compat.defects import Runtime
from pipeline.compat.rules import runtime_of
from pipeline.config import (
    APPLE,
    BuildConfig,
    BuildKind,
    Config,
    Platform,
    Target,
    takes_package,
)
from pipeline.convert.many import config_texts
from pipeline.core.abis import abi_of, abis_of_target
from pipeline.core.errors import BUDGET, Finding, Severity, finding_of
from pipeline.core.releases import SWIFT_PACKAGES, Release, installed_release, line_of
from pipeline.library.fetch import known_libraries
from pipeline.ort_build.request import campaign_digest, kind_of, providers_of
from pipeline.ort_build.run import build_of, check_budget, newest_build, operators_of, sizes_of_record
from pipeline.release.choose import Choice
from pipeline.release.custom_ops import WIDE_ABIS, custom_libraries
from pipeline.required_ops import RequiredOps

log = logging.getLogger(__name__)
ELF_PLATFORMS = frozenset({Platform.ANDROID, Platform.LINUX})


NO_RELEASE = Release(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedLibrary:
    """What an app loads artifacts with on a target; sizes by ABI where they are known, findings on the library.

    `operators` are those of a build that this computer made, None where they are not known.
    """

    runtime: Runtime
    sizes: Mapping[str, int]
    findings: tuple[Finding, ...] = ()
    operators: RequiredOps | None = None


def shipped_library(target: Target, config: Config, installed: str) -> ShippedLibrary:
    """The library of a target, from itself where the config names one; one that is not available is a warning."""
    planned = planned_runtime(target, config, installed)
    if target.library and target.platform in ELF_PLATFORMS:
        return _from_file(target, planned)
    build = newest_build(target.name, planned.release, campaign_digest(config, target))
    if build is None:
        findings = (
            [
                Finding(
                    severity=Severity.WARNING,
                    rule=BUDGET,
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
    return ShippedLibrary(runtime=planned, sizes=sizes_of_record(build), operators=operators_of(build))


def _unpublished(target: Target, release: Release, config: Config) -> tuple[Finding, ...]:
    """A release of which no package is known, where apps take the published one."""
    if not takes_package(target, config):
        return ()
    apple = config.release.apple
    if target.platform in APPLE and release not in SWIFT_PACKAGES and not (apple and apple.onnxruntime):
        package, newest = "Swift package", max(SWIFT_PACKAGES)
        why = f"there are packages of {', '.join(map(str, SWIFT_PACKAGES))}"
        other = f'; a package that was published since is named in [release.apple], as in onnxruntime = "{release}.0"'
    elif target.platform is Platform.ANDROID and release > (newest := newest_android()):
        package, why = "Android package (AAR)", f"the newest that ort-mobile knows or this computer has is {newest}"
        other = (
            f", or see whether `ort-mobile library get android:{release}.0` finds it, and write "
            f'library = "android:{release}.0"'
        )
    else:
        return ()
    finding = Finding(
        severity=Severity.WARNING, what=f"no {package} of ONNX Runtime {release} is known",
        where=f"target {target.name}: ort_release", why=why,
        remedy=f'write ort_release = "{newest}" in the target{other}',
    )  # fmt: skip
    return (finding,)


def newest_android() -> Release:
    """The newest release line of which an AAR is known or in a cache of this computer."""
    names = [name for library in known_libraries() if (name := name_of(library.name)) and name.scheme == "android"]
    return max(line_of(name.release) for name in names)


def planned_runtime(target: Target, config: Config, installed: str) -> Runtime:
    """What the config alone says of a target's library; without a [build] table it is the release's full package."""
    release = line_of(target.ort_release or installed)
    abis = abis_of_target(target.platform, target.abis)
    if config.build == BuildConfig(max_library_bytes=config.build.max_library_bytes):
        return Runtime(release=release, abis=abis, system=target.platform)
    kind, providers = planned_build(target, config)
    return Runtime(
        release=release, kind=kind, providers=frozenset(providers) | {"cpu"}, abis=abis, system=target.platform
    )


def planned_build(target: Target, config: Config) -> tuple[BuildKind, tuple[str, ...]]:
    """The kind and the providers of the library that `ort-mobile build` makes for a target."""
    runs = tuple(provider for run in config.runs for provider in run.providers)
    providers = providers_of(config.build, target.platform, runs)
    return kind_of(config.build, providers, config.variants.styles), providers


def release_for(target: Target) -> str:
    """The release that a bundle names for a target: the config's, its library's, or the installed one."""
    return target.ort_release or library_release(target) or str(installed_release())


def library_release(target: Target) -> str:
    """The release line of the library that a target names, "" where there is none or it does not tell."""
    if not target.library or target.platform not in ELF_PLATFORMS:
        return ""
    library = _from_file(target, Runtime(release=NO_RELEASE))
    return "" if library.runtime.release == NO_RELEASE else str(library.runtime.release)


def _from_file(target: Target, planned: Runtime) -> ShippedLibrary:
    where = f"target {target.name}: library"
    try:
        archive = find_archive(target.library or "")
    except RunnerError as error:
        return ShippedLibrary(runtime=planned, sizes={}, findings=(finding_of(error, where, Severity.WARNING),))
    try:
        facts_of = {library.abi: library.facts for library in resolve_all(target.library or "")}
    except RunnerError as error:
        return ShippedLibrary(runtime=planned, sizes={}, findings=(finding_of(error, where),))
    target_abis = [abi_of(abi) for abi in target.abis] or list(facts_of)
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
                    severity=Severity.ERROR, where=where,
                    what=f"the library that ships is ONNX Runtime {facts.release}, not {release}",
                    why=f"the target's ort_release is {release}",
                    remedy=f'write ort_release = "{facts.release}", or name the library of {release}',
                )
            )  # fmt: skip
        if target.platform is Platform.ANDROID and facts.system != "android":
            findings.append(
                Finding(
                    severity=Severity.ERROR, what=f"the library that ships was built for {facts.system}", where=where,
                    why="it does not need Android's libc.so", remedy="name an AAR, or libonnxruntime.so from one",
                )
            )  # fmt: skip
    if target.platform is Platform.ANDROID:
        narrow = any(facts.abi in WIDE_ABIS and 0 < facts.page_bytes < PAGE_BYTES for facts in shipping)
        small = [archive.name] if narrow and all(facts.system == "android" for facts in shipping) else []
        if is_archive(archive):  # in which the Java library counts as well
            abis = {facts.abi for facts in shipping}
            small = [name for name in small_pages(archive) if name.split("/")[1] in abis]
        if small:
            findings.append(
                Finding(
                    severity=Severity.WARNING, what=f"{', '.join(small)} cannot be loaded on phones with 16 KB pages",
                    where=where, why=f"segments are aligned to less than {PAGE_BYTES} bytes",
                    remedy="take ONNX Runtime 1.23 or later (its C library alone: 1.20), or build it with "
                    "`ort-mobile build`, which sets the linker's flag",
                )
            )  # fmt: skip
    runtime = runtime_of(shipping[0], *shipping[1:]) if shipping else None
    build = build_of({facts.sha256 for facts in shipping})
    return ShippedLibrary(
        runtime=runtime or planned,
        sizes={facts.abi: facts.size_bytes for facts in shipping},
        findings=tuple(findings),
        operators=operators_of(build) if build else None,
    )


def budget_findings(libraries: Iterable[ShippedLibrary], config: Config) -> tuple[Finding, ...]:
    """What is over the budget of [build] max_library_bytes, or was held to none; of an ABI the largest counts."""
    sizes: dict[str, int] = {}
    for library in libraries:
        for abi, size in library.sizes.items():
            sizes[abi] = max(size, sizes.get(abi, 0))
    return check_budget(sizes, config.build.max_library_bytes)


def operator_configs(config: Config, artifacts: Sequence[Path]) -> dict[str, str]:
    """Both operator configs that the builds of all targets need to run some artifacts in every way of the config."""
    builds = [planned_build(target, config) for target in config.targets]
    return config_texts(
        artifacts,
        providers=sorted({name for _, providers in builds for name in providers} - {"cpu"}),
        extended=any(kind is not BuildKind.MINIMAL for kind, _ in builds),
        abis=[abi for target in config.targets for abi in abis_of_target(target.platform, target.abis)],
    )


LIBRARY_LICENSE = "MIT"
"""ONNX Runtime's own."""


def library_licenses(targets: Sequence[Target]) -> dict[str, str]:
    """The licence of each target's library: as the config has it; of ONNX Runtime's own packages and builds MIT."""
    published = {target.name: LIBRARY_LICENSE for target in targets if not target.library or release_of(target.library)}
    return published | {target.name: target.library_license for target in targets if target.library_license}


SPEED_KEYS = frozenset({*SPINNING_KEYS, PREPACKING_KEY, AFFINITY_KEY, BLOCK_KEY})
"""Session config entries that change times and nothing that is computed."""


def library_name(target: Target) -> str:
    """How the bundle calls the library that a target names: a release as it is, a file without its folder."""
    given = target.library or ""
    return given if name_of(given) else Path(given).name


def libraries_of(targets: Iterable[Target], given: str | None) -> dict[str, tuple[str, ...]]:
    """The libraries for Android and Linux to prove, each with the targets that ship it.

    A library of the command line may be any computer's: it counts where it is an AAR or a release, of the platform that
    the release is for.
    """
    name = name_of(given or "")
    spare = {
        Platform.ANDROID: given if given and (given.endswith(".aar") or release_of(given)) else None,
        Platform.LINUX: given if name and name.scheme in ("jvm", "wheel") else None,
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
    place = DeviceFacts(name=target.name, platform=target.platform.value, abis=target.abis)
    planned_runs, _ = plan_runs(config.runs, [artifact], [place], advised=False)
    ways: dict[bytes, RunOptions] = {}
    names = tuple(dict.fromkeys(row.path.name for row in custom_libraries(config, target)))
    for options in (choice.options, *(planned.options for planned in planned_runs)):
        session_config = artifact.session_options | options.session_config
        whole = msgspec.structs.replace(options, session_config=session_config, custom_ops=names)
        computed = {key: value for key, value in session_config.items() if key not in SPEED_KEYS}
        parts = (whole.provider, whole.provider_options, whole.flags, computed)
        ways.setdefault(msgspec.json.encode(parts, order="sorted"), whole)
    return tuple(ways.values())
