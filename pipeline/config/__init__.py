"""Configs: the TOML that a user writes, read strictly, completed, and described for editors.

What is imported here is what other rooms get by `configs.`: the list is the only one (pyproject.toml knows of it).
"""

from pipeline.config.flow import Feed, FlowStage, Tokens, Until, When
from pipeline.config.read import (
    ADVISED_RUNS,
    APPLE,
    DEFAULT_TARGET,
    FILL_IN,
    REPLAY_KEY,
    read_config,
    takes_package,
    wanted_variants,
    with_defaults,
)
from pipeline.config.tables import (
    ALL_FLAGS,
    AccuracyConfig,
    AndroidRelease,
    AppleRelease,
    BuildConfig,
    BuildKind,
    Gate,
    Goal,
    InputValue,
    MetricName,
    PartConfig,
    PreprocessConfig,
    Range,
    RunConfig,
    Table,
    Telemetry,
    TuneConfig,
    TuneStrategy,
)
from pipeline.config.values import (
    TABLES,
    CheckConfig,
    ConditionsConfig,
    Config,
    FeatureConfig,
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
)
