"""The words of the command line and of configs as `Settings`, and limits that releases moved (ep_rules A.3, D.2.7)."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from pipeline.core.errors import ConfigError
from pipeline.core.providers import ProviderRules
from pipeline.core.releases import installed_release, line_of
from pipeline.partition.answer import Settings

Steps = Sequence[tuple[tuple[int, int], int]]
"""Values with the release that brought each, the newest first."""

MAX_VERSION: Steps = (((1, 28), 27), ((1, 24), 25), ((1, 23), 23), ((0, 0), 21))
"""Highest since_version that the op builders of NNAPI and CoreML take."""

LAYOUT_OPSETS: Steps = (((1, 28), 27), ((1, 25), 26), ((1, 24), 25), ((1, 23), 23), ((0, 0), 22))
"""Highest opset of the default domain that the layout transformation knows; the lowest is 7."""

LOWEST_LAYOUT_OPSET = 7


def by_release(steps: Steps, release: tuple[int, int]) -> int:
    """The value of the newest step that is not younger than a release."""
    return next(value for first, value in steps if first <= release)


def layout_window(opset: int | None, release: tuple[int, int]) -> str | None:
    """Why the layout transformation of a release does not know a model's opset; None when it does."""
    highest = by_release(LAYOUT_OPSETS, release)
    if opset is not None and LOWEST_LAYOUT_OPSET <= opset <= highest:
        return None
    window = f"{LOWEST_LAYOUT_OPSET} to {highest}"
    return f"opset {opset} is outside {window}, which the layout transformation of this release knows"


FLAGS = ("0", "1")
COREML_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "ModelFormat": ("NeuralNetwork", "MLProgram"),
    "RequireStaticInputShapes": FLAGS,
    "EnableOnSubgraphs": FLAGS,
    "MLComputeUnits": ("ALL", "CPUOnly", "CPUAndGPU", "CPUAndNeuralEngine"),
    "SpecializationStrategy": ("Default", "FastPrediction"),
    "ProfileComputePlan": FLAGS,
    "AllowLowPrecisionAccumulationOnGPU": FLAGS,
    "ModelCacheDirectory": (),
}
"""Keys of the CoreML provider with the values it accepts (any, where none are listed); others throw (ep_rules E.1)."""


def parse_coreml_options(pairs: Iterable[str]) -> dict[str, str]:
    """KEY=VALUE pairs of the CoreML provider; ConfigError for what it would refuse itself."""
    found = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in COREML_OPTIONS:
            close = difflib.get_close_matches(key, COREML_OPTIONS, n=1)
            raise ConfigError(
                f"the CoreML provider has no option '{key}'",
                remedy=f"did you mean {close[0]}?" if close else f"it has {', '.join(COREML_OPTIONS)}",
            )
        allowed = COREML_OPTIONS[key]
        if allowed and value not in allowed:
            raise ConfigError(f"{key} cannot be '{value}'", remedy=f"use {' or '.join(allowed)}")
        found[key] = value
    return found


def make_settings(
    provider: str,
    *,
    release: str = "",
    api_level: int | None = None,
    coreml_version: int | None = None,
    coreml_options: Iterable[str] = (),
    nnapi_flags: Iterable[str] = (),
    stop_ops: str | None = None,
) -> Settings:
    """Settings from words; what is left out has ONNX Runtime's own default, the release is the installed one.

    `stop_ops` is the session entry `ep.nnapi.partitioning_stop_ops`: names with commas between, none when empty (B.5).
    """
    coreml = parse_coreml_options(coreml_options)
    defaults = Settings(provider=provider)
    _check_format(defaults.rules, coreml.get("ModelFormat"))
    return Settings(
        provider=provider,
        ort_release=line_of(release) if release else installed_release(),
        api_level=defaults.api_level if api_level is None else api_level,
        coreml_version=defaults.coreml_version if coreml_version is None else coreml_version,
        require_static_input_shapes=coreml.get("RequireStaticInputShapes") == "1",
        enable_on_subgraphs=coreml.get("EnableOnSubgraphs") == "1",
        nnapi_flags=tuple(nnapi_flags),
        stop_ops=defaults.stop_ops if stop_ops is None else tuple(name for name in stop_ops.split(",") if name),
    )


def _check_format(rules: ProviderRules, asked: str | None) -> None:
    expected = rules.options.get("ModelFormat")
    if asked is not None and expected is not None and asked != expected:
        raise ConfigError(f"ModelFormat={asked} contradicts --ep {rules.name}", remedy="leave ModelFormat out")
