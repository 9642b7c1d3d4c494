"""What a config means where it is silent: targets, runs, variants, and paths seen from the current folder."""

from pathlib import Path

import msgspec

from device_runner.library import name_of
from device_runner.providers import CPU, NNAPI
from pipeline.config.tables import BuildConfig, OneOrMore, PartConfig, RunConfig, is_function
from pipeline.config.values import (
    Accelerator,
    Config,
    Platform,
    Target,
    VariantsConfig,
)
from pipeline.core.errors import ConfigError
from pipeline.core.providers import PROVIDER_RULES
from pipeline.core.releases import SWIFT_PACKAGES
from pipeline.core.variant import OWN_PRECISION, Level, Variant

APPLE = frozenset({Platform.IOS, Platform.MACOS})
DEFAULT_TARGET = Target(name="android-arm64", platform=Platform.ANDROID, abis=("arm64-v8a",), min_api_level=27)

ADVISED_RUNS = (
    RunConfig(provider=NNAPI, variants=("basic-*", "*-nnapi*")),
    RunConfig(provider=CPU, variants=("none-*", "basic-*", "extended-*", "layout-*", "all-*")),
)
"""ONNX Runtime's documentation: the NNAPI provider with basic, the CPU with extended or all; `none` as baseline."""


REPLAY_KEY = "session.enable_saved_runtime_optimizations"
"""Session config entry from 1.30 on: replay the fusions that runtime style recorded."""


def with_defaults(config: Config) -> Config:
    """Fill in the target and the runs that the documentation advises where the config names none.

    Targets for iOS and macOS get the newest release of which a Swift package is known: many releases have none.
    `compare` becomes aware variants and runs. Raises ConfigError when there are both `compare` and `runs`.
    """
    if config.compare and config.runs:
        raise ConfigError(
            "`compare` and [[runs]] exclude each other", remedy="leave out `compare`, or write all runs as [[runs]]"
        )
    _check_patterns(config)
    aware = [name.value for name in config.compare if PROVIDER_RULES[name].aware]
    variants = msgspec.structs.replace(config.variants, aware=tuple(dict.fromkeys((*config.variants.aware, *aware))))
    return msgspec.structs.replace(
        config,
        targets=tuple(_with_release(target, config) for target in config.targets or (DEFAULT_TARGET,)),
        variants=variants if config.compare else config.variants,
        compare=(),
        runs=config.runs or comparing_runs(config.compare) or ADVISED_RUNS,
    )


def _with_release(target: Target, config: Config) -> Target:
    if target.ort_release or target.platform not in APPLE or not takes_package(target, config):
        return target
    return msgspec.structs.replace(target, ort_release=str(max(SWIFT_PACKAGES)))


def takes_package(target: Target, config: Config) -> bool:
    """Whether apps take the published package of ONNX Runtime: they have no library and no build of their own."""
    released = config.release.apple if target.platform in APPLE else config.release.android
    library = target.library or (released and released.runtime)
    return not library and config.build == BuildConfig(max_library_bytes=config.build.max_library_bytes)


def _check_patterns(config: Config) -> None:
    """Raise ConfigError for a written [[runs]] that matches no variant of the config: nobody means that.

    What `auto` and recipes stand for is not known yet: with precisions nothing is refused.
    """
    variants = wanted_variants(config.variants)
    asked = {*config.variants.precisions, *(name for model in config.models for name in model.precisions)}
    for run in config.runs if asked == {OWN_PRECISION} else ():
        if not any(variant.matches(pattern) for variant in variants for pattern in run.variants):
            raise ConfigError(
                f"no variant is called {' or '.join(map(repr, run.variants))}",
                where=f"[[runs]] provider = {run.provider!r}",
                remedy=f"variants of this config: {', '.join(variant.name for variant in variants)}",
            )


def comparing_runs(accelerators: tuple[Accelerator, ...]) -> tuple[RunConfig, ...]:
    """Each accelerator on basic and on what is aware of it, on runtime style with and without replay; and the CPU."""
    runs = []
    for accelerator in accelerators:
        row = PROVIDER_RULES[accelerator]
        provider, options = row.provider, dict[str, OneOrMore[str]](row.options)
        plain = RunConfig(provider=provider, options=options, variants=("basic-fixed", f"*-fixed-{accelerator}*"))
        runs.append(plain)
        runs += [
            RunConfig(provider=provider, options=options, variants=("*-runtime",), session_config={REPLAY_KEY: replay})
            for replay in ("0", "1")
        ]
    return (*runs, RunConfig(provider=CPU, variants=("*-fixed",))) if runs else ()


def resolved(config: Config, folder: Path) -> Config:
    """The config with its paths made relative to the current folder instead of the config's own."""

    def place(path: str | None) -> str | None:
        return None if path is None else str(folder / path)

    def part(data: PartConfig | None) -> PartConfig | None:
        return data and msgspec.structs.replace(data, test_data=place(data.test_data), labels=place(data.labels))

    def library(text: str | None) -> str | None:
        return text if text and name_of(text) else place(text)

    models = tuple(
        msgspec.structs.replace(
            m, path=str(folder / m.path), test_data=place(m.test_data), labels=place(m.labels),
            calibration=part(m.calibration), evaluation=part(m.evaluation),
        )
        for m in config.models
    )  # fmt: skip
    targets = tuple(msgspec.structs.replace(t, library=library(t.library)) for t in config.targets)
    build = msgspec.structs.replace(config.build, onnx_source=place(config.build.onnx_source))
    measure = msgspec.structs.replace(config.measure, perf_test=place(config.measure.perf_test))
    metric = config.accuracy.metric
    metric = place(metric) if metric and is_function(metric) else metric
    accuracy = msgspec.structs.replace(config.accuracy, metric=metric, vocabulary=place(config.accuracy.vocabulary))
    android, apple = config.release.android, config.release.apple
    release = msgspec.structs.replace(
        config.release,
        key=place(config.release.key),
        android=android
        and msgspec.structs.replace(
            android,
            repository=place(android.repository),
            runtime=library(android.runtime),
            ai_pack=place(android.ai_pack),
        ),
        apple=apple and msgspec.structs.replace(apple, folder=place(apple.folder), runtime=place(apple.runtime)),
    )
    return msgspec.structs.replace(
        config, models=models, targets=targets, build=build, measure=measure, accuracy=accuracy, release=release
    )


def wanted_variants(config: VariantsConfig, precision: str = "") -> list[Variant]:
    """Every variant of a precision that the config asks for, in the order of its lists; aware ones after the others."""
    plain = [
        Variant(level=level, style=style, precision=precision) for style in config.styles for level in config.levels
    ]
    aware = [
        Variant(level=level, providers=tuple(providers.split("+")), precision=precision)
        for providers in config.aware
        for level in config.levels
        if level is not Level.NONE
    ]
    return plain + aware
