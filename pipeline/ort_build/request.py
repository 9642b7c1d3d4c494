"""What is asked of a build, resolved: which kind, which providers, which ABIs, for which release."""

import hashlib
from dataclasses import dataclass

import msgspec

from pipeline.config import Config, Platform, Target
from pipeline.config.build import BuildConfig, BuildKind
from pipeline.core.errors import ConfigError
from pipeline.core.releases import Release, line_of
from pipeline.core.variant import Style
from pipeline.ort_build.releases import ABIS, CONVERTING_ONLY, DEFAULT_ABIS, FIRST_PLANNED, PROVIDERS
from pipeline.required_ops import RequiredOps


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One library to be built: a target with everything that was left open decided.

    `operators` None means all of them. `runtime_style`: artifacts with saved optimizations will run with it.
    """

    target: Target
    version: str
    release: Release
    settings: BuildConfig
    kind: BuildKind
    providers: tuple[str, ...]
    abis: tuple[str, ...]
    operators: RequiredOps | None
    runtime_style: bool
    campaign: str = ""
    """`campaign_digest` of the config that it is from, "" for a build file or a target alone."""


def campaign_digest(config: Config, target: Target) -> str:
    """What tells a campaign's builds for a target from those of other configs with a target of that name.

    The operators are not in it: a build for earlier ones is this campaign's too, and is compared with what is needed.
    """
    build = msgspec.structs.replace(config.build, max_library_bytes={})
    runs = [provider for run in config.runs for provider in run.providers]
    where = (target.name, target.platform, target.abis, target.ort_release)
    parts = (config.name, where, build, runs, Style.RUNTIME in config.variants.styles)
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def make_request(
    target: Target,
    version: str,
    settings: BuildConfig,
    *,
    operators: RequiredOps | None = None,
    run_providers: tuple[str, ...] = (),
    runtime_style: bool = False,
) -> Request:
    """Decide what target and settings leave open; `run_providers` are those of the campaign's runs.

    `version` is what the target's own `ort_release` replaces. Raises ConfigError for ABIs and providers that do not
    exist, and for releases whose scripts are not known.
    """
    version = target.ort_release or version
    release = line_of(version)
    first = FIRST_PLANNED[target.platform]
    if release < first:
        raise ConfigError(
            f"builds of ONNX Runtime {version} are not planned", where=f"target {target.name}",
            why=f"before {first.major}.{first.minor} its scripts for {target.platform} have other names and settings",
            remedy="choose a newer ort_release, or follow that release's own build instructions",
        )  # fmt: skip
    providers = providers_of(settings, target.platform, run_providers)
    for name in providers:
        _check_known(name)
    return Request(
        target=target,
        version=version,
        release=release,
        settings=settings,
        kind=kind_of(settings, providers, runtime_style=runtime_style),
        providers=tuple(name for name in providers if name != "cpu"),
        abis=_abis(target),
        operators=None if settings.wheel else operators,
        runtime_style=runtime_style,
    )


def providers_of(settings: BuildConfig, platform: Platform, run_providers: tuple[str, ...]) -> tuple[str, ...]:
    """The providers of a build: those of the settings, else those of the runs that the platform has."""
    if settings.providers is not None:
        return settings.providers
    return tuple(name for name in dict.fromkeys(run_providers) if _offered(name, platform, settings))


def _offered(name: str, platform: Platform, settings: BuildConfig) -> bool:
    """Whether a provider of the runs belongs into this build: a campaign's runs are for all its platforms."""
    known = name in PROVIDERS and platform in PROVIDERS[name].platforms
    return known and (settings.wheel or (name, platform) not in CONVERTING_ONLY)


def _check_known(name: str) -> None:
    if name not in PROVIDERS and name != "cpu":
        raise ConfigError(
            f"no build has a provider {name!r}", where="[build] providers",
            remedy=f"it takes: {', '.join(['cpu', *PROVIDERS])}",
        )  # fmt: skip


def kind_of(settings: BuildConfig, providers: tuple[str, ...], *, runtime_style: bool) -> BuildKind:
    """The kind of build: as the settings say, else the smallest that providers and styles allow."""
    if settings.kind is not BuildKind.AUTO:
        return settings.kind
    if settings.wheel:
        return BuildKind.FULL
    return BuildKind.EXTENDED if runtime_style or set(providers) - {"cpu"} else BuildKind.MINIMAL


def _abis(target: Target) -> tuple[str, ...]:
    known = ABIS[target.platform]
    for abi in target.abis:
        if abi not in known:
            raise ConfigError(
                f"ONNX Runtime is not built for {target.platform} {abi!r}", where=f"target {target.name}, abis",
                remedy=f"it takes: {', '.join(known)}",
            )  # fmt: skip
    abis = tuple(dict.fromkeys(target.abis)) or DEFAULT_ABIS[target.platform]
    if target.platform is Platform.LINUX and len(abis) > 1:
        raise ConfigError(
            "a Linux build has one ABI", where=f"target {target.name}, abis", why=f"it names {', '.join(abis)}",
            remedy="write one [[targets]] table for each",
        )  # fmt: skip
    return abis
