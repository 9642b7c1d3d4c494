"""What checks decide by: a model's graph, the device, the library, and one profiled run; and what a remedy changes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from device_runner.device import DeviceFacts
from device_runner.result import RunResult, Struct
from device_runner.spec import OptimizationLevel, RunOptions
from pipeline.campaign.options import changed
from pipeline.core.providers import XNNPACK
from pipeline.core.releases import Release, line_of
from pipeline.model.signature import names_of, open_axes, own_inputs
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, Settings
from pipeline.partition.graph import Graph
from pipeline.partition.judge import PartitionRequest, judge, open_views, scratch_folder

HEAVY = frozenset({
    "Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Attention", "FusedConv", "QLinearConv",
    "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits",
})  # fmt: skip
"""Operators that take time by computing: the others mostly move memory."""

QUANTIZED = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger",
    "MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits", "QGemm",
})  # fmt: skip


class Remedy(Struct, frozen=True, kw_only=True):
    """What is changed to see whether it helps.

    `settings` are keys of [[runs]] with their values; `level` is the optimization level of an .onnx file; `without` are
    session config keys that are left out; `steps` are passes as `ort-mobile transform --do` has them; `ort_format`
    converts to ORT format at level all. `lossy`: outputs are expected to differ by the precision of half floats.
    """

    name: str
    settings: dict[str, Any] = {}
    level: OptimizationLevel | None = None
    without: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    ort_format: bool = False
    lossy: bool = False

    @property
    def file_key(self) -> tuple[tuple[str, ...], bool]:
        """Remedies with the same key run the same file; that of the model itself is empty."""
        return self.steps, self.ort_format

    def options(self, start: RunOptions) -> RunOptions:
        """The run options with the remedy; a file in ORT format has no level of its own."""
        kept = {key: value for key, value in start.session_config.items() if key not in self.without}
        options = changed(msgspec.structs.replace(start, session_config=kept), self.settings)
        level = OptimizationLevel.ALL if self.ort_format else self.level or options.optimization_level
        return msgspec.structs.replace(options, optimization_level=level)


def together(remedies: Sequence[Remedy]) -> Remedy:
    """All remedies at once; where two set the same, the later one counts."""
    settings: dict[str, Any] = {}
    for remedy in remedies:
        for key, value in remedy.settings.items():
            settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
    return Remedy(
        name=" + ".join(remedy.name for remedy in remedies),
        settings=settings,
        level=next((remedy.level for remedy in reversed(remedies) if remedy.level), None),
        without=tuple(dict.fromkeys(key for remedy in remedies for key in remedy.without)),
        steps=tuple(dict.fromkeys(step for remedy in remedies for step in remedy.steps)),
        ort_format=any(remedy.ort_format for remedy in remedies),
        lossy=any(remedy.lossy for remedy in remedies),
    )


class ModelTraits(Struct, frozen=True, kw_only=True):
    """What of a graph matters to the checks.

    `width` is how many heavy operators can run at the same time at most; `open` are the names of dynamic dimensions;
    `overridable` counts initializers that are inputs, too.
    """

    operators: dict[str, int] = {}
    width: int = 0
    open: tuple[str, ...] = ()
    overridable: int = 0
    half: bool = False

    @property
    def quantized(self) -> bool:
        """Whether any operator is a quantized one."""
        return not QUANTIZED.isdisjoint(self.operators)


class ExamineRequest(Struct, frozen=True, kw_only=True):
    """A model file, and the providers whose claims are wanted."""

    path: str
    settings: tuple[Settings, ...] = ()


class Examination(Struct, frozen=True, kw_only=True):
    """The traits of a model, and the answer of each provider by its name in run options."""

    traits: ModelTraits = ModelTraits()
    answers: dict[str, ModelAnswer] = {}


def examine(request: ExamineRequest) -> Examination:
    """Read a model's graph and ask the rules of providers; ModelError for what is no model. Runs in a worker."""
    source = SourceModel(path=request.path)
    with scratch_folder(source) as folder:
        views = open_views(source, Optimize.NONE, folder, {})
        graph, *_ = views.of(Settings(provider=XNNPACK))
        loaded = views.subject.loaded
        names = tuple(names_of(open_axes(own_inputs(loaded.proto)))) if loaded else ()
        traits = traits_of(graph, names)
    asked = (PartitionRequest(source=source, settings=settings, likely=True) for settings in request.settings)
    return Examination(
        traits=traits, answers={request_of.settings.rules.provider: judge(request_of) for request_of in asked}
    )


def traits_of(graph: Graph, open_names: Iterable[str] = ()) -> ModelTraits:
    """The traits of a graph; bodies of control flow are not looked into."""
    levels: dict[str, int] = {}
    heavy: Counter[int] = Counter()
    for index in graph.order:
        node = graph.nodes[index]
        level = max((levels.get(name, 0) for name in node.inputs), default=0) + (node.op_type in HEAVY)
        heavy[level] += node.op_type in HEAVY
        levels.update(dict.fromkeys(node.outputs, level))
    return ModelTraits(
        operators=dict(Counter(node.op_type for node in graph.nodes.values()).most_common()),
        width=max(heavy.values(), default=0),
        open=tuple(open_names),
        overridable=len(graph.overridable),
        half=any(graph.value(name).dtype == "f16" for node in graph.nodes.values() for name in node.outputs if name),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedModel:
    """Everything that a check may decide by. `usual` is a run of the start, `profiled` one with the profiler on.

    `answers` are by the provider's name in run options, of those that are in the library and have rules; `sizes` are
    those that dynamic dimensions were given.
    """

    suffix: str
    start: RunOptions
    facts: DeviceFacts
    usual: RunResult
    profiled: RunResult
    traits: ModelTraits = field(default_factory=ModelTraits)
    answers: Mapping[str, ModelAnswer] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_onnx(self) -> bool:
        """Whether the file is what sessions still optimize."""
        return self.suffix != ".ort"

    @property
    def release(self) -> Release:
        """The library's release."""
        return line_of(self.usual.ort_version)

    @property
    def cores(self) -> int:
        """The device's cores; 0 where it does not tell."""
        return len(self.facts.core_max_mhz)

    @property
    def fast_cores(self) -> tuple[int, ...]:
        """Numbers, from 1, of the cores that are not of the slowest kind; all where they are equal."""
        mhz = self.facts.core_max_mhz
        fast = tuple(number for number, speed in enumerate(mhz, 1) if speed > min(mhz))
        return fast or tuple(range(1, len(mhz) + 1))

    def share(self, *operators: str) -> float:
        """The share of operators in the time of the profiled run."""
        rows = self.profiled.profile.operators if self.profiled.profile else ()
        return sum(row.share for row in rows if row.operator in operators)

    def nodes(self, *operators: str) -> int:
        """How many nodes of operators the profiled run had."""
        rows = self.profiled.profile.operators if self.profiled.profile else ()
        return sum(row.nodes for row in rows if row.operator in operators)
