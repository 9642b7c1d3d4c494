"""Mixed precision: which operator types and layers must stay float for a quantized model to keep its outputs.

The loss of a layer is that of the model's outputs when it alone is quantized: errors inside the model rank no better
than chance (quantization Q.8). Ranges are calibrated once: an evaluation costs one quantization and a few inferences.
"""

import hashlib
import logging
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner.files import cache_folder
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.files import write_bytes
from pipeline.core.ort_session import PREPACKING, HostSession, first_line, make_session
from pipeline.core.variant import Level
from pipeline.model.onnx_model import loadable
from pipeline.passes.base import Effect, Feeds, Model, NotApplicable, Pass, PassContext
from pipeline.passes.calibration import TensorRanges, calibrate, quantizable
from pipeline.passes.static import DENSE, StaticOptions, chosen_nodes, prepare, quantize
from pipeline.passes.weights import settle

if TYPE_CHECKING:
    import onnx

log = logging.getLogger(__name__)
PROPERTY = "ort-mobile.mixed-precision"
"""Metadata property of the result that holds the search, as JSON."""
COMPUTE = DENSE | {"Conv", "ConvTranspose"}
"""Types that quantization is for: never left float as a whole, layer by layer only."""
SAMPLES = 12
"""Samples of one evaluation: rankings are stable from about this many on (quantization Q.8)."""
SPREAD_DB = 1.0
"""When the best choice gains less than this, no operator type and no layer is to blame: the loss is spread."""
BLOCKS = 12
"""Runs of consecutive layers that are measured first; only the worst are divided further."""
FEW_LAYERS = 4
"""Below so many nodes that compute, all others are ranked with them."""
MOST_FLOAT = 0.5
"""With more of its layers float a model is hardly quantized: no choice goes further."""
VERY_GOOD_DB = 120.0
"""Reported for outputs that are equal."""


class MixedOptions(StaticOptions, frozen=True, kw_only=True):
    """Options of mixed-precision: those of static-qdq are the form that the search begins with."""

    goal_db: float = 30.0
    """Signal to noise of the outputs in dB, against the float model, at which the search ends."""
    evaluations: int = 60
    """At most so many quantized models are measured."""


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
        gain = f"{self.start.sqnr_db:.1f} dB with all quantized, {self.best.sqnr_db:.1f} dB"
        left = [f"all {', '.join(self.best.types)}"] if self.best.types else []
        left += [f"{len(self.best.nodes)} layers"] if self.best.nodes else []
        if self.spread:
            return f"{gain} at best: the loss is spread, no layer helps; use wider activations or fewer operator types"
        return f"{gain} with {' and '.join(left) or 'nothing'} float, after {self.evaluations} evaluations"


def mixed_precision(model: Model, options: MixedOptions, context: PassContext) -> Model:
    """The quantized model with what costs most left float; the search is in its metadata (`search_of`).

    Raises as `static-qdq` does. A search that was interrupted goes on where it was: evaluations are kept by content.
    """
    if options.evaluations < 1:
        raise ConfigError("the search needs at least one evaluation", where=context.where)
    ready = prepare(model, options, context)
    assert context.samples is not None, "the registry asks for data"  # noqa: S101 - Pass.needs_data
    ranges = calibrate(ready, context.samples, options.method, percentile=options.percentile, where=context.where)
    bench = Evaluator.of(ready, ranges, options, context)
    found = search(bench, options)
    log.info("%s: %s", context.where, found.text)
    made = bench.quantized(bench.all - bench.named(found.best))
    entry = made.proto.metadata_props.add()
    entry.key, entry.value = PROPERTY, msgspec.json.encode(found).decode()
    return settle(made.proto, context)


def search_of(proto: "onnx.ModelProto") -> MixedSearch | None:
    """The search that made a model; None for one that no search made. ModelError when it cannot be read."""
    text = next((entry.value for entry in proto.metadata_props if entry.key == PROPERTY), None)
    try:
        return msgspec.json.decode(text, type=MixedSearch) if text is not None else None
    except msgspec.DecodeError as error:
        raise ModelError("the record of the search cannot be read", why=str(error), remedy="quantize again") from error


@dataclass(slots=True)
class Evaluator:
    """Measures choices of nodes to quantize: signal to noise of the outputs against the float model, in dB."""

    model: Model
    ranges: TensorRanges
    options: StaticOptions
    nodes: dict[str, str]
    """Operator types of the nodes that can be quantized, by name in the graph's order."""
    feeds: list[Feeds]
    wanted: list[list[Any]]
    where: str
    kept: Path
    known: dict[str, float] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, model: Model, ranges: TensorRanges, options: StaticOptions, context: PassContext) -> "Evaluator":
        """An evaluator with up to SAMPLES of the calibration samples, spread over all of them."""
        chosen = chosen_nodes(model.proto, ranges, options, context.where, quantizable())
        nodes = {node.name: node.op_type for node in model.proto.graph.node if node.name in chosen}
        step = max(1, ranges.samples // SAMPLES)
        assert context.samples is not None  # noqa: S101 - as in mixed_precision
        feeds = [one for number, one in enumerate(context.samples()) if number % step == 0][:SAMPLES]
        identity = msgspec.json.encode([ranges.model, ranges.data, msgspec.to_builtins(options), len(feeds)])
        kept = cache_folder() / "searches" / f"{hashlib.sha256(identity).hexdigest()}.json"
        found = cls(model, ranges, options, nodes, feeds, [], context.where, kept, _read(kept))
        found.wanted = found.outputs(model)
        return found

    @property
    def all(self) -> frozenset[str]:
        """Every node that can be quantized."""
        return frozenset(self.nodes)

    def named(self, trial: Trial) -> frozenset[str]:
        """The nodes that a choice leaves float."""
        return frozenset(trial.nodes) | {name for name, kind in self.nodes.items() if kind in trial.types}

    def quantized(self, nodes: Collection[str]) -> Model:
        """The model with these nodes quantized and all others float."""
        left = tuple(name for name in self.nodes if name not in nodes)
        options = msgspec.structs.replace(self.options, exclude=(*self.options.exclude, *left))
        return quantize(self.model, self.ranges, options, where=self.where)

    def outputs(self, model: Model) -> list[list[Any]]:
        """What a model gives for each sample."""
        settings = HostSession(level=Level.ALL, weights=model.folder, config=PREPACKING)
        try:
            session = make_session(loadable(model).SerializeToString(), settings)
            return [list(session.run(None, dict(one))) for one in self.feeds]
        except Exception as error:
            raise ModelError("the quantized model does not run here", where=self.where, why=first_line(error),
                             remedy="exclude the node that it names") from error  # fmt: skip

    def sqnr(self, nodes: Collection[str]) -> float:
        """The dB of the model with these nodes quantized; counts as an evaluation unless nothing is."""
        if not nodes:
            return VERY_GOOD_DB
        key = hashlib.sha256("\0".join(sorted(nodes)).encode()).hexdigest()[:24]
        self.asked.add(key)
        if key not in self.known:
            try:
                self.known[key] = sqnr_db(self.wanted, self.outputs(self.quantized(nodes)))
            except NotApplicable:  # some types, as MaxPool, are quantized behind quantized nodes only
                self.known[key] = VERY_GOOD_DB
            self.kept.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self.kept, msgspec.json.encode(self.known))
        return self.known[key]


def _read(path: Path) -> dict[str, float]:
    """Evaluations that an earlier search kept; none where its file cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, float])
    except (OSError, msgspec.DecodeError):
        return {}


def sqnr_db(wanted: Sequence[Sequence[Any]], given: Sequence[Sequence[Any]]) -> float:
    """Signal to noise over samples in dB: of each float output by itself, then the mean of the noise shares.

    Outputs that are not float say nothing and do not count.
    """
    import numpy as np

    shares = []
    for place in range(len(wanted[0])):
        pairs = [(a[place], b[place]) for a, b in zip(wanted, given, strict=True)]
        if pairs[0][0].dtype.kind != "f" or any(a.shape != b.shape for a, b in pairs):
            continue
        signal = sum(float(np.square(a.astype(np.float64)).sum()) for a, _ in pairs)
        noise = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in pairs)
        shares.append(noise / signal if signal else float(noise > 0))
    mean = sum(shares) / len(shares) if shares else 0.0
    return (
        min(VERY_GOOD_DB, -10 * math.log10(mean)) if 0 < mean < math.inf else (VERY_GOOD_DB if mean == 0 else -math.inf)
    )


def search(bench: Evaluator, options: MixedOptions) -> MixedSearch:
    """Leave operator types float first, then layers, worst first, until the goal is reached or nothing helps.

    What is returned is the best choice that was measured, with the least left float among those at the goal.
    """
    start = _trial(bench, (), ())
    trials = [start]
    layers: list[LayerLoss] = []
    if start.sqnr_db < options.goal_db:
        trials += _without_types(bench, start, options)
    best = _best(trials, options.goal_db)
    if best.sqnr_db < options.goal_db and _room(bench, options):
        layers = _layer_losses(bench, best, options)
        trials += _without_layers(bench, best, layers, options)
    best = _best(trials, options.goal_db)
    return MixedSearch(
        goal_db=options.goal_db, evaluations=len(bench.asked), start=start, best=best,
        spread=best.sqnr_db < options.goal_db and best.sqnr_db - start.sqnr_db < SPREAD_DB,
        layers=tuple(sorted(layers, key=lambda loss: loss.sqnr_db)), trials=tuple(trials),
    )  # fmt: skip


def _trial(bench: Evaluator, types: Sequence[str], nodes: Sequence[str]) -> Trial:
    left = Trial(types=tuple(types), nodes=tuple(nodes), sqnr_db=0.0, quantized=0)
    chosen = bench.all - bench.named(left)
    return msgspec.structs.replace(left, sqnr_db=bench.sqnr(chosen), quantized=len(chosen))


def _best(trials: Iterable[Trial], goal_db: float) -> Trial:
    """The one at the goal with most quantized, else the one with least noise."""
    return max(
        trials, key=lambda one: (one.sqnr_db >= goal_db, one.quantized if one.sqnr_db >= goal_db else one.sqnr_db)
    )


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
        if last.sqnr_db >= options.goal_db or not _room(bench, options):
            break
        last = _trial(bench, ranked[:count], ())
        found.append(last)
    return found


def _layer_losses(bench: Evaluator, best: Trial, options: MixedOptions) -> list[LayerLoss]:
    """What layers cost alone: runs of consecutive ones first, of which the worst are divided until they are single.

    Layers are the nodes that compute; where there are few, every other node counts, too. A third of the evaluations
    that are left is kept for trying choices.
    """
    left = bench.named(best)
    names = [name for name, kind in bench.nodes.items() if name not in left and kind in COMPUTE]
    if len(names) < FEW_LAYERS:
        names = [name for name in bench.nodes if name not in left]
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


def _without_layers(bench: Evaluator, best: Trial, losses: Sequence[LayerLoss], options: MixedOptions) -> list[Trial]:
    """Choices that leave the worst layers float: 1, 2, 3, 5, 8 … up to MOST_FLOAT of all.

    Noise adds up, so each layer of a run that was not divided counts with its share of the run's.
    """
    shares = {name: loss.sqnr_db + 10 * math.log10(len(loss.nodes)) for loss in losses for name in loss.nodes}
    ranked = sorted(shares, key=shares.__getitem__)
    found: list[Trial] = []
    count, following = 1, 2
    while count <= len(ranked) * MOST_FLOAT and _room(bench, options):
        found.append(_trial(bench, best.types, ranked[:count]))
        if found[-1].sqnr_db >= options.goal_db:
            break
        count, following = following, count + following
    return found


PASS = Pass(
    name="mixed-precision",
    title="Quantize statically, and leave float what costs most accuracy.",
    apply=mixed_precision,
    effect=Effect.LOSSY,
    options=MixedOptions,
    needs_data=True,
)
