"""Precisions for providers: what `auto` keeps and drops by their claims, and the forms that suit a chip's NPU."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.check.compare import read_tensor
from pipeline.check.result import Reference
from pipeline.core.providers import PROVIDER_RULES
from pipeline.core.variant import OWN_PRECISION
from pipeline.dataset import Dataset, samples
from pipeline.model.onnx_model import LoadedModel, load_model
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, lost_to_dimensions
from pipeline.passes.base import Feeds, PassContext
from pipeline.passes.edit import write_model
from pipeline.passes.precisions import PRECISIONS, RECIPES, Recipe, unsuited
from pipeline.passes.registry import run_passes

if TYPE_CHECKING:
    from onnx import ModelProto


COMPUTE = re.compile(
    r"(Fused|Nhwc)?(Conv|ConvTranspose|Gemm|MatMul)|QLinear(Conv|ConvTranspose|MatMul)|(Conv|MatMul)Integer(ToFloat)?|"
    r"QGemm|QAttention|DynamicQuantizeMatMul|MatMulNBits|MatMulFpQ4"
)
"""Operators that do nearly all of a network's arithmetic, and the quantized forms of each."""

DYNAMIC = {"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"}
QOPERATORS = {"QLinearConv", "QLinearMatMul"}

ENOUGH_COMPUTE = 0.9
"""A form must have this share of the compute nodes of the best one before its partitions count: one that claims next
to nothing has few partitions."""

CPU_WHY = {
    "cpu-arm64": "the CPU of ARM devices has int8 kernels for every node",
    "cpu-x86_64": "the CPU of x86-64 devices has int8 kernels for every node",
}


class PrecisionTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's rules say of a model in one precision; `refusal` says why there is no such model.

    `lacks_data`: there is none for want of data alone.
    """

    precision: str
    answer: ModelAnswer | None = None
    refusal: str = ""
    lacks_data: bool = False


class PrecisionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether `auto` keeps a precision for a provider, and why. `compute` counts Conv, Gemm, MatMul and their forms.

    `partitions` and the counts are None where the provider's rules were not asked; `lacks_data` is as in the trial.
    """

    provider: str
    precision: str
    kept: bool
    reason: str
    partitions: int | None = None
    compute: int | None = None
    compute_claimed: int | None = None
    lacks_data: bool = False

    @property
    def text(self) -> str:
        """As in a note: `nnapi: u8s8nnapi kept: …`."""
        return f"{self.provider}: {self.precision} {'kept' if self.kept else 'dropped'}: {self.reason}"


def choose_precision(
    provider: str, before: ModelAnswer | None, trials: Sequence[PrecisionTrial]
) -> list[PrecisionVerdict]:
    """One verdict for each trial, in their order; at most one is kept.

    Of the forms without a foreseen load error that claim enough of the compute nodes, the one with the fewest
    partitions is kept, then the one with the most compute nodes, then the first. XNNPACK copies nothing at a border, so
    its partitions do not count. `own` is the answer for the model's own precision: no form is worth its loss of
    accuracy where the provider computes far less of the model than before. For the CPU, answers are None.
    """
    reasons = [_unusable(trial) for trial in trials]
    fitting = [trial for trial, reason in zip(trials, reasons, strict=True) if not reason]
    most = max([_claimed(trial.answer) for trial in fitting] + [_claimed(before)], default=0)
    least = max(1.0, ENOUGH_COMPUTE * most)
    enough = [trial for trial in fitting if trial.answer is None or _claimed(trial.answer) >= least]
    best = min(enough, key=lambda trial: _rank(provider, trial.answer), default=None)
    return [
        _verdict(provider, trial, reason or _why(provider, trial, best, before, enough), kept=trial is best)
        for trial, reason in zip(trials, reasons, strict=True)
    ]


def kept_precisions(verdicts: Sequence[PrecisionVerdict]) -> tuple[str, ...]:
    """What `auto` stands for: the model's own precision, and each that a provider keeps."""
    return tuple(dict.fromkeys(["", *(verdict.precision for verdict in verdicts if verdict.kept)]))


def compute_claims(answer: ModelAnswer | None) -> list[bool]:
    """For each compute node (Conv, Gemm, MatMul and their quantized forms), whether it is claimed."""
    return [decision.claimed for decision in answer.decisions if COMPUTE.fullmatch(decision.op_type)] if answer else []


def quantized_advice(form: str, answer: ModelAnswer) -> str:
    """Which precision a model should have for a provider, where its own (`precision_of`) costs claims; "" else."""
    why = unsuited(form, answer.ep)
    failed = bool(answer.load and answer.load.error)
    if not why or not (failed or answer.copies or not all(compute_claims(answer))):
        return ""
    cost = f" ({PROVIDER_RULES[answer.ep].borders(answer.borders)} per inference)" if answer.copies else ""
    return f"the model is {form}: {why}{cost}"


def precision_of(model: "ModelProto") -> str:
    """The name of the precision that a model is in, from its operators and initializers; "" for a float model."""
    from onnx import TensorProto

    operators = {node.op_type for node in model.graph.node}
    if operators & DYNAMIC:
        return "dyn8"
    if operators & QOPERATORS:
        return "u8u8op"
    blocks = next((node for node in model.graph.node if node.op_type == "MatMulNBits"), None)
    if blocks is not None:
        return f"w{next((attribute.i for attribute in blocks.attribute if attribute.name == 'bits'), 4)}"
    if {"QuantizeLinear", "DequantizeLinear"} <= operators:
        return _qdq_precision(model)
    types = [tensor.data_type for tensor in model.graph.initializer]
    return "fp16" if types.count(TensorProto.FLOAT16) > len(types) / 2 else ""


def _qdq_precision(model: "ModelProto") -> str:
    """The types of most values and of most weights, and whether any weight has a scale for each channel."""
    from onnx import TensorProto

    kinds = {TensorProto.UINT8: "u8", TensorProto.INT8: "s8", TensorProto.UINT16: "u16", TensorProto.INT16: "s16"}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    values, weights, channels = Counter[str](), Counter[str](), ""
    for node in model.graph.node:
        tensors = [constants.get(name) for name in node.input]
        if node.op_type == "QuantizeLinear" and len(tensors) > 2 and tensors[2] is not None:
            values[kinds.get(tensors[2].data_type, "")] += 1
        if node.op_type == "DequantizeLinear" and tensors[0] is not None and tensors[0].data_type in kinds:
            weights[kinds[tensors[0].data_type]] += 1
            channels = "pc" if tensors[1] is not None and list(tensors[1].dims) not in ([], [1]) else channels
    return f"{values.most_common(1)[0][0]}{weights.most_common(1)[0][0]}{channels}" if values and weights else ""


def _unusable(trial: PrecisionTrial) -> str:
    """Why a form cannot be used at all; "" where it can."""
    if trial.refusal or trial.answer is None:
        return trial.refusal
    if trial.answer.error:
        return trial.answer.error
    load = trial.answer.load
    return f"no session can be made on the phone: {load.error}" if load and load.error else ""


def _claimed(answer: ModelAnswer | None) -> int:
    return sum(compute_claims(answer))


def _rank(provider: str, answer: ModelAnswer | None) -> tuple[int, int]:
    """Orders forms, the best first."""
    borders = 0 if answer is None or PROVIDER_RULES[provider].on_cpu else answer.borders
    return borders, -_claimed(answer)


def _why(
    provider: str,
    trial: PrecisionTrial,
    best: PrecisionTrial | None,
    before: ModelAnswer | None,
    enough: Sequence[PrecisionTrial],
) -> str:
    if trial is best and trial.answer is None:
        return CPU_WHY[provider]
    if trial.answer is None:
        return f"{best.precision if best else OWN_PRECISION} comes first on the CPU"
    codes = [decision.code for decision in trial.answer.decisions]
    if not trial.answer.claimed and (lost := lost_to_dimensions(provider, trial.answer.dynamic, codes)):
        return lost
    standing = _standing(provider, trial.answer)
    if trial not in enough:
        return f"{standing}, {_standing(provider, before)} in its own precision" if before else standing
    if trial is best:
        return standing
    assert best is not None  # noqa: S101 - one of those that claim enough is the best
    return f"{standing}; {best.precision} has {_standing(provider, best.answer)}"


def _standing(provider: str, answer: ModelAnswer | None) -> str:
    """As in `10 of 10 compute nodes in 2 partitions`."""
    claims = compute_claims(answer)
    share = f"{sum(claims)} of {len(claims)} compute nodes"
    row = PROVIDER_RULES[provider]
    borders = row.borders(answer.borders if answer else 0)
    return f"{share} {'with' if row.copies else 'in'} {borders}" if borders else share


def _verdict(provider: str, trial: PrecisionTrial, reason: str, *, kept: bool) -> PrecisionVerdict:
    asked = trial.answer is not None and not trial.answer.error
    claims = compute_claims(trial.answer)
    return PrecisionVerdict(
        provider=provider,
        precision=trial.precision,
        kept=kept,
        reason=reason,
        partitions=len(trial.answer.partitions) if trial.answer and asked else None,
        compute=len(claims) if asked else None,
        compute_claimed=sum(claims) if asked else None,
        lacks_data=trial.lacks_data,
    )


MOST_SAMPLES = 64
"""Calibration samples of one trial: more change its ranges little (quantization Q.6)."""


def recipes_for(provider: str) -> tuple[Recipe, ...]:
    """The precisions to try for a provider whose claims depend on a chip, the smallest first; none for others."""
    by_chip = PROVIDER_RULES[provider].by_chip
    return tuple(row for row in RECIPES.values() if by_chip and row.provider == provider)


def in_precision(loaded: LoadedModel, precision: str, reference: Reference, data: Dataset, target: Path) -> LoadedModel:
    """A float model in a precision, saved as `target`; calibrated on the data, without any on the reference's sample.

    Raises as the precision's passes do.
    """
    inputs = {tensor.name: read_tensor(tensor) for tensor in reference.inputs}
    takes = own_inputs(loaded.proto)

    limited = msgspec.structs.replace(data, limit=min(data.limit or MOST_SAMPLES, MOST_SAMPLES))

    def feeds() -> Iterator[Feeds]:
        if data.test_data:
            yield from (sample.inputs for sample in samples(limited, takes))
        else:
            yield {info.name: inputs[info.name] for info in takes}

    context = PassContext(folder=target.parent, where=loaded.source.name, samples=feeds)
    quantized = run_passes(loaded, list(PRECISIONS[precision].steps), context).model
    write_model(quantized, target)
    saved = load_model(SourceModel(path=str(target)), target.parent)
    return replace(saved, source=SourceModel(path=str(target)))
