"""From what stands on the command line to requests: a campaign's config, a build file, or just a target's name."""

import difflib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version as installed_version
from pathlib import Path

import msgspec

from device_runner.reading import read_regular
from pipeline.config import Config, Platform, Target, read_config
from pipeline.config.build import BuildConfig, Dependencies
from pipeline.core.errors import ConfigError
from pipeline.core.variant import Style
from pipeline.ort_build.build_file import read_build_file
from pipeline.ort_build.releases import ABIS
from pipeline.ort_build.request import Request, campaign_digest, make_request
from pipeline.required_ops import RequiredOps
from pipeline.required_ops import read_config as read_operators


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildChoice:
    """What the user chose. `version` is that of the source tree when one is given, and holds where a target names
    none; the flags replace what a config says.
    """

    config: Path | None = None
    target: str | None = None
    operators: Path | None = None
    version: str | None = None
    dependencies: str | None = None
    onnx_source: Path | None = None
    jobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a config file says about builds."""

    targets: tuple[Target, ...]
    build: BuildConfig
    providers: tuple[str, ...] = ()
    operators: str | None = None
    runtime_style: bool = False
    config: Config | None = None
    """The campaign that says it, None for a build file or a target alone."""


def requests_for(choice: BuildChoice) -> tuple[Request, ...]:
    """One request a target. Raises ConfigError for configs that are wrong and names that do not exist."""
    found = _found(choice)
    operators = _operators(choice, found)
    version = choice.version or installed_version("onnxruntime")
    settings = _with_flags(found.build, choice)
    requests = []
    for target in _wanted(found.targets, choice):
        request = make_request(
            target,
            version,
            settings,
            operators=operators,
            run_providers=found.providers,
            runtime_style=found.runtime_style,
        )
        requests.append(replace(request, campaign=campaign_digest(found.config, target) if found.config else ""))
    return tuple(requests)


def _found(choice: BuildChoice) -> _Found:
    if choice.config is None:
        return _Found(targets=(_named_target(choice.target or ""),), build=BuildConfig())
    if _is_campaign(choice.config):
        return _of_campaign(read_config(choice.config))
    file = read_build_file(choice.config)
    return _Found(targets=(file.target,), build=file.build, operators=file.operators, runtime_style=file.runtime_style)


def _is_campaign(path: Path) -> bool:
    """Campaigns have models; what cannot be read is left to the reader of build files to explain."""
    try:
        return "models" in tomllib.loads(read_regular(path).decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False


def _of_campaign(config: Config) -> _Found:
    return _Found(
        targets=config.targets,
        build=config.build,
        providers=tuple(provider for run in config.runs for provider in run.providers),
        runtime_style=Style.RUNTIME in config.variants.styles,
        config=config,
    )


def _named_target(name: str) -> Target:
    """`android-arm64-v8a`, `linux-x86_64`, `ios-arm64`: a target by platform and ABI alone."""
    platform, _, abi = name.partition("-")
    if platform not in set(Platform) or abi not in ABIS[Platform(platform)]:
        known = tuple(_target_names())
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(
            f"there is no target {name!r}", where="--target",
            why="without a config, a target is PLATFORM-ABI",
            remedy=f"{hint}It is one of: {', '.join(known)}; or give a config and the name of one of its targets",
        )  # fmt: skip
    return Target(name=name, platform=Platform(platform), abis=(abi,))


def _target_names() -> Iterator[str]:
    return (f"{platform}-{abi}" for platform, abis in ABIS.items() for abi in abis)


def _wanted(targets: tuple[Target, ...], choice: BuildChoice) -> tuple[Target, ...]:
    chosen = tuple(target for target in targets if choice.target in (None, target.name))
    if not chosen:
        raise ConfigError(
            f"there is no target {choice.target!r}", where=str(choice.config),
            remedy=f"the config has: {', '.join(target.name for target in targets)}",
        )  # fmt: skip
    return chosen


def _operators(choice: BuildChoice, found: _Found) -> RequiredOps | None:
    path = choice.operators or (Path(found.operators) if found.operators else None)
    return None if path is None else read_operators(path)


def _with_flags(build: BuildConfig, choice: BuildChoice) -> BuildConfig:
    changes: dict[str, object] = {}
    if choice.dependencies:
        changes["dependencies"] = Dependencies(choice.dependencies)
    if choice.onnx_source:
        changes["onnx_source"] = str(choice.onnx_source)
    if choice.jobs:
        changes["jobs"] = choice.jobs
    onnx = changes.get("onnx_source", build.onnx_source)
    changes["onnx_source"] = None if onnx is None else str(Path(str(onnx)).absolute())
    return msgspec.structs.replace(build, **changes)
