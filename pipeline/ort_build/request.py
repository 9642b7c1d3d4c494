"""What is asked of a build, resolved: from a command line, a config or a build file to requests; tables by release.

Sources of the tables: the scripts and default settings of the trees 1.21.0 and main of 2026, the history of the
settings files (facts of the project: custom builds), pull requests by number.
"""

import difflib
import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path

import msgspec

from device_runner import providers as runner_providers
from device_runner import untrusted_files
from pipeline import config as configs
from pipeline import required_ops
from pipeline.config import Config
from pipeline.config import tables as config_tables
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core import toml as core_toml
from pipeline.core.errors import ConfigError
from pipeline.core.releases import Release
from pipeline.core.variant import Style

FIRST_PLANNED: dict[configs.Platform, Release] = {
    configs.Platform.ANDROID: Release(1, 8),
    configs.Platform.IOS: Release(1, 17),
    configs.Platform.MACOS: Release(1, 17),
    configs.Platform.LINUX: Release(1, 8),
}
"""From here the scripts have the names and settings that plans use (Apple's script was renamed for 1.17)."""

REDUCED_IN_BUILD_TREE_SINCE = Release(1, 11)
PAGE_16K_SINCE = Release(1, 20)
PAGE_16K_JNI_SINCE = Release(1, 23)
ASSET_CACHE_SINCE = Release(1, 21)

MINIMUMS: dict[configs.Platform, tuple[tuple[Release, str], ...]] = {
    configs.Platform.ANDROID: ((Release(1, 0), "21"), (Release(1, 21), "24")),
    configs.Platform.IOS: (
        (Release(1, 0), "11.0"),
        (Release(1, 16), "12.0"),
        (Release(1, 19), "13.0"),
        (Release(1, 21), "15.1"),
    ),
    configs.Platform.MACOS: (
        (Release(1, 0), "11.0"),
        (Release(1, 20), "13.3"),
        (Release(1, 23), "13.4"),
        (Release(1, 24), "14.0"),
    ),
}
"""The lowest API level or OS version that packages of a release and later ones support, by their settings files."""

ANDROID_TARGET_SDK: tuple[tuple[Release, int], ...] = ((Release(1, 0), 24), (Release(1, 21), 34))
"""`android_target_sdk_version` of the default settings."""

ABIS: dict[configs.Platform, tuple[str, ...]] = {
    configs.Platform.ANDROID: ("armeabi-v7a", "arm64-v8a", "x86", "x86_64"),
    configs.Platform.IOS: ("arm64",),
    configs.Platform.MACOS: ("arm64", "x86_64"),
    configs.Platform.LINUX: ("x86_64", "aarch64", "arm64"),
}
"""ABIs that the scripts build, by platform."""

DEFAULT_ABIS: dict[configs.Platform, tuple[str, ...]] = {
    configs.Platform.ANDROID: ("arm64-v8a",),
    configs.Platform.IOS: ("arm64",),
    configs.Platform.MACOS: ("arm64", "x86_64"),
    configs.Platform.LINUX: ("x86_64",),
}


def minimum_version(platform: configs.Platform, release: Release) -> str | None:
    """The lowest API level or OS version that a release supports on a platform; None on Linux."""
    rows = MINIMUMS.get(platform)
    return ort_releases.at_release(rows, release) if rows else None


def version_key(version: str) -> tuple[int, ...]:
    """A dotted version as numbers that compare, without zeros at the end: 15.0 is 15."""
    parts = [int(part) for part in version.split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One library to be built: a target with everything that was left open decided.

    `operators` None means all of them. `styles` are those of the artifacts that will run with it, as far as known.
    """

    target: configs.Target
    version: str
    release: Release
    settings: config_tables.BuildConfig
    kind: config_tables.BuildKind
    providers: tuple[str, ...]
    abis: tuple[str, ...]
    operators: required_ops.RequiredOps | None
    styles: frozenset[Style]
    campaign: str = ""
    """`campaign_digest` of the config that it is from, "" for a build file or a target alone."""

    @property
    def needs_contrib_ops(self) -> bool:
        """Whether one of its providers has its kernels in com.microsoft."""
        return any(provider_rules.BUILD_PROVIDERS[name].contrib_ops for name in self.providers)


def campaign_digest(config: Config, target: configs.Target) -> str:
    """What tells a campaign's builds for a target from those of other configs with a target of that name.

    The operators are not in it: a build for earlier ones is this campaign's too, and is compared with what is needed.
    """
    build = msgspec.structs.replace(config.build, max_library_bytes={})
    runs = [provider for run in config.runs for provider in run.providers]
    where = (target.name, target.platform, target.abis, target.ort_release)
    parts = (config.name, where, build, runs, Style.RUNTIME in config.variants.styles)
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def make_request(
    target: configs.Target,
    version: str,
    settings: config_tables.BuildConfig,
    *,
    operators: required_ops.RequiredOps | None,
    run_providers: tuple[str, ...],
    styles: Collection[Style],
    campaign: Config | None = None,
) -> Request:
    """Decide what target and settings leave open; `run_providers` are those of the campaign's runs.

    `version` is what the target's own `ort_release` replaces. Raises ConfigError for ABIs and providers that do not
    exist, and for releases whose scripts are not known.
    """
    version = target.ort_release or version
    release = ort_releases.line_of(version)
    first = FIRST_PLANNED[target.platform]
    if release < first:
        raise ConfigError(
            f"builds of ONNX Runtime {version} are not planned",
            where=f"target {target.name}",
            why=f"before {first.major}.{first.minor} its scripts for {target.platform} have other names and settings",
            remedy="choose a newer ort_release, or follow that release's own build instructions",
        )
    providers = providers_of(settings, target.platform, run_providers)
    for name in providers:
        if name not in provider_rules.BUILD_PROVIDERS and not runner_providers.on_cpu(name):
            raise ConfigError(
                f"no build has a provider {name!r}",
                where="[build] providers",
                remedy=f"it takes: {', '.join([runner_providers.CPU, *provider_rules.BUILD_PROVIDERS])}",
            )
    supported = ABIS[target.platform]
    for abi in target.abis:
        if abi not in supported:
            raise ConfigError(
                f"ONNX Runtime is not built for {target.platform} {abi!r}",
                where=f"target {target.name}, abis",
                remedy=f"it takes: {', '.join(supported)}",
            )
    abis = tuple(dict.fromkeys(target.abis)) or DEFAULT_ABIS[target.platform]
    if target.platform is configs.Platform.LINUX and len(abis) > 1:
        raise ConfigError(
            "a Linux build has one ABI",
            where=f"target {target.name}, abis",
            why=f"it names {', '.join(abis)}",
            remedy="write one [[targets]] table for each",
        )
    return Request(
        target=target,
        version=version,
        release=release,
        settings=settings,
        kind=kind_of(settings, providers, styles),
        providers=tuple(name for name in providers if not runner_providers.on_cpu(name)),
        abis=abis,
        operators=None if settings.wheel else operators,
        styles=frozenset(styles),
        campaign=campaign_digest(campaign, target) if campaign else "",
    )


def providers_of(
    settings: config_tables.BuildConfig, platform: configs.Platform, run_providers: tuple[str, ...]
) -> tuple[str, ...]:
    """The providers of a build: those of the settings, else those of the runs that the platform has."""
    if settings.providers is not None:
        return settings.providers
    # A campaign's runs are for all its platforms
    rows = {
        name: provider_rules.BUILD_PROVIDERS[name] for name in run_providers if name in provider_rules.BUILD_PROVIDERS
    }
    return tuple(
        name
        for name, row in rows.items()
        if platform in row.platforms and (settings.wheel or platform not in row.converting_only)
    )


def kind_of(
    settings: config_tables.BuildConfig, providers: tuple[str, ...], styles: Collection[Style]
) -> config_tables.BuildKind:
    """The kind of build: as the settings say, else the smallest that providers and styles of artifacts allow."""
    if settings.kind is not config_tables.BuildKind.AUTO:
        return settings.kind
    if settings.wheel or Style.ONNX in styles:
        return config_tables.BuildKind.FULL
    return (
        config_tables.BuildKind.EXTENDED
        if Style.RUNTIME in styles or set(providers) - {"cpu"}
        else config_tables.BuildKind.MINIMAL
    )


def requests_for(
    config: Path | None,
    target_name: str | None,
    operators_path: Path | None,
    version: str | None,
    *,
    system_dependencies: bool = False,
    onnx_source: Path | None = None,
    jobs: int | None = None,
) -> tuple[Request, ...]:
    """One request a target. Raises ConfigError for configs that are wrong and names that do not exist.

    `version` is that of the source tree when one is given, and holds where a target names none; what follows it
    replaces what a config says.
    """
    targets: tuple[configs.Target, ...]
    campaign: Config | None = None
    providers: tuple[str, ...] = ()
    listed: str | None = None
    styles: Collection[Style] = ()
    if config is None:
        targets, build = (_named_target(target_name or ""),), config_tables.BuildConfig()
    elif _is_campaign(config):
        campaign = configs.read_config(config)
        targets, build = campaign.targets, campaign.build
        providers = tuple(provider for run in campaign.runs for provider in run.providers)
        styles = campaign.variants.styles
    else:
        file = read_build_file(config)
        targets, build, listed, styles = (file.target,), file.build, file.operators, file.styles
    path = operators_path or (Path(listed) if listed else None)
    operators = None if path is None else required_ops.read_config(path)
    version = version or installed_version("onnxruntime")
    onnx = str(onnx_source) if onnx_source else build.onnx_source
    settings = msgspec.structs.replace(
        build,
        dependencies=config_tables.Dependencies.SYSTEM if system_dependencies else build.dependencies,
        onnx_source=None if onnx is None else str(Path(onnx).absolute()),
        jobs=jobs or build.jobs,
    )
    chosen = tuple(target for target in targets if target_name in (None, target.name))
    if not chosen:
        raise ConfigError(
            f"there is no target {target_name!r}",
            where=str(config),
            remedy=f"the config has: {', '.join(target.name for target in targets)}",
        )
    return tuple(
        make_request(
            target, version, settings, operators=operators, run_providers=providers, styles=styles, campaign=campaign
        )
        for target in chosen
    )


def _is_campaign(path: Path) -> bool:
    """Campaigns have models; what cannot be read is left to the reader of build files to explain."""
    try:
        return "models" in core_toml.read_toml(untrusted_files.read_regular(path).decode("utf-8-sig"), str(path), "")
    except (OSError, UnicodeDecodeError, ConfigError):
        return False


def _named_target(name: str) -> configs.Target:
    """`android-arm64-v8a`, `linux-x86_64`, `ios-arm64`: a target by platform and ABI alone."""
    platform, _, abi = name.partition("-")
    if platform not in set(configs.Platform) or abi not in ABIS[configs.Platform(platform)]:
        names = tuple(f"{platform}-{abi}" for platform, abis in ABIS.items() for abi in abis)
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(
            f"there is no target {name!r}",
            where="--target",
            why="without a config, a target is PLATFORM-ABI",
            remedy=f"{hint}It is one of: {', '.join(names)}; or give a config and the name of one of its targets",
        )
    return configs.Target(name=name, platform=configs.Platform(platform), abis=(abi,))


class BuildFile(configs.Table, frozen=True, kw_only=True):
    """A file of build_configs/builds: one product, for `ort-mobile build plan FILE`."""

    target: configs.Target
    """What the library is for, as in a campaign's [[targets]]."""
    build: config_tables.BuildConfig = config_tables.BuildConfig()
    """How to build it."""
    operators: str | None = None
    """Operator config, as `ort-mobile op-config create` writes it; all operators without it."""
    runtime_style: bool = False
    """Whether artifacts of runtime style will run with it: they need an extended build."""
    onnx_style: bool = False
    """Whether ONNX files will run with it: they need a full build."""

    @property
    def styles(self) -> tuple[Style, ...]:
        """Those of artifacts that need more than a minimal build."""
        flags = {Style.RUNTIME: self.runtime_style, Style.ONNX: self.onnx_style}
        return tuple(style for style, wanted in flags.items() if wanted)


def read_build_file(path: Path) -> BuildFile:
    """Read and check a build file; its paths become relative to the current folder. Raises ConfigError."""
    remedy = "compare it with those in build_configs/builds; docs/reference/config.md has the keys"
    try:
        file = msgspec.convert(
            core_toml.read_toml(untrusted_files.read_regular(path).decode("utf-8-sig"), str(path), remedy), BuildFile
        )
    except OSError as error:
        raise ConfigError("the build file cannot be read", where=str(path), why=error.strerror or str(error)) from error
    except (UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError("this is no build file", where=str(path), why=str(error), remedy=remedy) from error
    if file.target.ort_release is not None:
        ort_releases.read_release(file.target.ort_release, "ort_release", str(path))
    onnx = file.build.onnx_source
    build = msgspec.structs.replace(file.build, onnx_source=None if onnx is None else str(path.parent / onnx))
    operators = None if file.operators is None else str(path.parent / file.operators)
    return msgspec.structs.replace(file, build=build, operators=operators)
