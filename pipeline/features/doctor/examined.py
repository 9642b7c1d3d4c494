"""What the checks of doctor look at: graph, device, library, a profiled run."""

from collections import Counter
from dataclasses import dataclass, field, replace

from device_runner.device import DeviceFacts
from device_runner.result import RunResult
from device_runner.spec import RunOptions
from pipeline.check import compare as output_compare
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core.releases import Release
from pipeline.model import signature
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import judge
from pipeline.partition import subject as partition_subject

HEAVY = frozenset({
    "Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Attention", "FusedConv", "QLinearConv",
    "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits",
})  # fmt: skip
"""Operators that take time by computing: the others mostly move memory."""


QUANTIZED = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "ConvInteger",
        "MatMulInteger",
        "DynamicQuantizeMatMul",
        "MatMulNBits",
        "QGemm",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedModel:
    """Everything that a check may decide by. `usual` is a run of the start, `profiled` one with the profiler on.

    `sizes` are those that dynamic dimensions were given. The others are of the graph, as `examine` finds them: `width`
    is how many heavy operators can run at the same time at most; `open` are the names of dynamic dimensions;
    `overridable` counts initializers that are inputs, too. `answers` are by the provider's name in run options, of
    those that are in the library and have rules.
    """

    path: str
    start: RunOptions
    facts: DeviceFacts
    usual: RunResult
    profiled: RunResult
    sizes: dict[str, int] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)
    width: int = 0
    open: tuple[str, ...] = ()
    overridable: int = 0
    half: bool = False
    answers: dict[str, claim_answer.ModelAnswer] = field(default_factory=dict)

    @property
    def precision(self) -> output_compare.OutputPrecision:
        """What the model computes in."""
        if self.quantized:
            return output_compare.OutputPrecision.QUANTIZED
        return output_compare.OutputPrecision.FLOAT16 if self.half else output_compare.OutputPrecision.FLOAT32

    @property
    def quantized(self) -> bool:
        """Whether any operator is a quantized one."""
        return not QUANTIZED.isdisjoint(self.operators)

    @property
    def is_onnx(self) -> bool:
        """Whether the file is what sessions still optimize."""
        return not self.path.lower().endswith(".ort")

    @property
    def release(self) -> Release:
        """The library's release."""
        return ort_releases.line_of(self.usual.ort_version)

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


def examine(model: ExaminedModel, settings: tuple[claim_answer.Settings, ...]) -> ExaminedModel:
    """The model with what its graph has and the rules of providers say; ModelError for what is no model. In a worker.

    Bodies of control flow are not looked into.
    """
    source = SourceModel(path=model.path)
    with partition_subject.scratch_folder(source) as folder:
        views = partition_subject.open_views(source, claim_answer.Optimize.NONE, folder, {})
        graph = views.of(claim_answer.Settings(provider=provider_rules.XNNPACK)).shown
        names = (
            tuple(signature.names_of(signature.open_axes(signature.own_inputs(views.loaded.proto))))
            if views.loaded
            else ()
        )
    levels: dict[str, int] = {}
    heavy: Counter[int] = Counter()
    for index in graph.order:
        node = graph.nodes[index]
        level = max((levels.get(name, 0) for name in node.inputs), default=0) + (node.op_type in HEAVY)
        heavy[level] += node.op_type in HEAVY
        levels.update(dict.fromkeys(node.outputs, level))
    asked = (judge.PartitionRequest(source=source, settings=setting, likely=True) for setting in settings)
    return replace(
        model,
        operators=dict(Counter(node.op_type for node in graph.nodes.values()).most_common()),
        width=max(heavy.values(), default=0),
        open=names,
        overridable=len(graph.overridable),
        half=any(graph.value(name).dtype == "f16" for node in graph.nodes.values() for name in node.outputs if name),
        answers={request.settings.rules.provider: judge.judge(request) for request in asked},
    )
