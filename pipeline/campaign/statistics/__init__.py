"""Statistics of raw latencies: what they say, how sure it is, where the numbers doubt themselves. Pure functions."""

from pipeline.campaign.statistics.compare import (
    DEFAULT_MARGIN,
    DEFAULT_RULE,
    Comparison,
    DecisionRule,
    Verdict,
    compare,
    judge,
    summarize,
)
from pipeline.campaign.statistics.groups import (
    Caution,
    Doubt,
    Interval,
    RunGroup,
    Statistics,
    cautions,
    describe,
    detectable,
    ranks,
    ratio_interval,
    rounds_needed,
    t_quantile,
)

__all__ = [
    "DEFAULT_MARGIN",
    "DEFAULT_RULE",
    "Caution",
    "Comparison",
    "DecisionRule",
    "Doubt",
    "Interval",
    "RunGroup",
    "Statistics",
    "Verdict",
    "cautions",
    "compare",
    "describe",
    "detectable",
    "judge",
    "ranks",
    "ratio_interval",
    "rounds_needed",
    "summarize",
    "t_quantile",
]
