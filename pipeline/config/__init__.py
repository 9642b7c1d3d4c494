"""Configs: the TOML that a user writes, read strictly, completed, and described for editors."""

from pipeline.config.defaults import (
    ADVISED_RUNS,
    APPLE,
    DEFAULT_TARGET,
    REPLAY_KEY,
    comparing_runs,
    resolved,
    takes_package,
    wanted_variants,
    with_defaults,
)
from pipeline.config.read import FILL_IN, read_config
from pipeline.config.tables import (
    ALL_FLAGS,
    AccuracyConfig,
    AndroidRelease,
    AppleRelease,
    BuildConfig,
    BuildKind,
    Count,
    Gate,
    InputValue,
    MetricName,
    OneOrMore,
    PartConfig,
    PreprocessConfig,
    Range,
    RunConfig,
    Table,
    Telemetry,
    TransformConfig,
)
from pipeline.config.tune import Goal, TuneConfig, TuneStrategy
from pipeline.config.values import (
    TABLES,
    Accelerator,
    CheckConfig,
    ConditionsConfig,
    Config,
    MeasureConfig,
    MeasureMode,
    MeasureRule,
    ModelConfig,
    OutputConfig,
    Platform,
    Target,
    VariantsConfig,
    config_schema,
    key_texts,
    null_last,
)

__all__ = [
    "ADVISED_RUNS", "ALL_FLAGS", "APPLE", "DEFAULT_TARGET", "FILL_IN", "REPLAY_KEY", "TABLES",
    "Accelerator", "AccuracyConfig", "AndroidRelease", "AppleRelease",
    "BuildConfig", "BuildKind", "CheckConfig", "ConditionsConfig", "Config", "Count", "Gate", "Goal",
    "InputValue",
    "MeasureConfig", "MeasureMode", "MeasureRule", "MetricName", "ModelConfig", "OneOrMore", "OutputConfig",
    "PartConfig", "Platform", "PreprocessConfig", "Range", "RunConfig", "Table",
    "Target", "Telemetry", "TransformConfig", "TuneConfig", "TuneStrategy", "VariantsConfig", "comparing_runs",
    "config_schema", "key_texts", "null_last", "read_config",
    "resolved", "takes_package", "wanted_variants", "with_defaults",
]  # fmt: skip
