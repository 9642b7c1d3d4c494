"""Measures choices of nodes to quantize: the outputs' signal to noise, and what a provider makes of the result.

Ranges are calibrated once: an evaluation costs one quantization and a few inferences. What was measured is kept by
content as soon as it is known, so that a search that was interrupted goes on where it was.
"""

import hashlib
import math
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from device_runner.files import cache_folder
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.files import write_bytes
from pipeline.core.ort_session import PREPACKING, HostSession, first_line, make_session
from pipeline.core.providers import PROVIDER_RULES
from pipeline.core.variant import Level
from pipeline.model.onnx_model import loadable
from pipeline.model.signature import open_axes, own_inputs
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Optimize, Settings, make_settings
from pipeline.partition.input import write_model
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.passes.base import Feeds, Model, NotApplicable, PassContext
from pipeline.passes.calibration import TensorRanges, quantizable
from pipeline.passes.static import StaticOptions, chosen_nodes, quantize

SAMPLES = 12
"""Samples of one evaluation: rankings are stable from about this many on (quantization Q.8)."""
VERY_GOOD_DB = 120.0
"""Reported for outputs that are equal; its negative for outputs with NaN, which JSON has no number for."""


class PartitionCount(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules of a provider say of a model: partitions (None where they do not count), why it does not load."""

    partitions: int | None = None
    load_error: str = ""


class _Known(msgspec.Struct, kw_only=True):
    """What is kept of the choices that were looked at, by digests of their names; `standings` by provider and level."""

    sqnr_db: dict[str, float] = {}
    standings: dict[str, PartitionCount] = {}


def provider_settings(provider: str, api_level: int, where: str) -> Settings | None:
    """The settings whose partitions count, of the installed release; ConfigError for a provider without rules."""
    if not provider:
        return None
    if provider not in PROVIDER_RULES:
        raise ConfigError(
            f"no rules are known of {provider!r}", where=where, remedy=f"one of {', '.join(PROVIDER_RULES)}"
        )
    return make_settings(provider, api_level=api_level or None)


@dataclass(slots=True)
class Evaluator:
    """A model with its ranges, ready to be quantized in part, and what is known of parts already.

    `settings` are those of the provider whose partitions count; `most` evaluations are announced by `say`.
    """

    model: Model
    ranges: TensorRanges
    options: StaticOptions
    nodes: dict[str, str]
    """Operator types of the nodes that can be quantized, by name in the graph's order."""
    feeds: list[Feeds]
    where: str
    kept: Path
    say: Callable[[str], None]
    settings: Settings | None = None
    most: int = 0
    wanted: list[list[Any]] = field(default_factory=list)
    known: _Known = field(default_factory=_Known)
    asked: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, model: Model, ranges: TensorRanges, options: StaticOptions, context: PassContext) -> "Evaluator":
        """An evaluator with up to SAMPLES of the calibration samples, spread over all of them."""
        chosen = chosen_nodes(model.proto, ranges, options, context.where, quantizable())
        nodes = {node.name: node.op_type for node in model.proto.graph.node if node.name in chosen}
        step = max(1, ranges.samples // SAMPLES)
        assert context.samples is not None  # noqa: S101 - Pass.needs_data
        feeds = [one for number, one in enumerate(context.samples()) if number % step == 0][:SAMPLES]
        kept = cache_folder() / "searches" / f"{_identity(ranges, options, len(feeds))}.json"
        found = cls(model, ranges, options, nodes, feeds, context.where, kept, context.say, known=_read(kept))
        found.wanted = found.outputs(model)
        return found

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
        key = _key(nodes)
        self.asked.add(key)
        if key not in self.known.sqnr_db:
            try:
                self.known.sqnr_db[key] = sqnr_db(self.wanted, self.outputs(self.quantized(nodes)))
            except NotApplicable:  # some types, as MaxPool, are quantized behind quantized nodes only
                self.known.sqnr_db[key] = VERY_GOOD_DB
            self._keep()
        self.say(f"{len(self.asked)} of at most {self.most} evaluations, {self.known.sqnr_db[key]:.1f} dB")
        return self.known.sqnr_db[key]

    def standing(self, nodes: Collection[str]) -> PartitionCount:
        """What the provider makes of the model with these nodes quantized, after level basic."""
        if self.settings is None:
            return PartitionCount()
        key = f"{_key(nodes)} {self.settings.provider} {self.settings.api_level}"
        if key not in self.known.standings:
            try:
                self.known.standings[key] = _judged(self.quantized(nodes), self.settings, self.feeds[0])
            except NotApplicable:  # as in `sqnr`: this is the float model
                self.known.standings[key] = _judged(self.model, self.settings, self.feeds[0])
            self._keep()
        return self.known.standings[key]

    def _keep(self) -> None:
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(self.kept, msgspec.json.encode(self.known))


def _identity(ranges: TensorRanges, options: StaticOptions, samples: int) -> str:
    """Digest of what figures depend on; how many are asked for is not among it."""
    import onnxruntime

    form = {name: getattr(options, name) for name in StaticOptions.__struct_fields__}
    parts = [ranges.model, ranges.data, form, samples, onnxruntime.__version__]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _key(nodes: Collection[str]) -> str:
    return hashlib.sha256("\0".join(sorted(nodes)).encode()).hexdigest()[:24]


def _read(path: Path) -> _Known:
    """What an earlier search kept; nothing where its file cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Known)
    except (OSError, msgspec.DecodeError):
        return _Known()


def _judged(model: Model, settings: Settings, feeds: Feeds) -> PartitionCount:
    """What the rules say of a model whose open dimensions have the sizes of a sample: no provider claims open ones."""
    sizes = {one.key: int(feeds[one.input].shape[one.axis]) for one in open_axes(own_inputs(model.proto))}
    with tempfile.TemporaryDirectory(prefix="ort-mobile-search-") as name:
        path = Path(name) / "model.onnx"
        write_model(model, path)
        answer = judge(
            PartitionRequest(
                source=SourceModel(path=str(path)), settings=settings, optimize=Optimize.BASIC, sizes=sizes
            )
        )
    failed = answer.error or (answer.load.error if answer.load else None) or ""
    counts = not PROVIDER_RULES[settings.provider].on_cpu and not answer.error
    return PartitionCount(partitions=len(answer.partitions) if counts else None, load_error=failed)


def sqnr_db(wanted: Sequence[Sequence[Any]], given: Sequence[Sequence[Any]]) -> float:
    """Signal to noise over samples in dB: of each float output by itself, then the mean of the noise shares.

    Outputs that are not float say nothing and do not count. At most VERY_GOOD_DB, its negative where there is NaN.
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
    if mean == 0:
        return VERY_GOOD_DB
    return max(-VERY_GOOD_DB, min(VERY_GOOD_DB, -10 * math.log10(mean))) if math.isfinite(mean) else -VERY_GOOD_DB
