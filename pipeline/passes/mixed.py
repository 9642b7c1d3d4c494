"""Mixed precision: which operator types and layers must stay float for a quantized model to keep its outputs."""

import contextlib
import hashlib
import logging
import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from device_runner import files as runner_files
from device_runner import providers as runner_providers
from device_runner import untrusted_files
from pipeline.check import compare as output_compare
from pipeline.core import abis as core_abis
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError, ModelError
from pipeline.model import session as model_session
from pipeline.model import signature
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import judge, kept
from pipeline.partition import subject as partition_subject
from pipeline.passes.base import Effect, Feeds, LayerLoss, MixedSearch, Model, NotApplicable, Pass, PassContext, Trial
from pipeline.passes.calibration import TensorRanges
from pipeline.passes.edit import settle
from pipeline.passes.static import (
    DENSE,
    StaticOptions,
    chosen_nodes,
    known_types,
    prepare,
    quantize,
    ranges_of,
    takable,
)

if TYPE_CHECKING:
    import onnx


SAMPLES = 12
"""Samples of one evaluation: rankings are stable from about this many on (quantization Q.8)."""
VERY_GOOD_DB = 120.0
"""Reported for outputs that are equal; its negative for outputs with NaN, which JSON has no number for."""


PartitionCount = tuple[int | None, str]
"""What rules of a provider say of a model: partitions (None where they do not count), why it does not load or ""."""

Kept = tuple[dict[str, float], dict[str, PartitionCount]]
"""What is kept of the choices that were looked at: `sqnr_db` and `standings` of an evaluator."""


def provider_settings(provider: str, api_level: int, where: str, chip: str = "") -> claim_answer.Settings | None:
    """The settings whose partitions count, of the installed release on a phone; ConfigError without rules.

    MissingError where the compiler of a chip is not installed, SpecError for a chip that there is not.
    """
    if not provider:
        return None
    try:
        name = runner_providers.chip_named(chip).name if chip else ""
        settings = claim_answer.make_settings(
            provider, abi=core_abis.ARM64, android=True, api_level=api_level or None, chip=name
        )
    except ConfigError as error:
        raise ConfigError.of(error.problem, where=where) from error
    kept.require_compilers([settings])
    return settings


class Evaluator:
    """A model with its ranges, ready to be quantized in part, and what is known of parts already.

    `settings` are those of the provider whose partitions count. `nodes` are the operator types of the nodes that can be
    quantized, by name in the graph's order; `feeds` up to SAMPLES of the calibration samples, spread over all of them.
    `sqnr_db` is by digests of the names of quantized nodes, also of earlier searches; so are `standings`, by provider
    and level.
    """

    def __init__(
        self,
        model: Model,
        ranges: TensorRanges,
        options: "MixedOptions",
        settings: claim_answer.Settings | None,
        context: PassContext,
    ) -> None:
        import onnxruntime

        assert context.samples is not None  # noqa: S101 - Pass.needs_data
        self.model, self.ranges, self.options, self.settings = model, ranges, options, settings
        self.where, self.say = context.where, context.say
        chosen = chosen_nodes(model.proto, ranges, options, self.where, known_types(model.proto, options))
        self.nodes = {node.name: node.op_type for node in model.proto.graph.node if node.name in chosen}
        step = max(1, ranges.samples // SAMPLES)
        self.feeds = [sample for number, sample in enumerate(context.samples()) if number % step == 0][:SAMPLES]
        # What figures depend on; how many are asked for is not among it
        form = {name: getattr(options, name) for name in StaticOptions.__struct_fields__}
        parts = [ranges.model, ranges.data, form, len(self.feeds), onnxruntime.__version__]
        identity = hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
        self.kept = runner_files.cache_folder() / "searches" / f"{identity}.json"
        kept: Kept = {}, {}
        with contextlib.suppress(OSError, msgspec.DecodeError):  # what an earlier search kept
            kept = msgspec.json.decode(self.kept.read_bytes(), type=Kept)
        self.sqnr_db, self.standings = kept
        self.asked = set[str]()
        self.expected = self.outputs(model)

    def without(self, types: Collection[str], names: Collection[str]) -> frozenset[str]:
        """Every node that can be quantized but those of some types and some others."""
        return frozenset(name for name, kind in self.nodes.items() if kind not in types and name not in names)

    def quantized(self, nodes: Collection[str]) -> Model:
        """The model with these nodes quantized and all others float."""
        left = tuple(name for name in self.nodes if name not in nodes)
        options = msgspec.structs.replace(self.options, exclude=(*self.options.exclude, *left))
        return quantize(self.model, self.ranges, options, where=self.where)

    def outputs(self, model: Model) -> list[list[Any]]:
        """What a model gives for each sample."""
        try:
            session = model_session.open_session(model, model_session.CpuSettings(), self.where)
            return [
                list(model_session.run_session(session, sample, self.where, model_session.Role.MODEL).values())
                for sample in self.feeds
            ]
        except ModelError as error:
            raise ModelError(
                "the quantized model does not run here",
                where=self.where,
                why=error.why,
                remedy="exclude the node that it names",
            ) from error

    def sqnr(self, nodes: Collection[str]) -> float:
        """The dB of the model with these nodes quantized; counts as an evaluation unless nothing is."""
        if not nodes:
            return VERY_GOOD_DB
        key = _key(nodes)
        self.asked.add(key)
        if key not in self.sqnr_db:
            try:
                self.sqnr_db[key] = sqnr_db(self.expected, self.outputs(self.quantized(nodes)))
            except NotApplicable:  # some types, as MaxPool, are quantized behind quantized nodes only
                self.sqnr_db[key] = VERY_GOOD_DB
            self._keep()
        self.say(f"{len(self.asked)} of at most {self.options.evaluations} evaluations, {self.sqnr_db[key]:.1f} dB")
        return self.sqnr_db[key]

    def standing(self, nodes: Collection[str]) -> PartitionCount:
        """What the provider makes of the model with these nodes quantized, after level basic."""
        if self.settings is None:
            return None, ""
        settings = self.settings
        key = f"{_key(nodes)} {settings.provider} {settings.api_level} {settings.abi} {settings.chip}".strip()
        if key not in self.standings:
            try:
                self.standings[key] = _judged(self.quantized(nodes), self.settings, self.feeds[0])
            except NotApplicable:  # as in `sqnr`: this is the float model
                self.standings[key] = _judged(self.model, self.settings, self.feeds[0])
            self._keep()
        return self.standings[key]

    def _keep(self) -> None:
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        storage.write_bytes(self.kept, msgspec.json.encode((self.sqnr_db, self.standings)))


def _key(nodes: Collection[str]) -> str:
    return hashlib.sha256("\0".join(sorted(nodes)).encode()).hexdigest()[:24]


def _judged(model: Model, settings: claim_answer.Settings, feeds: Feeds) -> PartitionCount:
    """What the rules say of a model whose open dimensions have the sizes of a sample: no provider claims open ones."""
    sizes = {
        open_axis.key: int(feeds[open_axis.input].shape[open_axis.axis])
        for open_axis in signature.open_axes(signature.own_inputs(model.proto))
    }
    with runner_files.scratch_folder() as folder:
        path = folder / "model.onnx"
        partition_subject.write_model(model, path)
        answer = judge.judge(
            judge.PartitionRequest(
                source=SourceModel(path=str(path)), settings=settings, optimize=claim_answer.Optimize.BASIC, sizes=sizes
            )
        )
    failed = answer.error or (answer.load.error if answer.load else None) or ""
    counts = not settings.rules.on_cpu and not answer.error
    return answer.borders if counts else None, failed


def sqnr_db(expected: Sequence[Sequence[Any]], actual: Sequence[Sequence[Any]]) -> float:
    """Signal to noise over samples in dB: of each float output by itself, then the mean of the noise shares.

    Outputs that are not float say nothing and do not count. At most VERY_GOOD_DB, its negative where there is NaN.
    """
    shares = []
    for index in range(len(expected[0])):
        pairs = [(a[index], b[index]) for a, b in zip(expected, actual, strict=True)]
        if pairs[0][0].dtype.kind != "f" or any(a.shape != b.shape for a, b in pairs):
            continue
        powers = [output_compare.signal_and_noise(a, b) for a, b in pairs]
        signal, noise = sum(power.signal for power in powers), sum(power.noise for power in powers)
        shares.append(noise / signal if signal else float(noise > 0))
    mean = sum(shares) / len(shares) if shares else 0.0
    if mean == 0:
        return VERY_GOOD_DB
    return (
        max(-VERY_GOOD_DB, min(VERY_GOOD_DB, output_compare.decibel(1.0, mean)))
        if math.isfinite(mean)
        else -VERY_GOOD_DB
    )


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
    """Provider whose partitions count: nnapi, xnnpack, coreml-nn, coreml-mlprogram or qnn; without one none do."""
    chip: str = ""
    """With qnn: the Snapdragon whose NPU is asked, such as SM8650."""
    api_level: Annotated[int, msgspec.Meta(ge=0, le=31)] = 0
    """NNAPI's API level at which partitions are counted; 0: the newest that ONNX Runtime distinguishes."""


def mixed_precision(model: Model, options: MixedOptions, context: PassContext) -> Model:
    """The quantized model with what costs most left float; the search is in its metadata (`search_of`).

    Raises as `static-qdq` does. A search that was interrupted goes on where it was: evaluations are kept by content.
    """
    if options.evaluations < 1:
        raise ConfigError("the search needs at least one evaluation", where=context.where)
    settings = provider_settings(options.provider, options.api_level, context.where, options.chip)
    ready = prepare(model, options, context)
    ranges = ranges_of(ready, options, context)
    options = msgspec.structs.replace(options, exclude=takable(ready, ranges, options, context))
    bench = Evaluator(ready, ranges, options, settings, context)
    result = search(bench, options)
    log.info("%s: %s", context.where, result.text)
    quantized = bench.quantized(bench.without(result.best.types, result.best.nodes))
    entry = quantized.proto.metadata_props.add()
    entry.key, entry.value = PROPERTY, msgspec.json.encode(result).decode()
    return settle(quantized.proto, context)


def search_of(proto: "onnx.ModelProto") -> MixedSearch | None:
    """The search that made a model; None for one that no search made. ModelError when it cannot be read."""
    text = next((entry.value for entry in proto.metadata_props if entry.key == PROPERTY), None)
    try:
        return untrusted_files.decode_json(text, MixedSearch) if text is not None else None
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
    if not _settled(start, start, options) and len(set(bench.nodes.values())) > 1:
        # Leave the noisiest types float, one more each time, as long as that gains
        alone = {
            kind: bench.sqnr({name for name, of_type in bench.nodes.items() if of_type == kind})
            for kind in dict.fromkeys(bench.nodes.values())
            if kind not in COMPUTE and _room(bench, options, 2)
        }
        types = sorted(alone, key=alone.__getitem__)
        for count in range(1, len(types) + 1):
            if _settled(trials[-1], start, options) or not _room(bench, options):
                break
            trials.append(_trial(bench, types[:count], ()))
    best = _best(trials, options.goal_db)
    if not _settled(best, start, options) and _room(bench, options):
        layers = _layer_losses(bench, best, options)
        # Choices that leave the worst layers float: 1, 2, 3, 5, 8 … up to MOST_FLOAT of all
        ranked = _ranked(bench, best, layers)
        count, following = 1, 2
        while count <= len(ranked) * MOST_FLOAT and _room(bench, options):
            trials.append(_trial(bench, best.types, ranked[:count]))
            if _settled(trials[-1], start, options):
                break
            count, following = following, count + following
    best = _best(trials, options.goal_db)
    return MixedSearch(
        goal_db=options.goal_db,
        evaluations=len(bench.asked),
        start=start,
        best=best,
        spread=best.sqnr_db < options.goal_db and best.sqnr_db - start.sqnr_db < SPREAD_DB,
        layers=tuple(sorted(layers, key=lambda loss: loss.sqnr_db)),
        trials=tuple(trials),
    )


def _trial(bench: Evaluator, types: Sequence[str], nodes: Sequence[str]) -> Trial:
    left = Trial(types=tuple(types), nodes=tuple(nodes), sqnr_db=0.0, quantized=0)
    chosen = bench.without(left.types, left.nodes)
    partitions, load_error = bench.standing(chosen) if chosen else (None, "")
    return msgspec.structs.replace(
        left, sqnr_db=bench.sqnr(chosen), quantized=len(chosen), partitions=partitions, load_error=load_error
    )


def _settled(trial: Trial, start: Trial, options: MixedOptions) -> bool:
    """Whether a choice is at the goal, loads, and has no more partitions than the one with everything quantized."""
    added = (trial.partitions or 0) > (start.partitions or 0) and not start.load_error
    return trial.sqnr_db >= options.goal_db and not trial.load_error and not added


def _best(trials: Iterable[Trial], goal_db: float) -> Trial:
    """The best of those that load: at the goal, the fewest partitions and the most quantized; else the least noise."""

    def rank(trial: Trial) -> tuple[bool, bool, float, float]:
        if trial.sqnr_db < goal_db:
            return not trial.load_error, False, trial.sqnr_db, 0
        return not trial.load_error, True, -(trial.partitions or 0), trial.quantized

    return max(trials, key=rank)


def _room(bench: Evaluator, options: MixedOptions, evaluations: int = 1) -> bool:
    """Whether so many more evaluations are allowed."""
    return len(bench.asked) + evaluations <= options.evaluations


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
    blocks = (names[start : start + size] for start in range(0, len(names), size))
    losses = [_loss(bench, block) for block in blocks if len(bench.asked) < limit]
    while len(bench.asked) + 2 <= limit and any(len(loss.nodes) > 1 for loss in losses):
        worst = min((loss for loss in losses if len(loss.nodes) > 1), key=lambda loss: loss.sqnr_db)
        losses.remove(worst)
        middle = len(worst.nodes) // 2
        losses += [_loss(bench, worst.nodes[:middle]), _loss(bench, worst.nodes[middle:])]
    return losses


def _loss(bench: Evaluator, names: Sequence[str]) -> LayerLoss:
    kinds = dict.fromkeys(bench.nodes[name] for name in names)
    return LayerLoss(nodes=tuple(names), op_type="+".join(kinds), sqnr_db=bench.sqnr(names))


def _ranked(bench: Evaluator, best: Trial, losses: Sequence[LayerLoss]) -> list[str]:
    """Layers by their noise for each partition that they leave when they stay float, the worst first.

    Noise adds up, so each layer of a run that was not divided counts with its share of the run's.
    """
    noise = {name: 10 ** (-loss.sqnr_db / 10) / len(loss.nodes) for loss in losses for name in loss.nodes}
    ranked = sorted(noise, key=noise.__getitem__, reverse=True)
    if best.partitions is None:
        return ranked
    for name in ranked[:MOST_JUDGED]:
        partitions, load_error = bench.standing(bench.without(best.types, (*best.nodes, name)))
        noise[name] /= math.inf if load_error else max(1, 1 + (partitions or 0) - best.partitions)
    return sorted(noise, key=noise.__getitem__, reverse=True)


PASS = Pass(
    name="mixed-precision",
    title="Quantize statically, and leave float what costs most accuracy.",
    apply=mixed_precision,
    effect=Effect.LOSSY,
    options=MixedOptions,
    before_data=prepare,
)
