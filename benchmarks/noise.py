"""Simulated campaigns of equal lanes: latencies of processes in rounds, with the kinds of noise that devices have.

A campaign runs each lane once a round, every other round backwards, as the engine does. Inferences scatter by 2 %
around their process's own speed, and 3 % of them are interrupted. Everything is a factor of the true latency, 1.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.campaign.statistics.groups import Yardstick

Floats = npt.NDArray[np.float64]

INFERENCES = 20
"""Of a process: what the config's default asks for at least."""
WITHIN = 0.02
INTERRUPTED, INTERRUPTION = 0.03, 0.5
AT_ONCE = 2_000_000
"""Inferences that are drawn at a time."""

Processes = Callable[[np.random.Generator, tuple[int, ...]], Floats]
"""The logarithm of each process's own speed."""


def normal(sd: float) -> Processes:
    """Processes that scatter normally."""
    return lambda random, shape: random.normal(0, sd, shape)


def student(freedom: float, scale: float) -> Processes:
    """Processes with tails of Student's t, some of them far off; a device that takes 20 times as long has hung."""
    return lambda random, shape: np.clip(scale * random.standard_t(freedom, shape), -3, 3)


def skewed(sd: float) -> Processes:
    """Processes that are slower by chance, never faster: lognormal."""
    return lambda random, shape: np.asarray(sd * (random.lognormal(0, 1, shape) - np.exp(0.5)) / 2.16)


def modes(share: float, slower: float, sd: float) -> Processes:
    """Some processes are slower, as on other cores or with other memory."""

    def drawn(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        slow = random.random(shape) < share
        return np.asarray(random.normal(0, sd, shape) + np.log1p(slower) * slow)

    return drawn


def together(*parts: Processes) -> Processes:
    """All of them at once."""

    def drawn(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return np.asarray(sum((part(random, shape) for part in parts), np.zeros(shape)))

    return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseModel:
    """What a device does. `lanes`: how many the campaign has, of which the first and the last are compared.

    `drift` is by how much the last process is slower than the first; `throttled` by how much all is slower from a
    random time on; `kept`: the correlation of an inference's scatter with that of the next.
    """

    name: str
    processes: Processes
    lanes: int = 2
    drift: float = 0.0
    throttled: float = 0.0
    kept: float = 0.0

    @property
    def steady(self) -> bool:
        """Whether a latency means the same at all times, so that it has a true 90th percentile."""
        return not (self.drift or self.throttled)


MODELS = (
    NoiseModel(name="normal, 0.5 %", processes=normal(0.005)),
    NoiseModel(name="normal, 1 %", processes=normal(0.01)),
    NoiseModel(name="normal, 2 %", processes=normal(0.02)),
    NoiseModel(name="Student t3, 1 %", processes=student(3, 0.01)),
    NoiseModel(name="Student t2, 1 %", processes=student(2, 0.01)),
    NoiseModel(name="skewed, 2 %", processes=skewed(0.02)),
    NoiseModel(name="30 % of processes +4 %", processes=modes(0.3, 0.04, 0.01)),
    NoiseModel(name="10 % of processes +15 %", processes=modes(0.1, 0.15, 0.01)),
    NoiseModel(name="drift 10 %, 2 lanes", processes=normal(0.01), drift=0.1),
    NoiseModel(name="drift 10 %, 8 lanes", processes=normal(0.01), drift=0.1, lanes=8),
    NoiseModel(name="throttled by 30 %", processes=normal(0.01), throttled=0.3),
    NoiseModel(name="correlated inferences", processes=normal(0.01), kept=0.95),
    NoiseModel(name="everything at once", processes=together(student(3, 0.01), modes(0.3, 0.04, 0.0)), drift=0.1,
               throttled=0.3, kept=0.95),
)  # fmt: skip
"""Those of measuring S.1."""


def campaigns(
    model: NoiseModel, random: np.random.Generator, count: int, rounds: int, lanes: int | None = None
) -> Iterator[Floats]:
    """Latencies of campaigns by campaign, round, lane and inference, in parts that fit into memory.

    `lanes` asks for so many lanes, all of them; by default there are the model's, and the outer two are given.
    """
    wanted = (0, model.lanes - 1) if lanes is None else tuple(range(lanes))
    at_once = max(1, AT_ONCE // (rounds * len(wanted) * INFERENCES))
    for start in range(0, count, at_once):
        yield _part(model, random, min(at_once, count - start), rounds, wanted, lanes or model.lanes)


def _part(
    model: NoiseModel, random: np.random.Generator, count: int, rounds: int, wanted: tuple[int, ...], lanes: int
) -> Floats:
    shape = (count, rounds, len(wanted), INFERENCES)
    logs = WITHIN * _scatter(random, shape, model.kept)
    logs += model.processes(random, shape[:-1])[..., None]
    logs += np.where(random.random(shape) < INTERRUPTED, random.exponential(INTERRUPTION, shape), 0.0)
    if not model.steady:
        places = np.arange(rounds)[:, None] * lanes + _order(rounds, wanted, lanes)
        times = places[..., None] + (np.arange(INFERENCES) + 0.5) / INFERENCES
        logs += np.log1p(model.drift * times / (rounds * lanes))
        switched = random.uniform(0, rounds * lanes, (count, 1, 1, 1))
        logs += np.log1p(model.throttled) * (times > switched)
    latencies: Floats = np.exp(logs)
    return latencies


def _order(rounds: int, wanted: tuple[int, ...], lanes: int) -> npt.NDArray[np.int64]:
    """The place of each lane in each round: every other round goes backwards."""
    places = np.array(wanted)
    backwards = np.arange(rounds)[:, None] % 2 == 1
    return np.where(backwards, lanes - 1 - places, places)


def _scatter(random: np.random.Generator, shape: tuple[int, ...], kept: float) -> Floats:
    """Standard normal values, each correlated with the one before in the same process."""
    values = random.standard_normal(shape)
    for place in range(1, shape[-1] if kept else 0):
        values[..., place] = kept * values[..., place - 1] + np.sqrt(1 - kept**2) * values[..., place]
    return values


def yardsticks(latencies: Floats) -> dict[Yardstick, Floats]:
    """The logarithms of what processes are compared by: `groups.yardsticks` of many at once."""
    ordered = np.sort(latencies, axis=-1)
    return {
        Yardstick.MEDIAN: np.log(np.median(ordered, axis=-1)),
        Yardstick.MEAN: np.log(ordered.mean(axis=-1)),
        Yardstick.P90: np.log(ordered[..., math.ceil(0.9 * ordered.shape[-1]) - 1]),
    }
