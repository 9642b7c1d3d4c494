"""Which precision of a model is worth measuring with a provider, and why."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from pipeline.core import providers as provider_rules
from pipeline.core.errors import MissingError, PipelineError
from pipeline.partition import answer as claim_answer

if TYPE_CHECKING:
    from onnx import ModelProto
from pipeline.advice.verdict import FEW_PARTITIONS

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


class PrecisionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether `auto` keeps a precision for a provider, and why. `compute` counts Conv, Gemm, MatMul and their forms.

    `partitions` and the counts are None where the provider's rules were not asked; `lacks_data`: there is no such model
    for want of data alone.
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
        """As in a note: `nnapi: int8 (u8s8nnapi) kept: …`."""
        from pipeline.passes import precisions as passes_precisions

        return (
            f"{self.provider}: {passes_precisions.common_name(self.precision)} "
            f"{'kept' if self.kept else 'dropped'}: {self.reason}"
        )


def choose_precision(
    provider: str,
    before: claim_answer.ModelAnswer | None,
    forms: Mapping[str, claim_answer.ModelAnswer | PipelineError | None],
    *,
    has_data: bool = False,
) -> list[PrecisionVerdict]:
    """One verdict for each form of a model by its precision, in their order.

    A form is what the provider's rules say of it, or why there is no such model; None for the CPU, for which each is
    kept that could be made: no rule says which is more accurate and faster, measurements do. Else at most one is: of
    the forms without a foreseen load error that claim enough of the compute nodes in few pieces, the one with the
    fewest partitions, then the one with the most compute nodes, then the first. XNNPACK copies nothing at a border, so
    its partitions do not count.
    `before` is the answer for the model's own precision: no form is worth its loss of accuracy where the provider
    computes far less of the model than before.
    """
    from pipeline.passes import precisions as passes_precisions

    answers = {name: form if isinstance(form, claim_answer.ModelAnswer) else None for name, form in forms.items()}
    reasons = {name: _unusable(form) for name, form in forms.items()}  # why it cannot be used at all
    fitting = [name for name, reason in reasons.items() if not reason]
    most = max([_claimed(answers[name]) for name in fitting] + [_claimed(before)], default=0)
    least = max(1.0, ENOUGH_COMPUTE * most)
    enough = [name for name in fitting if (answer := answers[name]) is None or _claimed(answer) >= least]
    scattered = [name for name in enough if _scattered(provider, answers[name])]
    worthy = [name for name in enough if name not in scattered]

    def rank(name: str) -> tuple[int, int]:
        answer = answers[name]
        borders = 0 if answer is None or provider_rules.PROVIDER_RULES[provider].on_cpu else answer.borders
        return borders, -_claimed(answer)

    best = min(worthy, key=rank, default=None)
    kept = set(worthy) if provider in CPU_WHY else {best}
    verdicts = []
    for name, answer in answers.items():
        standing = _standing(provider, answer)
        codes = [decision.code for decision in answer.decisions] if answer else []
        if reasons[name]:
            reason = reasons[name]
        elif answer is None:
            reason = CPU_WHY[provider] if name == best else f"beside {best}: which is better, measurements say"
        elif not answer.claimed and (lost := claim_answer.lost_to_dimensions(provider, answer.dynamic, codes)):
            reason = lost
        elif name not in enough:
            reason = f"{standing}, {_standing(provider, before)} in its own precision" if before else standing
        elif name in scattered:
            reason = f"{standing}: each border costs copies and waiting, so the CPU is for this form"
        elif name == best or best is None:
            reason = standing
        else:
            reason = f"{standing}; {best} has {_standing(provider, answers[best])}"
        answer = None if answer and answer.error else answer
        claims = compute_claims(answer)
        verdicts.append(
            PrecisionVerdict(
                provider=provider,
                precision=name,
                kept=name in kept,
                reason=reason,
                partitions=len(answer.partitions) if answer else None,
                compute=len(claims) if answer else None,
                compute_claimed=sum(claims) if answer else None,
                lacks_data=isinstance(forms[name], MissingError)
                and passes_precisions.PRECISIONS[name].needs_data
                and not has_data,
            )
        )
    return verdicts


NODES_A_PIECE = 10
"""Compute nodes of a partition, or between two copies of WebGPU, that are worth its borders; up to the number of pieces
that the guidance accepts of any model there may be fewer."""


def _scattered(provider: str, answer: claim_answer.ModelAnswer | None) -> bool:
    """Whether a provider takes a form in so many pieces that nobody should be offered it."""
    rules = provider_rules.PROVIDER_RULES.get(provider)
    if answer is None or rules is None or rules.on_cpu:
        return False
    return answer.borders > max(
        claim_answer.MOST_COPIES if rules.copies else FEW_PARTITIONS, _claimed(answer) / NODES_A_PIECE
    )


def kept_precisions(verdicts: Sequence[PrecisionVerdict]) -> tuple[str, ...]:
    """What `auto` stands for: the model's own precision, and each that a provider keeps."""
    return tuple(dict.fromkeys(["", *(verdict.precision for verdict in verdicts if verdict.kept)]))


def compute_claims(answer: claim_answer.ModelAnswer | None) -> list[bool]:
    """For each compute node (Conv, Gemm, MatMul and their quantized forms), whether it is claimed."""
    return [decision.claimed for decision in answer.decisions if COMPUTE.fullmatch(decision.op_type)] if answer else []


def quantized_advice(form: str, *answers: claim_answer.ModelAnswer) -> str:
    """Why a model in a form (`precision_of`) should have another, where that costs claims in all answers; "" else."""
    from pipeline.passes import precisions as passes_precisions  # not loaded for a kept answer

    reasons = []
    for answer in answers:
        why = passes_precisions.unsuited(form, answer.ep)
        failed = bool(answer.load and answer.load.error)
        if not why or not (failed or answer.copies or not all(compute_claims(answer))):
            return ""
        copies = provider_rules.PROVIDER_RULES[answer.ep].borders(answer.borders, about=answer.copies_estimated)
        cost = f" ({copies} per inference)" if answer.copies else ""
        reasons.append(f"{why}{cost}")
    return f"the model is {form}: {'; '.join(dict.fromkeys(reasons))}"


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
        # The types of most values and of most weights, and whether any weight has a scale for each channel
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
    types = [tensor.data_type for tensor in model.graph.initializer]
    return "fp16" if types.count(TensorProto.FLOAT16) > len(types) / 2 else ""


def _unusable(form: claim_answer.ModelAnswer | PipelineError | None) -> str:
    """Why a form cannot be used at all; "" where it can."""
    if form is None or isinstance(form, PipelineError):
        return form.reason if form else ""
    return form.error or (form.load.why_not if form.load else "")


def _claimed(answer: claim_answer.ModelAnswer | None) -> int:
    return sum(compute_claims(answer))


def _standing(provider: str, answer: claim_answer.ModelAnswer | None) -> str:
    """As in `10 of 10 compute nodes in 2 partitions`."""
    if provider in CPU_WHY:
        return ""
    claims = compute_claims(answer)
    share = f"{sum(claims)} of {len(claims)} compute nodes"
    rules = provider_rules.PROVIDER_RULES[provider]
    borders = rules.borders(answer.borders if answer else 0)
    return f"{share} {'with' if rules.copies else 'in'} {borders}" if borders else share
