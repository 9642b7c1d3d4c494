"""The library that an app loads artifacts with on a target.

What it is comes from the library itself where it is available, else from the config: a target with a [build] table of
its own gets that build, every other one the release's own full package.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_runner.errors import RunnerError
from device_runner.library import PAGE_BYTES, LibraryFacts, find_archive, is_archive, name_of, resolve_all, small_pages
from pipeline.compat.rules import Runtime, runtime_of
from pipeline.config import APPLE, BuildConfig, BuildKind, Config, Platform, Target, takes_package
from pipeline.core.abis import abi_of, abis_of_target
from pipeline.core.errors import BUDGET, Finding, Severity, finding_of
from pipeline.core.releases import SWIFT_PACKAGES, Release, installed_release, line_of
from pipeline.core.variant import Style
from pipeline.library.fetch import known_libraries
from pipeline.ort_build.request import campaign_digest, kind_of, providers_of
from pipeline.ort_build.run import build_of, check_budget, newest_build, operators_of, sizes_of_record
from pipeline.required_ops import RequiredOps

log = logging.getLogger(__name__)
ELF_PLATFORMS = frozenset({Platform.ANDROID, Platform.LINUX})


WIDE_ABIS = frozenset({"arm64-v8a", "x86_64"})


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
        findings = [_unknown_size(target)] if config.build.max_library_bytes else []
        findings += _unpublished(target, planned.release, config)
        return ShippedLibrary(runtime=planned, sizes={}, findings=tuple(findings))
    log.warning("target %s is checked against build %s of this computer", target.name, build.digest[:12])
    return ShippedLibrary(runtime=planned, sizes=sizes_of_record(build), operators=operators_of(build))


def _unknown_size(target: Target) -> Finding:
    return Finding(
        severity=Severity.WARNING, rule=BUDGET, what=f"no library of target {target.name} is known",
        where="[build] max_library_bytes", why="the target names none, and none was built for it here",
        remedy="write `library` in the target, or build it with `ort-mobile build run`",
    )  # fmt: skip


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
        return Runtime(release=release, abis=abis)
    kind, providers = planned_build(target, config)
    return Runtime(release=release, kind=kind, providers=frozenset(providers) | {"cpu"}, abis=abis)


def planned_build(target: Target, config: Config) -> tuple[BuildKind, tuple[str, ...]]:
    """The kind and the providers of the library that `ort-mobile build` makes for a target."""
    runs = tuple(provider for run in config.runs for provider in run.providers)
    providers = providers_of(config.build, target.platform, runs)
    return kind_of(config.build, providers, runtime_style=Style.RUNTIME in config.variants.styles), providers


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
    wanted = [abi_of(abi) for abi in target.abis] or list(facts_of)
    missing = [abi for abi in wanted if abi not in facts_of]
    shipping = [facts_of[abi] for abi in wanted if abi in facts_of]
    findings = [_no_abi(target, missing, facts_of)] if missing else []
    findings += [finding for facts in shipping for finding in _library_findings(target, facts)]
    findings += _small_pages(target, archive, shipping)
    runtime = runtime_of(shipping[0], *shipping[1:]) if shipping else None
    build = build_of({facts.sha256 for facts in shipping})
    return ShippedLibrary(
        runtime=runtime or planned,
        sizes={facts.abi: facts.size_bytes for facts in shipping},
        findings=tuple(findings),
        operators=operators_of(build) if build else None,
    )


def _no_abi(target: Target, missing: Iterable[str], by_abi: Mapping[str, LibraryFacts]) -> Finding:
    return Finding(
        severity=Severity.ERROR, what=f"the library that ships has nothing for {', '.join(missing)}",
        where=f"target {target.name}: library", why=f"{target.library} has: {', '.join(by_abi)}",
        remedy="build those ABIs too, or take them out of the target's abis",
    )  # fmt: skip


def _library_findings(target: Target, facts: LibraryFacts) -> Iterator[Finding]:
    wanted = target.ort_release
    if wanted and facts.release and facts.release.split(".")[: wanted.count(".") + 1] != wanted.split("."):
        yield Finding(
            severity=Severity.ERROR, what=f"the library that ships is ONNX Runtime {facts.release}, not {wanted}",
            where=f"target {target.name}: library", why=f"the target's ort_release is {wanted}",
            remedy=f'write ort_release = "{facts.release}", or name the library of {wanted}',
        )  # fmt: skip
    if target.platform is Platform.ANDROID and facts.system != "android":
        yield Finding(
            severity=Severity.ERROR, what=f"the library that ships was built for {facts.system}",
            where=f"target {target.name}: library", why="it does not need Android's libc.so",
            remedy="name an AAR, or libonnxruntime.so from one",
        )  # fmt: skip


def _small_pages(target: Target, archive: Path, shipping: Sequence[LibraryFacts]) -> Iterator[Finding]:
    """What of the package keeps an app from 64-bit phones with 16 KB pages: the Java library counts as well."""
    if target.platform is not Platform.ANDROID:
        return
    if is_archive(archive):
        small = [name for name in small_pages(archive) if name.split("/")[1] in {facts.abi for facts in shipping}]
    else:
        narrow = any(facts.abi in WIDE_ABIS and 0 < facts.page_bytes < PAGE_BYTES for facts in shipping)
        small = [archive.name] if narrow and all(facts.system == "android" for facts in shipping) else []
    if small:
        yield Finding(
            severity=Severity.WARNING, what=f"{', '.join(small)} cannot be loaded on phones with 16 KB pages",
            where=f"target {target.name}: library", why=f"segments are aligned to less than {PAGE_BYTES} bytes",
            remedy="take ONNX Runtime 1.23 or later (its C library alone: 1.20), or build it with `ort-mobile build`, "
            "which sets the linker's flag",
        )  # fmt: skip


def budget_findings(libraries: Iterable[ShippedLibrary], config: Config) -> tuple[Finding, ...]:
    """What is over the budget of [build] max_library_bytes, or was held to none; of an ABI the largest counts."""
    sizes: dict[str, int] = {}
    for library in libraries:
        for abi, size in library.sizes.items():
            sizes[abi] = max(size, sizes.get(abi, 0))
    return check_budget(sizes, config.build.max_library_bytes)
