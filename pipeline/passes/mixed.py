"""Mixed precision: which operator types and layers must stay float for a quantized model to keep its outputs.

The loss of a layer is that of the model's outputs when it alone is quantized: errors inside the model rank no better
than chance (quantization Q.8). Where a provider is named, a layer that cuts its partitions when it stays float counts
for less, and of choices that are good enough the one with the fewest partitions wins.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from device_runner.reading import decode_json
from pipeline.core.errors import ConfigError, ModelError
from pipeline.passes.base import Effect, Model, Pass, PassContext
from pipeline.passes.evaluator import Evaluator, PartitionCount, provider_settings
from pipeline.passes.static import DENSE, StaticOptions, prepare, ranges_of
from pipeline.passes.weights import settle

if TYPE_CHECKING:
    import onnx

log = logging.getLogger(__name__)
PROPERTY = "ort-mobile.mixed-precision"
"""Metadata property of the result that holds the search, as JSON."""
COMPUTE = DENSE | {"Conv", "ConvTranspose"}
"""Types that quantization is for: never left float as a whole, layer by layer only."""
SPREAD_DB = 1.0
"""When the best choice gains less than this, no operator type and no layer is to blame: the loss is spread."""
BLOCKS = 12
"""Runs of consecutive layers that are measured first; only the worst are divided further."""
FEW_LAYERS = 4
"""Below so many nodes that compute, all others are ranked with them."""
MOST_FLOAT = 0.5
"""With more of its layers float a model is hardly quantized: no choice goes further."""
MOST_JUDGED = 16
"""So many layers, the noisiest, are looked at for the partitions that they cut when they stay float."""


class MixedOptions(StaticOptions, frozen=True, kw_only=True):
    """Options of mixed-precision: those of static-qdq are the form that the search begins with."""

    goal_db: float = 30.0
    """Signal to noise of the outputs in dB, against the float model, at which the search ends."""
    evaluations: int = 60
    """At most so many quantized models are measured."""
    provider: str = ""
    """Provider whose partitions count: nnapi, xnnpack, coreml-nn or coreml-mlprogram; without one none do."""
    api_level: Annotated[int, msgspec.Meta(ge=0, le=31)] = 0
    """NNAPI's API level at which partitions are counted; 0: the newest that ONNX Runtime distinguishes."""


class LayerLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What quantizing some nodes alone costs: one layer, or a run of layers that was not worth dividing."""

    nodes: tuple[str, ...]
    op_type: str
    sqnr_db: float


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One choice that was measured whole: what is left float and what that gives."""

    types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    sqnr_db: float
    quantized: int
    partitions: int | None = None
    """Partitions of the provider; None without one, and where its partitions cost nothing."""
    load_error: str = ""
    """Why no session can be made on the phone."""


class MixedSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A search and its result. `spread`: no operator type and no layer is to blame for the loss."""

    goal_db: float
    evaluations: int
    start: Trial
    best: Trial
    spread: bool
    layers: tuple[LayerLoss, ...] = ()
    trials: tuple[Trial, ...] = ()

    @property
    def text(self) -> str:
        """The result in one line."""
        start = f"{_figures(self.start)} with all quantized"
        if not self.best.types and not self.best.nodes and not self.spread:
            return f"{start}: nothing must stay float"
        gain = f"{start}, {_figures(self.best)}"
        left = [f"all {', '.join(self.best.types)}"] if self.best.types else []
        left += [f"{len(self.best.nodes)} layer{'s' * (len(self.best.nodes) != 1)}"] if self.best.nodes else []
        if self.spread:
            return f"{gain} at best: the loss is spread, no layer helps; use wider activations or fewer operator types"
        return f"{gain} with {' and '.join(left)} float, after {self.evaluations} evaluations"


def _figures(trial: Trial) -> str:
    """As in `31.0 dB in 2 partitions`."""
    count = "" if trial.partitions is None else f" in {trial.partitions} partition{'s' * (trial.partitions != 1)}"
    return f"{trial.sqnr_db:.1f} dB{count}{', which does not load' if trial.load_error else ''}"


def mixed_precision(model: Model, options: MixedOptions, context: PassContext) -> Model:
    """The quantized model with what costs most left float; the search is in its metadata (`search_of`).

    Raises as `static-qdq` does. A search that was interrupted goes on where it was: evaluations are kept by content.
    """
    if options.evaluations < 1:
        raise ConfigError("the search needs at least one evaluation", where=context.where)
    settings = provider_settings(options.provider, options.api_level, context.where)
    ready = prepare(model, options, context)
    bench = Evaluator.of(ready, ranges_of(ready, options, context), options, context)
    bench.settings, bench.most = settings, options.evaluations
    found = search(bench, options)
    log.info("%s: %s", context.where, found.text)
    made = bench.quantized(bench.without(found.best.types, found.best.nodes))
    entry = made.proto.metadata_props.add()
    entry.key, entry.value = PROPERTY, msgspec.json.encode(found).decode()
    return settle(made.proto, context)


def search_of(proto: "onnx.ModelProto") -> MixedSearch | None:
    """The search that made a model; None for one that no search made. ModelError when it cannot be read."""
    text = next((entry.value for entry in proto.metadata_props if entry.key == PROPERTY), None)
    try:
        return decode_json(text, MixedSearch) if text is not None else None
    except msgspec.DecodeError as error:
        raise ModelError("the record of the search cannot be read", why=str(error), remedy="quantize again") from error


def search(bench: Evaluator, options: MixedOptions) -> MixedSearch:
    """Leave operator types float first, then layers, worst first, until the goal is reached or nothing helps.

    What is returned is the best choice that was measured: among those at the goal the one with the fewest partitions,
    then the one with the least left float.
    """
    start = _trial(bench, (), ())
    trials = [start]
    layers: list[LayerLoss] = []
    if not _settled(start, start, options):
        trials += _without_types(bench, start, options)
    best = _best(trials, options.goal_db)
    if not _settled(best, start, options) and _room(bench, options):
        layers = _layer_losses(bench, best, options)
        trials += _without_layers(bench, start, best, layers, options)
    best = _best(trials, options.goal_db)
    return MixedSearch(
        goal_db=options.goal_db, evaluations=len(bench.asked), start=start, best=best,
        spread=best.sqnr_db < options.goal_db and best.sqnr_db - start.sqnr_db < SPREAD_DB,
        layers=tuple(sorted(layers, key=lambda loss: loss.sqnr_db)), trials=tuple(trials),
    )  # fmt: skip


def _trial(bench: Evaluator, types: Sequence[str], nodes: Sequence[str]) -> Trial:
    left = Trial(types=tuple(types), nodes=tuple(nodes), sqnr_db=0.0, quantized=0)
    chosen = bench.without(left.types, left.nodes)
    standing = bench.standing(chosen) if chosen else PartitionCount()
    return msgspec.structs.replace(
        left, sqnr_db=bench.sqnr(chosen), quantized=len(chosen),
        partitions=standing.partitions, load_error=standing.load_error,
    )  # fmt: skip


def _settled(trial: Trial, start: Trial, options: MixedOptions) -> bool:
    """Whether a choice is at the goal, loads, and has no more partitions than the one with everything quantized."""
    added = (trial.partitions or 0) > (start.partitions or 0) and not start.load_error
    return trial.sqnr_db >= options.goal_db and not trial.load_error and not added


def _best(trials: Iterable[Trial], goal_db: float) -> Trial:
    """The best of those that load: at the goal, the fewest partitions and the most quantized; else the least noise."""

    def rank(one: Trial) -> tuple[bool, bool, float, float]:
        if one.sqnr_db < goal_db:
            return not one.load_error, False, one.sqnr_db, 0
        return not one.load_error, True, -(one.partitions or 0), one.quantized

    return max(trials, key=rank)


def _room(bench: Evaluator, options: MixedOptions, wanted: int = 1) -> bool:
    """Whether so many more evaluations are allowed."""
    return len(bench.asked) + wanted <= options.evaluations


def _without_types(bench: Evaluator, start: Trial, options: MixedOptions) -> list[Trial]:
    """Choices that leave the noisiest types float, one more each time, as long as that gains."""
    types = [kind for kind in dict.fromkeys(bench.nodes.values()) if kind not in COMPUTE]
    if len(set(bench.nodes.values())) < 2:
        return []
    alone = {
        kind: bench.sqnr({name for name, own in bench.nodes.items() if own == kind})
        for kind in types
        if _room(bench, options, 2)
    }
    found: list[Trial] = []
    last = start
    ranked = sorted(alone, key=alone.__getitem__)
    for count in range(1, len(ranked) + 1):
        if _settled(last, start, options) or not _room(bench, options):
            break
        last = _trial(bench, ranked[:count], ())
        found.append(last)
    return found


def _layer_losses(bench: Evaluator, best: Trial, options: MixedOptions) -> list[LayerLoss]:
    """What layers cost alone: runs of consecutive ones first, of which the worst are divided until they are single.

    Layers are the nodes that compute; where there are few, every other node counts, too. A third of the evaluations
    that are left is kept for trying choices.
    """
    left = bench.without(best.types, best.nodes)
    names = [name for name, kind in bench.nodes.items() if name in left and kind in COMPUTE]
    if len(names) < FEW_LAYERS:
        names = [name for name in bench.nodes if name in left]
    size = max(1, -(-len(names) // BLOCKS))
    limit = len(bench.asked) + (options.evaluations - len(bench.asked)) * 2 // 3
    blocks = (names[place : place + size] for place in range(0, len(names), size))
    found = [_loss(bench, block) for block in blocks if len(bench.asked) < limit]
    while len(bench.asked) + 2 <= limit and any(len(loss.nodes) > 1 for loss in found):
        worst = min((loss for loss in found if len(loss.nodes) > 1), key=lambda loss: loss.sqnr_db)
        found.remove(worst)
        middle = len(worst.nodes) // 2
        found += [_loss(bench, worst.nodes[:middle]), _loss(bench, worst.nodes[middle:])]
    return found


def _loss(bench: Evaluator, names: Sequence[str]) -> LayerLoss:
    kinds = dict.fromkeys(bench.nodes[name] for name in names)
    return LayerLoss(nodes=tuple(names), op_type="+".join(kinds), sqnr_db=bench.sqnr(names))


def _without_layers(
    bench: Evaluator, start: Trial, best: Trial, losses: Sequence[LayerLoss], options: MixedOptions
) -> list[Trial]:
    """Choices that leave the worst layers float: 1, 2, 3, 5, 8 … up to MOST_FLOAT of all."""
    ranked = _ranked(bench, best, losses)
    found: list[Trial] = []
    count, following = 1, 2
    while count <= len(ranked) * MOST_FLOAT and _room(bench, options):
        found.append(_trial(bench, best.types, ranked[:count]))
        if _settled(found[-1], start, options):
            break
        count, following = following, count + following
    return found


def _ranked(bench: Evaluator, best: Trial, losses: Sequence[LayerLoss]) -> list[str]:
    """Layers by their noise for each partition that they leave when they stay float, the worst first.

    Noise adds up, so each layer of a run that was not divided counts with its share of the run's.
    """
    noise = {name: 10 ** (-loss.sqnr_db / 10) / len(loss.nodes) for loss in losses for name in loss.nodes}
    ranked = sorted(noise, key=noise.__getitem__, reverse=True)
    if best.partitions is None:
        return ranked
    for name in ranked[:MOST_JUDGED]:
        alone = bench.standing(bench.without(best.types, (*best.nodes, name)))
        noise[name] /= math.inf if alone.load_error else max(1, 1 + (alone.partitions or 0) - best.partitions)
    return sorted(noise, key=noise.__getitem__, reverse=True)


PASS = Pass(
    name="mixed-precision",
    title="Quantize statically, and leave float what costs most accuracy.",
    apply=mixed_precision,
    effect=Effect.LOSSY,
    options=MixedOptions,
    needs_data=True,
)
