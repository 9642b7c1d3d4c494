"""Optuna's TPE sampler in place of the model: it knows that numbers have an order, so it suits spaces of long ranges.

The package is optional (extra `optuna`) and imported when it is asked for.
"""

from collections.abc import Sequence
from typing import Any

from pipeline.campaign.tune.space import Factors, Space
from pipeline.core.errors import MissingError

STARTUP_TRIALS = 60
"""Candidates that are drawn at random before the sampler says anything: Optuna's 10 are few for so many factors."""


def ask(space: Space, ran: Sequence[tuple[int, float]], left: Sequence[int], count: int, seed: int) -> list[int]:
    """Up to `count` of the candidates `left`, the first that the sampler would have measured next.

    `ran` has the candidates that ran with their log values. What it asks for need not exist: the nearest of those that
    are left is taken, in numbers by their distance. Raises MissingError without Optuna.
    """
    optuna = optuna_package()
    ranges = _distributions(optuna, space.factors)
    sampler = optuna.samplers.TPESampler(
        seed=seed * 100_003 + len(ran), n_startup_trials=STARTUP_TRIALS, multivariate=True, constant_liar=True
    )
    study = optuna.create_study(sampler=sampler)
    numbers = {name for name, range_ in ranges.items() if hasattr(range_, "high")}
    rows = [
        {name: int(row[name]) if name in numbers else row.get(name, "") for name in ranges} for row in space.factors
    ]
    study.add_trials(
        [optuna.trial.create_trial(params=rows[one], distributions=ranges, value=value) for one, value in ran]
    )
    waiting = list(left)
    asked: list[int] = []
    while waiting and len(asked) < count:
        wanted = study.ask(ranges).params
        nearest = min(waiting, key=lambda candidate: (_distance(rows[candidate], wanted, ranges), candidate))
        waiting.remove(nearest)
        asked.append(nearest)
    return asked


def optuna_package() -> Any:
    """The package; raises MissingError that names the extra where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise MissingError(
            "the sampler `optuna` needs the package optuna",
            why=str(error),
            remedy="pip install 'ort-mobile-pipeline[optuna]', or leave out the strategy: the model needs no package",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distributions(optuna: Any, rows: Sequence[Factors]) -> dict[str, Any]:
    """A range for each factor that varies in whole numbers, and a choice for each other that varies."""
    found = {}
    for name in sorted({name for row in rows for name in row}):
        values = sorted({row.get(name, "") for row in rows})
        if len(values) > 2 and all(value.isdecimal() for value in values):
            numbers = [int(value) for value in values]
            found[name] = optuna.distributions.IntDistribution(min(numbers), max(numbers))
        elif len(values) > 1:
            found[name] = optuna.distributions.CategoricalDistribution(values)
    return found


def _distance(row: dict[str, Any], wanted: dict[str, Any], ranges: dict[str, Any]) -> float:
    """How far a candidate is from what is wanted: 1 for a choice that differs, a share of the range for a number."""
    far = 0.0
    for name, value in wanted.items():
        if isinstance(value, int):
            far += abs(row[name] - value) / (ranges[name].high - ranges[name].low)
        else:
            far += row[name] != value
    return far
